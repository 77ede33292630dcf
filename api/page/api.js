// Asks the node that served this page, over its public API.

const ANSWER_MS = 5000; // a node answers from memory at once, even while it computes
const FILES_MS = 30_000; // when it reads files, or asks the hub
const LOAD_MS = 120_000; // when the head may first ask the hub for the model's description
const NO_ANSWER = "This node does not answer. Is it still running?";
const KEY = "pippin.key"; // of the session: the browser forgets it with the tab

export class ApiError extends Error {
  /** `status`: of HTTP; 0 if no answer came, or if an answer broke off. `code`: as the API names the error. */
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);

export const readStatus = () => read("cluster/status");
export const readModels = async () => (await read("v1/models")).data.map((model) => model.id);

/** The models that nodes hold or that the cluster wants, and all short names. */
export const readOverview = () => read("cluster/models");

/** What the files of a model say: its context, sampling, and whether it thinks. */
export const describeModel = (model) => read(pathOf(model), FILES_MS);

export const searchHub = async (text) => (await read(`cluster/hub?search=${encodeURIComponent(text)}`, FILES_MS)).models;

/** Load a model for good. `how`: at least so many `stages`, and a `context`; null for the cluster's choice. */
export const loadModel = (model, how) => change("POST", pathOf(model, "/load"), how);

export const unloadModel = (model) => change("POST", pathOf(model, "/unload"));

/** Delete a model from this node's disk. `not_fetched`: also what other programs have put there. Returns its bytes. */
export const removeModel = async (model, not_fetched) => (await change("DELETE", pathOf(model), { not_fetched })).bytes;

export const setDraining = (node, isDraining) =>
  change("POST", `cluster/nodes/${encodeURIComponent(node)}/${isDraining ? "drain" : "undrain"}`);

/** Fetch a model to this node's disk; yields {done, bytes}. Aborting `signal` ends it; the next fetch goes on from there. */
export async function* pullModel(model, signal) {
  for await (const each of events(pathOf(model, "/pull"), {}, signal, "The download")) {
    if (typeof each !== "string") yield each;
  }
}

/** Yield the chunks of a streamed chat, and as texts its comments. Aborting `signal` ends the request, and so the work on it. */
export function streamChat(body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  return events("v1/chat/completions", request, signal, "The answer");
}

const pathOf = (model, command = "") => `cluster/models/${encodeURIComponent(model)}${command}`;

const sent = (method, body) => ({
  method,
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body ?? {}),
});

const change = async (method, path, body) =>
  (await ask(path, { ...sent(method, body), signal: AbortSignal.timeout(LOAD_MS) })).json();

/** Yield the events of a stream as objects, and its comments as texts. `what`: its name if it breaks off. */
async function* events(path, request, signal, what) {
  const response = await ask(path, { ...sent("POST", request), signal });
  for await (const line of lines(response.body, what)) {
    if (line === "data: [DONE]") return;
    if (line.startsWith(": ")) yield line.slice(": ".length);
    if (!line.startsWith("data: ")) continue;
    const chunk = JSON.parse(line.slice("data: ".length));
    if (chunk.error) throw new ApiError(chunk.error.message, 0, chunk.error.code);
    yield chunk;
  }
  throw new ApiError(`${what} broke off: the node that served it has stopped.`);
}

/** An object of JSON, soon: a node whose cable is pulled closes no connection. */
async function read(path, milliseconds = ANSWER_MS) {
  const response = await ask(path, { signal: AbortSignal.timeout(milliseconds) });
  return response.json().catch(() => {
    throw new ApiError(NO_ANSWER);
  });
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(NO_ANSWER);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null); // a proxy's error need not be JSON
  throw new ApiError(body?.error?.message ?? `The node answered ${response.status}.`, response.status, body?.error?.code);
}

async function* lines(stream, what) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(`${what} broke off: the connection to the node was lost.`);
  }
}
