// The cluster at a glance, asked once for all who show it: the side of every page and the overview.

import { get } from "./api.js";
import { count, many } from "./format.js";

const EVERY_MS = 2_000;
const LATE_MS = 15_000;
const listeners = new Set();
let timer = 0;
let latest = null;
let failures = 0;

// Call `hear(cluster, error)` now, if it is known, and with every change, until `signal` ends it.
export function watch(hear, signal) {
  listeners.add(hear);
  signal?.addEventListener("abort", () => listeners.delete(hear));
  if (latest) hear(latest, null);
}

export async function askHealth() {
  clearTimeout(timer);
  try {
    latest = document.hidden && latest ? latest : await get("/cluster");
    failures = 0;
    for (const hear of listeners) hear(latest, null);
  } catch (error) {
    if (error.status === 401) return;
    failures += 1;
    for (const hear of listeners) hear(latest, error);
  }
  timer = setTimeout(askHealth, Math.min(LATE_MS, EVERY_MS * 2 ** failures));
}

export function forgetHealth() {
  clearTimeout(timer);
  latest = null;
}

// How the cluster is: [kind, a sentence]. What is wrong in detail stands in its warnings.
export function verdict({ bookies, under_replicated: waiting, warnings }) {
  const away = bookies.total - bookies.up;
  if (away > 0)
    return ["bad", away === 1 ? "One bookie is down" : `${count(away)} bookies are down`];
  if (waiting) return ["bad", `${many(waiting, "ledger waits", "ledgers wait")} for a replica`];
  if (warnings.length) return ["warn", many(warnings.length, "warning")];
  return ["good", "All is well"];
}
