// An answer while it is streamed: what it says so far, and how quickly.

const SHORTEST_S = 0.05; // of an answer whose rate means anything

/** Times of an answer, as its reader sees them. */
export class AnswerClock {
  #begun = performance.now();
  #first = null;
  #answering = null; // when the reasoning was over
  #last = this.#begun;
  #deltas = 0;
  progress = ""; // of the prompt, as the last comment tells it

  /** Note a delta with text. `isReasoning`: whether it is thought and not said. */
  tick(isReasoning) {
    this.#last = performance.now();
    this.#first ??= this.#last;
    if (!isReasoning) this.#answering ??= this.#last;
    this.#deltas++;
  }

  /** Note a comment of the stream, which keeps it alive or tells how far the prompt is. */
  note(comment) {
    this.progress = comment.startsWith("prompt: ") ? comment : "";
  }

  /** How much of the prompt is computed, from 0 to 1; null if nothing tells it. */
  promptShare() {
    const [, done, total] = /(\d+) of (\d+) tokens/.exec(this.#first === null ? this.progress : "") ?? [];
    return total ? Number(done) / Number(total) : null;
  }

  silence() {
    return performance.now() - this.#last;
  }

  /** Write the figures into the answer. A stopped one has no count of the node's: a delta is one token or more. */
  finish(answer) {
    if (this.#first === null) return;
    const tokens = answer.tokens ?? this.#deltas;
    const seconds = (this.#last - this.#first) / 1000;
    answer.first_s = (this.#first - this.#begun) / 1000;
    answer.rate = seconds > SHORTEST_S && tokens > 1 ? (tokens - 1) / seconds : null;
    if (answer.reasoning) answer.thought_s = ((this.#answering ?? this.#last) - this.#first) / 1000;
  }
}

/** Add a chunk of the stream to an answer. */
export function take(answer, chunk, clock) {
  if (chunk.usage) answer.tokens = chunk.usage.completion_tokens;
  answer.model = chunk.model ?? answer.model;
  const choice = chunk.choices[0];
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  if (reasoning) answer.reasoning = (answer.reasoning ?? "") + reasoning;
  if (content) answer.content += content;
  if (reasoning || content) clock.tick(!content);
  if (choice?.finish_reason === "length") answer.cut = true;
}

/** The figures of an answer as text. */
export function figures({ tokens, rate, first_s: first, model, stopped, cut }) {
  return [
    stopped ? "stopped" : "",
    cut ? "cut at the limit of tokens" : "",
    tokens === undefined ? "" : `${tokens} ${tokens === 1 ? "token" : "tokens"}`,
    rate ? `${rate.toFixed(1)} tokens/s` : "",
    first === undefined ? "" : `first after ${first.toFixed(2)} s`,
    model,
  ]
    .filter(Boolean)
    .join(" · ");
}
