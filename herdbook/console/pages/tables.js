// Tablespaces: their tables, and a box for SQL.

import { at, get } from "../api.js";
import { h, refill } from "../dom.js";
import { many } from "../format.js";
import { heading } from "../heading.js";
import { live } from "../live.js";
import { box, empty, problem } from "../showing.js";
import { SqlDesk } from "../sql_desk.js";

const LIVE_MS = 10_000;

export function show({ main, signal, parts }) {
  heading(main, "Tables", { says: "Ask a tablespace by SQL." });
  const place = h("div", { class: "part" });
  main.append(place);
  return live({
    signal,
    place,
    load: () => get("/tablespaces", {}, signal),
    draw: ({ tablespaces }, content) => {
      if (content.firstChild) return;
      if (!tablespaces.length) {
        content.append(box(empty("There are no tablespaces that you may read.")));
        return;
      }
      const name = parts[0] || (tablespaces.includes("default") ? "default" : tablespaces[0]);
      if (!tablespaces.includes(name)) {
        content.append(problem({ message: `There is no tablespace ${name} that you may read.` }));
        return;
      }
      content.append(chooser(tablespaces, name), desk(name, signal));
    },
  });
}

function chooser(tablespaces, chosen) {
  const options =
    tablespaces.map((name) => h("option", { value: name, selected: name === chosen }, name));
  const choice = h(
    "select",
    {
      onchange: (event) => {
        location.hash = `#/tables/${encodeURIComponent(event.target.value)}`;
      },
    },
    options,
  );
  return h("div", { class: "filters" }, h("label", { class: "field" }, "Tablespace", choice));
}

function desk(name, signal) {
  const list = live({
    signal,
    everyMs: LIVE_MS,
    load: () => get(at`/tablespaces/${name}/tables`, {}, signal),
    draw: ({ tables }, content) => {
      const shown = [...content.querySelectorAll("details[open]")];
      const opened = new Set(shown.map(({ dataset }) => dataset.table));
      refill(content, tablesOf(tables, opened, (sql) => sqlDesk.offer(sql)));
    },
  });
  const sqlDesk = new SqlDesk(name, signal, (kind) => kind !== "select" && list.refresh());
  const side =
    h("section", { class: "part", "aria-label": "Tables" }, h("h2", {}, "Tables"), list.place);
  return h("div", { class: "sql" }, side, sqlDesk.node);
}

// Those that were opened stay open.
function tablesOf(tables, opened, offer) {
  if (!tables.length) {
    return box(empty(
      "No tables yet.",
      "Make one: ",
      h("code", {}, "CREATE TABLE cows (id BIGINT PRIMARY KEY, name TEXT)")
    ));
  }
  const items = tables.map(({ name, columns }) => {
    const told = columns.map((column) => h("li", {}, columnOf(column)));
    const write = h(
      "button",
      { type: "button", class: "plain small", onclick: () => offer(selectOf(name)) },
      "Select from it",
    );
    const size = h("span", { class: "quiet" }, many(columns.length, "column"));
    const summary = h("summary", {}, name, " ", size);
    const about = { "data-table": name, open: opened.has(name) };
    return h("li", {}, h("details", about, summary, h("ul", { class: "columns" }, told), write));
  });
  return h("div", { class: "box" }, h("ul", { class: "tables" }, items));
}

function columnOf({ name, type, nullable, primary }) {
  const aside = [type.toLowerCase(), primary ? "key" : "", nullable || primary ? "" : "not null"];
  return [
    h("strong", {}, name),
    " ",
    h("span", { class: "quiet" }, aside.filter(Boolean).join(", ")),
  ];
}

function selectOf(name) {
  const isPlain = /^[a-z_][a-z0-9_]*$/.test(name);
  return `SELECT * FROM ${isPlain ? name : `"${name.replaceAll("\"", "\"\"")}"`} LIMIT 100`;
}
