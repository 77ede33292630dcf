// Ollama's official package for JavaScript.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { ASK, HELLO, isWeather, MODEL, run, URL, WEATHER } from "./harness.mjs";

const client = new Ollama({ host: URL.replace(/\/v1$/, "") });
const greedy = { model: MODEL, messages: ASK, options: { temperature: 0 } };

await run({
  async models() {
    assert((await client.list()).models.some((model) => model.model === `${MODEL}:latest`));
    assert((await client.show({ model: MODEL })).capabilities.includes("completion"));
    assert((await client.ps()).models.some((model) => model.name === `${MODEL}:latest`));
    assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
  },

  async plain_and_streamed() {
    assert.equal((await client.chat(greedy)).message.content, HELLO);
    let text = "";
    for await (const part of await client.chat({ ...greedy, stream: true })) text += part.message.content;
    assert.equal(text, HELLO);
  },

  async generated() {
    const asked = { model: MODEL, prompt: "Hello", options: { temperature: 0 } };
    assert.equal((await client.generate(asked)).response, HELLO);
    let text = "";
    for await (const part of await client.generate({ ...asked, stream: true })) text += part.response;
    assert.equal(text, HELLO);
  },

  async refusals() {
    await assert.rejects(client.chat({ ...greedy, model: "nothing" }), { name: "ResponseError", status_code: 404 });
    await assert.rejects(client.chat({ ...greedy, options: { top_p: 2 } }), /options\.top_p/);
  },

  async hanging_up() {
    const stream = await client.chat({ ...greedy, stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream) stream.abort();
    }, { name: "AbortError" });
    assert.equal((await client.chat(greedy)).message.content, HELLO);
  },

  async structured_output() {
    const answer = await client.chat({ ...greedy, format: WEATHER });
    assert(isWeather(JSON.parse(answer.message.content)));
  },

  async embeddings() {
    const { embeddings } = await client.embed({ model: MODEL, input: ["Hello", "Good evening"] });
    assert(embeddings.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-3));
  },
});
