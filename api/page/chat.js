// The chat: its messages, and the answer that is being streamed.

import { AnswerClock, figures, take } from "./answer.js";
import { streamChat } from "./api.js";
import { chip } from "./attachments.js";
import { exported, newChat, readChat, removeChat, requestOf, saveChat, title } from "./chats.js";
import { Composer } from "./composer.js";
import { byId, copyButton, element, keyed, setText } from "./elements.js";
import { renderMarkdown } from "./markdown.js";
import { Settings } from "./settings.js";

const PAUSE_MS = 1500; // without a token, after which the page says what it waits for
const NEAR_END_PX = 60; // of the last message, within which it is followed while it grows

export class ChatView {
  #chat = newChat();
  #running = null; // the AbortController of the answer that is being streamed
  #edited = -1; // index of the message that is being edited
  #isAtEnd = true; // whether the end of the messages is in sight

  /**
   * `waitingFor(model)`: what holds the model up, or "". `onError(error)`: whether the page deals with it itself.
   * `onSaved()`: the list of chats may have changed.
   */
  constructor({ waitingFor, onError, onSaved }) {
    this.waitingFor = waitingFor;
    this.onError = onError;
    this.onSaved = onSaved;
    this.composer = new Composer(() => this.#send());
    this.settings = new Settings({ onError, onChange: (values) => this.#set(values) });
    this.messages = byId("messages");
    this.#listen();
    this.open(this.#chat);
  }

  get chat() {
    return this.#chat;
  }

  /** Show a chat. An answer that is being streamed ends, as the chat that it belongs to is left. */
  open(chat) {
    this.stop();
    this.#chat = chat;
    this.#edited = -1;
    this.settings.show(chat);
    this.messages.replaceChildren();
    this.#show();
    this.#scrollToEnd();
  }

  stop() {
    this.#running?.abort();
  }

  setModel(model) {
    if (model === this.#chat.model) return;
    this.#set({ model });
    this.settings.setModel(model);
  }

  #listen() {
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    window.addEventListener("pagehide", () => this.#running && this.#save()); // what has come so far
    // A keyboard that opens, or a phone that is turned, leaves the end in sight if it was.
    let height = 0;
    const resized = () => {
      height = this.messages.clientHeight;
      if (this.#isAtEnd) this.#scrollToEnd();
    };
    const scrolled = () => {
      // A keyboard opens in steps: the scroll event of one comes with the height of the next, before it is observed.
      if (this.messages.clientHeight === height) this.#isAtEnd = this.#isNearEnd();
    };
    new ResizeObserver(resized).observe(this.messages);
    this.messages.addEventListener("scroll", scrolled, { passive: true });
    byId("end-answer").addEventListener("click", () => this.stop());
    byId("export").addEventListener("click", () => download(this.#chat));
  }

  #set(values) {
    Object.assign(this.#chat, values);
    if (this.#chat.messages.length) this.#save();
  }

  #save(chat = this.#chat) {
    byId("unsaved").hidden = saveChat(chat);
    this.onSaved();
  }

  // --- what the user does ---

  #send() {
    if (this.#running || !this.#chat.model) return;
    const message = this.composer.take();
    if (!message) return;
    this.#chat.messages.push(message);
    this.#answer();
  }

  #regenerate() {
    if (this.#running) return;
    this.#chat.messages.pop();
    this.#answer();
  }

  /** Send another text in place of a message; what followed it is dropped. */
  #replace(index, content) {
    this.#edited = -1;
    const old = this.#chat.messages[index];
    if ((!content.trim() && !old.files) || this.#running) return this.#show();
    this.#chat.messages.splice(index, Infinity, { ...old, content: content.trim() });
    this.#answer();
  }

  #edit(index) {
    this.#edited = index;
    this.#show();
  }

  // --- the answer ---

  async #answer() {
    const chat = this.#chat;
    const running = (this.#running = new AbortController());
    const request = requestOf(chat);
    const answer = { role: "assistant", content: "", model: chat.model };
    chat.messages.push(answer);
    this.#show();
    this.#scrollToEnd();
    this.#save();
    const clock = new AnswerClock();
    const redraw = setInterval(() => this.#showPause(answer, clock), 250);
    try {
      for await (const chunk of streamChat(request, running.signal)) {
        if (typeof chunk === "string") clock.note(chunk);
        else take(answer, chunk, clock);
        this.#showSoon();
      }
    } catch (error) {
      if (running.signal.aborted) answer.stopped = true;
      else if (!this.onError(error)) answer.error = error.message;
    }
    clearInterval(redraw);
    clock.finish(answer);
    this.#running = null;
    // A refusal that the page deals with otherwise, as by asking for a key, leaves the message to be sent again.
    if (!answer.content && !answer.reasoning && !answer.error && !answer.stopped) this.#takeBack(chat, answer);
    if (readChat(chat.id)) this.#save(chat); // it may have been deleted
    this.#show();
  }

  /** Put the user's message back into the composer if there was no answer at all. */
  #takeBack(chat, answer) {
    if (answer.tokens) return; // the model has chosen to say nothing
    chat.messages.splice(chat.messages.indexOf(answer), 1);
    const message = chat.messages.pop();
    if (message) this.composer.giveBack(message);
    if (chat.messages.length) return;
    removeChat(chat.id);
    this.onSaved();
  }

  #showSoon() {
    if (this.scheduled) return;
    this.scheduled = requestAnimationFrame(() => {
      this.scheduled = 0;
      this.#show();
    });
  }

  /** Say what an answer waits for if no token has come for a while. */
  #showPause(answer, clock) {
    const { model } = answer;
    const node = this.messages.lastElementChild?.querySelector(".pause");
    if (!node || answer !== this.#chat.messages.at(-1)) return;
    const share = clock.promptShare();
    node.nextElementSibling.hidden = share === null;
    node.nextElementSibling.value = share ?? 0;
    const waits = clock.silence() > PAUSE_MS;
    const reason = waits ? this.waitingFor(model) : "";
    const begun = answer.content || answer.reasoning;
    const waiting = begun ? "Waiting for the next word …" : `Waiting for ${model} …`;
    setText(node, waits || !begun ? reason || clock.progress || waiting : "");
  }

  // --- what is shown ---

  #show() {
    const { messages } = this.#chat;
    const follow = this.#isNearEnd();
    if (!messages.length) this.messages.replaceChildren(welcome());
    else {
      const items = messages.map((message, index) => ({ message, index }));
      const key = ({ message, index }) => `${this.#chat.id} ${index} ${message.role} ${index === this.#edited}`;
      keyed(this.messages, items, key, (item) => this.#make(item), (node, item) => this.#update(node, item));
    }
    byId("send").hidden = this.#running !== null;
    byId("end-answer").hidden = this.#running === null;
    this.messages.setAttribute("aria-busy", String(this.#running !== null));
    if (follow) this.#scrollToEnd();
  }

  #isNearEnd() {
    return this.messages.scrollHeight - this.messages.scrollTop - this.messages.clientHeight < NEAR_END_PX;
  }

  #scrollToEnd() {
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  #make({ message, index }) {
    if (index === this.#edited) return this.#makeEditor(message, index);
    return message.role === "user" ? this.#makeQuestion(message, index) : this.#makeAnswer(index);
  }

  #makeQuestion(message, index) {
    const edit = element("button", { type: "button", class: "plain small", onclick: () => this.#edit(index) }, "Edit");
    const files = element("ul", { class: "attachments" }, ...(message.files ?? []).map((file) => chip(file)));
    const text = element("div", { class: "text" });
    const actions = element("p", { class: "actions" }, edit);
    return element("article", { class: "message user", "aria-label": "You" }, files, text, actions);
  }

  #makeEditor(message, index) {
    const area = element("textarea", { rows: "3", "aria-label": "Edit the message" });
    area.value = message.content;
    const form = element(
      "form",
      { class: "message user editor", onsubmit: (event) => (event.preventDefault(), this.#replace(index, area.value)) },
      area,
      element(
        "p",
        { class: "actions" },
        element("button", { type: "button", class: "plain small", onclick: () => this.#edit(-1) }, "Cancel"),
        element("button", { type: "submit", class: "small" }, "Send again"),
      ),
    );
    queueMicrotask(() => area.focus());
    return form;
  }

  #makeAnswer(index) {
    const text = () => element("div", { class: "text" });
    const again = { type: "button", class: "plain small regenerate", onclick: () => this.#regenerate() };
    return element(
      "article",
      { class: "message assistant", "aria-label": "Answer" },
      element("details", { class: "reasoning", hidden: true }, element("summary"), text()),
      text(),
      element("p", { class: "pause quiet", role: "status" }),
      element("progress", { max: "1", hidden: true, "aria-label": "How far the prompt is" }),
      element("p", { class: "error", role: "alert" }),
      element(
        "p",
        { class: "actions" },
        element("span", { class: "figures quiet" }),
        copyButton(() => this.#chat.messages[index]?.content ?? ""),
        element("button", again, "Regenerate"),
      ),
    );
  }

  #update(node, { message, index }) {
    if (index === this.#edited) return;
    if (message.role === "user") {
      setText(node.querySelector(".text"), message.content);
      node.querySelector(".text").hidden = !message.content;
      node.querySelector(".actions button").disabled = this.#running !== null;
      return;
    }
    const isLast = index === this.#chat.messages.length - 1;
    const isRunning = isLast && this.#running !== null;
    const [reasoning, text, pause, bar, error, actions] = node.children;
    reasoning.hidden = !message.reasoning;
    if (message.reasoning) showReasoning(reasoning, message);
    renderMarkdown(text, message.content);
    text.classList.toggle("growing", isRunning);
    if (!isRunning) setText(pause, "");
    bar.hidden ||= !isRunning || Boolean(message.content || message.reasoning);
    setText(error, message.error ?? "");
    actions.hidden = isRunning;
    setText(actions.querySelector(".figures"), figures(message));
    actions.querySelector(".regenerate").hidden = !isLast;
  }
}

function showReasoning(details, { reasoning, content, thought_s: seconds }) {
  const [summary, text] = details.children;
  const over = seconds !== undefined ? `Thought for ${seconds.toFixed(1)} s` : "Thought";
  setText(summary, content || seconds !== undefined ? over : "Thinking …");
  renderMarkdown(text, reasoning);
}

function welcome() {
  return element(
    "div",
    { class: "welcome" },
    element("h2", {}, "What do you want to know?"),
    element("p", { class: "quiet" }, "Answers are computed by the nodes of this cluster."),
  );
}

function download(chat) {
  const address = URL.createObjectURL(new Blob([exported(chat)], { type: "text/markdown" }));
  const name = title(chat).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
  element("a", { href: address, download: `${name}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
