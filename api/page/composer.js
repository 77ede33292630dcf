// The composer: the message that the user writes, and the files that go with it, pasted, dropped or chosen.

import { chip, readAttachment } from "./attachments.js";
import { byId, setText } from "./elements.js";

export class Composer {
  #files = []; // attachments of the message
  #prompt = byId("prompt");

  /** `onSend()`: the user wants to send what `take` returns. */
  constructor(onSend) {
    byId("composer").addEventListener("submit", (event) => (event.preventDefault(), onSend()));
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      onSend();
    });
    this.#prompt.addEventListener("input", () => fitHeight(this.#prompt));
    this.#listenForFiles();
  }

  /** The message, which the composer has no longer; null if there is none. */
  take() {
    const content = this.#prompt.value.trim();
    const files = this.#files;
    if (!content && !files.length) return null;
    this.#set("", []);
    return { role: "user", content, ...(files.length ? { files } : {}) };
  }

  /** Give a message back, unless the user has begun another one. */
  giveBack({ content, files = [] }) {
    if (!this.#prompt.value && !this.#files.length) this.#set(content, files);
  }

  /** Add what files hold; say which ones are not taken. */
  async add(files) {
    const read = await Promise.allSettled([...files].map(readAttachment));
    this.#files = [...this.#files, ...read.filter(({ value }) => value).map(({ value }) => value)];
    this.#show(read.filter(({ reason }) => reason).map(({ reason }) => reason.message));
    this.#prompt.focus();
  }

  #listenForFiles() {
    const chosen = byId("files");
    byId("attach").addEventListener("click", () => chosen.click());
    chosen.addEventListener("change", async () => {
      await this.add(chosen.files);
      chosen.value = ""; // so that the same file can be chosen again
    });
    this.#prompt.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add(event.clipboardData.files);
    });
    const chat = byId("chat");
    const over = (event, isOver) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      chat.classList.toggle("dropping", isOver);
    };
    chat.addEventListener("dragover", (event) => over(event, true));
    chat.addEventListener("dragleave", (event) => over(event, chat.contains(event.relatedTarget)));
    chat.addEventListener("drop", (event) => {
      over(event, false);
      if (event.dataTransfer.files.length) this.add(event.dataTransfer.files);
    });
  }

  #set(content, files) {
    this.#prompt.value = content;
    this.#files = files;
    fitHeight(this.#prompt);
    this.#show([]);
  }

  #show(complaints) {
    const remove = (removed) => {
      this.#files = this.#files.filter((file) => file !== removed);
      this.#show([]);
      this.#prompt.focus();
    };
    byId("attachments").replaceChildren(...this.#files.map((file) => chip(file, () => remove(file))));
    setText(byId("attach-error"), complaints.join(" "));
  }
}

export function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
