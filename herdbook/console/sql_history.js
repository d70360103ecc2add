// What was asked before, in this browser, for each user; gone when they sign out.

import { keep, kept } from "./theme.js";

const KEY = "herdbook.sql";
const STATEMENTS_MAX = 50;
const CHARACTERS_MAX = 10_000;

// The newest first.
export function statements() {
  try {
    const found = JSON.parse(kept(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

export function addStatement(sql) {
  if (sql.length > CHARACTERS_MAX) return;
  const others = statements().filter((each) => each !== sql);
  keep(KEY, JSON.stringify([sql, ...others].slice(0, STATEMENTS_MAX)));
}

export function forgetStatements() {
  keep(KEY, null);
}
