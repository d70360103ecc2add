// Quotas: what buckets hold and may hold, what of tenants waits and may wait.

import { at, get, put, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, bytesOf, count, exactly } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { may, user } from "../session.js";
import { button, empty, meter, partWith, part, say } from "../showing.js";
import { Table } from "../table.js";

const LIVE_MS = 5_000;
const OTHERS = "*";
const NUMBER = { type: "number", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 };
const SIZE = {
  autocomplete: "off",
  spellcheck: "false",
  pattern: "\\s*[0-9]+([.][0-9]+)?\\s*([kKmMgGtTpP]?[iI]?[bB]?)?\\s*",
  title: "10GiB, 500MB, or a number of bytes",
};
const NAMED = { required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" };
const SAYS =
  "What is over one is refused; what is there stays. What schedules, retries and roll-outs submit"
  + " counts, and is never refused.";
const EMPTY = "What is left empty has no limit";

export function show({ main, signal }) {
  heading(main, "Quotas", { says: SAYS });
  const buckets = bucketsOf(signal);
  main.append(part("Buckets", buckets.place));
  // Quotas of tenants are for administrators to see.
  if (!user().admin) return buckets;
  const tenants = tenantsOf(signal);
  const add = button("Set a quota", () => changeTenant(null, tenants.refresh), "small");
  main.append(partWith("Tenants", add, tenants.place));
  return { refresh: () => Promise.all([buckets.refresh(), tenants.refresh()]) };
}

function shownIn(table, signal, load) {
  return live({
    signal,
    everyMs: LIVE_MS,
    load,
    draw: (rows, content) => {
      table.show(rows);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
}

function bucketsOf(signal) {
  const table = new Table({
    label: "Quotas of buckets",
    key: ({ bucket }) => bucket,
    open: addressOf,
    empty: empty("There are no buckets.", h("a", { href: "#/buckets" }, "Make one")),
    columns: [
      {
        title: "Bucket",
        kind: "name",
        cell: (use) => h("a", { href: addressOf(use) }, use.bucket),
      },
      { title: "Objects", cell: (use) => used(use.objects, use.quota_objects || null, count) },
      { title: "Bytes", cell: (use) => used(use.bytes, use.quota_bytes || null, bytes) },
      {
        title: "",
        kind: "acts",
        cell: (use) => may("admin", "bucket", use.bucket) && button(
          "Change",
          () => changeBucket(use, () => shown.refresh()),
          "small",
          `${use.quota_objects} ${use.quota_bytes}`,
        ),
      },
    ],
  });
  const load = async () => (await get("/quotas", {}, signal)).buckets;
  const shown = shownIn(table, signal, load);
  return shown;
}

function addressOf({ bucket }) {
  return `#/buckets/${encodeURIComponent(bucket)}`;
}

// A limit of null is none, one of 0 lets nothing in.
function used(held, most, shown) {
  if (most === null) return `${shown(held)}, no limit`;
  const text = `${shown(held)} of ${shown(most)}`;
  if (!most) return text;
  return [text, meter(held, most, `${text} in use`)];
}

function changeBucket({ bucket, quota_objects: objects, quota_bytes: size }, refresh) {
  return ask({
    title: `Change the quota of the bucket ${bucket}?`,
    says: ["It holds at once for all who put; objects that are there stay.", `${EMPTY}, as has 0.`],
    action: "Change the quota",
    fields: [
      ["objects", "At most so many objects", { ...NUMBER, value: objects || "" }],
      ["bytes", "At most so many bytes: 10GiB, 500MB", { ...SIZE, value: exactly(size || null) }],
    ],
    act: async (told) => {
      const quota = {
        quota_objects: Number(told.objects || 0),
        quota_bytes: bytesOf(told.bytes) ?? 0,
      };
      await put(at`/buckets/${bucket}/quota`, quota);
      say(`The quota of the bucket ${bucket} is changed.`);
      refresh();
    },
  });
}

function tenantsOf(signal) {
  const table = new Table({
    label: "Quotas of tenants",
    key: ({ name }) => name,
    empty: empty("No tenant has a quota."),
    columns: [
      {
        title: "Tenant",
        kind: "name",
        cell: ({ name }) => (name === OTHERS ? "all others" : name),
      },
      { title: "Tasks that wait", cell: (quota) => waiting(quota, "tasks", count) },
      { title: "Bytes of their payloads", cell: (quota) => waiting(quota, "payload_bytes", bytes) },
      { title: "", kind: "acts", cell: (quota) => actsOf(quota, () => shown.refresh()) },
    ],
  });
  const load = async () => {
    const [{ settings }, { resources }] = await Promise.all([
      get("/settings", { kind: "quota" }, signal),
      get("/resources", {}, signal),
    ]);
    const uses = new Map(resources.map(({ kind, name, running }) => [`${kind} ${name}`, running]));
    return settings.map(({ name, value }) => ({
      name: name || OTHERS,
      value,
      tasks: uses.get(`waiting_tasks ${name}`) ?? 0,
      payload_bytes: uses.get(`waiting_bytes ${name}`) ?? 0,
    }));
  };
  const shown = shownIn(table, signal, load);
  return shown;
}

// Of the others each has as much; what each uses stands where it has a quota of its own.
function waiting(quota, field, shown) {
  const most = quota.value[field] ?? null;
  if (quota.name !== OTHERS) return used(quota[field], most, shown);
  return most === null ? "no limit" : `${shown(most)} each`;
}

function actsOf(quota, refresh) {
  const about = JSON.stringify(quota.value);
  return [
    button("Change", () => changeTenant(quota, refresh), "small", about),
    " ",
    button("Remove", () => removeTenant(quota.name, refresh), "small", about),
  ];
}

function changeTenant(quota, refresh) {
  const { tasks = null, payload_bytes: size = null } = quota?.value ?? {};
  const limits = [
    ["tasks", "At most so many tasks", { ...NUMBER, value: tasks ?? "" }],
    ["bytes", "Payloads of at most: 10GiB, 500MB", { ...SIZE, value: exactly(size) }],
  ];
  const named = ["name", `Tenant, or ${OTHERS} for all others`, NAMED];
  return ask({
    title: quota ? `Change the quota of ${titled(quota.name)}?` : "Set a quota of a tenant",
    says: ["It bounds what waits; what waits already stays.", `${EMPTY}; 0 lets nothing wait.`],
    action: quota ? "Change the quota" : "Set the quota",
    fields: quota ? limits : [named, ...limits],
    act: async (told) => {
      const name = quota ? quota.name : told.name;
      const value = { payload_bytes: bytesOf(told.bytes) };
      value.tasks = told.tasks === "" ? null : Number(told.tasks);
      await put(at`/settings/quota/${name}`, value);
      say(`The quota of ${titled(name)} is set.`);
      refresh();
    },
  });
}

function removeTenant(name, refresh) {
  return ask({
    title: `Remove the quota of ${titled(name)}?`,
    says: name !== OTHERS && "The quota of all others counts for it then, if there is one.",
    action: "Remove the quota",
    act: async () => {
      await remove(at`/settings/quota/${name}`);
      say(`The quota of ${titled(name)} is removed.`);
      refresh();
    },
  });
}

function titled(name) {
  return name === OTHERS ? "all other tenants" : `the tenant ${name}`;
}
