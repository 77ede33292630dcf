// The chats in this browser. Each has an entry of its own in its storage, so that two tabs do not overwrite each other.
//
// A chat: {id, model, system, temperature, updated, messages}. `temperature` is null for the model's default.
// A message: {role, content}; the user's may have `files`, its attachments; an answer also has {model, reasoning, thought_s, error, stopped, first_s, rate, tokens}.

import { contentOf } from "./attachments.js";

const PREFIX = "pippin.chat.";
const MODEL = "pippin.model";

export function newChat() {
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, model: "", system: "", temperature: null, updated: Date.now(), messages: [] };
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

export const removeChat = (id) => localStorage.removeItem(PREFIX + id);

export function title(chat) {
  const first = chat.messages.find((message) => message.role === "user");
  const text = first?.content.trim() || first?.files?.[0]?.name || "";
  return text.split("\n")[0].slice(0, 80) || "Empty chat";
}

/** What the model gets of a chat. */
export function requestOf(chat) {
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  const messages = chat.messages.map((message) => ({ role: message.role, content: contentOf(message) }));
  return {
    model: chat.model,
    messages: [...system, ...messages],
    ...(chat.temperature === null ? {} : { temperature: chat.temperature }),
    sampling_defaults: { temperature: 0.7, top_p: 0.95 }, // as in `cluster chat`
  };
}

/** A chat as Markdown, for people and other programs. */
export function exported(chat) {
  const system = chat.system.trim() ? [`## System\n\n${chat.system}`] : [];
  const by = ({ role, model }) => (role === "user" ? "You" : model);
  const messages = chat.messages.map((message) => `## ${by(message)}\n\n${contentOf(message)}`);
  return `${[`# ${title(chat)}`, ...system, ...messages].join("\n\n")}\n`;
}
