// Lines over the last minutes, drawn as SVG. The legend has the numbers, so nothing is only drawn.

import { fill, h, s } from "./dom.js";
import { clock } from "./format.js";

const WIDE = 600;
const HIGH = 140;
const LINES = [0, 0.5, 1];
const SERIES_MAX = 6;

export class Chart {
  // `say(value)` gives a value its unit.
  constructor(label, say) {
    this.say = say;
    this.label = label;
    this.drawing = s("svg", {
      viewBox: `0 0 ${WIDE} ${HIGH}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#leave(),
    });
    this.scale = h("div", { class: "scale", "aria-hidden": true });
    this.legend = h("ul");
    this.when = h("div", { class: "when", "aria-hidden": true });
    const plot = h("div", { class: "plot" }, this.drawing, this.scale, this.when);
    this.node = h("figure", { class: "box chart" }, plot, this.legend);
    this.pointed = null;
  }

  // `times` are milliseconds, `series` [name, values]; of more than fit the largest are drawn.
  show(times, series) {
    this.times = times;
    this.series = largest(series);
    const top = nice(Math.max(0, ...this.series.flatMap(([, values]) => values)));
    const grid = LINES.map((part) => {
      const y = HIGH * (1 - part);
      return s("line", { class: "grid", x1: 0, x2: WIDE, y1: y, y2: y });
    });
    const paths = this.series.map(
      ([, values], index) => s("path", { class: `series-${index + 1}`, d: line(values, top) }),
    );
    this.cursor = s("line", { class: "cursor", y1: 0, y2: HIGH, visibility: "hidden" });
    fill(this.drawing, grid, paths, this.cursor);
    fill(this.scale, [...LINES].reverse().map((part) => h("span", {}, this.say(top * part))));
    const first = times.length ? clock(times[0]) : "";
    const last = times.length ? clock(times.at(-1)) : "";
    fill(this.when, h("span", {}, first), h("span", {}, last));
    const told = this.series.map(([name, values]) => `${name} ${this.say(values.at(-1) ?? 0)}`);
    this.drawing.setAttribute("aria-label", `${this.label}: now ${told.join(", ") || "nothing"}`);
    this.#tell();
  }

  #point(event) {
    const { left, width } = this.drawing.getBoundingClientRect();
    const part = (event.clientX - left) / width;
    const last = (this.times?.length ?? 0) - 1;
    if (last < 0) return;
    this.pointed = Math.round(Math.max(0, Math.min(1, part)) * last);
    this.#tell();
  }

  #leave() {
    this.pointed = null;
    this.#tell();
  }

  #tell() {
    const last = this.times.length - 1;
    const index = this.pointed === null ? last : Math.min(this.pointed, last);
    const x = last > 0 ? (WIDE * index) / last : 0;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    this.cursor.setAttribute("visibility", this.pointed === null ? "hidden" : "visible");
    const items = this.series.map(
      ([name, values], at) =>
        h("li", { class: `series-${at + 1}` }, `${name} ${this.say(values[index] ?? 0)}`),
    );
    const moment =
      this.pointed === null ? null : h("span", { class: "quiet" }, clock(this.times[index]));
    fill(this.legend, items, moment);
  }
}

function largest(series) {
  if (series.length <= SERIES_MAX) return series;
  const sum = ([, values]) => values.reduce((all, each) => all + each, 0);
  const ranked = [...series].sort((one, other) => sum(other) - sum(one));
  const drawn = ranked.slice(0, SERIES_MAX - 1);
  const rest = ranked.slice(SERIES_MAX - 1);
  const together =
    rest[0][1].map((_, at) => rest.reduce((all, [, values]) => all + values[at], 0));
  return [...drawn, [`${rest.length} others`, together]];
}

function line(values, top) {
  const last = Math.max(1, values.length - 1);
  const points = values.map((value, at) => {
    const x = ((WIDE * at) / last).toFixed(1);
    return `${x} ${(HIGH * (1 - value / top)).toFixed(1)}`;
  });
  return points.length ? `M${points.join("L")}` : "";
}

// The next of 1, 2, 5, 10, … above a number, so that scales are read easily.
function nice(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}
