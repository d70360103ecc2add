// The side of every page: what there is, how the cluster is, who one is.

import { fill, h } from "./dom.js";
import { showKeys } from "./keys.js";
import { state } from "./showing.js";
import { theme, turnTheme, watchTheme } from "./theme.js";

const PLACES = [
  ["Cluster", [["", "Overview"], ["ledgers", "Ledgers"], ["bookies", "Bookies"]]],
  ["Data", [["tables", "Tables"], ["buckets", "Buckets"], ["quotas", "Quotas"]]],
  [
    "Work",
    [
      ["tasks", "Tasks"],
      ["schedules", "Schedules"],
      ["workers", "Workers"],
      ["rollouts", "Roll-outs"],
    ],
  ],
];
const FOR_ADMINISTRATORS = new Set(["ledgers", "bookies", "schedules", "rollouts"]);
const side = document.getElementById("side");
const health = h("span", {}, "");

export function turn() {
  turnTheme();
  tellTheme();
}

const themes = h("button", { type: "button", class: "plain", onclick: turn });

function tellTheme() {
  fill(themes, theme() === "dark" ? "Light theme" : "Dark theme");
}

watchTheme(tellTheme);

// Draw it for a user; `leave` signs out.
export function drawSide(me, leave) {
  const allowed = PLACES.map(([name, links]) => {
    return [name, links.filter(([path]) => me.admin || !FOR_ADMINISTRATORS.has(path))];
  });
  const groups = allowed.map(
    ([name, links]) => h(
      "div",
      {},
      h("h2", {}, name),
      h("ul", {}, links.map(([path, text]) => h("li", {}, h("a", { href: `#/${path}` }, text)))),
    ),
  );
  const named = me.session ?
    [
      h("p", { class: "who" }, "Signed in as ", h("strong", {}, me.user)),
      h("button", { type: "button", class: "plain", id: "leave", onclick: leave }, "Sign out"),
    ] :
    h("p", { class: "who" }, "Open store: nobody has to sign in.");
  tellTheme();
  fill(
    side,
    h("a", { class: "mark", href: "#/" }, h("strong", {}, "Herdbook"), health),
    h("nav", { "aria-label": "Pages" }, groups),
    h(
      "div",
      { class: "foot" },
      themes,
      h("button", { type: "button", class: "plain", onclick: () => void showKeys() }, "Keys (?)"),
      named,
    ),
  );
  side.hidden = false;
}

export function hideSide() {
  side.hidden = true;
}

// Mark where one is; `page` is the first part of the path.
export function markPlace(page) {
  for (const link of side.querySelectorAll("nav a")) {
    if (link.hash === `#/${page}`)
      link.setAttribute("aria-current", "page");
    else
      link.removeAttribute("aria-current");
  }
}

// How the cluster is, in a word.
export function tellHealth(word, kind) {
  fill(health, state(word, kind));
}
