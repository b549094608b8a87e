// Seeded runs of the SDK against a service that breaks, in virtual time: what design section 15 promises a client holds, and
// no op waits for ever. `HOLDFAST_SDK_SEED=n node tests/sdk/sim.mjs` replays one run, with HOLDFAST_SDK_TRACE=1 frame by
// frame. A worker for sim.test.mjs.

import assert from "node:assert/strict";
import { parentPort, workerData } from "node:worker_threads";

import { Holdfast } from "../../src/client/holdfast.js";
import { Service } from "./service.mjs";
import { Clock, envOf, Random, settle } from "./virtual.mjs";

const TRACE = Boolean(process.env.HOLDFAST_SDK_TRACE);
/** Virtual: how long things break, and how long they then may take to heal. */
const BREAK_MS = 12_000;
const HEAL_MS = 120_000;
const FAULT_EVERY_MS = 600;

/** What an app keeps of one session, checked as it hears it. */
class App {
  log = [];
  ver = 0;
  epoch = 0;
  made = []; // ops in the order of asking
  toCheck = new Set();
  checked = new Set();
  constructor(session, record, run) {
    Object.assign(this, { session, record, run });
    session.on("event", e => this.event(e));
    session.on("snapshot", e => this.snapshot(e));
    session.on("check", o => {
      assert.ok(record.lost.has(o.data.uid) || record.events.some(e => e.uid === o.data.uid), "checked what was acked");
      this.toCheck.delete(o.data.uid);
      this.checked.add(o.data.uid);
    });
    session.on("status", s => this.lives(s.epoch));
  }
  lives(epoch) {
    assert.ok(epoch >= this.epoch, `epoch fell from ${this.epoch} to ${epoch}`);
    this.epoch = epoch;
  }
  event(e) {
    this.lives(e.epoch);
    assert.ok(e.ver > this.ver, `ver ${e.ver} after ${this.ver}`);
    for (let v = this.ver + 1; v < e.ver; v++) assert.ok(this.record.events[v - 1]?.hidden, `ver ${v} was skipped`);
    this.ver = e.ver;
    this.log.push([e.ver, e.data]);
  }
  snapshot(e) {
    this.lives(e.epoch);
    if (e.ver < this.ver) {
      assert.equal(e.why, "diverged", `back to ${e.ver} from ${this.ver}`);
      for (const o of this.made) if (o.acked > e.ver && !this.checked.has(o.data.uid)) this.toCheck.add(o.data.uid);
    }
    this.ver = e.ver;
    this.log = [...e.data];
  }
  ask(data) {
    const op = { data };
    this.made.push(op);
    this.session.op(data).then(
      done => {
        op.acked = done.ver;
        assert.ok(this.session.ver >= done.ver || this.record.back || this.record.holes, "told done before it was seen");
        assert.ok(this.record.events.some(e => e.uid === data.uid) || this.record.lost.has(data.uid), `${data.uid} is not in the record`);
      },
      no => { op.refused = no; },
    ).catch(e => { this.run.failure ??= e; });
  }
  /** After everything healed. */
  judge() {
    const shown = this.record.events.filter(e => !e.hidden).map(e => [e.ver, e.uid]);
    assert.deepEqual(this.log, shown, "the app and the record agree");
    const where = new Map(shown.map(([ver, uid]) => [uid, ver]));
    assert.equal(where.size, shown.length, "everything once");
    let last = 0;
    for (const o of this.made) {
      const { uid } = o.data;
      assert.ok(o.acked !== undefined || o.refused, `${uid} pends for ever`);
      if (o.acked !== undefined && !this.record.lost.has(uid)) {
        assert.ok(where.has(uid), `${uid} was acked and is gone`);
        assert.ok(where.get(uid) > last, `${uid} out of order`);
        last = where.get(uid);
      }
      if (o.refused?.applied === "no") assert.ok(!where.has(uid), `${uid} was refused (${o.refused.code}) and is in the record`);
    }
    assert.equal(this.toCheck.size, 0, "everything that went back was shown for a check");
    assert.equal(this.session.pending.length, 0);
  }
}

class Run {
  constructor(seed, sdk) {
    this.random = new Random(seed);
    this.clock = new Clock();
    this.service = new Service(this.clock, new Random(seed ^ 0x5eed));
    this.disaster = seed % 10 === 0;
    this.ghost = seed % 23 === 0;
    const env = envOf(this.clock, new Random(seed ^ 0xfeed), ws => this.guarded(() => this.service.connect(ws)));
    const token = seed % 2 ? "t" : () => Promise.resolve("t");
    this.hf = new sdk(["ws://a.test", "ws://b.test"], { token, env });
    const ids = seed % 4 === 0 ? ["one", "two"] : ["one"];
    this.apps = ids.map(id => new App(this.hf.session(id), this.service.record(id), this));
    if (TRACE) this.trace();
    this.hf.on("state", s => { if (s.state === "stopped" && s.code !== 1000) this.failure ??= new Error(`stopped: ${s.code} ${s.words}`); });
  }
  /** With HOLDFAST_SDK_TRACE=1: every frame, in order. */
  trace() {
    const tell = (...what) => console.log(String(Math.round(this.clock.now)).padStart(7), ...what);
    this.hf.on("state", s => tell("state", s.state, s.code ?? ""));
    const { connect, hear } = this.service;
    this.service.connect = ws => {
      tell("connect", ws.url.search);
      const { say, end, open } = ws;
      ws.open = () => (tell("open"), open.call(ws));
      ws.say = (...f) => (tell("<-", f.map(x => JSON.stringify(x)).join("\n            ")), say.apply(ws, f));
      ws.end = (...c) => (tell("end", ...c), end.apply(ws, c));
      connect.call(this.service, ws);
    };
    this.service.hear = (conn, f) => (tell(conn.gw.name, "->", JSON.stringify(f)), hear.call(this.service, conn, f));
  }
  guarded(fn) {
    try {
      fn();
    } catch (e) {
      this.failure ??= e;
    }
  }

