// The Vercel AI SDK, with its provider for compatible servers and its provider for OpenAI.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { HELLO, isWeather, MODEL, run, URL, WEATHER } from "./harness.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const compatible = createOpenAICompatible({
  name: "pippin", baseURL: URL, apiKey: "any", includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: URL, apiKey: "any" });
const greedy = { prompt: "Hello", temperature: 0, maxRetries: 0 };
const person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });

async function plainAndStreamed(model) {
  const { text, usage } = await generateText({ model, ...greedy });
  assert.equal(text, HELLO);
  const streamed = streamText({ model, ...greedy, onError: ({ error }) => { throw error; } });
  let joined = "";
  for await (const part of streamed.textStream) joined += part;
  assert.equal(joined, HELLO);
  assert.equal((await streamed.usage).outputTokens, usage.outputTokens);
}

async function callsTool(model) {
  const asked = {
    model, ...greedy, toolChoice: "required", stopWhen: stepCountIs(1),
    tools: { weather: tool({ description: "Forecast.", inputSchema: jsonSchema(WEATHER), execute: () => "Sunny." }) },
  };
  const { toolCalls, toolResults } = await generateText(asked);
  assert(isWeather(toolCalls[0].input));
  assert.equal(toolResults[0].output, "Sunny.");
  const streamed = streamText(asked);
  assert.deepEqual((await streamed.toolCalls)[0].input, toolCalls[0].input);
}

async function structured(model) {
  const { output } = await generateText({ model, ...greedy, maxOutputTokens: 300, output: Output.object({ schema: person }) });
  assert.equal(typeof output.age, "number");
}

await run({
  plain_and_streamed: () => plainAndStreamed(compatible(MODEL)),
  legacy_completions: async () => {
    const { text } = await generateText({ model: compatible.completionModel(MODEL), ...greedy, maxOutputTokens: 8 });
    assert(text);
  },
  tools: () => callsTool(compatible(MODEL)),
  structured_output: () => structured(compatible(MODEL)),
  openai_chat: () => plainAndStreamed(openai.chat(MODEL)),
  openai_chat_tools: () => callsTool(openai.chat(MODEL)),
  responses: () => plainAndStreamed(openai.responses(MODEL)),
  responses_tools: () => callsTool(openai.responses(MODEL)),
  responses_structured_output: () => structured(openai.responses(MODEL)),
  embeddings: async () => {
    const { embedding } = await embed({ model: compatible.embeddingModel(MODEL), value: "Hello", maxRetries: 0 });
    assert(Math.abs(Math.hypot(...embedding) - 1) < 1e-3);
  },
});
