// Ledgers: the list, page by page, and where the entries of one of them are.

import { at, get, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h, refill } from "../dom.js";
import { ago, bytes, count, many } from "../format.js";
import { heading } from "../heading.js";
import { live, paged } from "../live.js";
import { button, empty, facts, figures, list, part, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 5_000;
const PAGE = 100;

export function show({ main, signal, parts }) {
  if (parts[0]) return showOne(main, signal, parts[0]);
  const total =
    h("p", { class: "says" }, "Append-only, replicated, and what everything else is made of.");
  const go =
    h("input", { name: "id", inputmode: "numeric", pattern: "[0-9]+", required: true, size: 8 });
  const find = h(
    "form",
    {
      class: "row",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = `#/ledgers/${go.value}`;
      },
    },
    h("label", { class: "row" }, h("span", { class: "quiet" }, "Ledger number"), go),
    h("button", {}, "Open"),
  );
  heading(main, "Ledgers", { acts: find });
  main.querySelector(".head div").append(total);
  const table = ledgersTable();
  const shown = paged({
    signal,
    everyMs: LIVE_MS,
    load: async (after) => {
      const page = await get("/ledgers", { after: after ?? undefined, limit: PAGE }, signal);
      const all = page.total === null ? "" : `${many(page.total, "ledger")} in all, `;
      refill(total, `${all}the oldest first.`);
      return [page.ledgers, page.after];
    },
    draw: (ledgers, content) => {
      table.show(ledgers);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(shown.place);
  return shown;
}

function ledgersTable() {
  return new Table({
    label: "Ledgers",
    key: (ledger) => ledger.ledger_id,
    open: (ledger) => `#/ledgers/${ledger.ledger_id}`,
    empty: empty(
      "There are no ledgers yet.",
      "The first one is made with the first table, object or task.",
    ),
    columns: [
      { title: "Ledger", cell: ({ ledger_id: id }) => h("a", { href: `#/ledgers/${id}` }, id) },
      { title: "State", cell: stateOf },
      { title: "Replicas", cell: replicas },
      { title: "Entries", kind: "number", cell: (ledger) => entries(ledger) },
      {
        title: "Bytes",
        kind: "number",
        cell: ({ length }) => (length === null ? "–" : bytes(length)),
      },
      { title: "Made", cell: (ledger) => ago(ledger.created_ms) },
      { title: "Belongs to", kind: "name", cell: ({ owner }) => owner || "–" },
    ],
  });
}

function stateOf({ state: word }) {
  return state(word, word === "unreadable" ? "bad" : undefined);
}

function entries({ last_entry: last }) {
  return last === null ? "still open" : count(last + 1);
}

function replicas(ledger) {
  if (ledger.state === "unreadable") return "–";
  const { bookies_up: up, ensemble } = ledger;
  const text = `${up} of ${ensemble} up`;
  if (up < ledger.ack_quorum) return state(text, "bad");
  return state(text, up < ensemble || ledger.degraded ? "warn" : "good");
}

function showOne(main, signal, id) {
  const beside = h("div", { class: "row" });
  heading(main, `Ledger ${id}`, { back: ["#/ledgers", "Ledgers"], acts: beside });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: async () => {
      const [ledger, { bookies }] = await Promise.all([
        get(at`/ledgers/${id}`, {}, signal),
        get("/bookies", {}, signal),
      ]);
      return { ledger, states: new Map(bookies.map((each) => [each.bookie_id, each.state])) };
    },
    draw: ({ ledger, states }, content) => {
      refill(beside, button("Delete", () => discard(ledger), "grave", ledger.last_entry));
      refill(content, atAGlance(ledger), flaws(ledger), about(ledger), fragments(ledger, states));
    },
  });
  main.append(shown.place);
  return shown;
}

function atAGlance(ledger) {
  return figures([
    ["State", stateOf(ledger)],
    ["Entries", entries(ledger)],
    ["Bytes", ledger.length === null ? "–" : bytes(ledger.length)],
    [
      "Bookies up",
      `${ledger.bookies_up} of ${ledger.ensemble}`,
      "in the worst fragment",
      ledger.bookies_up < ledger.ensemble ? "bad" : "",
    ],
    ["Quorums", `${ledger.write_quorum} / ${ledger.ack_quorum}`, "written / acknowledged"],
  ]);
}

function flaws(ledger) {
  const found = ledger.badly_placed.map((text) => h("li", {}, text));
  if (!found.length) return null;
  return h(
    "div",
    { class: "problem warn" },
    h("strong", {}, "Replicas that may fail together"),
    h("ul", {}, found)
  );
}

function about(ledger) {
  const pairs = Object.entries(ledger.metadata).filter(([name]) => name !== "owner");
  return part(
    "What it is",
    h(
      "div",
      { class: "box padded" },
      facts([
        ["Belongs to", ledger.owner],
        ["Made", ago(ledger.created_ms, "")],
        ["Written with too few bookies", ledger.degraded ? "yes" : ""],
        ...pairs,
      ]),
    ),
  );
}

function fragments(ledger, states) {
  const rows = ledger.fragments.map((fragment, index) => {
    const next = ledger.fragments[index + 1];
    const replicas = fragment.ensemble.map((name) => h("li", {}, replica(name, states)));
    return [
      [range(fragment.first, next ? next.first - 1 : ledger.last_entry)],
      [h("ul", { class: "plainly" }, replicas), "name"],
    ];
  });
  const heads = ["Entries", "Bookies that have them"];
  return part("Where its entries are", list("Fragments", heads, rows));
}

function range(first, last) {
  if (last === null) return `from ${count(first)} on`;
  return last < first ? "none" : `${count(first)} to ${count(last)}`;
}

function replica(name, states) {
  const word = states.get(name) ?? "gone";
  const kind = word === "writable" ? "good" : word === "read-only" ? "warn" : "bad";
  return [h("code", {}, name), " ", state(word, kind)];
}

function discard(ledger) {
  const { ledger_id: id, last_entry: last, owner } = ledger;
  const what = last === null ? "Its entries" : many(last + 1, "entry", "entries");
  return ask({
    title: `Delete the ledger ${id}?`,
    says: [
      `${what} are gone for ever, on all bookies.`,
      owner ? `It belongs to ${owner}, which deletes it when nothing needs it any more.` : [],
    ].flat(),
    action: "Delete the ledger",
    grave: true,
    fields: owner ? [["force", `Delete it although ${owner} loses it`, { type: "checkbox" }]] : [],
    act: async ({ force }) => {
      await remove(at`/ledgers/${id}`, { force: force ? "true" : "" });
      say(`Ledger ${id} is deleted.`);
      location.hash = "#/ledgers";
    },
  });
}
