// Asks one question as LibreChat does: a run of its agents, with a tool. Prints the content of the answer, and what the tool was asked.
import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { Providers, Run } from "@librechat/agents";

const [kind, model, text] = process.argv.slice(2);
const url = process.env.CLIENT_URL;
const openai = { provider: Providers.OPENAI, configuration: { baseURL: url } };
const anthropic = { provider: Providers.ANTHROPIC, maxTokens: 200, clientOptions: { baseURL: url.replace(/\/v1$/, "") } };
const ways = { chat: openai, responses: { ...openai, useResponsesApi: true }, messages: anthropic };

const asked = [];
const weather = tool(
  (given) => {
    asked.push(given);
    return "It is sunny.";
  },
  {
    name: "get_weather",
    description: "Get the weather in a city.",
    schema: { type: "object", properties: { location: { type: "string" } }, required: ["location"] },
  },
);
const run = await Run.create({
  runId: crypto.randomUUID(),
  graphConfig: {
    type: "standard",
    instructions: "You are a helpful assistant.",
    tools: [weather],
    llmConfig: { ...ways[kind], model, apiKey: "any", temperature: 0, maxRetries: 0 },
  },
  returnContent: true,
});
const how = { runId: crypto.randomUUID(), streamMode: "values", version: "v2" };
const content = await run.processStream({ messages: [new HumanMessage(text)] }, how);
console.log(JSON.stringify({ content, asked }));
