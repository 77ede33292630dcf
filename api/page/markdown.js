// Renders the Markdown that models write. It makes DOM nodes of a few kinds only, never markup from text, as an answer
// is untrusted: a page that the model has read may have told it what to write. Nothing is loaded, pictures neither.

import { copyButton, element } from "./elements.js";

const MAX_DEPTH = 8; // of quotes and lists within each other
// A block has no more lines and characters than these, unless it is code: what follows is another block. So little is
// made anew when an answer grows, however long a list becomes. A longer line stays plain.
const MAX_LINES = 500;
const MAX_CHARACTERS = 20_000;

// Lines may be long: no pattern may be tried in two ways at each of their characters.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))[ \t]*(?![ \t])([^\s`]*)(?![^\s`])[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)[ \t#]{0,100}$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|(\d{1,9})[.)])( {1,4}|$)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/**
 * Show `text` in `parent`. What has not changed since the last time keeps its nodes, so that selections and scroll
 * positions stay while an answer grows.
 */
export function renderMarkdown(parent, text) {
  if (parent.shownText === text) return;
  const sources = splitBlocks(text.replace(/\r\n?/g, "\n").split("\n"));
  const shown = parent.shownBlocks ?? [];
  let same = 0;
  while (same < shown.length && same < sources.length && shown[same] === sources[same]) same++;
  while (parent.children.length > same) parent.lastElementChild.remove();
  for (const source of sources.slice(same)) parent.append(blockOrSource(source));
  parent.shownBlocks = sources;
  parent.shownText = text;
}

/** A block; as it was written if the browser fails at it, so that the rest of the answer is shown all the same. */
function blockOrSource(source) {
  try {
    return block(source.split("\n"), 0);
  } catch {
    return element("p", {}, source);
  }
}

// --- blocks ---

/** Lines to blocks, each as its source: a fence, a list, a quote, a table, a heading, a rule, a paragraph. */
function splitBlocks(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const end = blockEnd(lines, at);
    blocks.push(lines.slice(at, end).join("\n").trimEnd());
    at = end;
  }
  return blocks;
}

function blockEnd(lines, start) {
  const first = lines[start];
  if (isLong(first)) return start + 1;
  const fence = FENCE.exec(first);
  if (fence) {
    const end = nextLine(lines, start + 1, (line) => closes(line, fence[1]));
    return Math.min(end + 1, lines.length); // a fence that is still being written goes to the end
  }
  if (HEADING.test(first) || RULE.test(first)) return start + 1;
  const isList = ITEM.test(first);
  const numbered = isNumbered(first);
  let inside = isList ? FENCE.exec(afterMark(first))?.[1] : undefined; // a fence in a list may have empty lines
  let characters = first.length;
  let at = start + 1;
  for (; at < lines.length; at++) {
    const line = lines[at];
    characters += line.length;
    if (inside) {
      if (closes(line.trim(), inside)) inside = undefined;
      continue;
    }
    if (at - start >= MAX_LINES || characters > MAX_CHARACTERS) break;
    if (!isList) {
      if (!line.trim() || startsBlock(line, first)) break;
    } else if (!line.trim()) {
      const next = nextLine(lines, at + 1, (later) => later.trim());
      if (next === lines.length || !(lines[next].startsWith("  ") || isSameList(lines[next], numbered))) break;
      at = next - 1;
    } else if (!line.startsWith("  ") && !ITEM.test(line) && startsBlock(line, first)) break;
    else if (ITEM.test(line) && !line.startsWith("  ") && !isSameList(line, numbered)) break;
    else inside = FENCE.exec(afterMark(line).trim())?.[1];
  }
  return at;
}

/** The place of the first line from `at` on that `is` true for; the number of lines if there is none. */
function nextLine(lines, at, is) {
  while (at < lines.length && !is(lines[at])) at++;
  return at;
}

const isLong = (line) => line.length > MAX_CHARACTERS;
const closes = (line, fence) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
const afterMark = (line) => ITEM.exec(line)?.[5] ?? line;
const isNumbered = (line) => ITEM.exec(line)?.[3] !== undefined;
const isSameList = (line, numbered) => ITEM.test(line) && !RULE.test(line) && isNumbered(line) === numbered;

/** Whether a line that follows a paragraph's lines begins another block. */
function startsBlock(line, first) {
  if (QUOTE.test(line) !== QUOTE.test(first) && QUOTE.test(line)) return true;
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || (ITEM.test(line) && !QUOTE.test(first));
}

function block(lines, depth) {
  const [first] = lines;
  if (isLong(first)) return element("p", {}, first);
  const fence = FENCE.exec(first);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(first);
  // The page has a heading of its own above: those of an answer are below it.
  if (heading) return element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2]));
  if (RULE.test(first)) return element("hr");
  if (depth < MAX_DEPTH && QUOTE.test(first)) {
    const inner = lines.map((line) => line.replace(QUOTE, ""));
    return element("blockquote", {}, ...blocksOf(inner, depth + 1));
  }
  if (depth < MAX_DEPTH && ITEM.test(first)) return list(lines, depth);
  if (lines.length > 1 && first.includes("|") && TABLE_LINE.test(lines[1])) return table(lines);
  return element("p", {}, ...inline(lines.map((line) => line.trimStart()).join("\n")));
}

