// The models that nodes hold: loaded, unloaded, fetched and deleted here; and those that may be had by a name.

import { loadModel, searchHub, unloadModel } from "./api.js";
import { loadingOf, modelFigures, namesOf } from "./cluster.js";
import { DeleteDialog } from "./delete.js";
import { Downloads } from "./downloads.js";
import { element, keyed, setMarked, setText } from "./elements.js";
import { bytes } from "./units.js";

const TYPED_MS = 400; // after the last key, until the hub is asked
const LEAST = 2; // characters that the hub is asked for
const MOST = 12; // short names that are shown
const GONE = ["suspect", "failed", "left", "refused"];

export class ModelsView {
  #overview = { models: [], short_names: {}, unusable: [] };
  #status = { nodes: [], models: [], self: "" };
  #onHub = []; // what the hub has found
  #errors = new Map(); // what went wrong with each model
  #asked = new Set(); // models of which the cluster has not yet said whether it does as the user wants
  #typing = 0;
  #search = element("input", { type: "search", id: "find-model", spellcheck: "false", autocomplete: "off" });
  #hubText = element("p", { class: "quiet", role: "status" });
  #found = element("ul", { class: "found", "aria-label": "Models found" });
  #held = element("ul", { class: "held", "aria-label": "Models that nodes hold" });
  #unusable = element("p", { class: "quiet" });

