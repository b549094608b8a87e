// The rules of the client's side one by one (design 4.3, 4.4, 9.2, 9.3), on sockets played by hand.

import assert from "node:assert/strict";
import test from "node:test";

import { Holdfast, HoldfastError } from "../../src/client/holdfast.js";
import { Clock, envOf, Random, settle } from "./virtual.mjs";

const WELCOME = {
  t: "welcome", conn: "c-1", gateway: "gw-1", now_us: 1_700_000_000_000_000, ping_ms: 2500, dead_ms: 6000, token_exp_us: 0, features: [],
  resume: "RRR", limits: { frame_bytes: 65536, payload_bytes: 100, sessions: 64, inflight: 4 },
  reconnect: { spread_ms: 4000, rank_ppm: 250_000, base_ms: 250, cap_ms: 8000 },
};
const SLOT = (r, ms, k) => JSON.stringify({ r, ms, k });

/** A client in virtual time, and its sockets in the order of their making. */
function client(options = {}, env = {}) {
  const clock = new Clock();
  const sockets = [];
  const states = [];
  const window = Object.assign(new EventTarget(), { env: "test" });
  const document = Object.assign(new EventTarget(), { hidden: false });
  const all = envOf(clock, new Random(1), ws => sockets.push(ws), { window, document, navigator: { onLine: true }, ...env });
  const hf = new Holdfast("https://svc.test", { token: "tok", env: all, ...options });
  hf.on("state", s => states.push(s));
  const c = { clock, sockets, states, hf, window, document, env: all };
  c.last = () => sockets.at(-1);
  c.sent = t => c.last().sent.filter(f => f.t === t);
  /** Opens the newest socket and welcomes it. */
  c.welcome = (more = {}) => {
    c.last().open();
    c.last().say({ ...WELCOME, ...more });
    return c.last();
  };
  return c;
}

/** As `client`, live and attached to the session `s` with an epoch of 3 and a version of 10. */
function attached(options, env) {
  const c = client(options, env);
  c.s = c.hf.session("s");
  c.heard = [];
  for (const name of ["event", "snapshot", "status", "reaction", "check"]) c.s.on(name, e => c.heard.push([name, e]));
  c.of = name => c.heard.filter(h => h[0] === name).map(h => h[1]);
  c.attach = (more = {}) => {
    const { n } = c.sent("attach").at(-1);
    c.last().say({ t: "attached", session: "s", n, epoch: 3, ver: 10, resume: "nothing", lane_seq: 0, rejected: [], role: "participant", ...more });
  };
  c.say = (t, f) => c.last().say({ t, session: "s", ...f });
  c.welcome();
  c.attach({ resume: "snapshot" });
  c.say("snapshot", { epoch: 3, ver: 10, lane_seq: 0, rejected: [], why: "first", data: { all: 1 } });
  return c;
}

/** What became of a promise, without waiting. */
async function fate(promise) {
  let it = "pending";
  promise.then(v => { it = v; }, e => { it = e; });
  await settle();
  return it;
}

// ---- coming in ----

test("hello and all attaches are one flight, and a later session is attached at once", () => {
  const c = client();
  c.hf.session("a");
  c.hf.session("b", { role: "spectator", token: "inv" });
  c.last().open();
  assert.equal(c.last().url.href, "wss://svc.test/v1/ws");
  assert.deepEqual(c.last().sent.map(f => f.t), ["hello", "attach", "attach"]);
  const [hello, a, b] = c.last().sent;
  assert.deepEqual([hello.token, hello.conn_seq, hello.lane, hello.features], ["tok", 1, c.hf.lane, ["receipts"]]);
  assert.deepEqual([a.session, a.seen, b.role, b.token], ["a", { epoch: 0, ver: 0 }, "spectator", "inv"]);
  assert.notEqual(a.n, b.n);
  c.hf.session("c");
  c.last().say(WELCOME);
  c.hf.session("d");
  assert.deepEqual(c.sent("attach").map(f => f.session), ["a", "b", "c", "d"]);
});

