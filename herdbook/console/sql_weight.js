// What of a statement is asked about before it runs: that it changes all rows, or whole tables.

const GRAVE = /^[;\s]*(DROP|TRUNCATE|ALTER)\b/i;
const ALL_ROWS = /^[;\s]*(DELETE|UPDATE)\b(?![^]*\bWHERE\b)/i;
const OUTSIDE = /\/\*|--[^\r\n]*|\be'(?:\\[^]|[^'\\])*'?|'[^']*'?|"[^"]*"?|`[^`]*`?|[^]/giy;
const COMMENTED = /\/\*|\*\/|[^]/gy;
const INNERMOST = /\([^()]*\)/g;

// A sentence, "" for what is not asked about.
export function weight(sql) {
  const said = outermost(sql);
  if (GRAVE.test(said)) return "It changes the tables themselves.";
  return ALL_ROWS.test(said) ? "It changes every row." : "";
}

// The words of the statement itself: without comments, quoted texts and what is in parentheses. A
// WHERE in one of these bounds nothing.
function outermost(sql) {
  let said = spoken(sql);
  for (let before = ""; before !== said; ) {
    before = said;
    said = said.replace(INNERMOST, " ");
  }
  return said;
}

// Comments stand in one another.
function spoken(sql) {
  const kept = [];
  let depth = 0;
  let at = 0;
  while (at < sql.length) {
    const pattern = depth ? COMMENTED : OUTSIDE;
    pattern.lastIndex = at;
    const [piece] = pattern.exec(sql);
    at = pattern.lastIndex;
    if (piece === "/*") depth += 1;
    else if (piece === "*/" && depth) depth -= 1;
    else if (!depth) kept.push(piece.length > 1 ? " " : piece);
  }
  return kept.join("");
}
