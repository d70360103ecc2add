// Where the console begins: who is there, which page is wanted, and what to do when that changes.

import { unreachable } from "./api.js";
import { fill, h } from "./dom.js";
import { keepTimes } from "./format.js";
import { askHealth, forgetHealth, verdict, watch } from "./health.js";
import { listenToKeys } from "./keys.js";
import { recognise, signOut, user } from "./session.js";
import { empty, problem } from "./showing.js";
import { drawSide, hideSide, markPlace, tellHealth, turn } from "./side.js";

const PAGES = new Set([
  "ledgers",
  "bookies",
  "tables",
  "buckets",
  "quotas",
  "tasks",
  "schedules",
  "workers",
  "rollouts",
]);
const main = document.getElementById("main");
let leaving = new AbortController();
let shown = null;
let isLacking = false;
let isEnding = false;

// The parts of the path and the query behind the #, null where they are not readable.
function wanted() {
  const [path, query = ""] = location.hash.replace(/^#?\/?/, "").split("?", 2);
  try {
    return { parts: path.split("/").map(decodeURIComponent), query: new URLSearchParams(query) };
  } catch {
    return null;
  }
}

// The module of a page; null where the node did not hand it out, which is told then in its place.
async function pageOf(name, signal) {
  try {
    return await import(`./pages/${name}.js`);
  } catch {
    if (signal.aborted) return null;
    isLacking = true;
    shown = { refresh: route };
    fill(main, problem(unreachable(), () => route()));
    return null;
  }
}

async function route({ first = false } = {}) {
  leaving.abort();
  leaving = new AbortController();
  isLacking = false;
  const { signal } = leaving;
  if (!user()) return signInPage(signal);
  const asked = wanted();
  const page = asked ? asked.parts[0] : null;
  if (page !== "" && !PAGES.has(page)) {
    shown = null;
    fill(main, empty("There is no such page.", h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  markPlace(page);
  const module = await pageOf(page || "overview", signal);
  if (!module || signal.aborted) return;
  main.replaceChildren();
  shown = module.show({ main, signal, parts: asked.parts.slice(1), query: asked.query }) ?? null;
  if (first) return;
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function signInPage(signal) {
  hideSide();
  document.body.classList.add("alone");
  const login = await pageOf("login", signal);
  if (!signal.aborted) login?.showLogin(main, begin);
}

async function begin() {
  let me;
  try {
    me = await recognise();
  } catch (error) {
    hideSide();
    fill(main, problem(error, begin));
    return;
  }
  if (me) {
    document.body.classList.remove("alone");
    drawSide(me, leave);
    askHealth();
  }
  await route({ first: true });
}

async function leave() {
  await signOut();
  forgetHealth();
  await route();
}

addEventListener("hashchange", () => route());
// All that is under way is refused when a session ends, but one form to sign in is enough: another
// would take the place of one that is being filled in.
addEventListener("herdbook:out", async () => {
  if (!user() || isEnding) return;
  isEnding = true;
  forgetHealth();
  try {
    if (await recognise()) void askHealth();
    else await route();
  } finally {
    isEnding = false;
  }
});
watch((cluster, error) => {
  if (error) return void tellHealth("No answer", "bad");
  const [kind, text] = verdict(cluster);
  tellHealth(text, kind);
  if (isLacking) void route();
});
listenToKeys({ refresh: () => shown?.refresh?.(), turn });
keepTimes();
await begin();