test("a lane is 8 to 16 bytes and does not begin with '!'", () => {
  const c = client({}, { bytes: n => new Uint8Array(n).fill(33) });
  const lane = Buffer.from(c.hf.lane, "base64url");
  assert.ok(lane.length >= 8 && lane.length <= 16 && lane[0] !== 33);
});

test("frames of a session are ignored between attach and its attached", async () => {
  const c = attached();
  const op = c.s.op(1);
  c.last().end(1001);
  await c.clock.run(5000);
  c.welcome();
  c.say("event", { epoch: 3, ver: 11, op: 1, data: 1 });
  c.say("ack", { epoch: 3, ver: 11, op: 1 });
  c.say("status", { epoch: 9, state: "live" });
  assert.deepEqual([c.s.ver, c.s.epoch, await fate(op)], [10, 3, "pending"]);
  c.attach({ n: 1 });
  assert.equal(await fate(op), "pending");
  c.say("status", { epoch: 3, state: "moving" });
  assert.equal(c.s.state, "moving");
});

// ---- order and epochs ----

test("a hole is resynced once, old versions only settle, skips fill", async () => {
  const c = attached();
  const op = c.s.op("x");
  c.say("event", { epoch: 3, ver: 12, data: "far" });
  c.say("event", { epoch: 3, ver: 13, data: "far" });
  assert.deepEqual(c.sent("resync"), [{ t: "resync", session: "s", seen: { epoch: 3, ver: 10 }, snapshot: false }]);
  c.say("event", { epoch: 3, ver: 11, to: 12 });
  c.say("event", { epoch: 3, ver: 13, data: "now" });
  c.say("event", { epoch: 3, ver: 13, op: 1, data: "again" });
  assert.deepEqual(c.of("event").map(e => e.data), ["now"]);
  assert.equal((await fate(op)).ver, 13);
});

test("status raises the epoch, older frames are dropped", async () => {
  const c = attached();
  const op = c.s.op("x");
  c.say("status", { state: "live", epoch: 5, ver: 10 });
  for (const [t, f] of [["event", { ver: 11, op: 1, data: 1 }], ["snapshot", { ver: 0, lane_seq: 9, data: 1 }], ["ack", { ver: 11, op: 1 }], ["reaction", { class: "wave" }], ["status", { state: "ended" }]])
    c.say(t, { epoch: 4, ...f });
  assert.deepEqual([c.s.ver, c.s.epoch, c.s.state, await fate(op)], [10, 5, "live", "pending"]);
  assert.deepEqual([c.of("event").length, c.of("reaction").length, c.of("snapshot").length], [0, 0, 1]);
  c.s.react("wave", { up: 1 });
  assert.deepEqual(c.sent("reaction"), [{ t: "reaction", session: "s", epoch: 5, class: "wave", data: { up: 1 } }]);
  c.say("reaction", { epoch: 5, class: "wave", by: "p", counts: { wave: 3 } });
  assert.deepEqual(c.of("reaction"), [{ class: "wave", epoch: 5, by: "p", counts: { wave: 3 }, data: undefined }]);
});

test("a diverged snapshot sets the version down and hands settled ops over, never sends them again", async () => {
  const c = attached();
  for (const [i, data] of ["a", "b", "c"].entries()) {
    c.s.op(data);
    c.say("event", { epoch: 3, ver: 11 + i, op: i + 1, data });
  }
  const pending = c.s.op("d");
  c.say("snapshot", { epoch: 4, ver: 11, lane_seq: 1, rejected: [], why: "diverged", data: {} });
  assert.equal(c.s.ver, 11);
  assert.deepEqual(c.of("check").map(o => [o.data, o.ver]), [["b", 12], ["c", 13]]);
  assert.deepEqual(c.sent("op").map(f => [f.op, f.attempt, f.settled]), [[1, 1, 1], [2, 1, 2], [3, 1, 3], [4, 1, 4], [4, 2, 4]]);
  assert.equal(await fate(pending), "pending");
});

