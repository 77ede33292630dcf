// Makes and updates DOM nodes. Texts become text nodes, never markup: names and answers come from strangers.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `properties`: attributes, and functions as `onclick`; null, undefined and false leave one out. */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set the text of an element if it differs, so that a selection in it stays. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set a text of which what stands between backticks is code, as setText does. */
export function setMarked(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(...text.split(/`([^`]+)`/).map((part, at) => (at % 2 ? element("code", {}, part) : part)));
}

/**
 * Make the children of `parent` those of `items`, in their order, and keep the ones that are there: they keep focus,
 * selection and their transitions. `key(item)`: a text that differs for each. `update(child, item)` runs for all.
 */
export function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  }
  for (const child of old.values()) child.remove();
}

/** Copy a text. Browsers offer the clipboard only to pages of HTTPS and of this machine; the other way works in all. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { class: "hidden", readonly: true });
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}

/** A button that copies what `text()` returns, and says so. */
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", class: "plain small" }, label);
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}
