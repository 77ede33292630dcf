// The cluster as /cluster/status tells it: models with their layers, nodes and the links between them, warnings.

import { copyButton, element, keyed, setMarked, setText } from "./elements.js";
import { Plot } from "./plot.js";

const GONE = ["suspect", "failed", "left", "refused"];
const COLOURS = 8; // of nodes in the style sheet
const MOST_TOLD = 3; // warnings of one code
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"]; // binary, as memory is sold and as macOS shows it

export class ClusterView {
  #colours = new Map(); // of nodes, by id: a node keeps its colour when others come and go
  #unreachable = element("p", { class: "notice error", role: "alert", hidden: true });
  #facts = element("p", { class: "facts" });
  // Only a new warning is read out: the numbers in others change all the time.
  #warnings = element("ul", { class: "warnings", "aria-live": "polite", "aria-relevant": "additions" });
  #notes = element("ul", { class: "notes" });
  #noteCount = element("summary");
  #folded = element("details", { class: "quiet", hidden: true }, this.#noteCount, this.#notes);
  #models = element("ul", { class: "models" });
  #nodes = element("ol", { class: "nodes" });
  #plots = {
    rate: new Plot("Tokens/s", (value) => value.toFixed(1)),
    requests: new Plot("Requests", (value) => String(value)),
  };

  constructor(parent) {
    const section = (name, ...children) => element("section", {}, element("h2", {}, name), ...children);
    parent.append(
      this.#unreachable,
      element("section", {}, this.#facts, this.#warnings, this.#folded),
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
    this.#showWarnings(status.warnings.filter(({ code }) => code !== "loading" || !areShown), status.nodes);
    const showModel = (item, model) => this.#showModel(item, model, status, names);
    keyed(this.#models, status.models, ({ id }) => id, makeModel, showModel);
    const showEach = (item, each) =>
      each.node ? this.#showNode(item, each, status, names) : showLink(item, each, names);
    keyed(this.#nodes, cardsAndLinks(status.nodes), ({ key }) => key, makeCardOrLink, showEach);
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

  /** What is only information is folded, below the others. */
  #showWarnings(warnings, nodes) {
    const make = () => element("li", {}, element("span"), element("span", { class: "quiet" }));
    const show = (item, { severity, text, hint }) => {
      item.className = severity;
      const [said, advice] = item.children;
      setMarked(said, text);
      setMarked(advice, hint);
    };
    const all = byCode(warnings, nodes);
    const notes = all.filter(({ severity }) => severity === "info");
    keyed(this.#warnings, all.filter((each) => !notes.includes(each)), ({ code }) => code, make, show);
    keyed(this.#notes, notes, ({ code }) => code, make, show);
    this.#folded.hidden = !notes.length;
    setText(this.#noteCount, notes.length === 1 ? "1 note" : `${notes.length} notes`);
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

  #showNode(item, { node, loop }, status, names) {
    const gone = GONE.includes(node.state);
    item.className = `node colour-${this.#colours.get(node.id)} ${loop}${gone ? " gone" : ""}`;
    const [heading, about, layers, loads, memory, memoryText] = item.firstElementChild.children;
    const [name, head, state] = heading.children;
    setText(name, names.get(node.id));
    name.title = node.id;
    head.hidden = node.id !== status.head;
    setText(state, stateOf(node));
    state.className = `state ${node.state}`;
    setText(about, aboutNode(node, status.self));
    setText(layers, layersOf(node, status.models.length > 1));
    keyed(loads, node.loads ?? [], ({ model, start }) => `${model} ${start}`, makeLoad, showLoad);
    const parts = memoryParts(node.memory);
    memory.hidden = memoryText.hidden = !node.memory.usable;
    keyed(memory, parts, (part) => part.name, (part) => element("span", { class: part.name }), (bar, part) => {
      bar.style.flexGrow = part.bytes;
      bar.title = `${bytes(part.bytes)} ${part.label}`;
    });
    const sizes = parts.map((part) => `${bytes(part.bytes)} ${part.label}`);
    setText(memoryText, [...sizes, ...storedText(node)].join(", "));
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

// --- nodes and links ---

/** The cards of the nodes, each followed by its link to the next node of its ring. */
function cardsAndLinks(nodes) {
  const loops = loopsOf(nodes);
  return nodes.flatMap((node, at) => {
    const card = { key: `node ${node.id}`, node, loop: loops[at] };
    if (!node.link) return [card];
    const down = nodes[at + 1]?.id === node.link.to;
    return [card, { key: `link ${node.id}`, link: node.link, down, loop: down ? "between" : "" }];
  });
}

/** For each node its place in a ring that its links close: "first", "middle", "last", or "" outside of one. */
function loopsOf(nodes) {
  const loops = nodes.map(() => "");
  let start = 0;
  nodes.forEach((node, at) => {
    const to = node.link?.to;
    if (to !== undefined && to === nodes[at + 1]?.id) return;
    if (to === nodes[start].id && at > start) {
      loops.fill("middle", start, at + 1);
      loops[start] = "first";
      loops[at] = "last";
    }
    start = at + 1;
  });
  return loops;
}

function makeCardOrLink({ node }) {
  if (!node) return element("li", {});
  const head = element("span", { class: "head" }, "head");
  const heading = element("h3", {}, element("span", { class: "name" }), head, element("span"));
  const quiet = () => element("p", { class: "quiet" });
  const memory = element("p", { class: "memory", "aria-hidden": "true" });
  const lines = [heading, quiet(), element("p"), element("ul"), memory, quiet()];
  return element("li", {}, element("div", { class: "card" }, ...lines));
}

function showLink(item, { link, down, loop }, names) {
  item.className = `link ${loop}`;
  const figures = [
    [link.kind, link.interface].filter(Boolean).join(" "),
    `${link.rtt_ms.toFixed(1)} ms`,
    link.bytes_per_second ? `${bytes(link.bytes_per_second)}/s` : "",
  ];
  const to = names.get(link.to) ?? link.to;
  setText(item, [`${down ? "↓" : "↰"} to ${to}`, ...figures.filter(Boolean)].join(" · "));
}

/** Names to show, by id. Nodes of one machine share its name, and get the first digits of their ids. */
function namesOf(nodes) {
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

/** First and last layer, as people count. */
const span = ({ start, end }) => (end - start === 1 ? `${start}` : `${start}–${end - 1}`);

/** What the memory for models holds: weights and KV, or their sum from a node that does not tell them apart. */
function memoryParts({ usable, used, weights, kv }) {
  const known = weights !== undefined;
  return [
    { name: "used", label: known ? "weights" : "used", bytes: known ? weights : used },
    { name: "kv", label: "KV", bytes: known ? kv : 0 },
    { name: "free", label: "free", bytes: Math.max(usable - (known ? weights + kv : used), 0) },
  ].filter(({ bytes: count, name }) => count || name !== "kv");
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
  const figures = [
    total ? `${bytes(done)} of ${bytes(total)}` : `${Math.round(100 * progress)} %`,
    rate ? `${bytes(rate)}/s` : "",
    left === null || left === undefined ? "" : `${duration(left)} left`,
  ];
  return `${state} layers ${span({ start, end })} of ${model.split("/").at(-1)}: ${figures.filter(Boolean).join(", ")}`;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// --- models and warnings ---

function makeModel() {
  const lines = [element("h3", { class: "name" }), element("span"), element("p", { class: "quiet" }), element("ul")];
  return element("li", { class: "model-card" }, ...lines);
}

function modelFigures({ rings, layers, context, requests, tokens_per_second: rate }) {
  if (!rings.length) return "No nodes hold it.";
  const tokens = context % 1024 ? String(context) : `${context / 1024}k`;
  const nodes = new Set(rings.flatMap((ring) => ring.stages.map(({ node }) => node))).size;
  const copies = rings.length > 1 ? ` in ${rings.length} rings` : "";
  return [
    `${layers} layers${copies} on ${nodes} ${nodes === 1 ? "node" : "nodes"}`,
    `context ${tokens}`,
    `${requests.running} running, ${requests.queued} queued`,
    `${rate.toFixed(1)} tokens/s`,
  ].join(" · ");
}

/** One for all warnings of a code, mostly of several nodes: what they say, and the hint that they have in common. */
function byCode(warnings, nodes) {
  const names = new Map(nodes.map(({ id, name }) => [id, name]));
  const codes = new Map();
  for (const each of warnings) codes.set(each.code, [...(codes.get(each.code) ?? []), each]);
  return [...codes.values()].map((alike) => {
    const isSame = new Set(alike.map(({ hint }) => hint)).size === 1;
    const told = alike.map(({ text, hint }) => (isSame ? text : `${text} ${hint}`.trimEnd()));
    const { who, said } = of(alike, told, names);
    const more = said.length > MOST_TOLD ? [`And ${said.length - MOST_TOLD} more.`] : [];
    const text = [...(who ? [`${who}:`] : []), ...said.slice(0, MOST_TOLD), ...more].join(" ");
    return { ...alike[0], text, hint: isSame ? alike[0].hint : "" };
  });
}

/** Of which nodes warnings are, and what is said of them: once, if each says the same of itself. */
function of(alike, told, names) {
  const nodes = [...new Set(alike.map(({ node }) => node).filter(Boolean))];
  if (nodes.length < 2) return { who: "", said: told };
  const who = `${nodes.length} nodes`;
  const same = new Set(alike.map(({ node }, at) => withoutName(told[at], names.get(node))));
  if (nodes.length !== alike.length || same.size > 1 || same.has(told[0])) return { who, said: told };
  const first = nodes.slice(0, MOST_TOLD).map((node) => names.get(node));
  return { who: `${who} (${first.join(", ")}${nodes.length > MOST_TOLD ? ", …" : ""})`, said: [...same] };
}

const withoutName = (text, name) => (name && text.startsWith(`${name} `) ? text.slice(name.length + 1) : text);

function bytes(count) {
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(count, 1)) / 10), 0), UNITS.length - 1);
  return power ? `${(count / 1024 ** power).toFixed(1)} ${UNITS[power]}` : `${Math.round(count)} B`;
}