const blocksOf = (lines, depth) => splitBlocks(lines).map((source) => block(source.split("\n"), depth));

function codeBlock(lines, [, fence, language]) {
  const closed = lines.length > 1 && closes(lines.at(-1), fence);
  const code = lines.slice(1, closed ? -1 : undefined).join("\n");
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", {}, language || "text"), copyButton(() => code)),
    element("pre", { tabindex: "0" }, element("code", {}, code)),
  );
}

function list(lines, depth) {
  const items = [];
  const [, margin, , number] = ITEM.exec(lines[0]);
  let indent = 0;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= margin.length + 1) {
      indent = item[1].length + item[2].length + (item[4].length || 1);
      items.push([item[5]]);
    } else {
      const spaces = line.length - line.trimStart().length;
      items.at(-1).push(line.slice(Math.min(indent, spaces)));
    }
  }
  const tag = number === undefined ? "ul" : "ol";
  return element(
    tag,
    { start: number !== undefined && number !== "1" ? number : null },
    ...items.map((item) => listItem(item, depth)),
  );
}

/** An item of one paragraph has no paragraph's margins. */
function listItem(lines, depth) {
  const children = blocksOf(lines, depth + 1);
  if (children[0]?.tagName === "P") children.splice(0, 1, ...children[0].childNodes);
  return element("li", {}, ...children);
}

function table(lines) {
  const [head, , ...rows] = lines.map(cells);
  const cell = (tag, text) => element(tag, {}, ...inline(text));
  const row = (tag, texts) => element("tr", {}, ...texts.slice(0, head.length).map((text) => cell(tag, text)));
  return element(
    "div",
    { class: "table", tabindex: "0" },
    element(
      "table",
      {},
      element("thead", {}, row("th", head)),
      element("tbody", {}, ...rows.map((each) => row("td", each))),
    ),
  );
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

// --- within a line ---

const INLINE = new RegExp(
  [
    "\\\\(?<escaped>[!-/:-@[-`{-~])",
    "(?<ticks>`{1,8})(?<code>[^`](?:.{0,2000}?[^`])?)\\k<ticks>(?!`)",
    "!?\\[(?<label>[^\\[\\]]{0,500})\\]" +
      '\\(<?(?<target>[^\\s()<>]{1,2000}(?:\\([^\\s()]{0,200}\\))?)>?(?:\\s+"[^"]{0,500}")?\\)',
    "<?(?<address>https?://[^\\s<>\"`]{1,2000})>?",
    "\\*\\*(?<strong>(?=\\S).{0,2000}?\\S)\\*\\*(?!\\*)",
    "(?<![\\w])__(?<strong2>(?=\\S).{0,2000}?\\S)__(?!\\w)",
    "\\*(?<em>(?=[^\\s*]).{0,2000}?[^\\s*]|[^\\s*])\\*(?!\\*)",
    "(?<![\\w])_(?<em2>(?=[^\\s_]).{0,2000}?[^\\s_]|[^\\s_])_(?!\\w)",
    "~~(?<struck>(?=\\S).{0,2000}?\\S)~~",
    "(?<line> {2,}\\n|\\n)",
  ].join("|"),
  "gs",
);

/** Text with its marks as nodes: `code`, **bold**, *italics*, ~~struck~~, links. */
function inline(text, depth = 0) {
  if (text.length > MAX_CHARACTERS || depth > MAX_DEPTH) return [text];
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, found.index));
    end = found.index + found[0].length;
    nodes.push(...mark(found, depth));
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== "");
}

function mark({ 0: source, groups }, depth) {
  const { escaped, code, label, target, address, strong, strong2, em, em2, struck } = groups;
  const within = (tag, text) => [element(tag, {}, ...inline(text, depth + 1))];
  if (escaped) return [escaped];
  if (code) return [element("code", {}, code.replaceAll("\n", " "))];
  if (target) return link(target, [label || target]) ?? [source];
  if (address) return bareLink(source, address);
  if (strong ?? strong2) return within("strong", strong ?? strong2);
  if (em ?? em2) return within("em", em ?? em2);
  if (struck) return within("s", struck);
  return source === "\n" ? ["\n"] : [element("br")];
}

/** A link, or null unless it leads to a web page: `javascript:` and the like would be code. */
function link(target, children) {
  const address = URL.canParse(target) ? new URL(target) : null;
  if (!["http:", "https:"].includes(address?.protocol)) return null;
  const attributes = { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow", title: address.href };
  return [element("a", attributes, ...children)];
}

/** An address in the text; a full stop or bracket after it is the sentence's. */
function bareLink(source, address) {
  const target = address.replace(/[.,;:!?'"*_~)\]]+$/, "");
  const made = link(target, [target]);
  return made ? [...made, source.startsWith("<") ? "" : source.slice(target.length)] : [source];
}
