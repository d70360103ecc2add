// The head of a page.

import { h } from "./dom.js";

// `says` is the line below the title, `acts` stand beside it, `back` is [address, text].
export function heading(main, title, { says = null, acts = [], back = null } = {}) {
  document.title = `${title} · Herdbook`;
  main.append(
    h(
      "header",
      { class: "head" },
      h(
        "div",
        {},
        back && h("a", { class: "back", href: back[0] }, `← ${back[1]}`),
        h("h1", {}, title),
        says && h("p", { class: "says" }, says),
      ),
      h("div", { class: "row" }, acts),
    ),
  );
}
