// The box for SQL: writing a statement, running it, its rows, or where it is wrong.

import { at, post } from "./api.js";
import { ask } from "./dialog.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";
import { user } from "./session.js";
import { button, problem } from "./showing.js";
import { addStatement, forgetStatements, statements } from "./sql_history.js";
import { told } from "./sql_result.js";
import { weight } from "./sql_weight.js";

const PLACE = / \(at character (\d+)\)$/;
const HISTORY_SHOWN = 20;
const LIMITS = [100, 1_000, 10_000];

export class SqlDesk {
  // `done(kind)` hears of every statement that ran.
  constructor(tablespace, signal, done) {
    Object.assign(this, { tablespace, signal, done });
    this.running = null;
    this.step = -1;
    this.box = h("textarea", {
      rows: 6,
      spellcheck: "false",
      autocomplete: "off",
      "aria-label": `SQL for the tablespace ${tablespace}`,
      placeholder: "SELECT * FROM systables",
      onkeydown: (event) => this.#key(event),
    });
    const limits = LIMITS.map((rows) => {
      return h("option", { value: rows }, `${count(rows)} rows at most`);
    });
    this.limit = h("select", { "aria-label": "Rows at most" }, limits);
    this.run = h("button", { type: "submit", class: "first" }, "Run");
    this.stop = button("Stop waiting", () => this.running?.abort());
    this.stop.hidden = true;
    this.answer = h("div", { class: "part", "aria-live": "polite" });
    this.history = h("details");
    const keys = [h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter")];
    const hint = h("span", { class: "quiet" }, keys, " runs it");
    const form = h(
      "form",
      {
        class: "part",
        onsubmit: (event) => {
          event.preventDefault();
          void this.#submit();
        },
      },
      this.box,
      h("div", { class: "row" }, this.run, this.stop, this.limit, hint),
    );
    this.node = h("div", { class: "desk" }, form, this.history, this.answer);
    this.#tellHistory();
  }

  // Put a statement into the box, for who wants to run it.
  offer(sql) {
    this.box.value = sql;
    this.box.focus();
  }

  #key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void this.#submit();
    } else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const before = statements(user());
      const step = this.step + (event.key === "ArrowUp" ? 1 : -1);
      this.step = Math.max(-1, Math.min(before.length - 1, step));
      this.box.value = before[this.step] ?? "";
    }
  }

  async #submit() {
    const sql = this.box.value.trim();
    if (!sql || this.running) return;
    const says = weight(sql);
    if (!says) return void (await this.#ask(sql));
    await ask({
      title: `Run this on the tablespace ${this.tablespace}?`,
      says: [sql, says],
      action: "Run it",
      grave: true,
      act: async () => void this.#ask(sql),
    });
  }

  async #ask(sql) {
    this.running = new AbortController();
    this.#waits(true);
    addStatement(user(), sql);
    this.step = -1;
    this.#tellHistory();
    try {
      const wanted = { sql, limit: Number(this.limit.value) };
      const signal = AbortSignal.any([this.running.signal, this.signal]);
      const result = await post(at`/tablespaces/${this.tablespace}/query`, wanted, signal);
      fill(this.answer, told(result));
      this.done(result.kind);
    } catch (error) {
      if (error.name === "AbortError") {
        const text = "Not waited for any longer. What it was to change may have been changed.";
        fill(this.answer, h("p", { class: "quiet" }, text));
        return;
      }
      if (!("code" in error)) throw error;
      this.#refused(sql, error);
    } finally {
      this.running = null;
      this.#waits(false);
    }
  }

  #waits(on) {
    this.run.disabled = on;
    this.stop.hidden = !on;
    if (on) fill(this.answer, h("p", { class: "quiet" }, "Running…"));
  }

  // Show the line that is wrong with a mark below it, and put the cursor there.
  #refused(sql, error) {
    const found = PLACE.exec(error.message);
    if (!found) return void fill(this.answer, problem(error));
    const index = Math.min(Number(found[1]) - 1, sql.length);
    const before = sql.slice(0, index).split("\n");
    const column = before.at(-1).length;
    const line = sql.split("\n")[before.length - 1];
    const where = `Line ${before.length}, column ${column + 1}`;
    const excerpt =
      h("pre", { class: "text", "aria-label": where }, `${line}\n${" ".repeat(column)}▲`);
    fill(this.answer, problem(error), h("p", { class: "quiet" }, where), excerpt);
    const begin = this.box.value.indexOf(sql) + index;
    this.box.focus();
    this.box.setSelectionRange(begin, begin);
  }

  #tellHistory() {
    const before = statements(user());
    this.history.hidden = !before.length;
    const items = before.slice(0, HISTORY_SHOWN).map((sql) => {
      const again = { type: "button", class: "plain mono", onclick: () => this.offer(sql) };
      return h("li", {}, h("button", again, sql));
    });
    const forget = button("Forget all", () => this.#forget(), "small");
    const keys = [h("kbd", {}, "Alt"), " ", h("kbd", {}, "↑")];
    const hint = h("span", { class: "quiet" }, keys, " in the box steps through it. ");
    fill(
      this.history,
      h("summary", {}, `History (${before.length})`),
      h("ul", { class: "plainly past" }, items),
      h("p", { class: "row apart" }, hint, forget),
    );
  }

  #forget() {
    forgetStatements();
    this.#tellHistory();
  }
}
