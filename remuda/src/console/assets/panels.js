// The lists below the charts. Each panel is made once and then told of every sample.

import { byteRate, bytes, clock, count, duration, element, factor, keyed, many, percent, rate, setAttribute, setText, span } from "./text.js";

// A table whose rows stay the same elements. Columns: { title, number, wide, cell(row) }; a cell is a text, or
// { text, more, tone }. The first column names the row.
function table(caption, columns, keyOf) {
  const head = element("tr");
  for (const { title, number } of columns) {
    const cell = element("th", number ? "number" : "", title);
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    head.append(cell);
  }
  head.setAttribute("role", "row");
  const [thead, body] = [element("thead", "", head), element("tbody")];
  const made = element("table", "", element("caption", "unseen", caption), thead, body);
  // Told again, since elements that are laid out as blocks lose their roles in some browsers.
  for (const [part, role] of [[made, "table"], [thead, "rowgroup"], [body, "rowgroup"]]) part.setAttribute("role", role);
  const create = () => {
    const row = element("tr");
    row.setAttribute("role", "row");
    columns.forEach(({ title, number, wide, bare }, index) => {
      const cell = element(index ? "td" : "th", [number && "number", wide && "wide", bare && "bare"].filter(Boolean).join(" "));
      cell.setAttribute("role", index ? "cell" : "rowheader");
      cell.dataset.label = title;
      if (!index) cell.scope = "row";
      row.append(cell);
    });
    return row;
  };
  const fill = (row, item) => columns.forEach(({ cell }, index) => fillCell(row.children[index], cell(item)));
  return { element: element("div", "frame", made), update: (rows) => keyed(body, rows, keyOf, create, fill) };
}

function fillCell(cell, content) {
  if (content instanceof Function) {
    content(cell);
    return;
  }
  const { text, more = "", tone = "" } = typeof content === "object" ? content : { text: content };
  const shown = `${text}\n${more}\n${tone}`;
  if (cell.remudaShown === shown) return;
  cell.remudaShown = shown;
  cell.dataset.tone = tone;
  cell.replaceChildren(text, ...(more ? [element("span", "more", more)] : []));
}

// A panel of one table, or of words when there is nothing to list.
function listPanel(id, nothing, made) {
  const none = element("p", "none", nothing);
  const rest = element("p", "left-off");
  document.getElementById(id).append(none, made.element, rest);
  return (rows, leftOff = 0) => {
    none.hidden = rows.length > 0;
    made.element.hidden = rows.length === 0;
    rest.hidden = leftOff === 0;
    setText(rest, `${count(leftOff)} more are not shown; "remuda top" and /metrics have all.`);
    made.update(rows);
  };
}

function track(shares, tone = "") {
  return (cell) => {
    const bar = (cell.remudaTrack ??= cell.appendChild(element("div", "track", ...shares.map(([name]) => element("i", name)))));
    bar.dataset.tone = tone;
    shares.forEach(([, share], index) => (bar.children[index].style.inlineSize = `${Math.min(share, 1) * 100}%`));
    bar.setAttribute("role", "img");
    setAttribute(bar, "aria-label", shares.map(([name, share]) => `${name} ${percent(share)}`).join(", "));
  };
}

const name = (row) => row.name;
const latency = (of) => (of ? { text: duration(of.p50), more: `p99 ${duration(of.p99)}` } : "\u2013");
const operations = [
  { title: "Reads/s", number: true, cell: ({ rates }) => (rates ? { text: rate(rates.reads), more: byteRate(rates.read_bytes) } : "") },
  { title: "Read latency", number: true, cell: ({ rates }) => (rates ? latency(rates.read) : "") },
  { title: "Writes/s", number: true, cell: ({ rates }) => (rates ? { text: rate(rates.writes), more: byteRate(rates.write_bytes) } : "") },
  { title: "Write latency", number: true, cell: ({ rates }) => (rates ? latency(rates.write) : "") },
  { title: "Under way", number: true, cell: ({ rates }) => (rates ? count(rates.under_way) : "") },
  {
    title: "Failed",
    number: true,
    cell: ({ rates }) => {
      if (!rates) return "";
      return { text: count(rates.errors_ever), tone: rates.errors > 0 ? "bad" : rates.errors_ever > 0 ? "warn" : "" };
    },
  },
];
// Why it is not open stands among the problems, with what to do.
const state = (row) => {
  if (row.state === "open") return "open";
  return row.open ? { text: "open", more: row.state.replace(/^open, /, ""), tone: "warn" } : { text: "not open", tone: "bad" };
};

