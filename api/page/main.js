// Starts the page: asks for the status and the models, shows one of its views, and asks for a key where one is needed.

import { ApiError, hasKey, readModels, readOverview, readStatus, setKey } from "./api.js";
import { ChatView } from "./chat.js";
import { lastModel } from "./chats.js";
import { ClusterView, loadingOf, summaryOf } from "./cluster.js";
import { byId, element, keyed, setText } from "./elements.js";
import { History } from "./history.js";
import { ModelsView } from "./models.js";

const STATUS_MS = 500; // so that a node that dies is grey within two seconds
const HIDDEN_MS = 5000; // while nobody sees the page
const MODELS_MS = 10_000;
const OVERVIEW_MS = 2000;
const OTHER = "\0other"; // no model has this id

const cluster = new ClusterView(byId("cluster"), onError);
const shelf = new ModelsView(byId("models"), { onError, onTalk: talkTo });
let status = null;
let models = null; // ids, as the API lists them; null before its first answer
let hasChosen = false; // whether the user chose the model of a chat that is still empty

const chat = new ChatView({ waitingFor, onError, onSaved: () => history.show() });
const history = new History({ current: () => chat.chat, onOpen: openChat });

// --- the node's answers ---

async function watch(read, show, milliseconds, onFailure) {
  for (;;) {
    try {
      show(await read());
    } catch (error) {
      if (!(error instanceof ApiError)) console.error(error); // a mistake of this page: it goes on with the rest
      else if (!onError(error)) onFailure(error);
    }
    await asleep(document.hidden ? HIDDEN_MS : milliseconds);
  }
}

/** Wait, but not while the page comes into view, shows another view, or gets a key. */
function asleep(milliseconds) {
  const wakers = [[document, "visibilitychange"], [document, "viewchange"], [byId("key-dialog"), "close"]];
  return new Promise((wake) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      clearTimeout(timer);
      for (const [target, event] of wakers) target.removeEventListener(event, done);
      wake();
    }
    for (const [target, event] of wakers) target.addEventListener(event, done);
  });
}

function showStatus(found) {
  status = found;
  cluster.show(found);
  shelf.showStatus(found);
  showSummary(found.state, summaryOf(found), found.cluster);
  showModels();
}

function showUnreachable({ message }) {
  cluster.showUnreachable(message);
  showSummary("failed", "no answer", status?.cluster ?? "");
}

function showSummary(state, text, name) {
  const summary = byId("summary");
  summary.className = `summary ${state}`;
  setText(summary.firstElementChild, text);
  setText(summary.lastElementChild, name);
}

/** Deal with an error. Returns whether it was one of the key, which the user can give at once. */
function onError(error) {
  if (error.status !== 401) return false;
  const dialog = byId("key-dialog");
  if (!dialog.open) {
    setText(byId("key-error"), hasKey() ? error.message : "");
    dialog.showModal();
  }
  return true;
}

/** What an answer of `model` waits for, as far as the status tells. */
function waitingFor(model) {
  const found = status?.models.find(({ id }) => id === model);
  if (!found || found.state === "ready") return "";
  if (found.state === "refused") return "The cluster has no place for this model.";
  const loading = loadingOf(status, model);
  return loading || "The nodes are loading the model's layers; the answer goes on when they are ready.";
}

// --- models ---

function showModels() {
  const states = new Map((status?.models ?? []).map(({ id, state }) => [id, state]));
  const ids = [...new Set([...states.keys(), ...(models ?? []), chat.chat.model])].filter(Boolean);
  const select = byId("model");
  const isSettled = hasChosen || chat.chat.messages.length || document.activeElement === select;
  if (models && !isSettled) chat.setModel(preferred(ids, states));
  const items = ids.map((id) => ({ id, label: labelOf(id, states.get(id)) }));
  if (!ids.length) items.push({ id: "", label: "No model yet" });
  items.push({ id: OTHER, label: "Another model …" });
  const make = ({ id }) => element("option", { value: id });
  keyed(select, items, ({ id }) => id, make, (option, { label }) => setText(option, label));
  if (select.value !== chat.chat.model && document.activeElement !== select) select.value = chat.chat.model;
}

function preferred(ids, states) {
  const last = lastModel();
  return ids.includes(last) ? last : (ids.find((id) => states.get(id) === "ready") ?? ids[0] ?? "");
}

const labelOf = (id, state) => (state && state !== "ready" ? `${id} (${state})` : id);

byId("model").addEventListener("change", ({ target }) => {
  if (target.value !== OTHER) return choose(target.value);
  target.value = chat.chat.model;
  showView("models");
  shelf.focus();
});

function choose(id) {
  hasChosen = true;
  chat.setModel(id);
}

/** Choose a model for this chat, and go on with it. */
function talkTo(id) {
  choose(id);
  showModels();
  showView("chat");
  byId("prompt").focus();
}

// --- chats ---

function openChat(opened) {
  hasChosen = false;
  chat.open(opened);
  showModels();
}

/** Close what lies over the chat. */
function closeOverlays(target) {
  if (!byId("settings").contains(target)) byId("settings").open = false;
  if (!byId("history").contains(target) && target !== byId("toggle-history")) history.toggle(false);
}

document.addEventListener("pointerdown", ({ target }) => closeOverlays(target));
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") closeOverlays(null);
});

// --- the key, and the views ---

byId("key-dialog").addEventListener("submit", () => {
  setKey(byId("key").value.trim());
  byId("key").value = "";
});

function showView(view) {
  document.body.dataset.view = view;
  for (const each of document.querySelectorAll(".views button")) {
    each.setAttribute("aria-pressed", String(each.dataset.view === view));
  }
  document.dispatchEvent(new Event("viewchange"));
}

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => showView(button.dataset.view));
}

history.show();
const isManaging = () => document.body.dataset.view === "models";
watch(readModels, (found) => ((models = found), showModels()), MODELS_MS, () => {});
watch(readStatus, showStatus, STATUS_MS, showUnreachable);
watch(async () => isManaging() && readOverview(), (found) => found && shelf.show(found), OVERVIEW_MS, () => {});
