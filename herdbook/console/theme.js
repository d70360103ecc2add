// Light or dark: what the system wants, unless somebody chose here.

const KEY = "herdbook.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

// Call `hear` when the system wants the other one.
export function watchTheme(hear) {
  dark.addEventListener("change", hear);
}

// Take the other one and remember it; what the system wants is remembered as no choice.
export function turnTheme() {
  const wanted = theme() === "dark" ? "light" : "dark";
  const isSystems = wanted === (dark.matches ? "dark" : "light");
  if (isSystems)
    delete document.documentElement.dataset.theme;
  else
    document.documentElement.dataset.theme = wanted;
  keep(KEY, isSystems ? null : wanted);
  return wanted;
}

// Remember a text in this browser; one that keeps nothing forgets it with the page.
export function keep(key, text) {
  try {
    if (text === null)
      localStorage.removeItem(key);
    else
      localStorage.setItem(key, text);
  } catch {
    // Private windows refuse: the choice counts until the page is left.
  }
}

// Forget all texts whose keys begin so, but one.
export function forget(beginning, but) {
  try {
    const keys = Object.keys(localStorage);
    for (const key of keys) {
      if (key.startsWith(beginning) && key !== but) localStorage.removeItem(key);
    }
  } catch {
    // Nothing was kept.
  }
}

export function kept(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}
