// Signing in.

import { fill, h } from "../dom.js";
import { signIn } from "../session.js";
import { problem } from "../showing.js";

// Where an address that logs in once leads when it does not any more.
const EXPIRED = {
  message: "That address has been used, or is too old.",
  remedy: "sign in with a name and a password, or have the node print another address",
};

export function showLogin(main, begin) {
  document.title = "Sign in · Herdbook";
  const complaint = h("div", {}, location.search === "?expired" && problem(EXPIRED));
  const name = h("input", { name: "user", autocomplete: "username", required: true });
  const password = h("input", {
    name: "password",
    type: "password",
    autocomplete: "current-password",
    required: true,
  });
  const enter = h("button", { class: "first" }, "Sign in");
  async function submit(event) {
    event.preventDefault();
    enter.disabled = true;
    try {
      await signIn(name.value, password.value);
      await begin();
    } catch (error) {
      if (!("code" in error)) throw error;
      fill(complaint, problem(error));
      password.value = "";
      password.focus();
    } finally {
      enter.disabled = false;
    }
  }
  fill(
    main,
    h("div",
      { class: "head" },
      h("div", {}, h("h1", {}, "Herdbook"), h("p", { class: "says" }, "Sign in to the console."))),
    h(
      "form",
      { class: "part", onsubmit: submit },
      h("label", { class: "field" }, "User", name),
      h("label", { class: "field" }, "Password", password),
      complaint,
      h("div", { class: "row" }, enter),
    ),
  );
  name.focus();
}
