// One task: what is known of it, what happened to it, what went in and came out.

import { address, at, get, post, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h, refill } from "../dom.js";
import { ago, count, duration } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { may } from "../session.js";
import { box, button, facts, list, moment, part, say, state } from "../showing.js";

const ENDED = new Set(["finished", "error", "cancelled", "lost"]);
const LIVE_MS = 2_000;

function ended(task) {
  return ENDED.has(task.status);
}

// What has finished has a result, which stays.
export function retryable(task) {
  return ended(task) && task.status !== "finished";
}

export function cancelable(task) {
  return !ended(task) && !task.cancel_asked;
}

function named(task) {
  return `task ${task.id} (${task.type} of ${task.tenant})`;
}

export function cancel(task, then) {
  const runs = task.status === "running";
  return ask({
    title: `Cancel ${named(task)}?`,
    says: runs
      ? `Its worker, ${task.worker_id}, is asked to end it. What it has done so far stays done.`
      : `It is ${task.status}: it will never run.`,
    action: "Cancel the task",
    keep: "Let it be",
    grave: true,
    act: async () => {
      const told = await post(at`/tasks/${task.id}/cancel`);
      const what = told.outcome === "asked" ? "asked to end" : "cancelled";
      say(`Task ${task.id} is ${what}.`);
      then();
    },
  });
}

export function retry(task, then) {
  return ask({
    title: `Retry ${named(task)}?`,
    says: `It ended as ${task.status} and begins anew, with all its attempts.`,
    action: "Retry the task",
    act: async () => {
      await post(at`/tasks/${task.id}/retry`);
      say(`Task ${task.id} begins anew.`);
      then();
    },
  });
}

function discard(task) {
  return ask({
    title: `Delete ${named(task)}?`,
    says: "Its record, its history and its result are removed now, and cannot be brought back.",
    action: "Delete the task",
    grave: true,
    act: async () => {
      await remove(at`/tasks/${task.id}`);
      say(`Task ${task.id} is deleted.`);
      location.hash = "#/tasks";
    },
  });
}

export function showTask(main, signal, id) {
  const beside = h("div", { class: "row" });
  heading(main, `Task ${id}`, { back: ["#/tasks", "Tasks"], acts: beside });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get(at`/tasks/${id}`, {}, signal),
    draw: (task, content) => {
      refill(beside, acts(task, () => shown.refresh()));
      const payload = went("Payload", task, "payload");
      const result = went("Result", task, "result");
      refill(content, pair(task), history(task), payload, result);
    },
  });
  main.append(shown.place);
  return shown;
}

function acts(task, again) {
  if (!may("write", "tenant", task.tenant)) return null;
  return [
    cancelable(task) && button("Cancel", () => cancel(task, again), "grave", task.status),
    retryable(task) && button("Retry", () => retry(task, again), "", task.status),
    ended(task) && button("Delete", () => discard(task), "grave", task.status),
  ];
}

function pair(task) {
  const failed = task.error && part("Error", h("pre", { class: "text" }, task.error));
  return h("div", { class: "part" }, failed, h("div", { class: "pair" }, about(task), times(task)));
}

function about(task) {
  const word = task.dead ? state("dead letter", "bad") : state(task.status);
  return part(
    "What it is",
    h(
      "div",
      { class: "box padded" },
      facts([
        ["State", word],
        ["Type", task.type],
        [
          "Tenant",
          h("a", { href: `#/tasks?tenant=${encodeURIComponent(task.tenant)}` }, task.tenant),
        ],
        ["Priority", count(task.priority)],
        [
          "Tries",
          task.attempts_max ? `${task.attempt} of ${task.attempts_max}` : count(task.attempt),
        ],
        ["At most once", task.at_most_once ? "yes" : ""],
        ["Worker", task.worker_id],
        ["Group", task.group || ""],
        ["Resources", task.resources.join(", ")],
        ["Slot", task.slot],
        ["Unique key", task.unique_key],
        ["Parents to end", task.parents_left || ""],
        ["Code pool", task.codepool],
        ["Submitted by", task.submitter],
      ]),
    ),
  );
}

function times(task) {
  const took =
    task.started_ms && task.finished_ms ? duration(task.finished_ms - task.started_ms) : "";
  return part(
    "When",
    h(
      "div",
      { class: "box padded" },
      facts([
        ["Made", ago(task.created_ms, "")],
        ["Not before", ago(task.due_ms, "")],
        ["Deadline", ago(task.deadline_ms, "")],
        ["Begun", ago(task.started_ms, "")],
        ["Ended", ago(task.finished_ms, "")],
        ["The last try took", took],
        ["Limit of one try", task.time_limit_ms ? duration(task.time_limit_ms) : ""],
        ["Kept after its end", duration(task.retention_ms)],
      ]),
    ),
  );
}

function history(task) {
  const rows = task.events.map((event) => [
    [moment(event.at_ms)],
    [event.kind.replaceAll("_", " ")],
    [event.attempt || ""],
    [event.who],
    [event.detail, "name"],
  ]);
  return part("History", list("History", ["When", "What", "Try", "Who", "Detail"], rows));
}

// A payload or a result: its text, or a link to its bytes.
function went(title, task, name) {
  const text = task[name];
  const hasBytes = task[`${name}_base64`] || task[`${name}_object`];
  if (!text && !hasBytes) return null;
  const link =
    h("a",
      { href: address(at`/tasks/${task.id}/${name}`), download: `task-${task.id}-${name}` },
      "Download its bytes");
  return part(
    title,
    text ? h("pre", { class: "text" }, pretty(text)) : box(h("p", { class: "empty" }, link))
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
