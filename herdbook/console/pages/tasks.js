// Tasks: how many, how quickly, by tenant; the list with its filters; one of them in detail.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { h, refill } from "../dom.js";
import { ago, count, rate } from "../format.js";
import { heading } from "../heading.js";
import { live, paged } from "../live.js";
import { may, user } from "../session.js";
import { button, empty, figures, part, partWith, state } from "../showing.js";
import { Table } from "../table.js";

import { cancel, cancelable, retry, retryable, showTask } from "./task_detail.js";
import { showTenants } from "./tenants.js";

const STATES = [
  "waiting",
  "running",
  "delayed",
  "blocked",
  "prepared",
  "finished",
  "error",
  "cancelled",
  "lost",
];
const FIELDS = [
  ["tenant", "Tenant"],
  ["type", "Type"],
  ["worker_id", "Worker"],
  ["slot", "Slot"],
];
const LIVE_MS = 2_000;
const RATES_MS = 5_000;

export function show({ main, signal, parts, query }) {
  if (parts[0]) return showTask(main, signal, parts[0]);
  heading(main, "Tasks", { says: "What waits, what runs, and what became of the rest." });
  const counts = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get("/status", {}, signal),
    draw: (status, content) => refill(content, figures(countsOf(status.tasks))),
  });
  main.append(counts.place, throughput(signal));
  // Queues and pauses are for administrators to see.
  if (user().admin) main.append(showTenants(signal));
  const list = showList(query, signal);
  main.append(list.place);
  return { refresh: () => Promise.all([counts.refresh(), list.refresh()]) };
}

function countsOf(tasks) {
  return STATES
    .filter((name) => tasks[name] || ["waiting", "running", "finished", "error"].includes(name))
    .map(
      (name) =>
        [name[0].toUpperCase() + name.slice(1), count(tasks[name]), "", kindOf(name, tasks[name])]
    );
}

function kindOf(name, number) {
  return number && (name === "error" || name === "lost") ? "bad" : "";
}

function throughput(signal) {
  const chart = new Chart("Tasks ended by tenant, the last five minutes", (value) => rate(value));
  const shown = live({
    signal,
    everyMs: RATES_MS,
    load: () => get("/rates", {}, signal),
    draw: (rates, content) => {
      chart.show(rates.times, rates.tasks);
      if (!chart.node.isConnected) content.append(chart.node);
    },
  });
  return part("Tasks ended, by tenant", shown.place);
}

function showList(query, signal) {
  const asked = { status: query.get("status") ?? "", dead: query.get("dead") ?? "" };
  for (const [name] of FIELDS) asked[name] = query.get(name) ?? "";
  const table = new Table({
    label: "Tasks",
    key: (task) => task.id,
    open: (task) => `#/tasks/${task.id}`,
    empty: nothing(asked),
    columns: [
      { title: "Task", cell: (task) => h("a", { href: `#/tasks/${task.id}` }, task.id) },
      { title: "State", cell: (task) => stateOf(task) },
      { title: "Type", kind: "name", cell: (task) => task.type },
      { title: "Tenant", kind: "name", cell: (task) => task.tenant },
      { title: "Tries", kind: "number", cell: (task) => tries(task) },
      { title: "Worker", kind: "name", cell: (task) => task.worker_id || "–" },
      { title: "When", kind: "id", cell: lately },
      { title: "", kind: "acts", cell: (task) => acts(task, () => shown.refresh()) },
    ],
  });
  const shown = paged({
    signal,
    everyMs: LIVE_MS,
    load: async (token) => {
      const wanted = { ...asked, token: token ?? "", limit: 100 };
      const page = await get("/tasks", wanted, signal);
      return [page.tasks, page.token];
    },
    draw: (tasks, content) => {
      table.show(tasks);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  const place = partWith("List", chips(asked), filters(asked), shown.place);
  return { place, refresh: shown.refresh };
}

function nothing(asked) {
  const filtered = Object.values(asked).some(Boolean);
  return filtered ?
    empty("No task is like that.", h("a", { href: "#/tasks" }, "Show all tasks")) :
    empty("There are no tasks.", "Submit one with ", h("code", {}, "herdbook task submit"), ".");
}

export function stateOf(task) {
  if (task.dead) return state("dead letter", "bad");
  return state(task.cancel_asked && task.status === "running" ? "cancelling" : task.status);
}

// The newest of what happened to it.
function lately(task) {
  if (task.finished_ms) return ["ended ", ago(task.finished_ms)];
  if (task.status === "running") return ["begun ", ago(task.started_ms)];
  return ["made ", ago(task.created_ms)];
}

function tries(task) {
  return task.attempts_max ? `${task.attempt} of ${task.attempts_max}` : count(task.attempt);
}

function acts(task, refresh) {
  if (!may("write", "tenant", task.tenant)) return null;
  if (cancelable(task))
    return button("Cancel", () => cancel(task, refresh), "small", task.status);
  if (retryable(task)) return button("Retry", () => retry(task, refresh), "small", task.status);
  return null;
}

function go(asked) {
  const given = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  location.hash = `#/tasks${given.size ? `?${given}` : ""}`;
}

function chips(asked) {
  const choices = [
    ["", "All"],
    ["waiting", "Waiting"],
    ["running", "Running"],
    ["finished", "Finished"],
    ["error", "Error"],
  ];
  const made = choices.map(
    ([value, text]) => h(
      "button",
      {
        type: "button",
        class: "small",
        "aria-pressed": String(asked.status === value && !asked.dead),
        onclick: () => go({ ...asked, status: value, dead: "" }),
      },
      text,
    ),
  );
  const dead = h(
    "button",
    {
      type: "button",
      class: "small",
      "aria-pressed": String(Boolean(asked.dead)),
      onclick: () => go({ ...asked, status: "", dead: "true" }),
    },
    "Dead letters",
  );
  return h("div", { class: "chips", role: "group", "aria-label": "State" }, made, dead);
}

function filters(asked) {
  const inputs = FIELDS.map(([name, text]) => {
    const input = h("input", { name, autocomplete: "off", spellcheck: "false" });
    input.value = asked[name];
    return h("label", { class: "field" }, text, input);
  });
  const form = h(
    "form",
    {
      class: "filters",
      role: "search",
      "aria-label": "Filter tasks",
      onsubmit: (event) => {
        event.preventDefault();
        go({ ...asked, ...Object.fromEntries(new FormData(form)) });
      },
    },
    inputs,
    h("button", {}, "Filter"),
  );
  return form;
}
