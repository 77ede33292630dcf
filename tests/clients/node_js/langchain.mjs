// LangChain's models for OpenAI's and Ollama's APIs: n8n's nodes for both are made of these packages, given the same fields.
import assert from "node:assert/strict";
import { ChatOllama, OllamaEmbeddings } from "@langchain/ollama";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { HELLO, isWeather, MODEL, run, URL, WEATHER } from "./harness.mjs";

const openai = { apiKey: "any", configuration: { baseURL: URL }, maxRetries: 0 };
const ollama = { baseUrl: URL.replace(/\/v1$/, ""), model: MODEL };
const chats = [
  new ChatOpenAI({ ...openai, model: MODEL, temperature: 0, timeout: 60_000 }),
  new ChatOpenAI({ ...openai, model: MODEL, temperature: 0, useResponsesApi: true }),
  new ChatOllama({ ...ollama, temperature: 0, keepAlive: "5m", numCtx: 2048 }),
];

async function streamed(chat) {
  let text = "";
  for await (const part of await chat.stream("Hello")) text += part.text;
  return text;
}

await run({
  async plain_and_streamed() {
    for (const chat of chats) {
      const answer = await chat.invoke("Hello");
      assert.equal(answer.text, HELLO);
      assert(answer.usage_metadata.output_tokens > 5);
      assert.equal(await streamed(chat), HELLO);
    }
  },

  async batches() {
    for (const chat of chats) {
      const answers = await chat.batch(["Hello", "Hello", "Hello"]);
      assert.deepEqual(answers.map((answer) => answer.text), [HELLO, HELLO, HELLO]);
    }
  },

  async tools() {
    const tool = { type: "function", function: { name: "weather", parameters: WEATHER } };
    const { tool_calls: calls } = await chats[0].bindTools([tool], { tool_choice: "required" }).invoke("Hello");
    assert.equal(calls[0].name, "weather");
    assert(isWeather(calls[0].args));
  },

  async structured_output() {
    assert(isWeather(await chats[0].withStructuredOutput(WEATHER, { name: "weather", method: "jsonSchema" }).invoke("Hello")));
    assert(isWeather(await chats[2].withStructuredOutput(WEATHER, { method: "jsonSchema" }).invoke("Hello")));
  },

  async embeddings() {
    const both = [new OpenAIEmbeddings({ ...openai, model: MODEL }), new OllamaEmbeddings(ollama)];
    const [[one, other], [same]] = await Promise.all(both.map((each) => each.embedDocuments(["Hello", "Good evening"])));
    assert(Math.abs(Math.hypot(...one) - 1) < 1e-3);
    assert.notDeepEqual(one, other);
    assert(one.every((number, k) => Math.abs(number - same[k]) < 1e-3));
  },
});
