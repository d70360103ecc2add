// What is in a bucket: folders made of names, sending files, one object's facts.

import { address, ApiError, at, get, hasPath, head, remove } from "../api.js";
import { ask } from "../dialog.js";
import { fill, h, refill } from "../dom.js";
import { ago, bytes, percent } from "../format.js";
import { heading } from "../heading.js";
import { live, paged } from "../live.js";
import { may } from "../session.js";
import { button, empty, facts, problem, say } from "../showing.js";
import { Table } from "../table.js";
import { isTaken, upload } from "../uploading.js";

const PAGE = 200;
const LIVE_MS = 10_000;

export function showBucket({ main, signal, bucket, object, query }) {
  if (object !== undefined) return showObject(main, signal, bucket, object);
  const prefix = query.get("prefix") ?? "";
  const back = ["#/buckets", "Buckets"];
  const sending = mayWrite(bucket) ? sender(bucket, prefix, () => shown.refresh()) : null;
  heading(main, bucket, { back, acts: [finder(bucket, prefix), sending?.choose] });
  const table = objectsTable(bucket, prefix, () => shown.refresh());
  const shown = paged({
    signal,
    everyMs: LIVE_MS,
    load: async (after) => {
      const asked = { prefix, delimiter: "/", after: after ?? "", limit: PAGE };
      const page = await get(at`/buckets/${bucket}/objects`, asked, signal);
      const folders = page.prefixes.map((name) => ({ name, isFolder: true }));
      return [[...folders, ...page.objects], page.after];
    },
    draw: (entries, content) => {
      table.show(entries);
      if (!table.node.isConnected) content.append(table.node);
    },
  });
  main.append(crumbs(bucket, prefix));
  if (sending) {
    main.append(sending.node);
    takeDrops(sending, signal);
  }
  main.append(shown.place);
  return shown;
}

function mayWrite(bucket) {
  return may("write", "bucket", bucket);
}

function folder(bucket, prefix) {
  const query = prefix ? `?${new URLSearchParams({ prefix })}` : "";
  return `#/buckets/${encodeURIComponent(bucket)}${query}`;
}

function page(bucket, name) {
  return `#/buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(name)}`;
}

function bytesOf(bucket, name) {
  return address(at`/buckets/${bucket}/objects/${name}`);
}

// The steps of a prefix: "2024/may/" is under "2024/".
function crumbs(bucket, prefix) {
  const steps = prefix.split("/").slice(0, -1);
  const links =
    steps.map((step, index) => [step || "(nothing)", `${steps.slice(0, index + 1).join("/")}/`]);
  const items = [[bucket, ""], ...links].map(([text, to], index, all) => {
    const isLast = index === all.length - 1;
    const current = isLast ? "location" : null;
    return h("li", {}, h("a", { href: folder(bucket, to), "aria-current": current }, text));
  });
  const rest = prefix.split("/").at(-1);
  const begins = rest && h("li", {}, h("span", { class: "quiet" }, `names beginning with ${rest}`));
  return h("nav", { "aria-label": "Folders" }, h("ol", { class: "crumbs" }, items, begins));
}

function finder(bucket, prefix) {
  const input =
    h("input", { name: "prefix", value: prefix, spellcheck: "false", autocomplete: "off" });
  return h(
    "form",
    {
      class: "row",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = folder(bucket, input.value);
      },
    },
    h("label", { class: "row" }, h("span", { class: "quiet" }, "Names that begin with"), input),
    h("button", {}, "Show"),
  );
}

function nothing(bucket, prefix) {
  if (!prefix) {
    return empty(
      "The bucket is empty.",
      mayWrite(bucket) && "Drop files here, or choose some above.",
    );
  }
  const whole = h("a", { href: folder(bucket, "") }, "Show the whole bucket");
  return empty("No name begins like that.", whole);
}

function objectsTable(bucket, prefix, refresh) {
  return new Table({
    label: `Objects of ${bucket}`,
    key: ({ name, isFolder }) => `${isFolder ? "folder" : "object"} ${name}`,
    open: ({ name, isFolder }) => (isFolder ? folder(bucket, name) : page(bucket, name)),
    empty: nothing(bucket, prefix),
    columns: [
      { title: "Name", kind: "name", cell: (entry) => nameOf(bucket, prefix, entry) },
      { title: "Size", kind: "number", cell: (entry) => (entry.isFolder ? "" : bytes(entry.size)) },
      {
        title: "Kind",
        kind: "name",
        cell: (entry) => (entry.isFolder ? "folder" : entry.content_type || "–"),
      },
      { title: "Stored", cell: ({ created_ms: ms }) => ago(ms, "") },
      {
        title: "",
        kind: "acts",
        cell: (entry) => (entry.isFolder ? null : acts(bucket, entry, refresh)),
      },
    ],
  });
}

function nameOf(bucket, prefix, { name, isFolder }) {
  const text = name.slice(prefix.length) || name;
  return h("a", { href: isFolder ? folder(bucket, name) : page(bucket, name) }, text);
}

