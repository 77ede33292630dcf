// The chats in this browser. Each has an entry of its own in its storage, so that two tabs do not overwrite each other.
//
// A chat: {id, model, title, system, stop, thinking, updated, messages}, and NUMBERS, which are null for the model's defaults. Chats
// of earlier versions of this page lack some. `title`: what the user calls it; `stop`: texts that end an answer, one in a line;
// `thinking`: "on", "off", or "" for the model's own way.
// A message: {role, content}; the user's may have `files`, its attachments; an answer also has {model, reasoning, thought_s, error, stopped, first_s, rate, tokens}.

import { contentOf, textOf } from "./attachments.js";

export const CONVERSATION = { temperature: 0.7, top_p: 0.95 }; // where a model proposes nothing; as in `cluster chat`
export const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_tokens"];
const PREFIX = "pippin.chat.";
const MODEL = "pippin.model";

export function newChat() {
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, model: "", system: "", updated: Date.now(), messages: [] };
}

/** The model of the chat that was used last; empty if there is none. */
export const lastModel = () => localStorage.getItem(MODEL) ?? "";

/** All chats, the latest first. */
export function allChats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const chats = keys.map((key) => readChat(key.slice(PREFIX.length))).filter((chat) => chat !== null);
  return chats.sort((one, other) => other.updated - one.updated);
}

/** The chat, or null if it is not there, or was written by something else. */
export function readChat(id) {
  try {
    const chat = JSON.parse(localStorage.getItem(PREFIX + id));
    return Array.isArray(chat?.messages) ? chat : null;
  } catch {
    return null;
  }
}

/** Save a chat, and its model for the next new one. Returns whether there was room. */
export function saveChat(chat) {
  try {
    localStorage.setItem(MODEL, chat.model);
    localStorage.setItem(PREFIX + chat.id, JSON.stringify({ ...chat, updated: Date.now() }));
    return true;
  } catch {
    return false;
  }
}

export function renameChat(id, title) {
  const chat = readChat(id);
  if (chat) localStorage.setItem(PREFIX + id, JSON.stringify({ ...chat, title }));
}

export const removeChat = (id) => localStorage.removeItem(PREFIX + id);

export function title(chat) {
  if (chat.title) return chat.title;
  const first = chat.messages.find((message) => message.role === "user");
  const text = first?.content.trim() || first?.files?.[0]?.name || "";
  return text.split("\n")[0].slice(0, 80) || "Empty chat";
}

/** What the model gets of a chat. */
export function requestOf(chat) {
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  const messages = chat.messages.map((message) => ({ role: message.role, content: contentOf(message) }));
  const stop = (chat.stop ?? "").split("\n").filter(Boolean);
  return {
    model: chat.model,
    messages: [...system, ...messages],
    ...Object.fromEntries(NUMBERS.map((name) => [name, chat[name] ?? null])),
    ...(stop.length ? { stop } : {}),
    ...(chat.thinking ? { chat_template_kwargs: { enable_thinking: chat.thinking === "on" } } : {}),
    sampling_defaults: CONVERSATION,
  };
}

/** A chat as Markdown, for people and other programs. */
export function exported(chat) {
  const system = chat.system.trim() ? [`## System\n\n${chat.system}`] : [];
  const by = ({ role, model }) => (role === "user" ? "You" : model);
  const messages = chat.messages.map((message) => `## ${by(message)}\n\n${textOf(message)}`);
  return `${[`# ${title(chat)}`, ...system, ...messages].join("\n\n")}\n`;
}
