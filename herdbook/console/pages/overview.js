// The cluster at a glance: whether anything is wrong stands first, in words.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { h, refill } from "../dom.js";
import { bytes, count, many, percent, rate } from "../format.js";
import { heading } from "../heading.js";
import { askHealth, verdict, watch } from "../health.js";
import { live } from "../live.js";
import { empty, figures, meter, part, problem, sentence, state } from "../showing.js";
import { Table } from "../table.js";

const RATES_MS = 5_000;
const NAMES_MAX = 12;

export function show({ main, signal }) {
  heading(main, "Overview");
  const says = main.querySelector(".head div");
  const about = h("p", { class: "says" });
  says.append(about);
  const complaint = h("div");
  const glance = h("div", { class: "part" }, h("p", { class: "quiet" }, "Loading…"));
  const nodes = nodesTable();
  const named = h("div", { class: "pair" });
  const below = h("div", { class: "part" });
  const ended = charts(signal);
  main.append(complaint, glance, ended.node, below);
  watch((cluster, error) => {
    refill(complaint, error && problem(error, askHealth));
    if (!cluster) return;
    const url = cluster.url && [" at ", h("code", {}, cluster.url)];
    refill(about, `${cluster.name}, Herdbook ${cluster.version}`, url);
    refill(glance, judged(cluster), numbers(cluster));
    nodes.show(cluster.nodes);
    refill(
      named,
      names("Tablespaces", lackingFirst(cluster), "tables", (name) => copies(cluster, name)),
      names("Buckets", cluster.buckets, "buckets"),
    );
    if (!below.firstChild) below.append(part("Nodes", nodes.node), named);
  }, signal);
  return { refresh: () => Promise.all([askHealth(), ended.refresh()]) };
}

function judged(cluster) {
  const [kind, text] = verdict(cluster);
  const list = cluster.warnings.map((warning) => h("li", {}, sentence(warning)));
  const look =
    kind === "bad" && h("a", { href: "#/bookies" }, "Look at the bookies and their repair");
  return h(
    "section",
    { class: `verdict ${kind}`, "aria-label": "How the cluster is" },
    h("h2", {}, state(`${text}.`, kind)),
    list.length > 0 && h("ul", {}, list),
    look,
  );
}

function numbers({ bookies, under_replicated: waiting, disk, tablespaces, buckets }) {
  const away = bookies.total - bookies.up;
  const full = disk.total_bytes ? disk.used_bytes / disk.total_bytes : 0;
  const use = `${bytes(disk.used_bytes)} of ${bytes(disk.total_bytes)}`;
  const known = disk.total_bytes !== null;
  return figures([
    [
      "Bookies up",
      `${count(bookies.up)} of ${count(bookies.total)}`,
      bookies.read_only ? `${count(bookies.read_only)} read-only` : "all take entries",
      worst([away, "bad"], [bookies.read_only, "warn"]),
    ],
    [
      "Ledgers to repair",
      waiting === null ? "unknown" : count(waiting),
      waiting ? "lack a replica" : "none waits for a replica",
      waiting ? "bad" : "",
    ],
    [
      "Disk in use",
      known ? percent(disk.used_bytes, disk.total_bytes) : "unknown",
      known ? [use, meter(disk.used_bytes, disk.total_bytes, use)] : "each is told at Bookies",
      worst([full >= 0.9, "bad"], [full >= 0.8, "warn"]),
    ],
    ["Tablespaces", count(tablespaces.length), h("a", { href: "#/tables" }, "Ask them by SQL")],
    ["Buckets", count(buckets.length), h("a", { href: "#/buckets" }, "Browse objects")],
  ]);
}

function worst(...cases) {
  return cases.find(([is]) => is)?.[1] ?? "";
}

function charts(signal) {
  const entries = new Chart("Entries taken by bookies, five minutes", (value) => rate(value));
  const written = new Chart(
    "Bytes taken by bookies, five minutes",
    (value) => rate(value, "B"),
    1_024,
  );
  const tasks = new Chart("Tasks ended by tenant, five minutes", (value) => rate(value));
  const shown = live({
    signal,
    everyMs: RATES_MS,
    load: () => get("/rates", {}, signal),
    draw: (rates, content) => {
      entries.show(rates.times, shortened(rates.appends));
      written.show(rates.times, shortened(rates.bytes));
      tasks.show(rates.times, rates.tasks);
      if (entries.node.isConnected) return;
      const three = h(
        "div",
        { class: "charts" },
        part("Entries, by bookie", entries.node),
        part("Bytes, by bookie", written.node),
        part("Tasks ended, by tenant", tasks.node),
      );
      content.append(three);
    },
  });
  return { node: shown.place, refresh: shown.refresh };
}

// A bookie's id is long, and its beginning tells it from a few others.
function shortened(series) {
  const named = Object.entries(series).map(([name, values]) => [name.slice(0, 8), values]);
  return Object.fromEntries(named);
}

// Its name comes first, where it has one: people know a node by it.
export function called(name, host) {
  return host ? [`${host} `, h("code", { title: name }, name.slice(0, 8))] : h("code", {}, name);
}

function nodesTable() {
  return new Table({
    label: "Nodes",
    key: (node) => `${node.role} ${node.name}`,
    empty: empty("No node is known."),
    columns: [
      { title: "Node", kind: "id", cell: ({ name, host }) => called(name, host) },
      { title: "Role", cell: ({ role }) => role },
      { title: "State", cell: ({ up }) => (up ? state("up") : state("down")) },
      { title: "Leads", cell: ({ leads }) => (leads ? "yes" : "") },
      { title: "Address", kind: "name", cell: ({ address }) => address || "–" },
    ],
  });
}

// How many of a tablespace's replicas follow or lead, of how many; nothing where no nodes run it.
export function copies({ replicas }, name) {
  if (!replicas[name]) return null;
  const { wanted, ready } = replicas[name];
  const text = `${count(ready)} of ${many(wanted, "replica")}`;
  return [" ", ready < wanted ? state(text, "bad") : h("span", { class: "quiet" }, text)];
}

// Tablespaces that lack replicas stand first: a long list is cut off.
export function lackingFirst({ tablespaces, replicas }) {
  const lacks = (name) => Number(replicas[name]?.ready < replicas[name]?.wanted);
  return tablespaces.toSorted((one, other) => lacks(other) - lacks(one));
}

function names(title, all, page, aside = () => null) {
  const link = (name) => h("a", { href: `#/${page}/${encodeURIComponent(name)}` }, name);
  const shown =
    all.slice(0, NAMES_MAX)
      .map((name) => h("li", {}, link(name), aside(name)));
  const rest = all.length - shown.length;
  const more =
    rest > 0 && h("p", {}, h("a", { href: `#/${page}` }, `and ${many(rest, "more", "more")}`));
  const none = page === "buckets" ?
    empty("No buckets.", h("a", { href: "#/buckets" }, "Make the first one")) :
    empty("No tablespaces.");
  const list = h("div", { class: "box padded" }, h("ul", { class: "names" }, shown), more);
  return part(title, shown.length ? list : h("div", { class: "box" }, none));
}
