// The models that this page has its node fetch. A download lasts as long as the page is open; what has come is kept.

import { pullModel } from "./api.js";
import { progressText } from "./units.js";

const SPAN_MS = 5000; // over which the rate is measured
const MOST = 3; // at once: a browser has six connections to a node, and the rest of the page needs some

export class Downloads {
  #running = new Map(); // {controller, share, text} by model

  /** `changed()`: there is more to show. `failed(model, error)`: one has ended with an error. */
  constructor({ changed, failed }) {
    this.changed = changed;
    this.failed = failed;
  }

  /** {share, text} of a download that is under way; else undefined. */
  get(model) {
    return this.#running.get(model);
  }

  /** Begin a download, or stop the one that is under way. */
  async toggle(model) {
    const running = this.#running.get(model);
    if (running) return running.controller.abort();
    if (this.#running.size >= MOST) return this.failed(model, new Error(`${MOST} downloads run already.`));
    const controller = new AbortController();
    const download = { controller, share: 0, text: "Waiting for the download …" };
    this.#running.set(model, download);
    this.changed();
    const samples = [];
    try {
      for await (const { done, bytes } of pullModel(model, controller.signal)) {
        download.share = bytes ? done / bytes : 0;
        download.text = `Downloading: ${told(samples, done, bytes)}`;
        this.changed();
      }
    } catch (error) {
      if (!controller.signal.aborted) this.failed(model, error);
    }
    this.#running.delete(model);
    this.changed();
  }
}

function told(samples, done, total) {
  const now = performance.now();
  samples.push([now, done]);
  while (samples[0][0] < now - SPAN_MS) samples.shift();
  const [since, before] = samples[0];
  const rate = now > since ? (1000 * (done - before)) / (now - since) : 0;
  return progressText(done, total, rate, rate ? (total - done) / rate : null);
}
