// Who uses the console. A store without users is open: then everybody may do everything.

import { get, post, remember } from "./api.js";
import { forgetStatements } from "./sql_history.js";

let me = null;

export function user() {
  return me;
}

const STEPS = ["read", "write", "admin"];
const ALL = "*";
// What grants of all of a kind do not reach.
const APART = new Set(["bucket herdbook-tasks"]);

// Whether they may do that to the thing of that name, as the node sees it; it is asked all the same
// and has the last word. Without a name: to any thing of that kind, one that is still to be made.
export function may(right, kind, name = null) {
  if (me.admin) return true;
  return me.grants.some((grant) => {
    const isIt = grant.name === name || (grant.name === ALL && !APART.has(`${kind} ${name}`));
    const isEnough = STEPS.indexOf(grant.right) >= STEPS.indexOf(right);
    return grant.kind === kind && (isIt || name === null) && isEnough;
  });
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