function reactors() {
  const columns = [
    { title: "Reactor", cell: ({ index }) => String(index) },
    { title: "Core", cell: ({ core }) => (core == null ? "any" : String(core)) },
    { title: "Time", bare: true, wide: true, cell: ({ busy, spin }) => track([["busy", busy], ["spin", spin]]) },
    { title: "Working", number: true, cell: ({ busy }) => percent(busy) },
    { title: "Spinning", number: true, cell: ({ spin }) => percent(spin) },
    { title: "Asleep", number: true, cell: ({ sleep }) => percent(sleep) },
    { title: "Tasks", number: true, cell: ({ tasks }) => count(tasks) },
    { title: "Buffers", number: true, cell: ({ buffer_bytes }) => bytes(buffer_bytes) },
  ];
  const update = listPanel("reactors", "No reactors.", table("Reactors and where their time goes", columns, ({ index }) => index));
  return (sample) => update(sample.reactors);
}

function volumes() {
  const columns = [
    { title: "Volume", cell: (row) => ({ text: row.name, more: row.place }) },
    { title: "Size", number: true, cell: ({ size, block_size }) => ({ text: bytes(size), more: block_size ? `blocks of ${bytes(block_size)}` : "" }) },
    ...operations,
    { title: "State", cell: state },
    { title: "Shown as", wide: true, cell: ({ exports }) => exports.join(", ") || "not exported" },
  ];
  const update = listPanel("volumes", "No volumes yet: \u201cremuda volume create\u201d makes one.", table("Volumes and their load", columns, name));
  return ({ volumes }) => update(volumes.rows, volumes.left_off);
}

function mirrorText({ legs, resync_left_regions, regions }) {
  const each = legs.map(({ device, state }) => `${device} ${state}`).join(", ");
  return resync_left_regions ? `${each}; ${percent(1 - resync_left_regions / Math.max(regions, 1))} copied` : each;
}

function devices() {
  const columns = [
    { title: "Device", cell: (row) => ({ text: row.name, more: row.kind }) },
    { title: "Size", number: true, cell: ({ size, free }) => ({ text: bytes(size), more: free ? `${bytes(free)} free` : "" }) },
    ...operations,
    {
      title: "State",
      cell: (row) => {
        if (!row.mirror) return state(row);
        return { text: row.mirror.degraded ? "degraded" : "open", more: mirrorText(row.mirror), tone: row.mirror.degraded ? "bad" : "" };
      },
    },
    { title: "Used by", wide: true, cell: ({ used_by }) => used_by.join(", ") || "nothing" },
  ];
  const update = listPanel("devices", "No devices.", table("Devices and their load", columns, name));
  return ({ devices }) => update(devices.rows, devices.left_off);
}

function reservationText({ nsid, reservation }) {
  const { type, persistent, registrants } = reservation;
  const holders = registrants.filter(({ holder }) => holder).map(({ host_id }) => host_id);
  const held = type ? `${type}, held by ${holders.join(", ")}` : "nobody holds it";
  return `namespace ${nsid}: ${held}; ${many(registrants.length, "host", "hosts")} registered${persistent ? ", lasting" : ""}`;
}

function subsystems() {
  const columns = [
    { title: "Subsystem", cell: ({ nqn }) => nqn },
    {
      title: "Who may connect",
      cell: ({ allow_any_host, hosts_allowed }) => (allow_any_host ? "every host" : many(hosts_allowed, "host", "hosts")),
    },
    { title: "Controllers", number: true, cell: ({ connected }) => count(connected) },
    {
      title: "Namespaces",
      wide: true,
      cell: ({ namespaces }) => namespaces.rows.map(({ nsid, volume, size }) => `${nsid}: ${volume} (${bytes(size)})`).join(", ") || "none",
    },
    {
      title: "Reservations",
      wide: true,
      cell: ({ namespaces }) => namespaces.rows.filter(({ reservation }) => reservation).map(reservationText).join("; ") || "none",
    },
  ];
  const update = listPanel("subsystems", "No subsystems: nothing is shown to hosts.", table("Subsystems, their namespaces and reservations", columns, ({ nqn }) => nqn));
  return ({ subsystems }) => update(subsystems.rows, subsystems.left_off);
}

/** How a host is connected. */
function standing({ tls, authenticated, throttled }) {
  const words = [tls && "TLS", authenticated && "authenticated", throttled && "held back by a limit"].filter(Boolean);
  return words.join(", ") || "-";
}