  /** `onError(error)`: whether the page deals with it itself. `onTalk(model)`: the user wants to talk to it. */
  constructor(parent, { onError, onTalk }) {
    this.onError = onError;
    this.onTalk = onTalk;
    const changed = () => this.#redraw();
    this.downloads = new Downloads({ changed, failed: (model, error) => this.#failed(model, error) });
    this.deletion = new DeleteDialog({ changed, failed: onError });
    this.#search.placeholder = "Short name, or part of a name";
    this.#search.addEventListener("input", () => this.#look());
    const find = element("label", {}, element("h2", {}, "Get a model"), this.#search);
    const shelf = element("h2", {}, "On disk and in memory");
    parent.append(element("div", { class: "column" }, find, this.#hubText, this.#found, shelf, this.#held, this.#unusable));
  }

  focus() {
    this.#search.focus();
  }

  show(overview) {
    this.#overview = overview;
    this.#redraw();
  }

  showStatus(status) {
    this.#status = status;
    if (this.#held.checkVisibility()) this.#redraw();
  }

  // --- what the user does ---

  #look() {
    clearTimeout(this.#typing);
    this.#onHub = [];
    setText(this.#hubText, "");
    const text = this.#search.value.trim();
    if (text.length >= LEAST) this.#typing = setTimeout(() => this.#ask(text), TYPED_MS);
    this.#redraw();
  }

  async #ask(text) {
    setText(this.#hubText, "Searching the hub …");
    let found = [];
    let told = "";
    try {
      found = await searchHub(text);
      told = found.length ? "" : "The hub has no model for MLX of this name.";
    } catch (error) {
      if (!this.onError(error)) told = error.message;
    }
    if (this.#search.value.trim() !== text) return; // a later search has begun
    this.#onHub = found;
    setText(this.#hubText, told);
    this.#redraw();
  }

  async #run(model, action) {
    this.#errors.delete(model);
    this.#asked.add(model);
    this.#redraw();
    try {
      await action();
    } catch (error) {
      this.#failed(model, error);
    }
    this.#asked.delete(model);
    this.#redraw();
  }

  #failed(model, error) {
    if (!this.onError(error)) this.#errors.set(model, error.message);
    this.#redraw();
  }

  // --- what is shown ---

  #redraw() {
    const found = this.#candidates();
    const make = (model) => this.#make(model);
    const update = (item, model) => this.#update(item, model);
    keyed(this.#found, found, ({ id }) => id, make, update);
    const order = ["ready", "loading", "failed", "refused"];
    const rank = ({ state }) => (order.indexOf(state) + order.length + 1) % (order.length + 1);
    const held = [...this.#overview.models].sort((one, other) => rank(one) - rank(other));
    keyed(this.#held, held, ({ id }) => id, make, update);
    const unusable = (this.#overview.unusable ?? []).map(({ id, reason }) => `${id}: ${reason}`);
    setText(this.#unusable, unusable.join(" "));
  }

  /** What the typed text may mean: an id, short names, and what the hub has found; without those that nodes hold. */
  #candidates() {
    const text = this.#search.value.trim();
    if (!text) return [];
    const held = new Set(this.#overview.models.map(({ id }) => id));
    const short = Object.entries(this.#overview.short_names ?? {});
    const named = short.filter(([name]) => name.includes(text.toLowerCase())).slice(0, MOST);
    const typed = /^[\w.-]+\/[\w.-]+$/.test(text) ? [{ id: text }] : [];
    const byShort = named.map(([, id]) => ({ id }));
    const sizes = this.#overview.sizes ?? {};
    const onHub = new Map(this.#onHub.map(({ id, ...known }) => [id, known]));
    const all = new Map([...byShort, ...this.#onHub, ...typed].map((model) => [model.id, model]));
    return [...all.values()]
      .filter(({ id }) => !held.has(id))
      .map(({ id }) => {
        const names = short.filter(([, of]) => of === id).map(([name]) => name);
        const found = { id, state: "", bytes: 0, nodes: [], reason: "", aliases: [], ...onHub.get(id), short_names: names };
        return { ...found, bytes: found.bytes || (sizes[id] ?? 0) };
      })
      .map((model) => ({ ...model, reason: this.#obstacle(model) }));
  }

  /** As the node says of what it holds: whether the weights are too large for all nodes. */
  #obstacle({ bytes: size }) {
    const usable = this.#status.nodes
      .filter(({ state }) => !GONE.includes(state) && !state.startsWith("drain"))
      .reduce((sum, { memory }) => sum + memory.usable, 0);
    return size > usable ? `The weights need ${bytes(size)}; the nodes have ${bytes(usable)} for models.` : "";
  }

  #make({ id }) {
    const button = (name, onclick) => element("button", { type: "button", class: `plain small ${name}`, onclick });
    const quiet = () => element("p", { class: "quiet" });
    const number = (label, name) => element("label", {}, label, element("input", { type: "number", name, min: "1", placeholder: "automatic" }));
    const load = (how) => this.#run(id, () => loadModel(id, how));
    const how = element(
      "form",
      { class: "how", onsubmit: (event) => (event.preventDefault(), load(wishOf(event.target))) },
      number("On at least so many nodes", "stages"),
      number("Context in tokens", "context"),
      element("button", { type: "submit" }, "Load with these"),
    );
    const named = (text, node) => (node.append(text), node);
    return element(
      "li",
      { class: "model-card" },
      element("h3", { class: "name" }),
      element("span"),
      quiet(),
      element("p", { class: "reason" }),
      quiet(),
      element("progress", { max: "1" }),
      element("p", { class: "error", role: "alert" }),
      element(
        "p",
        { class: "buttons" },
        named("Chat", button("talk", () => this.onTalk(id))),
        named("Load", button("load", () => load({}))),
        named("Unload", button("unload", () => this.#run(id, () => unloadModel(id)))),
        button("pull", () => (this.#errors.delete(id), this.downloads.toggle(id))),
        named("Delete", button("remove", () => this.deletion.ask(id, this.#nodeName()))),
      ),
      element("details", {}, element("summary", { class: "quiet" }, "Stages and context"), how),
    );
  }

  #nodeName() {
    return namesOf(this.#status.nodes).get(this.#status.self) ?? "this node";
  }

  #update(item, model) {
    const [name, state, facts, reason, progress, bar, error, buttons] = item.children;
    const placed = this.#status.models.find(({ id }) => id === model.id);
    const isHere = model.nodes.includes(this.#status.self);
    const download = this.downloads.get(model.id);
    const inMemory = placed ? placed.rings.length > 0 || placed.state === "loading" : false;
    if (placed?.state === "refused") this.#errors.delete(model.id); // the cluster says why, with the numbers of now
    setText(name, model.id);
    setText(state, placed?.state ?? model.state);
    state.className = `state ${placed?.state ?? model.state}`;
    setText(facts, factsOf(model, namesOf(this.#status.nodes)));
    setText(reason, model.reason);
    const loading = loadingOf(this.#status, model.id);
    const figures = placed?.rings.length ? modelFigures(placed) : "";
    const isAsked = this.#asked.has(model.id);
    setText(progress, download?.text ?? (loading || (isAsked ? "Asking the cluster …" : figures)));
    bar.hidden = !download;
    bar.value = download?.share ?? 0;
    bar.setAttribute("aria-label", download?.text ?? "");
    setMarked(error, this.#errors.get(model.id) ?? "");
    for (const button of [...buttons.children].slice(1, 3)) button.disabled = isAsked;
    const [talk, load, unload, pull, remove] = buttons.children;
    talk.hidden = !model.nodes.length && !placed;
    load.hidden = inMemory;
    unload.hidden = !placed; // a refused one is no longer wanted then
    pull.hidden = isHere && !download;
    setText(pull, download ? "Stop the download" : "Download");
    pull.title = `To the disk of ${this.#nodeName()}`;
    remove.hidden = !isHere || download !== undefined;
  }
}

/** The whole numbers of a form by their names, without the empty ones. */
function wishOf(form) {
  const fields = [...new FormData(form)].filter(([, value]) => value !== "");
  return Object.fromEntries(fields.map(([name, value]) => [name, Number(value)]));
}

/** As "4.3 GB · qwen3-8b · fits · on the disks of mini-1, mini-2". */
function factsOf({ bytes: size, short_names: short, aliases = [], nodes, reason, downloads }, names) {
  const held = nodes.map((node) => names.get(node) ?? node).join(", ");
  return [
    size ? bytes(size) : "",
    [...short, ...aliases].join(", "),
    reason || !size ? "" : "fits",
    held ? `on disk of ${held}` : "",
    downloads ? `${downloads.toLocaleString("en")} downloads` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
