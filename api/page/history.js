// The list of chats: it can be searched, and chats be opened, renamed and deleted.

import { textOf } from "./attachments.js";
import { allChats, newChat, readChat, removeChat, renameChat, title } from "./chats.js";
import { byId, element, keyed, setText } from "./elements.js";

export class History {
  #renamed = ""; // id of the chat whose title is being written

  /** `current()`: the chat that is shown. `onOpen(chat)`: the user wants another one. */
  constructor({ current, onOpen }) {
    this.current = current;
    this.onOpen = onOpen;
    byId("new-chat").addEventListener("click", () => this.#open(newChat()));
    byId("find-chat").addEventListener("input", () => this.show());
    byId("toggle-history").addEventListener("click", () => this.toggle());
    window.addEventListener("storage", () => this.show()); // another tab has changed them
  }

  show() {
    const wanted = byId("find-chat").value.trim().toLowerCase();
    const found = allChats().filter((chat) => !wanted || has(chat, wanted));
    keyed(byId("chats"), found, ({ id }) => `${id} ${id === this.#renamed}`, (chat) => this.#make(chat), (item, chat) => {
      if (chat.id === this.#renamed) return;
      const [open, , remove] = item.children;
      setText(open, title(chat));
      remove.setAttribute("aria-label", `Delete the chat: ${title(chat)}`);
      open.toggleAttribute("aria-current", chat.id === this.current().id);
    });
    byId("no-chat").hidden = found.length > 0 || !wanted;
  }

  toggle(shown = !byId("history").classList.contains("shown")) {
    byId("history").classList.toggle("shown", shown);
    byId("toggle-history").setAttribute("aria-expanded", String(shown));
  }

  #open(chat) {
    this.onOpen(chat);
    this.show();
    this.toggle(false);
    byId("prompt").focus();
  }

  #make(chat) {
    if (chat.id === this.#renamed) return this.#makeEditor(chat);
    const { id } = chat;
    const small = (label, onclick) => ({ type: "button", class: "plain small", "aria-label": label, title: label, onclick });
    return element(
      "li",
      {},
      element("button", { type: "button", class: "entry", onclick: () => this.#open(readChat(id) ?? newChat()) }),
      element("button", small("Rename the chat", () => this.#rename(id)), "✎"),
      element("button", small("Delete the chat", () => this.#delete(id)), "×"),
    );
  }

  #makeEditor(chat) {
    const field = element("input", { "aria-label": "Name of the chat", maxlength: "200", class: "rename" });
    field.value = title(chat);
    const end = (isSaved) => {
      if (this.#renamed !== chat.id) return;
      this.#renamed = "";
      const name = field.value.trim();
      if (isSaved) renameChat(chat.id, name);
      if (isSaved && chat.id === this.current().id) this.current().title = name;
      this.show();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it stops no answer
      end(false);
    });
    queueMicrotask(() => (field.focus(), field.select()));
    return element("li", {}, field);
  }

  #rename(id) {
    this.#renamed = id;
    this.show();
  }

  #delete(id) {
    removeChat(id);
    if (id === this.current().id) this.#open(newChat());
    else this.show();
  }
}

const has = (chat, text) =>
  [title(chat), ...chat.messages.map(textOf)].some((each) => each.toLowerCase().includes(text));
