// Asks the node that served this page, over its public API.

const ANSWER_MS = 5000; // a node answers from memory at once, even while it computes
const NO_ANSWER = "This node does not answer. Is it still running?";
const KEY = "pippin.key"; // of the session: the browser forgets it with the tab

export class ApiError extends Error {
  /** `status`: of HTTP; 0 if no answer came, or if an answer broke off. */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);

export const readStatus = () => read("cluster/status");
export const readModels = async () => (await read("v1/models")).data.map((model) => model.id);

/** Yield the chunks of a streamed chat, and as texts its comments. Aborting `signal` ends the request, and so the work on it. */
export async function* streamChat(body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
    signal,
  });
  for await (const line of lines(response.body)) {
    if (line === "data: [DONE]") return;
    if (line.startsWith(": ")) yield line.slice(": ".length);
    if (!line.startsWith("data: ")) continue;
    const chunk = JSON.parse(line.slice("data: ".length));
    if (chunk.error) throw new ApiError(chunk.error.message);
    yield chunk;
  }
  throw new ApiError("The answer broke off: the node that served it has stopped.");
}

/** An object of JSON, soon: a node whose cable is pulled closes no connection. */
async function read(path) {
  const response = await ask(path, { signal: AbortSignal.timeout(ANSWER_MS) });
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
  throw new ApiError(body?.error?.message ?? `The node answered ${response.status}.`, response.status);
}

async function* lines(stream) {
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
    throw new ApiError("The answer broke off: the connection to the node was lost.");
  }
}
