// Anthropic's official package for JavaScript.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ASK, HELLO, isWeather, MODEL, run, URL, WEATHER } from "./harness.mjs";

const client = new Anthropic({ baseURL: URL.replace(/\/v1$/, ""), apiKey: "any", maxRetries: 0 });
const greedy = { model: MODEL, messages: ASK, max_tokens: 200, temperature: 0 };
const tools = [{ name: "weather", input_schema: WEATHER }];

await run({
  async models() {
    const ids = [];
    for await (const model of client.models.list({ limit: 1 })) ids.push(model.id);
    assert(ids.includes(MODEL));
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  },

  async plain_and_streamed() {
    const answer = await client.messages.create(greedy);
    assert.equal(answer.content[0].text, HELLO);
    assert.match(answer._request_id, /^req_/);
    let text = "";
    const stream = client.messages.stream(greedy).on("text", (piece) => { text += piece; });
    const final = await stream.finalMessage();
    assert.equal(text, HELLO);
    assert.deepEqual(final.content, answer.content);
    assert.equal(final.usage.output_tokens, answer.usage.output_tokens);
    const counted = await client.messages.countTokens({ model: MODEL, messages: ASK });
    assert.equal(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens);
  },

  async refusals() {
    await assert.rejects(client.messages.create({ ...greedy, model: "nothing" }), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({ ...greedy, top_p: 2 }), Anthropic.BadRequestError);
  },

  async hanging_up() {
    const stream = await client.messages.create({ ...greedy, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    assert.equal((await client.messages.create(greedy)).content[0].text, HELLO);
  },

  async tools() {
    const asked = { ...greedy, tools, tool_choice: { type: "tool", name: "weather" } };
    const { content, stop_reason } = await client.messages.create(asked);
    assert.equal(stop_reason, "tool_use");
    assert(isWeather(content[0].input));
    const final = await client.messages.stream(asked).finalMessage();
    assert.deepEqual(final.content[0].input, content[0].input);
  },

  async structured_output() {
    const answer = await client.messages.create({
      ...greedy, output_config: { format: { type: "json_schema", schema: WEATHER } },
    });
    assert(isWeather(JSON.parse(answer.content[0].text)));
  },
});
