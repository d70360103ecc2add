// Questions before something is done, each saying what will happen; the focus goes back afterwards.

import { fill, h } from "./dom.js";
import { problem } from "./showing.js";

let numbered = 0;

// Ask, and do `act(values)` if the answer is yes; an error is told inside and can be tried again.
// `fields` are [name, label, attributes]. True once it is done, false if it was left.
export function ask(
  { title, says, action, act, grave = false, fields = [], keep = "Keep as it is" }
) {
  const before = document.activeElement;
  const named = `dialog-${(numbered += 1)}`;
  const complaint = h("div");
  const inputs = fields.map(([name, , attributes]) => h("input", { name, ...attributes }));
  const yes = h("button", { type: "submit", class: grave ? "grave" : "first" }, action);
  const no = h("button", { type: "button", onclick: () => dialog.close() }, keep);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: named }, title),
    [says].flat().filter(Boolean).map((text) => h("p", {}, text)),
    fields.map(([, label], index) => h("label", { class: "field" }, label, inputs[index])),
    complaint,
    h("div", { class: "row" }, no, yes),
  );
  const dialog = h("dialog", { "aria-labelledby": named }, form);
  let done = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    yes.disabled = true;
    try {
      await act(Object.fromEntries(inputs.map((input) => [input.name, read(input)])));
      done = true;
      dialog.close();
    } catch (error) {
      if (!("code" in error)) throw error;
      fill(complaint, problem(error));
      yes.disabled = false;
      yes.focus();
    }
  });
  return opened(dialog, before, inputs[0] ?? no, () => done);
}

function read(input) {
  return input.type === "checkbox" ? input.checked : input.value;
}

// Show something that is only read.
export function tell(title, ...children) {
  const before = document.activeElement;
  const named = `dialog-${(numbered += 1)}`;
  const close = h("button", { class: "first" }, "Close");
  const form = h("form", { method: "dialog" }, h("h2", { id: named }, title), ...children);
  form.append(h("div", { class: "row" }, close));
  return opened(h("dialog", { "aria-labelledby": named }, form), before, close, () => true);
}

function opened(dialog, before, first, answer) {
  document.body.append(dialog);
  dialog.showModal();
  first.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(answer());
    });
  });
}
