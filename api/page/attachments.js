// The files of a message: how one is read, what the model gets of it, and how it is shown.
//
// An attachment: {kind, name, text}; `kind` is "text". It is kept with its message, in the browser only.

import { element, setText } from "./elements.js";

const MOST_BYTES = 1 << 20; // of a text: 300,000 tokens, more than most contexts
const FENCE = /`{3,}/g;

/** Read a file that the user chose. Throws an Error whose message is for the user. */
export async function readAttachment(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is too long: a text may have 1 MB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { kind: "text", name: file.name, text };
  } catch {
    // A folder cannot be read either, and is no text.
  }
  throw new Error(`${file.name} is no text file.`);
}

/** What the model gets of a message: its files, then what the user wrote. */
export function contentOf({ content, files = [] }) {
  return [...files.map(fenced), content].filter(Boolean).join("\n\n");
}

/** A text as a block of code, which nothing in it ends. */
function fenced({ name, text }) {
  const fence = "`".repeat(Math.max(2, ...(text.match(FENCE) ?? []).map((each) => each.length)) + 1);
  const kind = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${name.replace(/\s+/g, " ")}:\n${fence}${kind}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** An attachment as a small box with its name. `onRemove`: null where it cannot be taken away. */
export function chip({ name, text }, onRemove = null) {
  const label = element("span", { class: "name", title: name });
  setText(label, name);
  const lines = text.replace(/\n$/, "").split("\n").length;
  const size = element("span", { class: "quiet" }, lines === 1 ? "1 line" : `${lines} lines`);
  const remove = { type: "button", class: "plain small", "aria-label": `Remove ${name}`, onclick: onRemove };
  return element("li", { class: "chip" }, label, size, onRemove && element("button", remove, "×"));
}
