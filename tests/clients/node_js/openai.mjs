// The official package for JavaScript.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ASK, HELLO, isWeather, MODEL, run, URL, WEATHER } from "./harness.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: "any", maxRetries: 0 });
const greedy = { model: MODEL, messages: ASK, temperature: 0 };
const tools = [{ type: "function", function: { name: "weather", parameters: WEATHER } }];

await run({
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert(ids.includes(MODEL));
    assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  },

  async plain_and_streamed() {
    assert.equal((await client.chat.completions.create(greedy)).choices[0].message.content, HELLO);
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...greedy, stream: true }))
      text += chunk.choices[0].delta.content ?? "";
    assert.equal(text, HELLO);
    const final = await client.chat.completions.stream(greedy).finalChatCompletion();
    assert.equal(final.choices[0].message.content, HELLO);
  },

  async refusals() {
    await assert.rejects(client.chat.completions.create({ ...greedy, model: "nothing" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...greedy, top_p: 2 }), OpenAI.BadRequestError);
  },

  async hanging_up() {
    const stream = await client.chat.completions.create({ ...greedy, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    assert.equal((await client.chat.completions.create(greedy)).choices[0].message.content, HELLO);
  },

  async tools() {
    const asked = { ...greedy, tools, tool_choice: "required" };
    const [call] = (await client.chat.completions.create(asked)).choices[0].message.tool_calls;
    assert(isWeather(JSON.parse(call.function.arguments)));
    const final = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  },

  async structured_output() {
    const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
    const answer = await client.chat.completions.parse({
      ...greedy, max_tokens: 300, response_format: zodResponseFormat(person, "person"),
    });
    assert.equal(typeof answer.choices[0].message.parsed.age, "number");
  },

  async responses() {
    assert.equal((await client.responses.create({ model: MODEL, input: "Hello", temperature: 0 })).output_text, HELLO);
    const final = await client.responses.stream({ model: MODEL, input: "Hello", temperature: 0 }).finalResponse();
    assert.equal(final.output_text, HELLO);
  },

  async embeddings() {
    const made = await client.embeddings.create({ model: MODEL, input: ["Hello", "Good evening"] });
    assert(Math.abs(Math.hypot(...made.data[0].embedding) - 1) < 1e-3);
  },
});