// ---- ops ----

test("an echo resolves after its event was given to the app", async () => {
  const c = attached();
  const order = [];
  c.s.on("event", () => order.push("event"));
  const op = c.s.op({ move: "e2e4" }).then(d => (order.push("done"), d));
  assert.deepEqual(c.sent("op"), [{ t: "op", session: "s", op: 1, settled: 1, base: 10, kind: 0, attempt: 1, data: { move: "e2e4" } }]);
  assert.equal(c.s.pending.length, 1);
  c.say("event", { epoch: 3, ver: 11, op: 1, by: "white", at_us: 5, data: { move: "e2e4" } });
  assert.deepEqual(await op, { ver: 11, epoch: 3, dup: false, held_us: undefined, attempts: 1 });
  assert.deepEqual(order, ["event", "done"]);
  assert.equal(c.s.pending.length, 0);
  c.s.op(new Uint8Array([255, 0]), { kind: 2, base: 4 });
  assert.deepEqual(c.sent("op").at(-1), { t: "op", session: "s", op: 2, settled: 2, base: 4, kind: 2, attempt: 1, b64: "_wA" });
  c.say("ack", { epoch: 3, ver: 12, op: 2, dup: true, held_us: 7 });
  assert.equal(c.s.pending.length, 0);
  c.say("event", { epoch: 3, ver: 12, b64: "_wA" });
  assert.deepEqual(c.of("event").at(-1).data, new Uint8Array([255, 0]));
});

test("the window is obeyed and settled grows", async () => {
  const c = attached();
  for (let i = 1; i <= 6; i++) c.s.op(i);
  assert.deepEqual(c.sent("op").map(f => f.op), [1, 2, 3, 4]);
  c.say("event", { epoch: 3, ver: 11, op: 1, data: 1 });
  c.say("event", { epoch: 3, ver: 12, op: 2, data: 2 });
  assert.deepEqual(c.sent("op").slice(4).map(f => [f.op, f.settled]), [[5, 2], [6, 3]]);
});

test("nothing is resent while a connection lives; after attached on a new one everything is, with the same bytes", async () => {
  const c = attached();
  const done = ["a", "b", "c", "d"].map(d => c.s.op(d));
  c.say("receipt", { op: 4, receipt: "RC" });
  for (let i = 0; i < 20; i++) {
    await c.clock.run(2500);
    c.last().say({ t: "ping", n: i });
  }
  assert.equal(c.sent("op").length, 4);
  assert.equal(c.sent("pong").length, 20);
  c.last().end(1006);
  await c.clock.run(3000);
  const unsent = c.s.op("e");
  c.welcome();
  assert.equal(c.sent("op").length, 0);
  c.attach({ ver: 12, resume: "events", lane_seq: 3, rejected: [{ op: 2, code: "REJECTED", app_code: 3 }] });
  assert.deepEqual(c.sent("op").map(f => [f.op, f.attempt, f.settled, f.receipt, f.data]), [[4, 2, 1, "RC", "d"], [5, 1, 1, undefined, "e"]]);
  const no = await fate(done[1]);
  assert.deepEqual([no.code, no.app_code, no.applied, no instanceof HoldfastError], ["REJECTED", 3, "no", true]);
  assert.equal(await fate(done[0]), "pending", "its event comes first");
  c.say("event", { epoch: 3, ver: 11, op: 1, data: "a" });
  assert.equal((await fate(done[0])).ver, 11);
  c.say("event", { epoch: 3, ver: 12, data: "bob" });
  assert.deepEqual(await fate(done[2]), { ver: 12, epoch: 3, dup: true, held_us: undefined, attempts: 1 }, "head is reached");
  assert.equal(await fate(unsent), "pending");
});

