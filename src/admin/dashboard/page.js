// The dashboard: reads /metrics, /status, /events, /held and /limits of the gateway that serves it, once a second.

import { by, number, parse, quantile, sum, time } from "./metrics.js";
import { chart } from "./charts.js";

/** Between looks, ms. */
const EVERY = 1000;
/** Looks without an answer after which the gateway is called gone. */
const GONE_AFTER = 2;

const $ = (id) => document.getElementById(id);
const get = async (path) => {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(3000) });
  if (!answer.ok && answer.status !== 503) throw new Error(`${path}: ${answer.status}`);
  return answer;
};

/** What each tile and chart shows, from two scrapes `s` seconds apart. */
const rate = (before, after, s, name, want) => (before ? Math.max(0, sum(after, name, want) - sum(before, name, want)) / s : null);
const rates = (before, after, s, name, label) => {
  const old = before ? by(before, name, label) : null, all = {};
  for (const [of, total] of by(after, name, label)) {
    const now = old ? Math.max(0, total - (old.get(of) ?? 0)) / s : 0;
    if (now > 0 || shown.has(name + of)) { shown.add(name + of); all[of] = now; }
  }
  return all;
};
/** What became of those at the door, per second: admitted at once or in their slot, the others by reason. */
const admission = (b, a, s) => {
  const reasons = rates(b, a, s, "holdfast_admission_total", "reason");
  // these got in, or are told of for another reason: a ticket that was not honoured is a client that is counted again
  const { admitted = 0, in_slot = 0 } = reasons;
  for (const reason in reasons) if (/^(admitted|in_slot|waited|ticket_.*)$/.test(reason)) delete reasons[reason];
  return { admitted: admitted + in_slot, refused: Object.values(reasons).reduce((x, y) => x + y, 0), by: reasons };
};
const shown = new Set();

const tiles = {
  connections: (b, a) => number(sum(a, "holdfast_connections")),
  "admitted /s": (b, a, s) => number(s && admission(b, a, s).admitted),
  "refused /s": (b, a, s) => number(s && admission(b, a, s).refused),
  "slot lag p99": (b, a) => time(quantile(b, a, "holdfast_slot_lag_seconds", 0.99)),
  "echo p50": (b, a) => time(quantile(b, a, "holdfast_op_to_echo_seconds", 0.5)),
  "echo p99": (b, a) => time(quantile(b, a, "holdfast_op_to_echo_seconds", 0.99)),
  "held ops": (b, a) => number(sum(a, "holdfast_held_ops")),
  sessions: (b, a) => number(sum(a, "holdfast_sessions")),
  "resyncs /s": (b, a, s) => number(rate(b, a, s, "holdfast_resyncs_total")),
};
const charts = [
  ["Connections", ["connections"], number, (b, a) => ({ connections: sum(a, "holdfast_connections") })],
  ["Admitted and refused, per second", ["admitted"], number, (b, a, s) => {
    const { admitted, by } = admission(b, a, s);
    return { admitted, ...by };
  }],
  ["Op to echo", ["p50", "p99"], time, (b, a) => ({
    p50: quantile(b, a, "holdfast_op_to_echo_seconds", 0.5), p99: quantile(b, a, "holdfast_op_to_echo_seconds", 0.99) })],
  ["Held ops", ["held"], number, (b, a) => ({ held: sum(a, "holdfast_held_ops") })],
  ["Epochs moving and ops resent, per second", ["epochs", "resent"], number, (b, a, s) => ({
    epochs: rate(b, a, s, "holdfast_epochs_moved_total") ?? 0, resent: rate(b, a, s, "holdfast_ops_resent_total") ?? 0 })],
  ["Resyncs and reactions dropped, per second", ["resyncs"], number, (b, a, s) => ({
    resyncs: rate(b, a, s, "holdfast_resyncs_total") ?? 0, ...rates(b, a, s, "holdfast_reactions_dropped_total", "reason") })],
  ["Slot lag", ["p99"], time, (b, a) => ({ p99: quantile(b, a, "holdfast_slot_lag_seconds", 0.99) })],
  ["Directory age", ["age"], time, (b, a) => ({ age: sum(a, "holdfast_directory_age_seconds") })],
].map(([title, series, unit, read]) => ({ read, ...chart($("charts"), title, series, unit) }));

const figures = new Map(Object.keys(tiles).map((name) => {
  const tile = document.createElement("div");
  tile.className = "tile";
  tile.innerHTML = "<b>–</b><span></span>";
  tile.querySelector("span").textContent = name;
  $("tiles").append(tile);
  return [name, tile.querySelector("b")];
}));

let before = null, at = 0, missed = 0, since = new Date();

async function look() {
  try {
    const [text, status, events, held] = await Promise.all([
      get("/metrics").then((r) => r.text()), ...["/status", "/events", "/held?limit=20"].map((p) => get(p).then((r) => r.json())),
    ]);
    const now = performance.now(), after = parse(text), s = (now - at) / 1000;
    for (const [name, figure] of figures) figure.textContent = tiles[name](before, after, s);
    charts.forEach((c) => c.push(c.read(before, after, s)));
    [before, at, missed, since] = [after, now, 0, new Date()];
    show(status);
    happened(events);
    rows("held", held, (h) => [h.session, h.principal, [h.seq], [`${number(h.age_us / 1e3)} ms`], [h.sends], h.why ?? ""]);
    await limits();
  } catch {
    missed += 1;
    charts.forEach((c) => c.push({}));
  }
  const gone = missed >= GONE_AFTER;
  $("gone").hidden = !gone;
  document.body.classList.toggle("stale", gone);
  if (gone) {
    $("gone").textContent = `This gateway has not answered since ${since.toLocaleTimeString()}: it has stopped, or this page cannot reach it. What is below is from then.`;
    state("gone", "bad");
    before = null;
  }
}