function hosts() {
  const columns = [
    { title: "Host", cell: ({ host }) => host },
    { title: "Subsystem", wide: true, cell: ({ subsystem }) => subsystem },
    { title: "Controller", number: true, cell: ({ controller }) => String(controller) },
    { title: "I/O queues", number: true, cell: ({ io_queues }) => count(io_queues) },
    { title: "From", wide: true, cell: ({ peers }) => peers.join(", ") },
    { title: "How", cell: standing },
    { title: "Keep-alive", number: true, cell: ({ keep_alive_ms }) => (keep_alive_ms ? duration(keep_alive_ms * 1e6) : "none") },
  ];
  const keyOf = ({ subsystem, controller }) => `${subsystem} ${controller}`;
  const update = listPanel("hosts", "No host is connected.", table("Connected hosts", columns, keyOf));
  return ({ hosts }) => update(hosts.rows, hosts.left_off);
}

function log() {
  const columns = [
    { title: "Time", cell: ({ at_ms }) => new Date(at_ms).toLocaleString("en-GB") },
    { title: "Level", bare: true, cell: ({ level }) => ({ text: level === "error" ? "error" : "warning", tone: level === "error" ? "bad" : "warn" }) },
    { title: "Message", bare: true, wide: true, cell: ({ text }) => text },
  ];
  const update = listPanel("log", "None since the node was started.", table("The last warnings and errors", columns, ({ key }) => key));
  return (sample) => {
    const seen = new Map();
    const lines = sample.log.map((line) => {
      const plain = `${line.at_ms} ${line.text}`;
      seen.set(plain, (seen.get(plain) ?? 0) + 1);
      return { ...line, key: `${plain} ${seen.get(plain)}` };
    });
    update(lines.reverse());
  };
}

function gauge(label) {
  const [title, words] = [element("span", "", label), element("span")];
  const bar = element("div", "track", element("i"));
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", label);
  bar.setAttribute("aria-valuemin", 0);
  bar.setAttribute("aria-valuemax", 100);
  const update = (share, text, tone = "") => {
    setText(words, text);
    bar.dataset.tone = tone;
    bar.firstChild.style.inlineSize = `${Math.min(share, 1) * 100}%`;
    setAttribute(bar, "aria-valuenow", Math.round(share * 100));
    setAttribute(bar, "aria-valuetext", text);
  };
  return { element: element("div", "gauge", element("div", "words", title, words), bar), update };
}

// From here on a pool takes writes more slowly (log) or soon none (capacity).
const level = (share) => (share > 0.95 ? "bad" : share > 0.85 ? "warn" : "");

const shardColumns = [
  { title: "Shard", cell: ({ number }) => String(number) },
  { title: "Log in use", number: true, cell: ({ log_fill }) => percent(log_fill) },
  { title: "Dirty", number: true, cell: ({ dirty_bytes }) => bytes(dirty_bytes) },
  { title: "Free extents", number: true, cell: ({ free_extents, extents }) => `${count(free_extents)} of ${count(extents)}` },
  { title: "To replay", number: true, cell: ({ replay_records }) => `${count(replay_records)} records` },
  { title: "Waiting", number: true, cell: ({ waiting_writes }) => count(waiting_writes) },
  { title: "Upkeep", wide: true, cell: ({ trouble, log_trouble: log }) => (log || trouble ? { text: log || trouble, tone: "bad" } : "fine") },
];

