// Shortcuts of single keys, and the list of them. They are silent where somebody types.

import { tell } from "./dialog.js";
import { h } from "./dom.js";
import { keep, kept } from "./theme.js";

const OFF = "herdbook.keys";
const GO_MS = 1_500;
const places = {
  o: ["Overview", "#/"],
  l: ["Ledgers", "#/ledgers"],
  b: ["Bookies and repair", "#/bookies"],
  s: ["Tables and SQL", "#/tables"],
  u: ["Buckets", "#/buckets"],
  q: ["Quotas", "#/quotas"],
  t: ["Tasks", "#/tasks"],
  c: ["Schedules", "#/schedules"],
  w: ["Workers", "#/workers"],
  r: ["Roll-outs", "#/rollouts"],
};

export function listenToKeys({ refresh, turn }) {
  let goingSince = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    if (event.key === "?") return void showKeys();
    if (kept(OFF) === "off") return;
    const going = event.timeStamp - goingSince < GO_MS && goingSince > 0;
    goingSince = 0;
    if (going && places[event.key]) location.hash = places[event.key][1];
    else if (event.key === "g") goingSince = event.timeStamp;
    else if (event.key === "r") refresh();
    else if (event.key === "d") turn();
    else if (event.key === "/" && focusFirst()) event.preventDefault();
  });
}

function focusFirst() {
  const first = document.querySelector("main input:not([type=file]), main textarea");
  first?.focus();
  return first;
}

export function showKeys() {
  const rows = [
    ...Object.entries(places).map(([key, [name]]) => [["g", key], name]),
    [["/"], "Go to the first field"],
    [["r"], "Ask the node again"],
    [["d"], "Light or dark"],
    [["↑", "↓"], "Move in a table; Enter opens"],
    [["Ctrl", "Enter"], "Run the SQL"],
    [["Esc"], "Leave a question without doing anything"],
    [["?"], "This list"],
  ];
  const list = rows.map(
    ([keys, says]) =>
      [h("dt", {}, keys.map((key) => [h("kbd", {}, key), " "])),
       h("dd", {}, says),
  ]
  );
  const on = h("input", {
    type: "checkbox",
    onchange: (event) => keep(OFF, event.target.checked ? null : "off"),
  });
  on.checked = kept(OFF) !== "off";
  const choice = h("label", { class: "check" }, on, "Single keys do something");
  return tell("Keys", h("dl", { class: "keys" }, list), choice);
}