function state(word, how) {
  $("state").textContent = word;
  $("state").className = `pill ${how}`;
}

function show(status) {
  $("node").textContent = status.node ?? "";
  document.title = `${status.node ?? "Holdfast"} · Holdfast`;
  if (status.draining) state("draining", "warn");
  else state(status.ready ? "ready" : "not ready", status.ready ? "good" : "bad");
  $("why").textContent = status.reasons.join("; ");
  const stale = status.directory !== "synced";
  $("directory").textContent = `directory ${status.directory}, known to be current ${time(status.directory_age_ms / 1e3)} ago`;
  $("directory").className = stale ? "warn" : "";
  rows("owners", status.owners ?? [], (o) => [
    o.node, [o.link, { up: "good", unused: "" }[o.link] ?? "bad"], clock(o.since_us), [o.sessions], o.boot,
  ]);
  rows("gateways", status.gateways ?? [], (g) => [
    g.node, [g.draining ? "draining" : "ready", g.draining ? "warn" : "good"], [number(g.connections)], [number(g.admit_per_s)],
  ]);
  const f = status.forecast;
  if (f) {
    $("forecast").textContent = f.others
      ? `If this gateway dies now: ${number(f.clients)} clients, all back in ${time(f.back_ms / 1e3)} over ${f.others} other${f.others > 1 ? "s" : ""} (${number(f.admit_per_s)} admissions a second).`
      : `If this gateway dies now: ${number(f.clients)} clients have nowhere to go; there is no other gateway.`;
  }
}

const clock = (us) => (us ? new Date(us / 1000).toLocaleTimeString() : "");

/** Fills a table's body. A cell is a text; [number] is set right; [text, class] coloured. */
function rows(id, all, cells) {
  const body = $(id).tBodies[0];
  body.replaceChildren(...all.map((one) => {
    const row = document.createElement("tr");
    for (const cell of cells(one)) {
      const td = row.insertCell();
      const [text, how] = Array.isArray(cell) ? cell : [cell];
      td.textContent = text;
      if (Array.isArray(cell)) td.className = how ?? "n";
    }
    return row;
  }));
  if (!all.length) body.insertRow().insertCell().textContent = "none";
}

function happened(events) {
  const key = JSON.stringify(events.at(-1) ?? null);
  if ($("events").dataset.key === key) return;
  $("events").dataset.key = key;
  $("events").replaceChildren(...events.toReversed().map((e) => {
    const item = document.createElement("li"), when = document.createElement("time");
    when.textContent = new Date(e.at_us / 1000).toLocaleTimeString();
    item.append(when, e.text);
    item.className = { bad: "bad", warn: "warn", good: "good" }[e.level] ?? "";
    return item;
  }));
}

/** The limits as a form. A field being edited is left alone. */
async function limits() {
  const answer = await fetch("/limits", { cache: "no-store" });
  $("limits").hidden = answer.status === 404;
  if (!answer.ok) return;
  const form = $("limit-form"), shown = (v) => Array.isArray(v) ? JSON.stringify(v) : String(v);
  for (const [key, limit] of Object.entries(await answer.json())) {
    let input = form.elements.namedItem(key);
    if (!input) {
      const label = document.createElement("label"), more = document.createElement("small"), button = document.createElement("button");
      input = document.createElement("input");
      [input.name, input.id, label.htmlFor, label.textContent] = [key, `l-${key}`, `l-${key}`, `${key} `];
      input.autocomplete = "off";
      const range = limit.unit ? ` · ${limit.min} to ${limit.max} ${limit.unit}` : "";
      more.textContent = `default ${shown(limit.default)}${range}`;
      label.append(more);
      button.textContent = "set";
      button.setAttribute("aria-label", `set ${key}`);
      button.value = key;
      form.append(label, input, button);
    }
    if (document.activeElement !== input) input.value = shown(limit.value);
    input.setAttribute("aria-describedby", "limit-answer");
  }
}

/** Numbers, lists, true and false as such, durations ("500ms") as text. */
function typed(text) {
  try { return JSON.parse(text); } catch { return text.trim(); }
}

$("limit-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  // Enter in a field submits with the form's first button: the field counts then
  const focused = document.activeElement;
  const key = focused?.name || event.submitter?.value, value = $("limit-form").elements.namedItem(key).value;
  focused?.blur();
  const answer = await fetch("/limits", {
    method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ [key]: typed(value) }),
  }).catch(() => null);
  const body = await answer?.json().catch(() => ({}));
  $("limit-answer").textContent = answer?.ok ? `${key} is ${value} now` : `not set: ${body?.detail ?? "the gateway did not answer"}`;
  $("limit-answer").className = answer?.ok ? "good" : "bad";
});

for (;;) {
  const started = performance.now();
  await look();
  await new Promise((on) => setTimeout(on, Math.max(100, EVERY - (performance.now() - started))));
}
