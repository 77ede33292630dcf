// The files of a message: how one is read, what the model gets of it, and how it is shown.
//
// An attachment: {kind: "text", name, text}, or {kind: "picture", name, url} with a data: URL. It is kept with its message, in the
// browser only.

import { element, setText } from "./elements.js";

const MOST_BYTES = 1 << 20; // of a text: 300,000 tokens, more than most contexts
const MOST_PICTURE_BYTES = 20 * (1 << 20); // as of a request
const LONGEST_SIDE = 1280; // pixels: browsers keep 5 MB of chats, and models hardly take more
const QUALITY = 0.88; // of a JPEG
const FENCE = /`{3,}/g;

/** Read a file that the user chose. Throws an Error whose message is for the user. */
export async function readAttachment(file) {
  if (file.type.startsWith("image/")) return readPicture(file);
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is too long: a text may have 1 MB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { kind: "text", name: file.name, text };
  } catch {
    // A folder cannot be read either, and is no text.
  }
  throw new Error(`${file.name} is no text file.`);
}

/** A picture as a JPEG of a moderate size, on white where it is transparent. */
async function readPicture(file) {
  if (file.size > MOST_PICTURE_BYTES) throw new Error(`${file.name} is too large: a picture may have 20 MB.`);
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    context.fillStyle = "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    return { kind: "picture", name: file.name, url: canvas.toDataURL("image/jpeg", QUALITY) };
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read.`);
  }
}

const isPicture = ({ kind }) => kind === "picture";

/** What the model gets of a message: its pictures, its other files, then what the user wrote. */
export function contentOf(message) {
  const pictures = (message.files ?? []).filter(isPicture);
  const text = textOf({ ...message, files: message.files?.filter((file) => !isPicture(file)) });
  if (!pictures.length) return text;
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** A message as text: its files, with a picture's name in its place, then what the user wrote. */
export function textOf({ content, files = [] }) {
  const shown = files.map((file) => (isPicture(file) ? `(A picture: ${file.name})` : fenced(file)));
  return [...shown, content].filter(Boolean).join("\n\n");
}

/** A text as a block of code, which nothing in it ends. */
function fenced({ name, text }) {
  const fence = "`".repeat(Math.max(2, ...(text.match(FENCE) ?? []).map((each) => each.length)) + 1);
  const kind = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${name.replace(/\s+/g, " ")}:\n${fence}${kind}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** An attachment as a small box with its name, a picture as itself. `onRemove`: null where it cannot be taken away. */
export function chip(file, onRemove = null) {
  const { name } = file;
  const remove = { type: "button", class: "plain small", "aria-label": `Remove ${name}`, onclick: onRemove };
  const button = onRemove && element("button", remove, "×");
  if (isPicture(file)) return element("li", { class: "chip picture" }, element("img", { src: file.url, alt: name, title: name }), button);
  const label = element("span", { class: "name", title: name });
  setText(label, name);
  const lines = file.text.replace(/\n$/, "").split("\n").length;
  const size = element("span", { class: "quiet" }, lines === 1 ? "1 line" : `${lines} lines`);
  return element("li", { class: "chip" }, label, size, button);
}
