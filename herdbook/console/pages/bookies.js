// Bookies and their repair: who is away, what waits for a replica, and what to do about it.

import { at, get, post, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h, refill } from "../dom.js";
import { ago, bytes, count, many, percent } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { button, empty, facts, meter, partWith, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 2_000;
const KINDS = {
  writable: "good",
  "read-only": "warn",
  away: "bad",
};

export function show({ main, signal }) {
  heading(main, "Bookies", {
    says: "Where entries are kept, and how lost replicas are made again.",
  });
  const bookies = showBookies(signal);
  const repair = showRepair(signal);
  main.append(bookies.place, repair.place);
  return { refresh: () => Promise.all([bookies.refresh(), repair.refresh()]) };
}

function showBookies(signal) {
  const table = new Table({
    label: "Bookies",
    key: (bookie) => bookie.bookie_id,
    empty: empty(
      "No bookie has registered.",
      "Start one with ",
      h("code", {}, "herdbook bookie"),
      "."
    ),
    columns: [
      { title: "Bookie", kind: "id", cell: ({ bookie_id: id }) => h("code", {}, id) },
      { title: "State", cell: (bookie) => [stateOf(bookie), problemOf(bookie)] },
      { title: "Disk", kind: "name", cell: disk },
      { title: "Address", kind: "id", cell: ({ address, grpc }) => address || grpc || "–" },
      {
        title: "Host, rack, zone",
        kind: "name",
        cell: ({ host, rack, zone }) => [host, rack, zone].filter(Boolean).join(", ") || "–",
      },
      { title: "", kind: "acts", cell: (bookie) => act(bookie, () => shown.refresh()) },
    ],
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get("/bookies", {}, signal),
    draw: ({ bookies }, content) => {
      table.show(bookies);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  return shown;
}

function stateOf({ state: word, leaving }) {
  const kind = KINDS[word];
  if (leaving) return state(word === "away" ? "left" : "leaving", word === "away" ? "" : "warn");
  return state(word, kind);
}

function problemOf({ problem }) {
  return problem && h("div", { class: "quiet" }, problem);
}

function disk({ total_bytes: total, free_bytes: free }) {
  if (total === null || free === null) return "–";
  const used = total - free;
  return [
    `${percent(used, total)} of ${bytes(total)}`,
    meter(used, total, `${bytes(used)} of ${bytes(total)} in use`),
  ];
}

function act(bookie, refresh) {
  if (bookie.leaving) {
    return [
      button("Let it stay", () => stay(bookie, refresh), "small"),
      " ",
      bookie.state === "away" && button("Forget", () => forget(bookie, refresh), "small"),
    ];
  }
  return button("Decommission", () => decommission(bookie, refresh), "small", bookie.state);
}

function decommission({ bookie_id: id, state: word }, refresh) {
  return ask({
    title: `Decommission the bookie ${id}?`,
    says: [
      word === "away"
        ? "It is away: its replicas are made again from others, and it is not waited for any more."
        : "It takes no new ledgers. Its replicas are copied to other bookies while it serves them.",
      "When no ledger names it any more it can be switched off. Until then it may stay after all.",
    ],
    action: "Decommission it",
    grave: true,
    act: async () => {
      const { left } = await post(at`/bookies/${id}/decommission`);
      say(`${id} is being emptied: ${many(left, "ledger")} to go.`);
      refresh();
    },
  });
}

function stay({ bookie_id: id }, refresh) {
  return ask({
    title: `Let the bookie ${id} stay?`,
    says: "It takes new ledgers again. What was copied off it already stays where it is now.",
    action: "Let it stay",
    act: async () => {
      await post(at`/bookies/${id}/decommission`, { cancel: true });
      say(`${id} stays.`);
      refresh();
    },
  });
}

function forget({ bookie_id: id }, refresh) {
  return ask({
    title: `Forget the bookie ${id}?`,
    says: "It is in no list any more. It must be away, and no ledger may name it.",
    action: "Forget it",
    grave: true,
    act: async () => {
      await remove(at`/bookies/${id}`);
      say(`${id} is forgotten.`);
      refresh();
    },
  });
}

function showRepair(signal) {
  const beside = h("div", { class: "row" });
  const about = h("div", { class: "box padded" });
  const table = queueTable();
  const place = h("div");
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get("/repair", {}, signal),
    draw: (repair, content) => {
      refill(beside, acts(repair, () => shown.refresh()));
      refill(about, aboutRepair(repair));
      table.show(repair.ledgers);
      if (!table.node.isConnected) content.append(about, table.node);
    },
  });
  place.append(partWith("Repair", beside, shown.place));
  return { place, refresh: shown.refresh };
}

function aboutRepair(repair) {
  const { scrub } = repair;
  const away =
    Object.entries(repair.away_bookies)
      .map(
        ([name, ms]) => h("li", {}, h("code", {}, name), " is given up ", ago(ms, "at once")),
      );
  return facts([
    [
      "Repair",
      repair.on ? state("on") : h("span", {}, state("off", "warn"), `: ${repair.reason}`),
    ],
    ["Done by", repair.auditor ? h("code", {}, repair.auditor) : "nobody at the moment"],
    ["Ledgers waiting", repair.queued ? state(count(repair.queued), "bad") : "0"],
    ["Waited for", away.length ? h("ul", { class: "plainly" }, away) : ""],
    ["Given up", repair.lost_bookies.join(", ")],
    ["Being emptied", repair.leaving_bookies.join(", ")],
    ["Unreadable ledgers", repair.unreadable.join(", ")],
    ["Scrub", scrub ? scrubbed(scrub) : "never done: it reads every replica of every ledger"],
    ["Faulty ledgers", scrub?.faulty.join(", ")],
  ]);
}

function scrubbed(scrub) {
  const read =
    `${many(scrub.ledgers, "ledger")} and ${many(scrub.entries, "entry", "entries")} read`;
  const clean = state("no faults", scrub.silent ? "warn" : "good");
  const faults = scrub.faults ? state(many(scrub.faults, "fault"), "bad") : clean;
  const silent = scrub.silent ? `, ${many(scrub.silent, "replica")} without an answer` : "";
  const word = scrub.running ? "goes on" : scrub.finished ? "done" : "unfinished, and not run here";
  return h("span", {}, `${word}: ${read}${silent}, `, faults, ", begun ", ago(scrub.started_ms));
}

function queueTable() {
  return new Table({
    label: "Ledgers that wait for repair",
    key: (ledger) => ledger.ledger_id,
    open: (ledger) => `#/ledgers/${ledger.ledger_id}`,
    empty: empty(
      "Nothing waits for repair.",
      "Ledgers that lack a replica stand here until they have it."
    ),
    columns: [
      { title: "Ledger", cell: ({ ledger_id: id }) => h("a", { href: `#/ledgers/${id}` }, id) },
      { title: "Why", kind: "name", cell: ({ reason }) => reason },
      {
        title: "Now",
        cell: (ledger) => (ledger.under_way ? state("under way", "busy") : state("waiting")),
      },
      { title: "The last try met", kind: "name", cell: ({ blocked }) => blocked || "–" },
    ],
  });
}

function acts(repair, refresh) {
  return [
    !repair.scrub?.running && button("Scrub", () => scrub(refresh)),
    repair.on ? button("Switch repair off", () => off(refresh), "grave") :
                button("Switch repair on", () => on(refresh), "first"),
  ];
}

function off(refresh) {
  return ask({
    title: "Switch repair off?",
    says: [
      "Lost replicas are not made again until it is switched on.",
      "That is for planned work on bookies, and not for long.",
    ],
    action: "Switch it off",
    grave: true,
    fields: [["reason", "Why, for other people", { maxlength: 1_000 }]],
    act: async ({ reason }) => {
      await post("/repair/off", { reason });
      say("Repair is off.");
      refresh();
    },
  });
}

function on(refresh) {
  return ask({
    title: "Switch repair on?",
    says: "Ledgers that lack replicas get them, one after the other.",
    action: "Switch it on",
    act: async () => {
      await post("/repair/on");
      say("Repair is on.");
      refresh();
    },
  });
}

function scrub(refresh) {
  return ask({
    title: "Scrub all ledgers?",
    says: [
      "Every replica of every entry is read and compared with its checksum, and repaired if wrong.",
      "It takes disk and time, and goes on when you leave this page.",
    ],
    action: "Begin the scrub",
    act: async () => {
      const { changed } = await post("/repair/scrub");
      say(changed ? "The scrub has begun." : "A scrub goes on already at this node.");
      refresh();
    },
  });
}
