// Roll-outs: how far each is, node by node, and stopping one.

import { at, get, post, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h, refill } from "../dom.js";
import { ago, count, many } from "../format.js";
import { heading } from "../heading.js";
import { live, paged } from "../live.js";
import { button, empty, facts, list, meter, moment, part, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 2_000;
const PAGE = 100;
const PHASES = {
  pending: "",
  pre_check: "busy",
  execute: "busy",
  post_check: "busy",
  skipped: "",
  gone: "warn",
};

export function show({ main, signal, parts }) {
  if (parts[0]) return showOne(main, signal, parts[0]);
  heading(main, "Roll-outs", { says: "Changes that go through a cluster, a few nodes at a time." });
  const table = new Table({
    label: "Roll-outs",
    key: (rollout) => rollout.name,
    open: address,
    empty: empty(
      "There are no roll-outs.",
      "Start one with ",
      h("code", {}, "herdbook task rollout start DOCUMENT"),
      ".",
    ),
    columns: [
      {
        title: "Roll-out",
        kind: "name",
        cell: (rollout) => h("a", { href: address(rollout) }, rollout.name),
      },
      { title: "State", cell: ({ state: word }) => state(word) },
      { title: "Action", kind: "name", cell: ({ action }) => action },
      { title: "Cluster", kind: "name", cell: (rollout) => rollout.cluster_name },
      { title: "Done", cell: progress },
      {
        title: "Not proven healthy",
        kind: "number",
        cell: ({ counted, limit }) => `${counted} of ${limit} allowed`,
      },
      { title: "Last progress", cell: (rollout) => ago(rollout.progress_ms) },
    ],
  });
  const shown = paged({
    signal,
    everyMs: LIVE_MS,
    load: async (above) => {
      const { rollouts } = await get("/rollouts", { above: above ?? "", limit: PAGE }, signal);
      return [rollouts, rollouts.length === PAGE ? rollouts.at(-1).name : null];
    },
    draw: (rollouts, content) => {
      table.show(rollouts);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(shown.place);
  return shown;
}

function address({ name }) {
  return `#/rollouts/${encodeURIComponent(name)}`;
}

function progress({ done, nodes }) {
  const text = `${count(done)} of ${count(nodes)}`;
  return [text, meter(done, nodes, `${text} nodes done`, { warns: false })];
}

function showOne(main, signal, name) {
  const beside = h("div", { class: "row" });
  heading(main, name, { back: ["#/rollouts", "Roll-outs"], acts: beside });
  const nodes = new Table({
    label: "Nodes",
    key: ({ node }) => node,
    empty: empty("Its nodes are not known yet."),
    columns: nodeColumns(name, () => shown.refresh()),
  });
  const about = h("div", { class: "part" });
  const log = h("div", { class: "part" });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () =>
      Promise.all([
        get(at`/rollouts/${name}`, {}, signal),
        get(at`/rollouts/${name}/notes`, {}, signal),
      ]),
    draw: ([rollout, { notes }], content) => {
      refill(beside, acts(rollout, () => shown.refresh()));
      refill(about, aboutOne(rollout));
      nodes.show(rollout.each);
      refill(log, notesOf(notes));
      if (!nodes.node.isConnected) content.append(about, part("Nodes", nodes.node), log);
    },
  });
  main.append(shown.place);
  return shown;
}

function aboutOne(rollout) {
  const { document } = rollout;
  return h(
    "div",
    { class: "box padded" },
    facts([
      ["State", state(rollout.state)],
      ["Why", rollout.why],
      ["Action", `${rollout.action}, version ${document.version}`],
      ["Cluster", rollout.cluster_name],
      ["Owner", rollout.owner],
      ["Done", progress(rollout)],
      ["Not proven healthy", `${count(rollout.counted)}, at most ${count(rollout.limit)} may be`],
      [
        "Breaker",
        state(rollout.breaker.replace("_", " "), rollout.breaker === "closed" ? "good" : "bad"),
      ],
      ["Nodes by", document.discovery],
      ["Started", ago(rollout.started_ms)],
      ["Last progress", ago(rollout.progress_ms)],
    ]),
  );
}

function nodeColumns(name, refresh) {
  return [
    { title: "Node", kind: "name", cell: ({ node }) => node },
    { title: "Phase", cell: ({ phase }) => state(phase, PHASES[phase]) },
    { title: "Tries", kind: "number", cell: ({ tries }) => count(tries) },
    {
      title: "Task",
      cell: ({ task_id: id }) => (id ? h("a", { href: `#/tasks/${id}` }, id) : "–"),
    },
    { title: "Since", cell: (node) => ago(node.since_ms) },
    { title: "Why", kind: "name", cell: ({ why }) => why },
    {
      title: "",
      kind: "acts",
      cell: ({ node, phase }) => ["unknown", "dead", "failed"].includes(phase) ?
        button("Say it is healthy", () => clear(name, node, refresh), "small") :
        null,
    },
  ];
}

function notesOf(notes) {
  const rows = notes.map(({ at_ms: ms, by, node, text }) => [
    [moment(ms)],
    [by],
    [node, "name"],
    [text, "name"],
  ]);
  return rows.length > 0 && part("Log", list("Log", ["When", "Who", "Node", "What"], rows));
}

function acts(rollout, refresh) {
  const left = rollout.nodes - rollout.done;
  const isEnded = ["finished", "cancelled"].includes(rollout.state);
  const made = [];
  if (["starting", "running"].includes(rollout.state)) {
    made.push(button(
      "Pause",
      () => change(
        "pause",
        rollout,
        refresh,
        `Nothing more begins on the ${
          many(left, "node")} left; what has begun is finished and proven.`
      ),
      "",
      left
    ));
  }
  if (rollout.state === "paused") {
    made.push(button(
      "Resume",
      () => change(
        "resume",
        rollout,
        refresh,
        `It goes on with the ${many(left, "node")} left, without nodes that are gone.`
      ),
      "first",
      left
    ));
  }
  if (!isEnded && rollout.state !== "cancelling") {
    made.push(button(
      "Cancel",
      () => change(
        "cancel",
        rollout,
        refresh,
        `Nothing more begins, for good. The ${many(left, "node")} left stay as they are.`
      ),
      "grave",
      left
    ));
  }
  if (isEnded) made.push(button("Forget", () => forget(rollout), "grave"));
  return made;
}

function change(what, { name }, refresh, says) {
  const action = `${what[0].toUpperCase()}${what.slice(1)} the roll-out`;
  const isPause = what === "pause";
  return ask({
    title: `${action} ${name}?`,
    says,
    action,
    keep: "Let it be",
    grave: what === "cancel",
    fields: isPause ? [["why", "Why, for other people", { maxlength: 1_000 }]] : [],
    act: async (values) => {
      await post(at`/rollouts/${name}/${what}`, isPause ? values : undefined);
      say(`${name}: asked to ${what}.`);
      refresh();
    },
  });
}

function clear(name, node, refresh) {
  return ask({
    title: `Say that ${node} is healthy?`,
    says: "You have looked at it. It no longer counts as broken, and the roll-out goes on.",
    action: "It is healthy",
    fields: [["done", "The action is done on it, too: do not try it again", { type: "checkbox" }]],
    act: async ({ done }) => {
      await post(at`/rollouts/${name}/clear`, { node, done });
      say(`${node} is cleared.`);
      refresh();
    },
  });
}

function forget({ name }) {
  return ask({
    title: `Forget the roll-out ${name}?`,
    says: "Its record and its log are removed. The nodes stay as they are.",
    action: "Forget the roll-out",
    grave: true,
    act: async () => {
      await remove(at`/rollouts/${name}`);
      say(`${name} is forgotten.`);
      location.hash = "#/rollouts";
    },
  });
}
