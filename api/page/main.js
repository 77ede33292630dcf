// Starts the page: asks for the status and the models, keeps the list of chats, and asks for a key where one is needed.

import { ApiError, hasKey, readModels, readStatus, setKey } from "./api.js";
import { ChatView } from "./chat.js";
import { allChats, lastModel, newChat, readChat, removeChat, title } from "./chats.js";
import { ClusterView, loadingOf, summaryOf } from "./cluster.js";
import { byId, element, keyed, setText } from "./elements.js";

const STATUS_MS = 500; // so that a node that dies is grey within two seconds
const HIDDEN_MS = 5000; // while nobody sees the page
const MODELS_MS = 10_000;
const OTHER = "\0other"; // no model has this id

const cluster = new ClusterView(byId("cluster"));
let status = null;
let models = null; // ids, as the API lists them; null before its first answer
let hasChosen = false; // whether the user chose the model of a chat that is still empty

const chat = new ChatView({ waitingFor, onError, onSaved: showChats });

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

/** Wait, but not while the page comes into view or gets a key. */
function asleep(milliseconds) {
  return new Promise((wake) => {
    const timer = setTimeout(done, milliseconds);
    function done() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", done);
      byId("key-dialog").removeEventListener("close", done);
      wake();
    }
    document.addEventListener("visibilitychange", done);
    byId("key-dialog").addEventListener("close", done);
  });
}

function showStatus(found) {
  status = found;
  cluster.show(found);
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
  byId("model-dialog").showModal();
});
byId("model-dialog").addEventListener("submit", () => chooseOther(byId("other-model").value.trim()));
byId("cancel-model").addEventListener("click", () => byId("model-dialog").close());

function choose(id) {
  hasChosen = true;
  chat.setModel(id);
}

function chooseOther(id) {
  if (id) choose(id);
  showModels();
  byId("model").value = chat.chat.model;
}

// --- chats ---

function showChats() {
  keyed(byId("chats"), allChats(), ({ id }) => id, makeEntry, (item, each) => {
    const [open, remove] = item.children;
    setText(open, title(each));
    remove.setAttribute("aria-label", `Delete the chat: ${title(each)}`);
    open.toggleAttribute("aria-current", each.id === chat.chat.id);
  });
}

function makeEntry({ id }) {
  const show = () => openChat(readChat(id) ?? newChat());
  const open = element("button", { type: "button", class: "entry", onclick: show });
  const remove = element("button", { type: "button", class: "plain small", onclick: () => deleteChat(id) }, "×");
  return element("li", {}, open, remove);
}

function openChat(opened) {
  hasChosen = false;
  chat.open(opened);
  showModels();
  showChats();
  showHistory(false);
  byId("prompt").focus();
}

function deleteChat(id) {
  removeChat(id);
  if (id === chat.chat.id) openChat(newChat());
  else showChats();
}

function showHistory(shown) {
  byId("history").classList.toggle("shown", shown);
  byId("toggle-history").setAttribute("aria-expanded", String(shown));
}

byId("new-chat").addEventListener("click", () => openChat(newChat()));
byId("toggle-history").addEventListener("click", () => showHistory(!byId("history").classList.contains("shown")));
window.addEventListener("storage", showChats); // another tab has changed them

/** Close what lies over the chat. */
function closeOverlays(target) {
  if (!byId("settings").contains(target)) byId("settings").open = false;
  if (!byId("history").contains(target) && target !== byId("toggle-history")) showHistory(false);
}

document.addEventListener("pointerdown", ({ target }) => closeOverlays(target));
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") closeOverlays(null);
});

// --- the key, and the two views of a narrow window ---

byId("key-dialog").addEventListener("submit", () => {
  setKey(byId("key").value.trim());
  byId("key").value = "";
});

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const each of document.querySelectorAll(".views button")) {
      each.setAttribute("aria-pressed", String(each === button));
    }
  });
}

showChats();
watch(readModels, (found) => ((models = found), showModels()), MODELS_MS, () => {});
watch(readStatus, showStatus, STATUS_MS, showUnreachable);
