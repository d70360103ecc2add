// Parts that all pages use: states, problems, empty places, facts, notices.

import { h, put, s } from "./dom.js";
import { clock } from "./format.js";

const NOTICE_MS = 6_000;
const STATES = {
  up: "good",
  ready: "good",
  leader: "good",
  leading: "good",
  follower: "good",
  following: "good",
  healthy: "good",
  finished: "good",
  done: "good",
  closed: "good",
  connected: "good",
  on: "good",
  running: "busy",
  open: "busy",
  active: "busy",
  acting: "busy",
  checking: "busy",
  starting: "busy",
  in_recovery: "warn",
  restoring: "warn",
  read_only: "warn",
  readonly: "warn",
  paused: "warn",
  lost: "bad",
  error: "bad",
  failed: "bad",
  down: "bad",
  unknown: "bad",
  dead: "bad",
};

// A state by its word. `kind` is good, busy, warn, bad or nothing, where the word does not say it.
export function state(word, kind = STATES[word] ?? "") {
  return h("span", { class: `state ${kind}` }, String(word).replaceAll("_", " "));
}

// What went wrong and what to do about it.
export function problem(error, retry = null) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, sentence(error.message)),
    error.remedy && h("span", {}, sentence(error.remedy)),
    error.code && h("span", { class: "code" }, `Code ${error.code}`),
    retry && h("button", { type: "button", class: "small", onclick: retry }, "Try again"),
  );
}

export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

// A place with nothing in it says what to do.
export function empty(title, ...rest) {
  return h("div", { class: "empty" }, h("strong", {}, title), ...rest);
}

// Names and values, without what is null.
export function facts(pairs) {
  const known =
    pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

// The large figures at the head of a page: [name, value, aside, kind].
export function figures(all) {
  const made = all.map(
    ([name, value, aside, kind]) => h(
      "div",
      { class: "figure" },
      h("dt", {}, name),
      h("dd", { class: kind || null }, value),
      aside && h("dd", { class: "aside" }, aside),
    ),
  );
  return h("dl", { class: "figures" }, made);
}

// How full something is; where that is bad when it is much, it warns from 80 % on.
export function meter(used, whole, label, { warns = true } = {}) {
  const part = whole ? Math.min(1, used / whole) : 0;
  const kind = !warns || part < 0.8 ? "" : part < 0.95 ? "warn" : "bad";
  const shown = {
    class: `meter ${kind}`,
    viewBox: "0 0 100 4",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  };
  const full = s("rect", { class: "used", width: (100 * part).toFixed(1), height: 4, rx: 1 });
  return s("svg", shown, s("rect", { width: 100, height: 4, rx: 1 }), full);
}

// A part of a page under a heading of its own.
export function part(title, ...children) {
  return h("section", { class: "part", "aria-label": title }, h("h2", {}, title), ...children);
}

// The same with something beside the heading.
export function partWith(title, beside, ...children) {
  const head = h("div", { class: "row apart" }, h("h2", {}, title), beside);
  return h("section", { class: "part", "aria-label": title }, head, ...children);
}

export function box(...children) {
  return h("div", { class: "box" }, ...children);
}

// A table that is only read; `rows` are lists of [content, kind].
export function list(label, heads, rows) {
  const head = heads.map((text) => h("th", { scope: "col" }, text));
  const body = rows.map((row) => h("tr", {}, row.map(([content, kind]) => cell(content, kind))));
  const table = h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)));
  return h("div", { class: "box scroll" }, put(table, h("tbody", {}, body)));
}

function cell(content, kind = null) {
  return h("td", { class: kind }, content);
}

// The hour of a moment that has passed, with the whole of it as its title.
export function moment(ms) {
  return h("span", { title: new Date(ms).toISOString() }, clock(ms));
}

// Say what was done, for eyes and for ears.
export function say(text) {
  const shown = h("div", { class: "notice" }, text);
  document.getElementById("notices").append(shown);
  setTimeout(() => shown.remove(), NOTICE_MS);
}

// A button. `about` is what its question depends on: where that has changed, it is another button.
export function button(text, act, kind = "", about = null) {
  return h(
    "button",
    { type: "button", class: kind || null, onclick: act, "data-about": about },
    text
  );
}