test("a GAP goes back to n at once, other 2xx after their time, with what follows; then a raised settled", async () => {
  const c = attached();
  [1, 2, 3].map(i => c.s.op(i));
  c.say("nack", { op: 1, attempt: 1, code: "OVERLOADED", applied: "no", retry_after_ms: 700, receipt: "R1" });
  c.say("nack", { op: 2, attempt: 1, code: "GAP", applied: "no", retry_after_ms: 0, expected: 1 });
  c.say("nack", { op: 3, attempt: 1, code: "GAP", applied: "no", retry_after_ms: 0, expected: 1 });
  c.s.op(4);
  await c.clock.run(690);
  assert.equal(c.sent("op").length, 3, "nothing before its time, new ops neither");
  await c.clock.run(20);
  assert.deepEqual(c.sent("op").slice(3).map(f => [f.op, f.attempt, f.receipt]), [[1, 2, "R1"], [2, 2, undefined], [3, 2, undefined], [4, 1, undefined]]);
  c.say("nack", { op: 1, attempt: 1, code: "FORBIDDEN", applied: "no" });
  assert.equal(c.s.pending.length, 4, "speaks of the first copy");
  c.say("nack", { op: 1, attempt: 2, code: "REJECTED", applied: "no", app_code: 9, detail: "no such move" });
  c.say("nack", { op: 2, attempt: 2, code: "GAP", applied: "no", expected: 1 });
  await c.clock.run(200);
  assert.deepEqual(c.sent("op").slice(7).map(f => [f.op, f.settled]), [[2, 2], [3, 2], [4, 2]]);
});

test("an unknown outcome is asked for until it is heard; the echo wins over a nack", async () => {
  const c = attached();
  const op = c.s.op("x");
  c.say("nack", { op: 1, attempt: 1, code: "HOLD_EXPIRED", applied: "unknown", retry_after_ms: 1000 });
  c.say("event", { epoch: 3, ver: 11, op: 1, data: "x" });
  assert.equal((await fate(op)).ver, 11);
  await c.clock.run(2000);
  assert.equal(c.sent("op").length, 1);
});

test("final words: code, applied, retry; BASE_CONFLICT and OUTCOME_EXPIRED bring a fresh state", async () => {
  const c = attached();
  const of = async (code, applied) => {
    const op = c.s.op(code);
    const { op: seq } = c.sent("op").at(-1);
    c.say("nack", { op: seq, attempt: 1, code, applied, detail: "why", app_code: 4 });
    const e = await fate(op);
    return [e.code, e.applied, e.retry, e.app_code];
  };
  assert.deepEqual(await of("REJECTED", "no"), ["REJECTED", "no", false, 4]);
  assert.deepEqual(await of("BASE_CONFLICT", "no"), ["BASE_CONFLICT", "no", true, 4]);
  assert.deepEqual(await of("OUTCOME_EXPIRED", "unknown"), ["OUTCOME_EXPIRED", "unknown", false, 4]);
  assert.deepEqual(c.sent("resync").map(f => f.snapshot), [false, true]);
  const big = await fate(c.s.op("x".repeat(99)));
  assert.deepEqual([big.code, big.applied, c.s.pending.length], ["TOO_LARGE", "no", 0], "never on the wire, takes no id");
  c.s.op("next");
  assert.equal(c.sent("op").at(-1).op, 4);
});

test("TRY_AFTER_ATTACH and a detached that passes are attached again; one that does not ends the session", async () => {
  const c = attached();
  const op = c.s.op("x");
  c.say("nack", { op: 1, attempt: 1, code: "TRY_AFTER_ATTACH", applied: "no" });
  await c.clock.run(200);
  assert.equal(c.sent("attach").length, 2);
  c.attach();
  assert.deepEqual(c.sent("op").map(f => f.attempt), [1, 2]);
  c.say("detached", { n: 1, code: "NOT_ATTACHED" });
  assert.equal(c.s.state, "live", "speaks of an older attach");
  c.say("detached", { n: c.sent("attach").at(-1).n, code: "OVERLOADED", retry_after_ms: 900 });
  await c.clock.run(850);
  assert.equal(c.sent("attach").length, 2);
  await c.clock.run(100);
  assert.equal(c.sent("attach").length, 3);
  c.say("detached", { n: c.sent("attach").at(-1).n, code: "FORBIDDEN", retry_after_ms: 0 });
  const e = await fate(op);
  assert.deepEqual([c.s.state, e.code, e.applied, c.hf.state], ["stopped", "FORBIDDEN", "unknown", "live"]);
  assert.equal((await fate(c.s.op("y"))).code, "FORBIDDEN");
});

