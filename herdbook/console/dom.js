// Building what is shown. Text only ever becomes a text node: names are whatever somebody wrote.

const SVG = "http://www.w3.org/2000/svg";

// An element: `h("a", { href: "#/" , class: "back" }, "Back")`. A function is a listener, what is
// null or false is left out; children are texts, numbers, nodes, or lists of them.
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same for a drawing.
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function")
      element.addEventListener(name.slice(2), value);
    else if (name === "value")
      element.value = value;
    else
      element.setAttribute(name, value === true ? "" : value);
  }
  put(element, ...children);
  return element;
}

// Append children as `h` does.
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

// Have these children and no others.
export function fill(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

// Have these children, but touch nothing if that would change nothing: what has the focus keeps it.
export function refill(element, ...children) {
  const wanted = put(element.cloneNode(false), ...children);
  if (!element.isEqualNode(wanted)) element.replaceChildren(...wanted.childNodes);
  return element;
}