function poolCard() {
  const [title, state, problems, facts] = [element("h3"), element("span", "state"), element("ul", "problems"), element("dl", "numbers")];
  const [fill, used] = [gauge("Log in use"), gauge("Capacity given to volumes")];
  const shards = table("Shards of the pool", shardColumns, ({ number }) => number);
  const [summary, open] = [element("summary"), element("div")];
  open.append(fill.element, used.element, facts, element("details", "", summary, shards.element));
  const card = element("article", "card", element("header", "", title, state), problems, open);
  card.remudaUpdate = (pool) => {
    setText(title, pool.name);
    setText(state, pool.numbers?.settling ? `${pool.state}, settling` : pool.state);
    state.dataset.tone = pool.state === "open" ? "good" : ["checking", "forgetting"].includes(pool.state) ? "warn" : "bad";
    keyed(problems, pool.problems, (text) => text, (text) => element("li", "", text), () => {});
    problems.hidden = pool.problems.length === 0;
    open.hidden = !pool.numbers;
    if (!pool.numbers) return;
    const { layout, total, capacity_bytes, volumes, scrub, scrub_share, recovered_ns, flattening, cache, drives_amplification } = pool.numbers;
    fill.update(total.log_fill, `${percent(total.log_fill)} of ${bytes(total.log_bytes)}`, level(total.log_fill));
    const share = total.extents ? 1 - total.free_extents / total.extents : 0;
    used.update(share, `${percent(share)} of ${bytes(capacity_bytes)}, ${bytes(total.free_bytes)} free`, level(share));
    const scrubbed = scrub_share == null ? "" : ` (${percent(scrub_share)})`;
    const rows = [
      ["Shape", cache ? `${layout.shape}, reads cached on ${cache}` : layout.shape],
      ...(layout.band_bytes ? [["Bands", `${bytes(layout.band_bytes)}, written in units of ${bytes(layout.write_unit_bytes)}`]] : []),
      ["Dirty", bytes(total.dirty_bytes)],
      ["Volumes", count(volumes)],
      ["Log written per byte", factor(total.log_amplification)],
      ["Capacity written per byte", factor(total.capacity_amplification)],
      ...(drives_amplification == null ? [] : [["All of its drives, per byte", factor(drives_amplification)]]),
      ["Recovery now would take", total.recovery_estimate_ns == null ? `${count(total.replay_records)} records` : `about ${duration(total.recovery_estimate_ns)}`],
      ["Last opened in", duration(recovered_ns)],
      ["Writes waiting", count(total.waiting_writes)],
      ["Read from the log", total.user_read_bytes ? percent(total.log_hit_bytes / total.user_read_bytes) : "\u2013"],
      ["Scrub", `${scrub}${scrubbed}`],
      ["Blocks lost or bad", count(total.lost_blocks + total.corrupt_blocks)],
      ...(total.lost_bytes ? [["Lost earlier", bytes(total.lost_bytes)]] : []),
      ...(total.bands ? [["Bands free", `${count(total.free_bands)} of ${count(total.bands)}`]] : []),
      ...(total.bands ? [["GC debt", `${bytes(total.gc_debt_bytes)}, ${percent(total.gc_debt_share ?? 0)} of what slows writers`]] : []),
      ...flattening.map(({ volume, share, state }) => [`Flattening ${volume}`, `${state}, ${percent(share)}`]),
    ];
    const create = ([term]) => element("div", "", element("dt", "", term), element("dd"));
    keyed(facts, rows, ([term]) => term, create, (made, [, text]) => setText(made.lastChild, text));
    const list = pool.numbers.shards.map((shard, number) => ({ ...shard, number }));
    setText(summary, many(list.length, "shard", "shards"));
    shards.update(list);
  };
  return card;
}

function pools() {
  const [list, none, rest] = [document.getElementById("pool-list"), element("p", "none", "No pools."), element("p", "left-off")];
  list.before(none);
  list.after(rest);
  return ({ pools }) => {
    none.hidden = pools.rows.length > 0;
    rest.hidden = pools.left_off === 0;
    setText(rest, `${count(pools.left_off)} more are not shown.`);
    keyed(list, pools.rows, name, poolCard, (card, pool) => card.remudaUpdate(pool));
  };
}

function problems() {
  const [section, list] = [document.getElementById("problems"), document.getElementById("problem-list")];
  return (sample) => {
    const { rows, left_off } = sample.problems;
    const lines = left_off ? [...rows, `${count(left_off)} more: "remuda status" lists them`] : rows;
    section.hidden = lines.length === 0;
    keyed(list, lines, (text) => text, (text) => element("li", "", text), () => {});
  };
}

function facts() {
  const list = document.getElementById("facts");
  const create = ([term]) => element("div", "", element("dt", "", term), element("dd"));
  return ({ node, at_ms }) => {
    const rows = [
      ["Up", span(node.uptime_ns)],
      ["NVMe/TCP", node.addresses.join(" ") || "off"],
      ["Connections", count(node.connections)],
      ["Version", node.version],
      ["Node", node.id],
      ["As of", clock(at_ms)],
    ];
    keyed(list, rows, ([term]) => term, create, (made, [, text]) => setText(made.lastChild, text));
  };
}

export function panels() {
  const all = [facts, problems, pools, volumes, reactors, devices, subsystems, hosts, log].map((make) => make());
  return (sample) => all.forEach((update) => update(sample));
}