test("a lane_seq above one's own means another lane; what was sent keeps its id", async () => {
  const c = attached();
  const { lane } = c.hf;
  const old = c.s.op("old");
  c.last().end(1006);
  await c.clock.run(2000);
  c.s.op("new");
  c.welcome();
  c.attach({ lane_seq: 7 });
  assert.notEqual(c.hf.lane, lane);
  assert.equal(c.sockets.length, 3);
  c.welcome();
  assert.equal(c.sent("hello")[0].lane, c.hf.lane);
  c.attach();
  assert.deepEqual(c.sent("op").map(f => [f.op, f.data]), [[`${lane}:1`, "old"]], "the new one waits for it");
  c.say("ack", { op: `${lane}:1`, epoch: 3, ver: 11, dup: true, held_us: 1 });
  assert.equal((await fate(old)).dup, true);
  assert.deepEqual(c.sent("op").slice(1).map(f => [f.op, f.attempt, f.data]), [[1, 1, "new"]]);
});

// ---- going and coming back ----

test("after a crash the rank is waited for once, then decorrelated jitter; five seconds of life reset it", async () => {
  const c = client();
  const waits = [];
  const lose = async code => {
    const at = c.clock.now;
    const { length } = c.sockets;
    c.last().end(code);
    while (c.sockets.length === length) await c.clock.run(1);
    waits.push(c.clock.now - at);
  };
  c.welcome();
  await lose(1006);
  c.welcome();
  await lose(1006);
  await lose(1006);
  c.welcome();
  await c.clock.run(5000);
  await lose(1011);
  assert.deepEqual([waits[0], waits[3]], [1000, 1000], "4000 ms x 250000 ppm");
  assert.ok(waits[1] >= 250 && waits[1] <= 751 && waits[2] >= 250 && waits[2] <= 3 * waits[1] + 2, waits.join());
  assert.deepEqual(c.sockets.slice(1).map(() => 0).length, 4);
});

test("own timeout: at once; the watchdog counts any frame", async () => {
  const c = client();
  c.welcome();
  await c.clock.run(5900);
  c.last().say({ t: "ping", n: 1 });
  await c.clock.run(5900);
  assert.equal(c.sockets.length, 1);
  await c.clock.run(200);
  assert.equal(c.sockets.length, 2);
});

test("a changed network: no rank; `online` cuts a wait short, but not a slot", async () => {
  const c = client();
  c.welcome();
  c.window.dispatchEvent(new Event("offline"));
  c.last().end(1006);
  await c.clock.run(1);
  assert.equal(c.sockets.length, 2);
  c.env.navigator.onLine = false;
  c.last().end(1006);
  assert.equal(c.hf.state, "offline");
  c.last().end(1006);
  await c.clock.run(0);
  const { length } = c.sockets;
  c.env.navigator.onLine = true;
  c.clock.now += 1001;
  c.window.dispatchEvent(new Event("online"));
  assert.ok(c.sockets.length > length);
  c.last().end(1013, SLOT("slot", 4870, "TTT"));
  assert.deepEqual([c.hf.state, c.states.at(-1).until - c.env.wall()], ["waiting", 4870]);
  const before = c.sockets.length;
  c.window.dispatchEvent(new Event("online"));
  await c.clock.run(4869);
  assert.equal(c.sockets.length, before);
  await c.clock.run(2);
  assert.deepEqual([c.sockets.length, c.last().url.searchParams.get("k")], [before + 1, "TTT"]);
});

