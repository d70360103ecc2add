// Lines over the last minutes, drawn as SVG. The legend has the numbers, so nothing is only drawn.

import { fill, h, s } from "./dom.js";
import { clock } from "./format.js";

const WIDE = 600;
const HIGH = 140;
const LINES = [1, 0.5, 0];
const SERIES_MAX = 6;

export class Chart {
  // `say(value)` gives a value its unit, whose next larger one is `step` of it.
  constructor(label, say, step = 1_000) {
    this.say = say;
    this.step = step;
    this.label = label;
    this.times = [];
    this.series = [];
    this.pointed = null;
    this.drawing = s("svg", {
      viewBox: `0 0 ${WIDE} ${HIGH}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#point(null),
    });
    this.scale = h("div", { class: "scale", "aria-hidden": "true" });
    this.legend = h("ul");
    this.when = h("div", { class: "when", "aria-hidden": "true" });
    const plot = h("div", { class: "plot" }, this.drawing, this.scale, this.when);
    this.node = h("figure", { class: "box chart" }, plot, this.legend);
  }

  // `times` are milliseconds, `series` values by name, null where nobody knows; of more series than
  // can be told apart the largest are drawn.
  show(times, series) {
    this.times = times;
    this.series = largest(Object.entries(series));
    const top = nice(Math.max(0, ...this.series.flatMap(([, values]) => values)), this.step);
    const grid = LINES.map((part) => {
      const y = HIGH * (1 - part);
      return s("line", { class: "grid", x1: 0, x2: WIDE, y1: y, y2: y });
    });
    const paths = this.series.map(([, values], index) =>
      s("path", { class: `series-${index + 1}`, d: line(values, top) }),
    );
    this.cursor = s("line", { class: "cursor", y1: 0, y2: HIGH, visibility: "hidden" });
    fill(this.drawing, grid, paths, this.cursor);
    fill(this.scale, LINES.map((part) => h("span", {}, this.say(top * part))));
    const ends = times.length ? [clock(times[0]), clock(times.at(-1))] : ["", ""];
    fill(this.when, ends.map((text) => h("span", {}, text)));
    const now = this.series.map(([name, values]) => `${name} ${this.#said(values.at(-1))}`);
    this.drawing.setAttribute("aria-label", `${this.label}: now ${now.join(", ") || "nothing"}`);
    this.#tell();
  }

  #said(value) {
    return value === null || value === undefined ? "unknown" : this.say(value);
  }

  #point(event) {
    this.pointed = null;
    if (event && this.times.length) {
      const { left, width } = this.drawing.getBoundingClientRect();
      const part = Math.max(0, Math.min(1, (event.clientX - left) / width));
      this.pointed = Math.round(part * (this.times.length - 1));
    }
    this.#tell();
  }

  // The legend tells the last values, or those of the moment that is pointed at.
  #tell() {
    const last = this.times.length - 1;
    if (last < 0) {
      fill(this.legend, h("span", { class: "quiet" }, "Nothing measured yet."));
      return;
    }
    const index = Math.min(this.pointed ?? last, last);
    const x = last > 0 ? (WIDE * index) / last : 0;
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x);
    this.cursor.setAttribute("visibility", this.pointed === null ? "hidden" : "visible");
    const items = this.series.map(([name, values], at) =>
      h("li", { class: `series-${at + 1}` }, `${name} ${this.#said(values[index])}`),
    );
    const none = !items.length && h("span", { class: "quiet" }, "Nothing happened.");
    const moment = this.pointed !== null && h("span", { class: "quiet" }, clock(this.times[index]));
    fill(this.legend, items, none, moment);
  }
}

function largest(series) {
  if (series.length <= SERIES_MAX) return series;
  const sum = ([, values]) => values.reduce((all, each) => all + (each ?? 0), 0);
  const ranked = [...series].sort((one, other) => sum(other) - sum(one));
  const rest = ranked.slice(SERIES_MAX - 1);
  const together = rest[0][1].map((_, at) => added(rest.map(([, values]) => values[at])));
  return [...ranked.slice(0, SERIES_MAX - 1), [`${rest.length} others`, together]];
}

// What is not known of one is not known of all together.
function added(values) {
  return values.includes(null) ? null : values.reduce((all, each) => all + each, 0);
}

// A path that breaks off where a value is not known.
function line(values, top) {
  const last = Math.max(1, values.length - 1);
  let isOn = false;
  const steps = values.map((value, at) => {
    const step = isOn ? "L" : "M";
    isOn = value !== null;
    if (!isOn) return "";
    return `${step}${((WIDE * at) / last).toFixed(1)} ${(HIGH * (1 - value / top)).toFixed(1)}`;
  });
  return steps.join("");
}

// The next of 1, 2, 5, 10, … units above a number, so that scales are read easily.
function nice(most, step) {
  const unit = most < step ? 1 : step ** Math.floor(Math.log(most) / Math.log(step));
  const power = 10 ** Math.max(0, Math.floor(Math.log10(most / unit)));
  return [1, 2, 5, 10].map((each) => each * power * unit).find((each) => each >= most);
}
