// Who uses the console. A store without users is open: then everybody may do everything.

import { get, post, remember } from "./api.js";
import { forgetStatements } from "./sql_history.js";

let me = null;

export function user() {
  return me;
}

// Ask who that is; null: somebody has to sign in first. What others asked is forgotten.
export async function recognise() {
  try {
    me = await get("/me");
  } catch (error) {
    if (error.status !== 401) throw error;
    me = null;
  }
  remember(me?.csrf);
  forgetStatements({ but: me });
  return me;
}

export async function signIn(name, password) {
  await post("/login", { user: name, password });
  return recognise();
}

export async function signOut() {
  await post("/logout");
  forgetStatements();
  me = null;
  remember("");
}
