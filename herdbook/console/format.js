// Numbers with their units, and times as people say them.

import { h } from "./dom.js";

const numbers = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const exact = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export function count(number) {
  return numbers.format(number ?? 0);
}

// "1 bookie", "3 bookies".
export function many(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

export function bytes(size) {
  let at = 0;
  let value = size ?? 0;
  while (value >= 1_024 && at < UNITS.length - 1) {
    value /= 1_024;
    at += 1;
  }
  const digits = at === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[at]}`;
}

// How many bytes a size says, as "10GiB" or "1.5 MB"; null for none.
export function bytesOf(text) {
  const found = /^\s*([0-9]+(?:[.][0-9]+)?)\s*(?:([kmgtp]?)(i?)b?)?\s*$/i.exec(text);
  if (!found) return null;
  const [, number, unit, binary] = found;
  const power = unit ? "kmgtp".indexOf(unit.toLowerCase()) + 1 : 0;
  return Math.round(Number(number) * (binary ? 1_024 : 1_000) ** power);
}

// The same the other way, without loss: "10GiB", "1500", "0"; nothing for null.
export function exactly(size) {
  if (size === null) return "";
  let at = 0;
  let value = size;
  while (value && value % 1_024 === 0 && at < UNITS.length - 1) {
    value /= 1_024;
    at += 1;
  }
  return `${value}${at ? UNITS[at] : ""}`;
}

export function rate(perSecond, unit = "") {
  if (unit === "B") return `${bytes(Math.round(perSecond))}/s`;
  const value = perSecond >= 100 ? short.format(Math.round(perSecond)) : decimals(perSecond);
  return `${value}/s`;
}

function decimals(value) {
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}

export function percent(part, whole) {
  if (!whole) return "0 %";
  const value = (100 * part) / whole;
  return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
}

export function duration(ms) {
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / SECOND).toFixed(ms < 10 * SECOND ? 1 : 0)} s`;
  if (ms < HOUR) return both(ms, MINUTE, "min", SECOND, "s");
  if (ms < DAY) return both(ms, HOUR, "h", MINUTE, "min");
  return many(Math.floor(ms / DAY), "day");
}

function both(ms, large, largeName, small, smallName) {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

function relative(ms) {
  const away = Math.abs(ms);
  if (away < 5 * SECOND) return "just now";
  let text;
  if (away < MINUTE)
    text = `${Math.floor(away / SECOND)} s`;
  else if (away < HOUR)
    text = `${Math.floor(away / MINUTE)} min`;
  else if (away < 2 * DAY)
    text = `${Math.floor(away / HOUR)} h`;
  else
    text = `${Math.floor(away / DAY)} days`;
  return ms > 0 ? `${text} ago` : `in ${text}`;
}

// A moment as "3 min ago", with the exact one as its title; 0 is no moment.
export function ago(ms, none = "–") {
  if (!ms) return none;
  const date = new Date(ms);
  const machine = date.toISOString();
  return h("time", { datetime: machine, title: exact.format(date) }, relative(Date.now() - ms));
}

// The hour of a moment, for a scale or an event.
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

// All moments that are shown grow older together.
export function keepTimes() {
  setInterval(() => {
    for (const shown of document.querySelectorAll("time")) {
      const text = relative(Date.now() - Date.parse(shown.dateTime));
      if (shown.textContent !== text) shown.textContent = text;
    }
  }, SECOND);
}
