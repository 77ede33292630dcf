// Claude Code without a terminal. Between it and the node is a proxy that makes each answer greedy and may force a call:
// the built-in model is too small to decide on one by itself.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { MODEL, run, URL } from "./harness.mjs";

const NODE = URL.replace(/\/v1$/, "");
const PROGRAM = join(import.meta.dirname, "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs");
const home = mkdtempSync(join(tmpdir(), "pippin-claude-code-"));
process.on("exit", () => rmSync(home, { recursive: true }));
const file = join(home, "fruit.txt");
writeFileSync(file, "apple banana orange\n");

const send = (path, body) =>
  fetch(NODE + path, { method: "POST", body: JSON.stringify(body), headers: { "anthropic-version": "2023-06-01" } });

/** Runs Claude Code once. Returns its result, and the requests that it sent. */
async function claude(prompt, options, change = () => {}) {
  const sent = [];
  const proxy = createServer(async (request, response) => {
    if (request.method !== "POST") return response.end();
    const body = { ...JSON.parse(await text(request)), temperature: 0 };
    change(body, sent.length);
    sent.push(body);
    const answer = await send(request.url, body);
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    for await (const piece of answer.body ?? []) response.write(piece);
    response.end();
  });
  await new Promise((ready) => proxy.listen(0, "127.0.0.1", ready));
  const environment = {
    PATH: process.env.PATH, HOME: home, ANTHROPIC_BASE_URL: `http://127.0.0.1:${proxy.address().port}`,
    ANTHROPIC_API_KEY: "any", ANTHROPIC_MODEL: MODEL, ANTHROPIC_DEFAULT_HAIKU_MODEL: MODEL,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1", DISABLE_TELEMETRY: "1",
  };
  const short = ["--bare", "--no-session-persistence", "--system-prompt", "Be brief."]; // its own is 37,000 tokens, more than the context
  const asked = [PROGRAM, "-p", prompt, "--output-format", "json", ...short, ...options];
  const child = spawn(process.execPath, asked, { cwd: home, env: environment, stdio: ["ignore", "pipe", "pipe"] });
  const [said, errors] = await Promise.all([text(child.stdout), text(child.stderr)]);
  proxy.close();
  proxy.closeAllConnections();
  assert(said.startsWith("{"), said + errors);
  return { result: JSON.parse(said), sent };
}

await run({
  async an_answer() {
    const { result, sent } = await claude("Count from 1 to 20", ["--tools", ""]);
    assert.deepEqual([result.is_error, sent.length], [false, 1], result.result);
    const again = await (await send("/v1/messages", { ...sent[0], stream: false })).json();
    assert.equal(result.result.trim(), again.content[0].text.trim());
    assert.equal(result.usage.output_tokens, again.usage.output_tokens);
  },

  async a_file_is_read() {
    const { result, sent } = await claude("Read it", ["--tools", "Read"], (body, number) => {
      const [tool] = body.tools;
      tool.input_schema.properties = { file_path: { type: "string", enum: [file] } };
      body.tool_choice = number ? { type: "none" } : { type: "tool", name: "Read" };
    });
    assert.deepEqual([result.is_error, sent.length], [false, 2], result.result);
    const [use, told] = sent[1].messages.slice(-2).map((message) => message.content.at(-1));
    assert.deepEqual(use.input, { file_path: file });
    assert.match(JSON.stringify(told.content), /apple banana orange/);
    assert.equal(told.tool_use_id, use.id);
  },

  async a_refusal() {
    const { result } = await claude("word ".repeat(20_000), ["--tools", ""]);
    assert.equal(result.is_error, true);
    assert.match(result.result, /too long/i);
  },
});
