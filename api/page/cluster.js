// The cluster as /cluster/status tells it: a picture of it, models with their layers, nodes and their links, warnings.

import { setDraining } from "./api.js";
import { copyButton, element, keyed, setText } from "./elements.js";
import { Plot } from "./plot.js";
import { Topology } from "./topology.js";
import { bytes, duration, progressText, promptsOf, span, tokens } from "./units.js";
import { WarningList } from "./warnings.js";

const GONE = ["suspect", "failed", "left", "refused"];
const COLOURS = 8; // of nodes in the style sheet

export class ClusterView {
  #colours = new Map(); // of nodes, by id: a node keeps its colour when others come and go
  #unreachable = element("p", { class: "notice error", role: "alert", hidden: true });
  #facts = element("p", { class: "facts" });
  #warnings = new WarningList();
  #topology = new Topology();
  #failures = new Map(); // why a node could not be drained, by id
  #models = element("ul", { class: "placed" });
  #nodes = element("ol", { class: "nodes" });
  #plots = {
    rate: new Plot("Tokens/s", (value) => value.toFixed(1)),
    requests: new Plot("Requests", (value) => String(value)),
  };

  /** `onError(error)`: whether the page deals with it itself. */
  constructor(parent, onError) {
    this.onError = onError;
    const section = (name, ...children) => element("section", {}, element("h2", {}, name), ...children);
    parent.append(
      this.#unreachable,
      element("section", {}, this.#facts, this.#warnings.node),
      element("section", { class: "picture" }, this.#topology.node),
      section("Models", this.#models),
      section("Nodes", this.#nodes),
      section("Last minutes", element("div", { class: "plots" }, this.#plots.rate.node, this.#plots.requests.node)),
    );
    this.parent = parent;
  }

  /** Say that the node does not answer; what is shown is old. */
  showUnreachable(message) {
    this.parent.classList.add("old");
    this.#unreachable.hidden = false;
    setText(this.#unreachable, `${message} The page tries again.`);
  }

  show(status) {
    this.parent.classList.remove("old");
    this.#unreachable.hidden = true;
    for (const { id } of status.nodes) if (!this.#colours.has(id)) this.#colours.set(id, this.#colours.size % COLOURS);
    const names = namesOf(status.nodes);
    this.#showFacts(status, names);
    const areShown = status.nodes.some((node) => node.loads); // with their figures, on the cards of the nodes
    this.#warnings.show(status.warnings.filter(({ code }) => code !== "loading" || !areShown), status.nodes);
    const isGone = ({ state }) => GONE.includes(state);
    this.#topology.show(status, names, (id) => this.#colours.get(id), isGone);
    this.#models.parentElement.hidden = !status.models.length;
    const showModel = (item, model) => this.#showModel(item, model, status, names);
    keyed(this.#models, status.models, ({ id }) => id, makeModel, showModel);
    const makeNode = ({ id }) => makeCard((isDraining) => this.#drain(id, isDraining));
    const showNode = (item, node) => this.#showNode(item, node, status, names);
    keyed(this.#nodes, status.nodes, ({ id }) => id, makeNode, showNode);
    const sum = (value) => status.models.reduce((total, model) => total + value(model), 0);
    this.#plots.rate.add(sum((model) => model.tokens_per_second));
    this.#plots.requests.add(sum(({ requests }) => requests.running + requests.queued));
  }

  #showFacts(status, names) {
    const head = status.head ? `Head ${names.get(status.head) ?? status.head}, term ${status.term}` : "No head yet";
    const key = `${head} ${status.api}`;
    if (this.#facts.dataset.key === key) return;
    this.#facts.dataset.key = key;
    const api = element("span", {}, element("code", {}, status.api), copyButton(() => status.api));
    this.#facts.replaceChildren(element("span", {}, head), ...(status.api ? [api] : []));
  }

  #showModel(item, model, status, names) {
    const [name, state, figures, rings] = item.children;
    setText(name, model.id);
    setText(state, model.state);
    state.className = `state ${model.state}`;
    setText(figures, modelFigures(model));
    const present = new Set(status.nodes.filter((node) => !GONE.includes(node.state)).map(({ id }) => id));
    const make = () => element("li", { class: "band" });
    keyed(rings, model.rings, ({ id }) => id, make, (band, ring) => {
      band.classList.toggle("retiring", ring.state === "retiring");
      keyed(band, ring.stages, ({ node }) => node, () => element("span", {}), (part, stage) => {
        const { node, start, end } = stage;
        part.className = `layers colour-${this.#colours.get(node) ?? 0}${present.has(node) ? "" : " gone"}`;
        part.style.flexGrow = end - start;
        setText(part, span(stage));
        part.title = `Layers ${span(stage)} of ${model.id} on ${names.get(node) ?? node}`;
      });
    });
  }

  async #drain(node, isDraining) {
    this.#failures.delete(node);
    try {
      await setDraining(node, isDraining);
    } catch (error) {
      if (!this.onError(error)) this.#failures.set(node, error.message);
    }
  }

  #showNode(item, node, status, names) {
    const gone = GONE.includes(node.state);
    item.className = `node colour-${this.#colours.get(node.id)}${gone ? " gone" : ""}`;
    const [heading, about, layers, loads, memory, memoryText, link, error, drain, use] = item.firstElementChild.children;
    const [name, head, state] = heading.children;
    setText(name, names.get(node.id));
    name.title = node.id;
    name.dataset.name = names.get(node.id);
    head.hidden = node.id !== status.head;
    setText(state, stateOf(node));
    state.className = `state ${node.state}`;
    setText(about, aboutNode(node, status.self));
    setText(layers, gone ? "" : layersOf(node, status.models.length > 1));
    keyed(loads, node.loads ?? [], ({ model, start }) => `${model} ${start}`, makeLoad, showLoad);
    const parts = memoryParts(node.memory);
    memory.hidden = memoryText.hidden = gone || !node.memory.usable;
    keyed(memory, parts, (part) => part.name, (part) => element("span", { class: part.name }), (bar, part) => {
      bar.style.flexGrow = part.bytes;
      bar.title = `${bytes(part.bytes)} ${part.label}`;
    });
    const sizes = parts.map((part) => `${bytes(part.bytes)} ${part.label}`);
    setText(memoryText, [...sizes, ...storedText(node)].join(", "));
    setText(link, node.link ? linkText(node.link, names) : "");
    setText(error, this.#failures.get(node.id) ?? "");
    const isDraining = ["draining", "drained"].includes(node.state);
    drain.hidden = gone || isDraining;
    use.hidden = gone || !isDraining;
  }
}

/** State and size, for the top of the page. */
export function summaryOf(status) {
  const count = status.nodes.filter((node) => !GONE.includes(node.state)).length;
  return `${status.state}, ${count} ${count === 1 ? "node" : "nodes"}`;
}

/** What the nodes still fetch and load of a model; empty if nothing is known of it. */
export function loadingOf(status, model) {
  const names = namesOf(status.nodes);
  return status.nodes
    .flatMap(({ id, loads }) => (loads ?? []).map((load) => ({ name: names.get(id), load })))
    .filter(({ load }) => load.model === model)
    .map(({ name, load }) => `${name}: ${loadText(load)}.`)
    .join(" ");
}

// --- nodes ---

/** A card. `drain(isDraining)`: the user wants it so. */
function makeCard(drain) {
  const head = element("span", { class: "head" }, "head");
  const heading = element("h3", {}, element("span", { class: "name" }), head, element("span"));
  const quiet = () => element("p", { class: "quiet" });
  const memory = element("p", { class: "memory", "aria-hidden": "true" });
  const button = (name, text, isDraining) =>
    element("button", { type: "button", class: `plain small ${name}`, onclick: () => drain(isDraining) }, text);
  const buttons = [button("drain", "Drain", true), button("undrain", "Use it again", false)];
  buttons[0].title = "Move its work to other nodes, and place nothing new on it";
  const error = element("p", { class: "error", role: "alert" });
  const lines = [heading, quiet(), element("p"), element("ul"), memory, quiet(), quiet(), error, ...buttons];
  return element("li", {}, element("div", { class: "card" }, ...lines));
}

function linkText({ to, kind, interface: name, rtt_ms: rtt, bytes_per_second: rate }, names) {
  const figures = [[kind, name].filter(Boolean).join(" "), `${rtt.toFixed(1)} ms`, rate ? `${bytes(rate)}/s` : ""];
  return [`→ ${names.get(to) ?? to}`, ...figures.filter(Boolean)].join(" · ");
}

/** Names to show, by id. Nodes of one machine share its name, and get the first digits of their ids. */
export function namesOf(nodes) {
  const all = nodes.map((node) => node.name);
  const isShared = (name) => all.indexOf(name) !== all.lastIndexOf(name);
  return new Map(nodes.map(({ id, name }) => [id, isShared(name) ? `${name}-${id.slice(0, 4)}` : name]));
}

const stateOf = ({ state, reason }) => (reason ? `${state}: other ${reason}` : state);

function aboutNode({ id, chip, version, last_seen_s: seen, state }, self) {
  const since = GONE.includes(state) && state !== "refused" ? `not heard for ${Math.round(seen)} s` : "";
  return [chip, `Pippin ${version}`, id === self ? "serves this page" : "", since].filter(Boolean).join(" · ");
}

function layersOf({ layers, memory }, nameModels) {
  const one = (layer) => (nameModels ? `${span(layer)} of ${layer.model.split("/").at(-1)}` : span(layer));
  const held = layers.length ? `Layers ${layers.map(one).join(", ")}` : "No layers";
  return memory.kept ? `${held}; ${bytes(memory.kept)} of others kept` : held;
}

/** What the memory for models holds: weights and KV, or their sum from a node that does not tell them apart. */
function memoryParts({ usable, used, weights, kv }) {
  const known = weights !== undefined;
  return [
    { name: "used", label: known ? "weights" : "used", bytes: known ? weights : used },
    { name: "kv", label: "KV", bytes: known ? kv : 0 },
    { name: "free", label: "free", bytes: Math.max(usable - (known ? weights + kv : used), 0) },
  ].filter(({ bytes: count, name }) => count || name === "free");
}

/** The KV of sessions on a node's disk, and how much of it no other node has a copy of yet. */
function storedText({ kv_on_disk: stored, kv_uncopied: uncopied }) {
  const rest = uncopied ? ` (${bytes(uncopied)} to be copied)` : "";
  return stored ? [`${bytes(stored)} KV on disk${rest}`] : [];
}

const makeLoad = () => element("li", {}, element("span", { class: "quiet" }), element("progress", { max: "1" }));

function showLoad(item, load) {
  const [text, bar] = item.children;
  setText(text, loadText(load));
  bar.value = load.progress;
  bar.setAttribute("aria-label", loadText(load));
}

/** As "fetching layers 8–11 of Qwen3-8B: 1.2 of 4.5 GB, 30.0 MB/s, 2 min left". */
function loadText({ state, model, start, end, progress, ...download }) {
  const { done_bytes: done, total_bytes: total, bytes_per_second: rate, seconds_left: left } = download;
  const figures = total ? progressText(done, total, rate, left) : `${Math.round(100 * progress)} %`;
  return `${state} layers ${span({ start, end })} of ${model.split("/").at(-1)}: ${figures}`;
}

// --- models ---

function makeModel() {
  const lines = [element("h3", { class: "name" }), element("span"), element("p", { class: "quiet" }), element("ul")];
  return element("li", { class: "model-card" }, ...lines);
}

export function modelFigures(model) {
  const { rings, layers, context, requests, tokens_per_second: rate } = model;
  if (!rings.length) return "No nodes hold it.";
  const nodes = new Set(rings.flatMap((ring) => ring.stages.map(({ node }) => node))).size;
  const copies = rings.length > 1 ? ` in ${rings.length} rings` : "";
  return [
    `${layers} layers${copies} on ${nodes} ${nodes === 1 ? "node" : "nodes"}`,
    `context ${tokens(context)}`,
    `${requests.running} running, ${requests.queued} queued`,
    `${rate.toFixed(1)} tokens/s`,
    promptText(promptsOf([model])),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** As "prompt: 1280 of 4096 tokens, 21.0 tokens/s, 2 min left". */
function promptText(prompts) {
  if (!prompts) return "";
  const { done, tokens: all, rate } = prompts;
  const pace = rate ? `, ${rate.toFixed(1)} tokens/s, ${duration((all - done) / rate)} left` : "";
  return `prompt: ${done} of ${all} tokens${pace}`;
}
