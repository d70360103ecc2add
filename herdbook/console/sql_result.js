// What a statement of SQL answered: its rows as a table, or how many it changed.

import { h } from "./dom.js";
import { duration, many } from "./format.js";

const NUMBER = /INT|DECIMAL|NUMERIC|DOUBLE|FLOAT|REAL/i;

export function told(result) {
  const took = duration(result.elapsed_ms);
  const rows = many(result.row_count, "row");
  if (!result.columns.length) return h("p", {}, `Done: ${rows} changed, in ${took}.`);
  return [h("p", { class: "quiet" }, `${rows} in ${took}`), more(result, rows), table(result)];
}

function more({ truncated }, rows) {
  if (!truncated) return null;
  return h(
    "div",
    { class: "problem warn" },
    h("strong", {}, `Only the first ${rows} are here.`),
    "Ask for more at a time, or narrow it with WHERE and LIMIT.",
  );
}

function table({ columns, rows }) {
  if (!rows.length) return h("div", { class: "box" }, h("p", { class: "empty" }, "No rows."));
  const heads = columns.map(({ name, type }) => {
    return h("th", { scope: "col", class: kindOf(type), title: type || null }, name);
  });
  const body = rows.map((row) => {
    return h("tr", {}, row.map((value, index) => cell(value, columns[index].type)));
  });
  const shown = h("table", { "aria-label": "Result" }, h("thead", {}, h("tr", {}, heads)));
  shown.append(h("tbody", {}, body));
  // It scrolls by itself, and so the keyboard has to reach it.
  const place = { class: "box result", tabindex: 0, role: "region", "aria-label": "Result" };
  return h("div", place, shown);
}

function cell(value, type) {
  if (value === null) return h("td", { class: `null ${kindOf(type) ?? ""}` }, "NULL");
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return h("td", { class: kindOf(type) }, text);
}

function kindOf(type) {
  return NUMBER.test(type) ? "number" : null;
}
