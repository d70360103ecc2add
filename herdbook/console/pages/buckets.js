// Buckets: which there are, making and removing one.

import { at, get, post, remove } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { ago, duration } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { may } from "../session.js";
import { button, empty, say } from "../showing.js";
import { Table } from "../table.js";

import { showBucket } from "./objects.js";

const LIVE_MS = 10_000;
const NAMED = { required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" };

export function show({ main, signal, parts, query }) {
  if (parts[0]) return showBucket({ main, signal, bucket: parts[0], object: parts[1], query });
  const mayMake = may("admin", "bucket");
  heading(main, "Buckets", {
    says: "Objects by name, kept in ledgers.",
    acts: mayMake && button("Make a bucket", () => make(), "first"),
  });
  const table = new Table({
    label: "Buckets",
    key: ({ name }) => name,
    open: address,
    empty: mayMake ?
      empty("There are no buckets.", button("Make the first one", () => make(), "small")) :
      empty("There are no buckets that you may read."),
    columns: [
      {
        title: "Bucket",
        kind: "name",
        cell: (bucket) => h("a", { href: address(bucket) }, bucket.name),
      },
      { title: "Made", cell: (bucket) => ago(bucket.created_ms) },
      { title: "Tablespace of its names", kind: "name", cell: ({ tablespace }) => tablespace },
      { title: "Copies", cell: copies },
      {
        title: "Objects expire",
        cell: ({ ttl_ms: ttl }) => (ttl ? `after ${duration(ttl)}` : "never"),
      },
      { title: "Compression", cell: ({ compression }) => compression || "none" },
      {
        title: "",
        kind: "acts",
        cell: (bucket) => act(bucket, () => shown.refresh()),
      },
    ],
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get("/buckets", {}, signal),
    draw: ({ buckets }, content) => {
      table.show(buckets);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(shown.place);
  return shown;
}

function act(bucket, refresh) {
  return may("admin", "bucket", bucket.name) &&
    button("Delete", () => discard(bucket, refresh), "small");
}

function address({ name }) {
  return `#/buckets/${encodeURIComponent(name)}`;
}

function copies({ ensemble, write_quorum: written, ack_quorum: acknowledged }) {
  if (written === null && ensemble === null) return "as the store has it";
  return [ensemble, written, acknowledged].map((each) => each ?? "·").join(" / ");
}

function make() {
  return ask({
    title: "Make a bucket",
    says: "Its name stays as it is; how many copies it keeps is the store's choice.",
    action: "Make it",
    keep: "Leave it",
    fields: [["name", "Name", NAMED]],
    act: async ({ name }) => {
      await post("/buckets", { name });
      say(`The bucket ${name} is made.`);
      location.hash = address({ name });
    },
  });
}

function discard({ name }, refresh) {
  return ask({
    title: `Delete the bucket ${name}?`,
    says: "It must be empty, unless its objects go with it. They cannot be brought back.",
    action: "Delete the bucket",
    grave: true,
    fields: [["force", "Delete all objects in it, too", { type: "checkbox" }]],
    act: async ({ force }) => {
      await remove(at`/buckets/${name}`, { force: force ? "true" : "" });
      say(`The bucket ${name} is deleted.`);
      refresh();
    },
  });
}
