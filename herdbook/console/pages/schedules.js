// Schedules: what is submitted by itself and when, and letting one fire no more.

import { at, get, post } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { ago, count, duration } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { button, empty, say, state } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 5_000;

export function show({ main, signal }) {
  heading(main, "Schedules", {
    says: "Tasks that are submitted by themselves. A paused schedule submits nothing.",
  });
  const table = new Table({
    label: "Schedules",
    key: ({ name }) => name,
    empty: empty(
      "There are no schedules.",
      "Add one with ",
      h("code", {}, "herdbook task schedule --help"),
      ".",
    ),
    columns: columns(() => shown.refresh()),
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get("/schedules", {}, signal),
    draw: ({ schedules }, content) => {
      table.show(schedules);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(shown.place);
  return shown;
}

function columns(refresh) {
  return [
    { title: "Schedule", kind: "name", cell: ({ name }) => name },
    { title: "Type", kind: "name", cell: ({ type }) => type },
    { title: "Tenant", kind: "name", cell: ({ tenant }) => tenant },
    { title: "When", kind: "name", cell: whenOf },
    { title: "Next", cell: ({ paused, next_due_ms: due }) => (paused ? "–" : ago(due)) },
    { title: "Last", cell: lastOf },
    { title: "Fired", kind: "number", cell: ({ fired }) => count(fired) },
    { title: "Not submitted", kind: "number", cell: missedOf },
    {
      title: "State",
      cell: ({ paused }) => (paused ? state("paused", "warn") : state("on", "good")),
    },
    { title: "", kind: "acts", cell: (schedule) => act(schedule, refresh) },
  ];
}

function whenOf({ cron, zone, interval_ms: every }) {
  return cron ? [h("code", {}, cron), ` ${zone}`] : `every ${duration(every)}`;
}

function lastOf({ last_due_ms: due, last_task: task }) {
  if (!due) return "–";
  return task ? h("a", { href: `#/tasks/${task}` }, ago(due)) : ago(due);
}

// Skipped while it was paused or nobody led; refused because the task could not be submitted.
function missedOf({ skipped, refused }) {
  if (!refused) return count(skipped);
  return h("span", {}, count(skipped), ", ", state(`${count(refused)} refused`, "bad"));
}

function act({ name, paused, type, tenant }, refresh) {
  const whole = `${name} ${type} ${tenant}`;
  if (paused) return button("Resume", () => resume(name, refresh), "small", whole);
  return button("Pause", () => pause(name, type, tenant, refresh), "small", whole);
}

function pause(name, type, tenant, refresh) {
  return ask({
    title: `Pause the schedule ${name}?`,
    says: `No more tasks ${type} of ${tenant} are submitted by it; those that are there go on.`,
    action: "Pause the schedule",
    act: async () => {
      await post(at`/schedules/${name}/pause`);
      say(`The schedule ${name} is paused.`);
      refresh();
    },
  });
}

function resume(name, refresh) {
  return ask({
    title: `Resume the schedule ${name}?`,
    says: "It fires again the next time that it is due.",
    action: "Resume the schedule",
    act: async () => {
      await post(at`/schedules/${name}/resume`);
      say(`The schedule ${name} fires again.`);
      refresh();
    },
  });
}
