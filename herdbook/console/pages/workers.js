// Workers: which there are, what they do, and letting one take nothing more.

import { at, get, put, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { ago, count, many } from "../format.js";
import { heading } from "../heading.js";
import { watch } from "../health.js";
import { live } from "../live.js";
import { user } from "../session.js";
import { button, empty, meter, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 2_000;
const START = "herdbook worker --tasks your.module --url";

export function show({ main, signal }) {
  heading(main, "Workers", {
    says: "Processes that run tasks. A drained one keeps what it runs and takes nothing more.",
  });
  const start = h("code", {}, `${START} STORE`);
  watch((cluster) => {
    if (cluster?.url) start.textContent = `${START} ${cluster.url}`;
  }, signal);
  const table = new Table({
    label: "Workers",
    key: (worker) => worker.worker_id,
    open: (worker) => `#/tasks?${new URLSearchParams({ worker_id: worker.worker_id })}`,
    empty: empty(
      "No worker has connected.",
      "Start one with ",
      start,
      ".",
    ),
    columns: columns(() => shown.refresh()),
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: async () => {
      const asking = [get("/workers", {}, signal), limitsOf(signal)];
      const [{ workers }, limits] = await Promise.all(asking);
      return workers.map((worker) => ({ ...worker, limits: limits.get(worker.worker_id) ?? null }));
    },
    draw: (workers, content) => {
      table.show(workers);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(shown.place);
  return shown;
}

// Limits are for administrators to see; who is none sees workers without them.
async function limitsOf(signal) {
  try {
    const { settings } = await get("/settings", { kind: "worker" }, signal);
    return new Map(settings.map(({ name, value }) => [name, value]));
  } catch (error) {
    if (error.status === 403) return new Map();
    throw error;
  }
}

function drained({ limits }) {
  return limits?.places === 0;
}

function columns(refresh) {
  return [
    { title: "Worker", kind: "name", cell: (worker) => worker.worker_id },
    { title: "State", cell: (worker) => stateOf(worker) },
    {
      title: "Places in use",
      cell: ({ running, places }) => [
        `${count(running)} of ${count(places)}`,
        meter(running, places, `${running} of ${many(places, "place")} in use`, { warns: false }),
      ],
    },
    { title: "Runs", kind: "name", cell: ({ types }) => types.join(", ") || "anything" },
    { title: "Where", kind: "name", cell: ({ location }) => location || "–" },
    { title: "Since", cell: ({ since_ms: sinceMs }) => ago(sinceMs) },
    { title: "", kind: "acts", cell: (worker) => act(worker, refresh) },
  ];
}

function stateOf(worker) {
  if (worker.state !== "connected") return state(worker.state);
  if (drained(worker)) return state(worker.running ? "draining" : "drained", "warn");
  return worker.linked ? state("connected") : state("out of reach", "warn");
}

function act(worker, refresh) {
  if (!user().admin) return null;
  if (drained(worker))
    return button(
      "Let it work",
      () => undrain(worker, refresh),
      "small",
      JSON.stringify(worker.limits)
    );
  if (worker.state !== "connected") return null;
  return button("Drain", () => drain(worker, refresh), "small", worker.running);
}

function drain(worker, refresh) {
  const before = worker.limits?.places;
  const forgotten =
    before ? `The limit of ${many(before, "place")} that was set for it is forgotten. ` : "";
  return ask({
    title: `Drain the worker ${worker.worker_id}?`,
    says: [`It gets no more tasks; the ${count(worker.running)} that it runs go on.`, forgotten],
    action: "Drain the worker",
    act: async () => {
      await put(at`/settings/worker/${worker.worker_id}`, { ...worker.limits, places: 0 });
      say(`The worker ${worker.worker_id} gets no more tasks.`);
      refresh();
    },
  });
}

function undrain(worker, refresh) {
  return ask({
    title: `Let the worker ${worker.worker_id} work again?`,
    says: "It gets tasks for as many places as it has.",
    action: "Let it work",
    act: async () => {
      const { places, ...others } = worker.limits;
      const isBare = Object.values(others).every((value) => !value || !Object.keys(value).length);
      const path = at`/settings/worker/${worker.worker_id}`;
      await (isBare ? remove(path) : put(path, others));
      say(`The worker ${worker.worker_id} gets tasks again.`);
      refresh();
    },
  });
}