test("slots, three times: the page comes in at its slot, with ticket and resume token", async () => {
  const c = client();
  c.welcome();
  c.last().end(1012, SLOT("drain", 100, "T0"));
  for (let i = 1; i <= 3; i++) {
    await c.clock.run(i * 100);
    assert.equal(c.last().url.search, `?k=T${i - 1}&r=RRR`);
    c.last().open();
    c.last().end(1013, SLOT("slot", (i + 1) * 100, `T${i}`));
  }
  await c.clock.run(400);
  c.welcome();
  assert.deepEqual([c.hf.state, c.sent("hello")[0].ticket, c.sent("hello")[0].resume, c.sent("hello")[0].attempt], ["live", "T3", "RRR", 4]);
  c.last().end(1013, SLOT("full", 200));
  assert.equal(c.hf.state, "waiting");
  c.clock.run(200);
  for (const bad of ["", "null", "{", '{"r":"slot"}']) {
    await c.clock.run(9000);
    c.last().end(1013, bad);
    assert.notEqual(c.hf.state, "stopped");
  }
});

test("4000 to 4099 and the like stop, in words, and every op ends", async () => {
  for (const code of [4000, 4001, 4002, 4003, 4004, 4006, 4007, 1000, 1002, 1003, 1007, 1009, 1010, 4300, 4999]) {
    const c = attached();
    const [sent, told] = [c.s.op("x"), []];
    c.s.on("status", s => told.push(s));
    c.last().end(code, "because");
    const e = await fate(sent);
    assert.deepEqual([c.hf.state, c.hf.status.code, e.code, e.applied], ["stopped", code, "STOPPED", "unknown"], code);
    assert.ok(c.hf.status.words.length > 10 && told.at(-1).state === "stopped" && told.at(-1).words === c.hf.status.words);
    await c.clock.run(100_000);
    assert.equal(c.sockets.length, 1, `${code} is final`);
    assert.equal((await fate(c.s.op("y"))).code, "STOPPED");
    c.hf.restart("other");
    assert.equal(c.sockets.length, 2);
  }
});

test("4100 to 4199 back off, 4203 comes back now, 4201 with a new token first", async () => {
  let tokens = 0;
  const c = client({ token: async () => `t${++tokens}` });
  await settle();
  c.welcome();
  c.last().end(4102);
  await c.clock.run(249);
  assert.equal(c.sockets.length, 1);
  await c.clock.run(600);
  c.welcome();
  await c.clock.run(5000);
  c.last().end(4203);
  await c.clock.run(0);
  assert.deepEqual([c.sockets.length, tokens], [3, 1]);
  c.welcome();
  await c.clock.run(5000);
  c.last().end(4201);
  await c.clock.run(0);
  c.welcome();
  assert.deepEqual([c.sockets.length, c.sent("hello")[0].token], [4, "t2"]);
  const fixed = client();
  fixed.welcome();
  fixed.last().end(4201);
  assert.deepEqual([fixed.hf.state, fixed.hf.status.code], ["stopped", 4201]);
});

test("goaway: ops go through until the slot, then the next gateway with the ticket", async () => {
  const c = attached();
  c.last().say({ t: "goaway", code: 1012, delay_ms: 1730, window_ms: 4000, ticket: "TTT" });
  await c.clock.run(1700);
  c.s.op("x");
  assert.equal(c.sent("op").length, 1);
  const [first] = c.sockets;
  await c.clock.run(40);
  assert.deepEqual([first.closedBy, c.sockets.length, c.last().url.searchParams.get("k")], [1000, 2, "TTT"]);
  c.welcome();
  c.attach();
  assert.deepEqual(c.sent("op").map(f => f.attempt), [2]);
});

test("a token function is asked before it expires, and the connection told", async () => {
  let tokens = 0;
  const c = client({ token: () => `t${++tokens}` });
  await settle();
  c.welcome({ token_exp_us: WELCOME.now_us + 300e6 });
  for (let i = 0; i < 120; i++) {
    await c.clock.run(2000);
    c.last().say({ t: "ping", n: i });
  }
  assert.deepEqual(c.sent("auth"), [{ t: "auth", token: "t2" }]);
});

