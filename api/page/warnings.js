// What the cluster warns of: what several nodes say alike is told once, and what is only information is folded.

import { element, keyed, setMarked, setText } from "./elements.js";

const MOST_TOLD = 3; // warnings of one code

export class WarningList {
  // Only a new warning is read out: the numbers in others change all the time.
  #urgent = element("ul", { class: "warnings", "aria-live": "polite", "aria-relevant": "additions" });
  #notes = element("ul", { class: "notes" });
  #noteCount = element("summary");
  #folded = element("details", { class: "quiet", hidden: true }, this.#noteCount, this.#notes);
  node = element("div", {}, this.#urgent, this.#folded);

  /** What is only information is folded, below the others. */
  show(warnings, nodes) {
    const make = () => element("li", {}, element("span"), element("span", { class: "quiet" }));
    const show = (item, { severity, text, hint }) => {
      item.className = severity;
      const [said, advice] = item.children;
      setMarked(said, text);
      setMarked(advice, hint);
    };
    const all = byCode(warnings, nodes);
    const notes = all.filter(({ severity }) => severity === "info");
    keyed(this.#urgent, all.filter((each) => !notes.includes(each)), ({ code }) => code, make, show);
    keyed(this.#notes, notes, ({ code }) => code, make, show);
    this.#folded.hidden = !notes.length;
    setText(this.#noteCount, notes.length === 1 ? "1 note" : `${notes.length} notes`);
  }
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
