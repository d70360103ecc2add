// What is shown stays fresh: asked again every few seconds while somebody looks.

import { fill, h } from "./dom.js";
import { button, problem } from "./showing.js";

const LATE_MS = 30_000;
const NOT_SHOWN = {
  message: "What the node answered cannot be shown.",
  remedy: "load the page anew if this stays: the node may have another version by now",
};

// Fill `place` with what `draw(told)` makes, or let it refresh what it made: it gets `place` only
// once. Asks again every `everyMs` until `signal` ends it; 0: only when `refresh` is called. A
// failure after the first success leaves what is there; so does an answer that cannot be drawn,
// which the browser's console is told in full.
export function live({ signal, everyMs = 0, load, draw, place = h("div", { class: "part" }) }) {
  const complaint = h("div");
  const content = h("div", { class: "part" }, h("p", { class: "quiet" }, "Loading…"));
  fill(place, complaint, content);
  let timer = 0;
  let drawn = false;
  let failures = 0;
  let asking = null;

  async function turn() {
    clearTimeout(timer);
    try {
      const told = await load();
      if (signal.aborted) return;
      if (!drawn) content.replaceChildren();
      drawn = true;
      failures = 0;
      complaint.replaceChildren();
      draw(told, content);
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      failures += 1;
      if (!drawn) content.replaceChildren();
      const isDefect = !("code" in error);
      if (isDefect) reportError(error);
      fill(complaint, problem(isDefect ? NOT_SHOWN : error, refresh));
    } finally {
      if (everyMs && !signal.aborted) {
        timer = setTimeout(refresh, Math.min(LATE_MS, everyMs * 2 ** failures));
      }
    }
  }

  // One question at a time: who refreshes while one is under way gets an answer asked afterwards.
  async function refresh() {
    if (document.hidden && drawn) {
      timer = setTimeout(refresh, everyMs || LATE_MS);
      return;
    }
    if (asking) await asking;
    if (signal.aborted) return;
    asking = turn();
    await asking;
  }

  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => !document.hidden && refresh(), { signal });
  refresh();
  return { place, refresh };
}

// A list that is told page by page. `load(mark)` gives [items, the next mark or null].
export function paged({ signal, load, draw, place = h("div", { class: "part" }), everyMs = 0 }) {
  let pages = 1;
  const more = button("Show more", () => {
    pages += 1;
    shown.refresh();
  });
  const shown = live({
    signal,
    everyMs,
    place,
    load: async () => {
      const all = [];
      let mark = null;
      for (let page = 0; page < pages; page += 1) {
        const [items, next] = await load(mark);
        all.push(...items);
        mark = next;
        if (!mark) break;
      }
      return [all, mark];
    },
    draw: ([items, mark], content) => {
      draw(items, content);
      if (mark && !more.isConnected) content.after(more);
      if (!mark) more.remove();
    },
  });
  return shown;
}