test("a page that slept asks first, and comes back at once if nobody answers", async () => {
  const c = client();
  c.welcome();
  await c.clock.run(1000);
  c.clock.now += 60_000;
  c.document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(c.sent("ping").length, 1);
  c.last().say({ t: "pong", n: 1 });
  await c.clock.run(3000);
  assert.equal(c.sockets.length, 1);
  c.window.dispatchEvent(new Event("pageshow"));
  await c.clock.run(2100);
  assert.equal(c.sockets.length, 2);
});

test("a socket that never opens is given up", async () => {
  const c = client();
  await c.clock.run(20_000);
  assert.ok(c.sockets.length >= 2 && c.sockets[0].closedBy);
});

test("the page is guarded while something is pending", () => {
  const c = attached();
  const leave = () => !c.window.dispatchEvent(new Event("beforeunload", { cancelable: true }));
  assert.equal(leave(), false);
  c.s.op("x");
  assert.equal(leave(), true);
  c.say("event", { epoch: 3, ver: 11, op: 1, data: "x" });
  assert.equal(leave(), false);
});

test("close and leave settle everything", async () => {
  const c = attached();
  const [a, b] = [c.s.op(1), c.hf.session("t").op(2)];
  c.hf.sessions.get("t").leave();
  assert.deepEqual([(await fate(b)).code, (await fate(b)).applied, c.sent("detach").length], ["LEFT", "no", 1]);
  c.hf.close();
  assert.deepEqual([(await fate(a)).applied, c.last().closedBy, c.sent("bye").length, c.hf.state], ["unknown", 1000, 1, "stopped"]);
});

test("async iteration gives events and snapshots, and ends with the session", async () => {
  const c = attached();
  const got = [];
  const loop = (async () => { for await (const e of c.s) got.push(e.data); })();
  await settle();
  for (let v = 11; v < 14; v++) c.say("event", { epoch: 3, ver: v, data: v });
  await settle();
  c.hf.close();
  await loop;
  assert.deepEqual(got, [11, 12, 13]);
});

test("a slow iterator gets a snapshot in place of what it missed", async () => {
  const c = attached();
  const it = c.s[Symbol.asyncIterator]();
  const first = it.next();
  await settle();
  for (let v = 11; v < 11 + 1100; v++) c.say("event", { epoch: 3, ver: v, data: v });
  assert.equal((await first).value.data > 11, true);
  assert.deepEqual(c.sent("resync").map(f => f.snapshot), [true]);
});

test("ops outlive a reload in a lane of their own", async () => {
  const kept = new Map();
  const store = {
    load: async session => structuredClone([...kept.values()].filter(o => o.session === session)),
    put: async (session, op) => kept.set(op.lane + op.seq, { ...op, session }),
    remove: async (session, op) => kept.delete(op.lane + op.seq),
  };
  const first = attached({ persist: store });
  first.s.op({ a: 1 });
  first.last().end(1006);
  first.s.op({ b: 2 });
  await settle();
  assert.equal(kept.size, 2);
  const next = attached({ persist: store }, { bytes: n => new Uint8Array(n).fill(7) });
  const mine = next.s.op({ c: 3 });
  await settle();
  const { lane } = first.hf;
  assert.deepEqual(next.sent("op").map(f => [f.op, f.data]), [[1, { c: 3 }], [`${lane}:1`, { a: 1 }], [`${lane}:2`, { b: 2 }]]);
  assert.ok(next.sent("op").slice(1).every(f => f.attempt === 2 && f.settled === 1));
  next.say("ack", { op: `${lane}:1`, epoch: 3, ver: 11, dup: true });
  next.say("nack", { op: `${lane}:2`, attempt: 2, code: "REJECTED", applied: "no" });
  next.say("event", { op: 1, epoch: 3, ver: 11, data: { c: 3 } });
  await mine;
  await settle();
  assert.deepEqual([kept.size, next.s.pending.length], [0, 0]);
});

