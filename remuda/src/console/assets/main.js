// Asks for one sample after the other and shows it. Waiting for the next one is what makes the node take it.

import { Chart, Cursor } from "./chart.js";
import { panels } from "./panels.js";
import { byteRate, duration, many, rate, setText } from "./text.js";

const POINTS_MAX = 900;
const RETRY_MS = [500, 1000, 2000, 5000];
const ANSWER_MS = 30_000;

const byId = (id) => document.getElementById(id);
const [subject, range, pause] = [byId("subject"), byId("range"), byId("pause")];
const histories = new Map([["", []]]);
const show = panels();
let newest = null;
let paused = false;

const cursor = new Cursor();
const announce = (text) => setText(byId("cursor-text"), text);
const pair = (read, write) => [
  { name: "Reads", mark: "one", of: (point) => point[read] },
  { name: "Writes", mark: "two", of: (point) => point[write] },
];
const percentiles = (of) => [
  { name: "p50", mark: "one", of: (point) => point[of]?.p50 ?? null },
  { name: "p99", mark: "two dash", of: (point) => point[of]?.p99 ?? null },
  { name: "p99.9", mark: "three", of: (point) => point[of]?.p999 ?? null },
];
const charts = [
  new Chart({ title: "Operations per second", series: pair("reads", "writes"), show: rate, cursor, announce }),
  new Chart({ title: "Bandwidth", series: pair("read_bytes", "write_bytes"), show: byteRate, base: 1024, cursor, announce }),
  new Chart({ title: "Read latency", series: percentiles("read"), show: duration, logarithmic: true, cursor, announce }),
  new Chart({ title: "Write latency", series: percentiles("write"), show: duration, logarithmic: true, cursor, announce }),
];
byId("chart-list").append(...charts.map((chart) => chart.element));

function health(tone, mark, text) {
  const pill = byId("health");
  pill.dataset.tone = tone;
  setText(pill.querySelector(".mark"), mark);
  setText(byId("health-text"), text);
  document.title = tone === "good" ? "Remuda" : `${text} \u2013 Remuda`;
}

function remember(name, point) {
  if (!histories.has(name)) histories.set(name, []);
  const points = histories.get(name);
  points.push(point);
  if (points.length > POINTS_MAX) points.shift();
}

function keep(sample) {
  const { at_ms, interval_ms } = sample;
  remember("", { at_ms, interval_ms, ...sample.volumes_rates });
  const there = new Set([""]);
  for (const { name, rates } of sample.volumes.rows) {
    there.add(name);
    if (rates) remember(name, { at_ms, interval_ms, ...rates });
  }
  for (const name of histories.keys()) if (!there.has(name)) histories.delete(name);
}

function draw() {
  const now = newest?.at_ms ?? Date.now();
  const points = histories.get(subject.value) ?? [];
  for (const chart of charts) chart.update(points, [now - Number(range.value) * 1000, now]);
}

function choices(sample) {
  const names = sample.volumes.rows.map(({ name }) => name);
  const known = [...subject.options].slice(1).map(({ value }) => value);
  if (names.join("\n") === known.join("\n")) return;
  const chosen = subject.value;
  while (subject.options.length > 1) subject.remove(1);
  for (const name of names) subject.add(new Option(name, name));
  subject.value = names.includes(chosen) ? chosen : "";
}

function take(sample) {
  keep(sample);
  newest = paused ? newest : sample;
  const problems = sample.problems.rows.length + sample.problems.left_off;
  if (problems) health("warn", "!", many(problems, "problem", "problems"));
  else health("good", "\u2713", "Healthy");
  if (paused) return;
  choices(sample);
  draw();
  show(sample);
  document.body.dataset.seq = sample.seq;
}

async function ask(path) {
  const signal = AbortSignal.timeout(ANSWER_MS);
  const answer = await fetch(path, { signal, cache: "no-store", headers: { "X-Remuda": "1" } });
  if (answer.ok) return answer.json();
  const told = answer.headers.get("content-type") === "application/json" ? (await answer.json()).problem : "";
  throw new Error(told || `the node answered ${answer.status}`);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function watch() {
  let after = 0;
  let failures = 0;
  try {
    histories.set("", await ask("console/history"));
  } catch {
    // The samples will tell what is wrong.
  }
  for (;;) {
    try {
      const sample = await ask(`console/sample?after=${after}`);
      after = sample.seq;
      failures = 0;
      take(sample);
    } catch (error) {
      if (error.message === "stopping") health("warn", "!", "The node is stopping");
      else if (error.message === "crowded") health("warn", "!", "Too many watch this node already; waiting for a place");
      else health("bad", "\u2715", "No connection to the node");
      await sleep(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
  }
}

for (const choice of [subject, range]) choice.addEventListener("change", draw);
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", paused);
});
watch();