  plan() {
    const { random, clock } = this;
    for (let i = 0, n = random.int(4, 14); i < n; i++) {
      const app = random.pick(this.apps);
      const burst = random.chance(0.2) ? random.int(2, 12) : 1;
      clock.at(random.int(0, BREAK_MS), () => {
        for (let j = 0; j < burst; j++) app.ask({ uid: `${i}.${j}`, bad: random.chance(0.05), two: random.chance(0.1) });
      });
    }
    for (let at = 0; at < BREAK_MS; at += random.int(1, 2 * FAULT_EVERY_MS)) clock.at(at, () => this.guarded(() => this.fault()));
  }

  fault() {
    const { random, service } = this;
    const record = random.pick([...service.records.values()]);
    const conn = random.pick(service.gateways.flatMap(g => [...g.conns]));
    const rate = random.next();
    if (rate < 0.25) service.someoneElse(record, random.chance(0.3), `bob${this.clock.now}`);
    else if (rate < 0.4) conn && service.cut(conn);
    else if (rate < 0.48) conn && service.cut(conn, random.pick([1001, 1011, 1012, 1013, 4101, 4102, 4104, 4203]));
    else if (rate < 0.55) service.killGateway(random.pick(service.gateways));
    else if (rate < 0.6) service.drain(random.pick(service.gateways));
    else if (rate < 0.75) service.killOwner(record, this.disaster && random.chance(0.5) ? Math.max(0, record.ver - random.int(1, 4)) : undefined);
    else if (rate < 0.8 && conn) conn.dark = true; // a link that swallows everything
    else if (this.ghost && rate < 0.9) this.haunt(record);
    else if (rate < 0.95) this.hf.session(record.id).react("wave", { at: this.clock.now });
    else this.hf.session(record.id).refresh();
  }
  /** Somebody writes in our lane while we are away, as a copy of the page would; more than could be ours in flight. */
  haunt(record) {
    if (!record.alive || this.service.gateways.some(g => [...g.conns].some(c => c.lane === this.hf.lane))) return;
    const from = record.ver;
    for (let i = 0; i < 10; i++) {
      const seq = record.lane(this.hf.lane).last + 1;
      const ghost = { lane: this.hf.lane, seq, settled: seq, digest: "ghost", data: { uid: `ghost${this.clock.now}.${seq}` } };
      record.decide(ghost);
    }
    this.service.broadcast(record, from);
  }

  async play() {
    this.plan();
    await this.until(() => this.clock.now >= BREAK_MS, BREAK_MS + 1);
    this.service.faults = false;
    const quiet = () => this.hf.pending.length === 0 && [...this.service.records.values()].every(r => r.alive) && this.clock.now > BREAK_MS + 20_000;
    await this.until(quiet, HEAL_MS);
    // one last event for everybody, so that a hole at the very end shows, and time to hear it
    for (const r of this.service.records.values()) this.service.someoneElse(r, false, "last");
    await this.until(() => this.apps.every(a => a.ver === a.record.ver), 20_000);
    if (!this.failure) this.guarded(() => this.apps.forEach(a => a.judge()));
    assert.ok(this.service.connects < 150, `${this.service.connects} connections`);
    if (this.failure) throw this.failure;
    this.hf.close();
  }
  async until(done, ms) {
    const by = this.clock.now + ms;
    while (!this.failure && !done()) {
      let more;
      this.guarded(() => { more = this.clock.step(by); });
      if (!more) return;
      await settle();
    }
  }
}

let current;

/** Seeds `first` to `first + count - 1`; throws with the seed that failed. `Holdfast` is the class under test. */
export async function runSeeds(first, count, sdk = Holdfast) {
  const sum = { connects: 0, acked: 0, refused: 0, resent: 0 };
  const uncaught = e => { current.failure ??= e; }; // thrown by a handler of the app: its checks are handlers
  process.on("uncaughtException", uncaught);
  for (let seed = first; seed < first + count; seed++) {
    const run = (current = new Run(seed, sdk));
    try {
      await run.play();
    } catch (e) {
      e.message = `seed ${seed}: ${e.message}\nreplay: HOLDFAST_SDK_SEED=${seed} node tests/sdk/sim.mjs`;
      throw e;
    }
    sum.connects += run.service.connects;
    for (const { made } of run.apps) for (const o of made) sum[o.acked !== undefined ? "acked" : "refused"]++;
    for (const { attempt } of run.service.seen.values()) sum.resent += attempt - 1;
  }
  process.off("uncaughtException", uncaught);
  return sum;
}

if (workerData) {
  const { first, count, sdk } = workerData;
  runSeeds(first, count, sdk && (await import(sdk)).Holdfast).then(sum => parentPort.postMessage({ sum }), e => parentPort.postMessage({ error: e.stack, message: e.message }));
} else if (process.env.HOLDFAST_SDK_SEED) {
  await runSeeds(Number(process.env.HOLDFAST_SDK_SEED), Number(process.env.HOLDFAST_SDK_RUNS ?? 1));
}
