// Tables whose rows are reached by the arrow keys, and which keep the focus over a refresh.
//
// One row at a time is in the tab order; what can be pressed in the other rows is not, so that tab
// goes past a table of a thousand rows in two steps.

import { fill, h, refill } from "./dom.js";

const INSIDE = "a[href], button, input";
const STEPS = {
  ArrowDown: 1,
  ArrowUp: -1,
  PageDown: 10,
  PageUp: -10,
};

export class Table {
  // `columns` have a `title`, a `cell(row)` and perhaps a `kind`: number, name, acts. `key(row)`
  // tells rows apart, `open(row)` is where Enter leads, `empty` what stands there without rows.
  constructor({ label, columns, key, open = null, empty }) {
    Object.assign(this, { columns, key, open, empty });
    this.rows = new Map();
    this.active = null;
    this.body = h("tbody", {
      onkeydown: (event) => this.#moved(event),
      onfocusin: (event) => this.#activate(event.target.closest("tr")),
      onclick: (event) => this.#clicked(event),
    });
    const heads = columns.map(
      ({ title, kind }) =>
        h("th",
          { scope: "col", class: kind || null },
          title || h("span", { class: "unseen" }, "Actions")),
    );
    const head = h("thead", {}, h("tr", {}, heads));
    this.table = h("table", { "aria-label": label }, head, this.body);
    this.node = h("div", { class: "box scroll" });
  }

  show(rows) {
    const focused = this.body.contains(document.activeElement) ? this.active : null;
    const place = focused ? [...this.body.children].indexOf(focused) : 0;
    const gone = new Map(this.rows);
    const wanted = rows.map((row) => {
      const key = String(this.key(row));
      gone.delete(key);
      return this.#row(key, row);
    });
    for (const [key, element] of gone) {
      this.rows.delete(key);
      element.remove();
    }
    wanted.forEach((element, index) => {
      if (this.body.children[index] !== element) {
        this.body.insertBefore(element, this.body.children[index] ?? null);
      }
    });
    const shown = wanted.length ? this.table : this.empty;
    if (this.node.firstChild !== shown) fill(this.node, shown);
    if (!this.active?.isConnected) this.#activate(this.body.children[place] ?? wanted.at(-1));
    if (focused && !focused.isConnected) this.active?.focus();
  }

  #row(key, row) {
    let element = this.rows.get(key);
    if (!element) {
      const cells = this.columns.map(({ kind }) => h("td", { class: kind || null }));
      element = h("tr", { tabindex: -1, "data-key": key }, cells);
      this.rows.set(key, element);
    }
    element.herdbookRow = row;
    this.columns.forEach(({ cell }, index) => refill(element.children[index], cell(row)));
    this.#tabs(element);
    return element;
  }

  // Of the active row what is inside is in the tab order.
  #tabs(element) {
    const isActive = element === this.active;
    element.tabIndex = isActive ? 0 : -1;
    for (const inside of element.querySelectorAll(INSIDE)) {
      if (isActive)
        inside.removeAttribute("tabindex");
      else
        inside.tabIndex = -1;
    }
  }

  #activate(row) {
    if (!row || row === this.active) return;
    const before = this.active;
    this.active = row;
    if (before) this.#tabs(before);
    this.#tabs(row);
  }

  #moved(event) {
    const rows = [...this.body.children];
    const now = rows.indexOf(this.active);
    if (event.key === "Enter" && event.target === this.active && this.open) {
      event.preventDefault();
      location.hash = this.open(this.active.herdbookRow);
      return;
    }
    let next = null;
    if (event.key in STEPS)
      next = now + STEPS[event.key];
    else if (event.key === "Home")
      next = 0;
    else if (event.key === "End")
      next = rows.length - 1;
    if (next === null || event.target.matches("input")) return;
    event.preventDefault();
    rows[Math.max(0, Math.min(rows.length - 1, next))].focus();
  }

  #clicked(event) {
    const row = event.target.closest("tr");
    if (!row || !this.open || event.target.closest(INSIDE)) return;
    if (String(getSelection())) return;
    location.hash = this.open(row.herdbookRow);
  }
}
