// What was asked before, in this browser, for each user; gone when their session ends.

import { forget, keep, kept } from "./theme.js";

const KEYS = "herdbook.sql";
const STATEMENTS_MAX = 50;
const CHARACTERS_MAX = 10_000;

function keyOf({ user }) {
  return `${KEYS} ${user}`;
}

// The newest first.
export function statements(who) {
  try {
    const found = JSON.parse(kept(keyOf(who)) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

export function addStatement(who, sql) {
  if (sql.length > CHARACTERS_MAX) return;
  const others = statements(who).filter((each) => each !== sql);
  keep(keyOf(who), JSON.stringify([sql, ...others].slice(0, STATEMENTS_MAX)));
}

// Forget everybody's but one user's: they may hold what others must not see.
export function forgetStatements({ but = null } = {}) {
  forget(KEYS, but && keyOf(but));
}
