// Rolling line charts: SVG drawn at the size that it has on the screen, with one cursor for all of them.

import { clock, element, setText } from "./text.js";

const HEIGHT = 150;
const LEFT = 62;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;

function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A round number at or above `value`, in steps that divide evenly: 1, 2, 4, 5, 10 times a power of `base`.
function ceiling(value, base) {
  if (!(value > 0)) return base === 1024 ? 1024 : 1;
  let unit = 1;
  while (unit * base <= value) unit *= base;
  const steps = base === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 4, 5, 10];
  return unit * steps.find((step) => step * unit >= value);
}

function linearScale(highest, base) {
  const top = ceiling(highest, base);
  const pieces = base === 1024 || /^[24]/.test(top) ? 4 : top === 1 ? 2 : 5;
  const ticks = Array.from({ length: pieces + 1 }, (_, index) => (top * index) / pieces);
  return { ticks, at: (value) => value / top };
}

// Whole powers of ten, since latencies of one chart lie orders of magnitude apart.
function logScale(lowest, highest) {
  const first = Math.floor(Math.log10(Math.max(lowest, 1000)));
  const last = Math.max(first + 1, Math.ceil(Math.log10(Math.max(highest, 1000))));
  const ticks = [];
  for (let power = first; power <= last; power += 1) ticks.push(10 ** power);
  const at = (value) => (Math.log10(Math.max(value, 10 ** first)) - first) / (last - first);
  return { ticks, at };
}

// A moment that all charts show; `null` is now.
export class Cursor {
  at = null;
  listeners = new Set();
  move(at) {
    if (at === this.at) return;
    this.at = at;
    for (const listener of this.listeners) listener();
  }
}

export class Chart {
  // `series`: { name, mark, of(point) -> number or null }; `show` makes text of a value.
  constructor({ title, series, show, logarithmic = false, base = 10, cursor, announce }) {
    Object.assign(this, { title, series, show, logarithmic, base, cursor, announce });
    this.points = [];
    this.range = [0, 1];
    this.values = series.map(() => element("b", "value"));
    const legend = element("ul", "legend");
    series.forEach(({ name, mark }, index) => {
      legend.append(element("li", mark, element("span", "line"), element("span", "name", name), this.values[index]));
    });
    this.moment = element("span", "moment");
    this.svg = shape("svg", { height: HEIGHT, tabindex: 0, role: "img", "aria-label": `${title}: chart of the values that are listed above it` });
    this.element = element("figure", "chart", element("figcaption", "", element("h3", "", title), this.moment), legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => cursor.move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => cursor.move(null));
    cursor.listeners.add(() => this.mark());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // `points` in order of time; `range` from when to when, in milliseconds.
  update(points, range) {
    this.points = points;
    this.range = range;
    this.draw();
  }

  seen() {
    return this.points.filter((point) => point.at_ms >= this.range[0]);
  }

  point(event) {
    const seen = this.seen();
    if (seen.length === 0) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const at = this.range[0] + share * (this.range[1] - this.range[0]);
    const nearest = seen.reduce((best, point) => (Math.abs(point.at_ms - at) < Math.abs(best.at_ms - at) ? point : best));
    this.cursor.move(nearest.at_ms);
  }

  key(event) {
    const seen = this.seen();
    if (seen.length === 0) return;
    const last = seen.length - 1;
    const found = seen.findIndex((point) => point.at_ms === this.cursor.at);
    const now = found < 0 ? last : found;
    const places = { ArrowLeft: Math.max(now - 1, 0), ArrowRight: Math.min(now + 1, last), Home: 0, End: last };
    if (event.key === "Escape") {
      this.cursor.move(null);
      return;
    }
    if (!(event.key in places)) return;
    event.preventDefault();
    const point = seen[places[event.key]];
    this.cursor.move(point.at_ms);
    const values = this.series.map(({ name, of }) => `${name} ${this.text(of(point))}`);
    this.announce(`${clock(point.at_ms)}: ${values.join(", ")}`);
  }

  text(value) {
    return value == null ? "\u2013" : this.show(value);
  }

  draw() {
    const width = Math.floor(this.element.clientWidth - parseFloat(getComputedStyle(this.element).paddingLeft) * 2);
    if (width <= LEFT + RIGHT) return;
    const seen = this.seen();
    const all = seen.flatMap((point) => this.series.map(({ of }) => of(point))).filter((value) => value != null);
    const highest = all.reduce((one, other) => Math.max(one, other), 0);
    const lowest = all.reduce((one, other) => Math.min(one, other), Infinity);
    const scale = this.logarithmic
      ? logScale(Number.isFinite(lowest) ? lowest : 10_000, highest || 1_000_000)
      : linearScale(highest, this.base);
    const [from, to] = this.range;
    this.x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - scale.at(value)) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const tick of scale.ticks) {
      parts.push(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
      parts.push(shape("text", { class: "tick", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, this.show(tick)));
    }
    const minutes = (to - from) / 60_000;
    const pieces = minutes <= 1 ? 4 : 5;
    for (let piece = 0; piece <= pieces; piece += 1) {
      const ago = (minutes * (pieces - piece)) / pieces;
      const label = ago === 0 ? "now" : ago < 1 ? `\u2212${Math.round(ago * 60)} s` : `\u2212${Number(ago.toFixed(1))} min`;
      const crowded = width < 420 && piece % 2 !== pieces % 2;
      const anchor = piece === pieces ? "end" : piece === 0 ? "start" : "middle";
      if (!crowded) parts.push(shape("text", { class: "tick", x: this.x(from + ((to - from) * piece) / pieces), y: HEIGHT - 5, "text-anchor": anchor }, label));
    }
    for (const { of, mark } of this.series) {
      let path = "";
      let before = null;
      for (const point of seen) {
        const value = of(point);
        // Nobody watched, or nothing happened: a gap, not a line across it.
        const gap = before === null || point.at_ms - before > Math.max(3 * point.interval_ms, 3500);
        if (value == null) {
          before = null;
          continue;
        }
        path += `${gap ? "M" : "L"}${this.x(point.at_ms).toFixed(1)} ${y(value).toFixed(1)}${gap ? "h.01" : ""}`;
        before = point.at_ms;
      }
      if (path) parts.push(shape("path", { class: `line ${mark}`, d: path }));
    }
    if (all.every((value) => value === 0)) {
      parts.push(shape("text", { class: "empty", x: LEFT + (width - LEFT - RIGHT) / 2, y: (HEIGHT - BOTTOM) / 2 + 6, "text-anchor": "middle" }, "nothing in this time"));
    }
    this.hair = shape("line", { class: "hair", y1: TOP, y2: HEIGHT - BOTTOM, x1: 0, x2: 0 });
    parts.push(this.hair);
    this.svg.setAttribute("width", width);
    this.svg.replaceChildren(...parts);
    this.mark();
  }

  // Shows the values at the cursor, or the newest ones.
  mark() {
    const seen = this.seen();
    const at = this.cursor.at;
    const point = at === null ? seen.at(-1) : seen.find((point) => point.at_ms === at);
    this.series.forEach(({ of }, index) => setText(this.values[index], this.text(point ? of(point) : null)));
    setText(this.moment, at === null || !point ? "" : clock(point.at_ms));
    if (!this.hair) return;
    this.hair.toggleAttribute("hidden", at === null || !point);
    if (at !== null && point) {
      this.hair.setAttribute("x1", this.x(point.at_ms));
      this.hair.setAttribute("x2", this.x(point.at_ms));
    }
  }
}
