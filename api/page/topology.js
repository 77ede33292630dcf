// The cluster as a picture: its nodes on a ring with their layers, the links between them with their speed, and tokens on their way.

import { element, keyed, setText, svg } from "./elements.js";
import { bytes, percent, promptsOf, span } from "./units.js";

const WIDTH = 440;
const X = WIDTH / 2;
const MANY = 6; // nodes, above which they are drawn smaller, with their names outside and without what is in their cards
const LONGEST = 18; // characters of a name
const SHORTEST = 10; // of one of many
const ROOMY = 30; // radius of a node in which what it holds is written in two lines
const NAME = [50, 42]; // half the width, and the height, of what stands below a node

export class Topology {
  #links = svg("g", { class: "links" });
  #nodes = svg("g", { class: "stations" });
  #labels = svg("g", { class: "labels" });
  #model = svg("text", { class: "model-name", x: X });
  #rate = svg("text", { class: "rate", x: X });
  #unit = svg("text", { class: "unit", x: X });
  #title = svg("title");

  constructor() {
    const head = svg("path", { d: "M0 0L8 4L0 8Z" });
    const box = { viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" };
    const arrow = svg("marker", { id: "arrow", markerUnits: "userSpaceOnUse", ...box }, head);
    const centre = svg("g", { class: "centre" }, this.#model, this.#rate, this.#unit);
    const parts = [this.#title, svg("defs", {}, arrow), this.#links, this.#nodes, this.#labels, centre];
    this.drawing = svg("svg", { role: "img" }, ...parts);
    this.node = element("figure", { class: "topology" }, this.drawing);
  }

  /** `names`: of the nodes, by id. `colourOf(id)`: number of its colour. `isGone(node)`: whether it is away. */
  show(status, names, colourOf, isGone) {
    const stages = servingStages(status.models);
    const { ringed, spare } = parted(status.nodes, stages);
    const place = placesOf(ringed.length);
    const row = rowOf(spare.length, place.height);
    const stations = [
      ...ringed.map((node, at) => ({ node, at, radius: place.radius, isSmall: place.isMany, ...place.at(at) })),
      ...spare.map((node, at) => ({ node, at: -1, radius: row.radius, ...row.at(at) })),
    ];
    this.drawing.setAttribute("viewBox", `0 0 ${WIDTH} ${row.height}`);
    const hops = hopsOf(status.models, new Map(stations.map((each) => [each.node.id, each])), place);
    keyed(this.#links, hops, ({ key }) => key, makeLink, showLink);
    const labels = hops.filter(({ isRead }) => isRead);
    keyed(this.#labels, labels, ({ key }) => key, makeLabel, showLabel);
    keyed(this.#nodes, stations, ({ node }) => node.id, makeStation, (group, station) => {
      const gone = isGone(station.node);
      group.setAttribute("class", `station colour-${colourOf(station.node.id)}${gone ? " gone" : ""}`);
      showStation(group, station, names.get(station.node.id), gone, stages.get(station.node.id) ?? station.node.layers);
    });
    this.#showCentre(status.models, place);
    setText(this.#title, inWords(stations, hops, names));
  }

  #showCentre(models, place) {
    const served = models.filter(({ rings }) => rings.length);
    const rate = served.reduce((sum, model) => sum + model.tokens_per_second, 0);
    const one = served.length === 1 ? short(served[0].id.split("/").at(-1)) : `${served.length} models`;
    const prompts = promptsOf(served);
    const [figure, unit] = prompts && !rate ? [percent(prompts), "of the prompt"] : [rate.toFixed(1), "tokens/s"];
    setText(this.#model, served.length ? one : "No model is loaded");
    setText(this.#rate, served.length ? figure : "");
    setText(this.#unit, served.length ? unit : "");
    [this.#model, this.#rate, this.#unit].forEach((text, at) => text.setAttribute("y", place.middle + [-26, 12, 32][at]));
  }
}

/** The nodes that serve in rings, and the others: dead ones, those to spare. If there is no ring, all stand in the ring. */
function parted(nodes, stages) {
  const ringed = nodes.filter(({ id }) => stages.has(id));
  return ringed.length ? { ringed, spare: nodes.filter(({ id }) => !stages.has(id)) } : { ringed: nodes, spare: [] };
}

/** What each node has of the rings that serve, by its id; the layers of rings that go are left out. */
function servingStages(models) {
  const stages = new Map();
  for (const { rings } of models) {
    for (const stage of rings.filter(({ state }) => state !== "retiring").flatMap((ring) => ring.stages)) {
      stages.set(stage.node, [...(stages.get(stage.node) ?? []), stage]);
    }
  }
  return stages;
}

/** Where nodes stand that are in no ring: in rows below `top`. */
function rowOf(count, top) {
  const [radius, across] = [22, Math.min(count, 4)];
  const at = (index) => {
    const inRow = Math.min(across, count - across * Math.floor(index / across));
    const x = X + ((index % across) - (inRow - 1) / 2) * (WIDTH / 4);
    return { x, y: top + radius + 14 + 96 * Math.floor(index / across), angle: 0 };
  };
  return { radius, at, height: top + (count ? 96 * Math.ceil(count / across) : 0) };
}

/** Where the nodes stand: `at(index)` gives {x, y, angle}, clockwise from the left or the top; `along` a link's angles. */
function placesOf(count) {
  const isMany = count > MANY;
  const radius = isMany ? 20 : 34;
  if (count < 2) return { height: 230, middle: 185, radius, at: () => ({ x: X, y: 60, angle: 0 }) };
  const [rx, ry] = count === 2 ? [140, 78] : isMany ? [128, 140] : [140, 126];
  const centre = ry + (count === 2 ? 34 : radius + (isMany ? 26 : 12));
  const first = count === 2 ? Math.PI : -Math.PI / 2;
  const on = (angle) => ({ x: X + rx * Math.cos(angle), y: centre + ry * Math.sin(angle), angle });
  const gap = (angle) => (radius + (isMany ? 4 : 9)) / Math.hypot(rx * Math.sin(angle), ry * Math.cos(angle));
  const step = (2 * Math.PI) / count;
  const at = (index) => on(first + index * step);
  const lowest = Math.max(...Array.from({ length: count }, (_, index) => at(index).y)) + radius + 40;
  const height = isMany ? 2 * centre : Math.max(lowest, centre + ry + 24);
  return { count, isMany, height, middle: centre, radius, rx, ry, on, gap, step, centre, at };
}

/** The hops of all rings that serve, with their paths and what is said of their links; one for rings that share it. */
function hopsOf(models, stations, place) {
  const hops = new Map();
  const rings = models.flatMap((model) => model.rings).filter(({ state, stages }) => state !== "retiring" && stages.length > 1);
  for (const { stages, requests } of rings) {
    stages.forEach((stage, at) => {
      const [from, to] = [stations.get(stage.node), stations.get(stages[(at + 1) % stages.length].node)];
      if (!from || !to) return;
      const key = `${stage.node} ${to.node.id}`;
      const flows = requests.running > 0 || (hops.get(key)?.flows ?? false);
      hops.set(key, { ...hop(from, to, place), key, flows });
    });
  }
  return [...hops.values()];
}

function hop(from, to, place) {
  const isNext = from.at >= 0 && (from.at + 1) % place.count === to.at;
  const { path, x, y } = isNext ? arc(from, to, place) : across(from, to, place);
  const link = from.node.link?.to === to.node.id ? from.node.link : null;
  const rate = link?.bytes_per_second ? `${bytes(link.bytes_per_second)}/s` : "";
  const label = link ? [`${link.rtt_ms.toFixed(1)} ms`, rate].filter(Boolean) : null;
  const isRead = label && isNext && !place.isMany; // inside, it would be on the figures; the node's card has it, too
  return { path, x, y, label, isRead, kind: link?.kind ?? "", from: from.node.id, to: to.node.id };
}

/** Along the ring, to the next node. */
function arc(from, to, place) {
  const { on, rx, ry, step } = place;
  const [begin, end] = [from.angle + clear(from, 1, place), from.angle + step - clear(to, -1, place)];
  const [one, other, middle] = [on(begin), on(end), on((begin + end) / 2)];
  const path = `M${point(one)}A${rx} ${ry} 0 ${end - begin > Math.PI ? 1 : 0} 1 ${point(other)}`;
  return { path, x: middle.x, y: middle.y };
}

/** The angle from a node at which a link is beside its disc, and not behind its name. */
function clear({ x, y, angle }, direction, { on, gap, radius, step, isMany }) {
  let from = gap(angle);
  if (isMany) return from;
  for (; from < step / 3; from += 0.02) {
    const end = on(angle + direction * from);
    if (Math.abs(end.x - x) > NAME[0] || end.y < y + radius / 2 || end.y > y + radius + NAME[1]) break;
  }
  return from;
}

/** Through the inside, to any node. */
function across(from, to, { radius, centre }) {
  const pull = { x: (from.x + to.x) / 4 + X / 2, y: (from.y + to.y) / 4 + centre / 2 };
  const [one, other] = [towards(from, pull, radius + 6), towards(to, pull, radius + 9)];
  const middle = (axis) => (one[axis] + 2 * pull[axis] + other[axis]) / 4;
  return { path: `M${point(one)}Q${point(pull)} ${point(other)}`, x: middle("x"), y: middle("y") };
}

function towards(from, to, distance) {
  const whole = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * distance) / whole, y: from.y + ((to.y - from.y) * distance) / whole };
}

const point = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;

// --- what is drawn ---

const makeLink = () => svg("g", {}, svg("path", { class: "wire", "marker-end": "url(#arrow)" }), svg("path", { class: "tokens" }));

function showLink(group, { path, kind, flows }) {
  group.setAttribute("class", `hop ${flows ? "flows" : ""} ${kind === "wi-fi" ? "wireless" : ""}`);
  for (const each of group.children) each.setAttribute("d", path);
}

const makeLabel = () => svg("text", {}, svg("tspan"), svg("tspan"));

function showLabel(text, { label, x, y }) {
  [...text.children].forEach((line, at) => {
    line.setAttribute("x", x.toFixed(1));
    line.setAttribute("y", (y + (label.length > 1 ? -3 + 14 * at : 4)).toFixed(1));
    setText(line, label[at] ?? "");
  });
}

function makeStation() {
  const ring = (name) => svg("circle", { class: name, pathLength: 100 });
  const text = (name) => svg("text", { class: name });
  return svg("g", {}, ring("disc"), ring("track"), ring("memory-share"), text("what"), text("layers-text"), text("name"), text("chip"));
}

function showStation(group, { node, x, y, angle, radius, isSmall = false }, name, gone, held) {
  const [disc, track, share, what, layers, label, chip] = group.children;
  group.classList.toggle("small", isSmall);
  for (const [circle, r] of [[disc, radius - 5], [track, radius], [share, radius]]) {
    for (const [key, value] of Object.entries({ cx: x, cy: y, r })) circle.setAttribute(key, value.toFixed(1));
  }
  share.setAttribute("transform", `rotate(-90 ${point({ x, y })})`);
  const { usable, used } = node.memory;
  share.setAttribute("stroke-dasharray", `${usable && !gone ? Math.min((100 * used) / usable, 100).toFixed(1) : 0} 200`);
  const total = held.reduce((sum, { start, end }) => sum + end - start, 0);
  const layersText = held.length > 1 ? `${total} layers` : held.length ? span(held[0]) : "–";
  const at = (text, dy, said, dx = 0) => {
    text.setAttribute("x", (x + dx).toFixed(1));
    text.setAttribute("y", (y + dy).toFixed(1));
    setText(text, said);
  };
  const hasWhat = held.length > 0 && !gone && radius >= ROOMY;
  at(what, -7, !hasWhat ? "" : held.length === 1 ? "layers" : `${held.length} models`);
  at(layers, hasWhat ? 10 : 5, gone ? "✕" : layersText);
  layers.classList.toggle("long", held.length > 1);
  const [side, down] = isSmall ? [Math.cos(angle), Math.sin(angle)] : [0, 1];
  const isBeside = Math.abs(side) > 0.3;
  label.style.textAnchor = isBeside ? (side > 0 ? "start" : "end") : "middle";
  at(label, isBeside ? down * radius + 4 : down * (radius + 13) + 5, short(name, isSmall ? SHORTEST : LONGEST), side * (radius + 7));
  at(chip, radius + 33, isSmall ? "" : gone ? node.state : short(node.chip));
}

const short = (text, most = LONGEST) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** The picture for those who do not see it. */
function inWords(stations, hops, names) {
  const held = stations.map(({ node }) => {
    const layers = node.layers.map(span).join(", ");
    return `${names.get(node.id)}: ${node.state}${layers ? `, layers ${layers}` : ""}`;
  });
  const links = hops.map(({ from, to, label }) => `${names.get(from)} to ${names.get(to)}${label ? `, ${label.join(", ")}` : ""}`);
  return [...held, ...links].join("; ");
}
