// A small plot of the last minutes: one value that changes with time, as a filled line.

import { element, setText, svg } from "./elements.js";

const SPAN_MS = 5 * 60_000;
const WIDTH = 300;
const HEIGHT = 56;

export class Plot {
  #samples = []; // [milliseconds, value], of the last SPAN_MS
  #now = element("strong");
  #peak = element("span", { class: "quiet" });
  #area = svg("path", { class: "area" });
  #line = svg("path", { class: "line" });

  /** `format`: a value as text, with its unit. */
  constructor(name, format) {
    this.name = name;
    this.format = format;
    this.drawing = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      this.#area,
      this.#line,
    );
    const caption = element("figcaption", {}, element("span", {}, name), this.#now, this.#peak);
    this.node = element("figure", { class: "plot" }, caption, this.drawing);
  }

  add(value, now = Date.now()) {
    this.#samples.push([now, value]);
    while (this.#samples[0][0] < now - SPAN_MS) this.#samples.shift();
    const peak = Math.max(...this.#samples.map(([, each]) => each));
    const x = (time) => (WIDTH * (1 - (now - time) / SPAN_MS)).toFixed(1);
    const y = (each) => (HEIGHT - 1 - (HEIGHT - 4) * (peak ? each / peak : 0)).toFixed(1);
    const line = this.#samples.map(([time, each]) => `${x(time)} ${y(each)}`).join("L");
    this.#line.setAttribute("d", `M${line}`);
    this.#area.setAttribute("d", `M${x(this.#samples[0][0])} ${HEIGHT}L${line}L${WIDTH} ${HEIGHT}Z`);
    setText(this.#now, this.format(value));
    setText(this.#peak, `peak ${this.format(peak)}`);
    this.drawing.setAttribute("aria-label", `${this.name}: ${this.format(value)}, at most ${this.format(peak)}`);
  }
}