test("a handler's mistake does not stop the protocol", async t => {
  const c = attached();
  const thrown = [];
  t.mock.method(globalThis, "queueMicrotask", fn => {
    try {
      fn();
    } catch (e) {
      thrown.push(e.message);
    }
  });
  c.s.on("event", () => { throw new Error("of the app"); });
  const op = c.s.op("x");
  c.say("event", { epoch: 3, ver: 11, op: 1, data: "x" });
  assert.equal((await op).ver, 11);
  assert.deepEqual(thrown, ["of the app"]);
});

// ---- WebTransport ----

/** A WebTransport of which nothing is known yet. */
function webTransports(made) {
  return class {
    written = [];
    constructor(url) {
      this.url = new URL(url);
      this.ready = new Promise((ok, no) => Object.assign(this, { open: ok, fail: no }));
      this.closed = new Promise(ok => { this.end = ok; });
      this.closed.catch(() => {});
      made.push(this);
    }
    close() {
      this.left = true;
    }
    async createBidirectionalStream() {
      const stream = { text: "" };
      this.written.push(stream);
      const writable = new WritableStream({ write: chunk => { stream.text += new TextDecoder().decode(chunk); } });
      const readable = new ReadableStream({ start: to => { stream.say = f => to.enqueue(new TextEncoder().encode(JSON.stringify(f) + "\n")); } });
      return { readable, writable };
    }
  };
}
/** Streams take a few turns of the event loop. */
const turns = () => new Promise(ok => setTimeout(ok, 20));

test("WebTransport blocked: on WebSocket within 2 s, which is not killed by the late one", async () => {
  const made = [];
  const c = client({}, { WebTransport: webTransports(made) });
  assert.deepEqual([made[0].url.href, c.sockets.length], ["https://svc.test/v1/wt?f=json", 0]);
  await c.clock.run(1000);
  assert.equal(c.sockets.length, 1);
  c.welcome();
  assert.deepEqual([c.hf.state, c.hf.transport, made[0].written.length], ["live", "websocket", 0]);
  made[0].open();
  await settle();
  assert.deepEqual([c.hf.transport, made[0].left, made[0].written.length], ["websocket", true, 0], "no second hello, so no 4006");
  c.last().end(1006);
  await c.clock.run(1000);
  assert.deepEqual([made.length, c.sockets.length], [1, 2], "not tried again for a while");
});

test("WebTransport refused: WebSocket at once; working: no WebSocket at all", async () => {
  let made = [];
  const c = client({}, { WebTransport: webTransports(made) });
  made[0].fail(new Error("no"));
  await settle();
  assert.equal(c.sockets.length, 1);
  await c.clock.run(1500);
  assert.equal(c.sockets.length, 1, "one is enough");

  made = [];
  const d = client({}, { WebTransport: webTransports(made) });
  const s = d.hf.session("s");
  made[0].open();
  await turns();
  const [control, session] = made[0].written;
  assert.match(control.text, /^\{"t":"hello".*\}\n$/);
  assert.match(session.text, /^\{"t":"attach".*\}\n$/);
  control.say(WELCOME);
  await turns();
  assert.deepEqual([d.hf.state, d.hf.transport, d.sockets.length], ["live", "webtransport", 0]);
  session.say({ t: "attached", session: "s", n: 1, epoch: 1, ver: 0, resume: "nothing", lane_seq: 0, rejected: [] });
  await turns();
  s.op({ x: 1 });
  await turns();
  assert.match(session.text, /\n\{"t":"op","session":"s","op":1.*"data":\{"x":1\}\}\n$/);
  made[0].end({ closeCode: 4006, reason: "" });
  await turns();
  assert.deepEqual([d.hf.state, d.hf.status.code], ["stopped", 4006]);
});
