// Runs before the first paint, so that a remembered theme does not flash in from the other one.
"use strict";
try {
  const remembered = localStorage.getItem("herdbook.theme");
  if (remembered === "light" || remembered === "dark") {
    document.documentElement.dataset.theme = remembered;
  }
} catch {
  // A browser that keeps nothing shows what the system wants.
}