function acts(bucket, { name }, refresh) {
  if (!hasPath(name)) return null;
  return [
    h("a",
      { href: bytesOf(bucket, name), download: true, "aria-label": `Download ${name}` },
      "Download"),
    " ",
    mayWrite(bucket) && button("Delete", () => discard(bucket, name, refresh), "small"),
  ];
}

function discard(bucket, name, then) {
  return ask({
    title: `Delete ${name}?`,
    says: `The object goes out of the bucket ${bucket} and cannot be brought back.`,
    action: "Delete the object",
    grave: true,
    act: async () => {
      await remove(at`/buckets/${bucket}/objects/${name}`);
      say(`${name} is deleted.`);
      then();
    },
  });
}

// The place to drop files on, and a list of what is under way. Files go one after the other.
function sender(bucket, prefix, refresh) {
  const list = h("ul", { class: "uploads" });
  const input = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files" });
  const choose = button("Upload files", () => input.click(), "first");
  const where = prefix ? `${bucket}/${prefix}` : bucket;
  const node =
    h("div",
      { class: "drop", id: "drop" },
      h("span", { class: "quiet" }, `Drop files here to store them in ${where}`),
      input,
      list);
  let last = Promise.resolve();
  input.addEventListener("change", () => {
    send([...input.files]);
    input.value = "";
  });
  function send(files) {
    for (const file of files) {
      const item = h("li", {}, `${prefix}${file.name}`, h("span", { class: "quiet" }, "waits"));
      list.append(item);
      last = last.then(() => sendOne(item, bucket, `${prefix}${file.name}`, file, refresh));
    }
  }
  return { node, choose, send };
}

async function sendOne(item, bucket, name, file, refresh, replace = false) {
  const bar = h("progress", { max: file.size || 1, value: 0, "aria-label": `Sending ${name}` });
  const far = h("span", { class: "quiet" }, "0 %");
  const hear = (sent, whole) => {
    bar.value = sent;
    fill(far, percent(sent, whole));
  };
  const sending = upload({ bucket, name, file, replace, hear });
  fill(item, name, bar, h("span", { class: "row" }, far, button("Stop", sending.abort, "small")));
  try {
    await sending.done;
    item.remove();
    say(`${name} is stored.`);
    refresh();
  } catch (error) {
    if (!("code" in error)) throw error;
    const again = (over) => () => sendOne(item, bucket, name, file, refresh, over);
    const isThere = isTaken(error);
    const choices = isThere
      ? button("Replace it", again(true), "small grave")
      : button("Try again", again(replace), "small");
    const told = isThere ? { message: `There is a ${name} in the bucket already.` } : error;
    const forget = button("Dismiss", () => item.remove(), "small");
    fill(item, name, h("span"), h("span", { class: "row" }, choices, forget), problem(told));
  }
}

// Files may be dropped anywhere on the page; without this the browser would open them.
function takeDrops(sending, signal) {
  const mark = (on) => sending.node.classList.toggle("over", on);
  const isFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    mark(true);
  }, { signal });
  addEventListener("dragleave", (event) => !event.relatedTarget && mark(false), { signal });
  addEventListener("drop", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    mark(false);
    sending.send([...event.dataTransfer.files]);
  }, { signal });
}

function showObject(main, signal, bucket, name) {
  const prefix = name.slice(0, name.lastIndexOf("/") + 1);
  const away = folder(bucket, prefix);
  const leave = () => {
    location.hash = away;
  };
  heading(main, name, {
    back: [away, prefix ? `${bucket}/${prefix}` : bucket],
    acts: hasPath(name) && [
      h("a", { class: "button", href: bytesOf(bucket, name), download: true }, "Download"),
      mayWrite(bucket) && button("Delete", () => discard(bucket, name, leave), "grave"),
    ],
  });
  const shown = live({
    signal,
    everyMs: LIVE_MS,
    load: () => lookUp(bucket, name, signal),
    draw: (entry, content) => {
      const about = facts([
        ["Size", `${bytes(entry.size)} (${entry.size.toLocaleString("en")} bytes)`],
        ["Kind", entry.content_type || "not said"],
        ["Stored", ago(entry.created_ms, "")],
        ["Expires", ago(entry.expires_ms ?? 0, "never")],
        ["ETag", h("code", {}, entry.etag)],
        ["Bucket", bucket],
        ["Name", h("code", {}, name)],
        ...Object.entries(entry.metadata),
      ]);
      refill(content, h("div", { class: "box padded" }, about));
    },
  });
  main.append(shown.place);
  return shown;
}

// The list knows most of an object, its headers the metadata that it was put with.
async function lookUp(bucket, name, signal) {
  const query = { prefix: name, limit: 1 };
  const { objects } = await get(at`/buckets/${bucket}/objects`, query, signal);
  if (objects[0]?.name !== name) {
    throw new ApiError(404, {
      code: "no_such_object",
      message: `There is no ${name} in the bucket ${bucket}.`,
    });
  }
  const headers = await head(at`/buckets/${bucket}/objects/${name}`, signal);
  const metadata = JSON.parse(headers.get("X-Herdbook-Metadata") ?? "{}");
  return { ...objects[0], metadata };
}
