// Who waits for what: each tenant's queues, and a pause for one of them.

import { at, get, post } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { ago, count } from "../format.js";
import { live } from "../live.js";
import { button, empty, part, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 3_000;

export function showTenants(signal) {
  const table = new Table({
    label: "Tenants",
    key: (tenant) => tenant.name,
    open: tasksOf,
    empty: empty(
      "Nothing waits.",
      "Tenants stand here as long as tasks of theirs wait, or are paused."
    ),
    columns: [
      {
        title: "Tenant",
        kind: "name",
        cell: (tenant) => h("a", { href: tasksOf(tenant) }, tenant.name),
      },
      { title: "Waiting", kind: "number", cell: (tenant) => count(tenant.waiting) },
      {
        title: "Types",
        kind: "name",
        cell: (tenant) => [...tenant.types].sort().join(", ") || "–",
      },
      { title: "The first since", cell: (tenant) => ago(tenant.sinceMs) },
      {
        title: "State",
        cell: stateOf,
      },
      { title: "", kind: "acts", cell: (tenant) => act(tenant, () => shown.refresh()) },
    ],
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: async () => {
      const [{ queues }, { settings }, { workers }] = await Promise.all([
        get("/queues", {}, signal),
        get("/settings", { kind: "pause" }, signal),
        get("/workers", {}, signal),
      ]);
      return gathered(queues, settings, workers.filter((each) => each.state === "connected"));
    },
    draw: (tenants, content) => {
      table.show(tenants);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  return part("Tenants", shown.place);
}

function tasksOf({ name }) {
  return `#/tasks?${new URLSearchParams({ tenant: name })}`;
}

function stateOf({ paused, unserved }) {
  if (paused !== null) return halted(paused);
  if (!unserved.length) return state("served", "good");
  return h("span", {}, state("no worker", "warn"), ` takes ${unserved.join(", ")}`);
}

function halted(reason) {
  return h("span", {}, state("paused", "warn"), reason && `: ${reason}`);
}

// A worker without types takes any.
function gathered(queues, settings, workers) {
  const tenants = new Map();
  const of = (name) => {
    const fresh = { name, waiting: 0, types: new Set(), sinceMs: 0, paused: null };
    if (!tenants.has(name)) tenants.set(name, fresh);
    return tenants.get(name);
  };
  for (const queue of queues) {
    const tenant = of(queue.tenant);
    tenant.waiting += queue.length;
    tenant.types.add(queue.type);
    tenant.sinceMs = Math.min(tenant.sinceMs || queue.since_ms, queue.since_ms);
  }
  for (const { name, value } of settings) {
    if (name.startsWith("tenant:")) of(name.slice("tenant:".length)).paused = value.reason ?? "";
  }
  const takes = (type) => workers.some(({ types }) => !types.length || types.includes(type));
  for (const tenant of tenants.values())
    tenant.unserved = [...tenant.types].filter((type) => !takes(type)).sort();
  return [...tenants.values()].sort(
    (one, other) => other.waiting - one.waiting || (one.name < other.name ? -1 : 1)
  );
}

function act({ name, waiting, paused }, refresh) {
  if (paused === null)
    return button("Pause", () => pause(name, waiting, refresh), "small", waiting);
  return button("Resume", () => resume(name, waiting, refresh), "small", waiting);
}

function pause(name, waiting, refresh) {
  return ask({
    title: `Pause the tenant ${name}?`,
    says: `No more of its tasks begin; ${count(waiting)} wait now. What runs goes on.`,
    action: "Pause the tenant",
    fields: [["reason", "Why, for other people", { maxlength: 1_000 }]],
    act: async ({ reason }) => {
      await post(at`/tenants/${name}/pause`, { reason });
      say(`The tenant ${name} is paused.`);
      refresh();
    },
  });
}

function resume(name, waiting, refresh) {
  return ask({
    title: `Resume the tenant ${name}?`,
    says: `Its tasks begin again as places become free; ${count(waiting)} wait now.`,
    action: "Resume the tenant",
    act: async () => {
      await post(at`/tenants/${name}/resume`);
      say(`The tenant ${name} is served again.`);
      refresh();
    },
  });
}
