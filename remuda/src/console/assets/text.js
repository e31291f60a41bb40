// Numbers as people read them, and elements made of text: nothing that the node sends is ever parsed as markup.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value);

export function rate(value) {
  if (value > 0 && value < 10) return value.toFixed(1);
  return value < 100_000 ? whole.format(value) : short.format(value);
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${units[unit]}`;
}

export const byteRate = (value) => `${bytes(value)}/s`;

export function duration(ns) {
  if (ns == null) return "\u2013";
  const units = [[1, "ns"], [1e3, "\u00b5s"], [1e6, "ms"], [1e9, "s"]];
  const [size, unit] = units.findLast(([size]) => ns >= size) ?? units[0];
  const value = ns / size;
  return `${Number(value.toFixed(value >= 100 || size === 1 ? 0 : value >= 10 ? 1 : 2))} ${unit}`;
}

export function span(ns) {
  const seconds = Math.floor(ns / 1e9);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [size, unit] = parts[first];
  const [next, nextUnit] = parts[first + 1] ?? [];
  const rest = next ? Math.floor((seconds % size) / next) : 0;
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
}

export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export const factor = (value) => (value == null ? "\u2013" : `${value.toFixed(2)}\u00d7`);

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;

// An element of a class, with text or children.
export function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

// Changes a text only when it is another, so that selections and screen readers are left alone.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Makes the children of `parent` those of `items`, by key: elements stay, and with them focus and what is unfolded.
export function keyed(parent, items, keyOf, create, update) {
  const known = (parent.remudaKeys ??= new Map());
  const seen = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) continue;
    seen.add(key);
    if (!known.has(key)) known.set(key, create(item));
    const child = known.get(key);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const [key, child] of known) {
    if (seen.has(key)) continue;
    child.remove();
    known.delete(key);
  }
}
