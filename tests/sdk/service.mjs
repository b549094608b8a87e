// A service that breaks: gateways, owners and records in one model, after src/core/src/session and src/core/src/record. It
// checks on the way what a client may send, and keeps the record against which the promises are judged.

import assert from "node:assert/strict";

export const HOLD_TTL_MS = 13_000;
const FINAL = ["FORBIDDEN", "TOO_LARGE", "BAD_FRAME"];
const FOR_NOW = ["OVERLOADED", "STORE_UNAVAILABLE", "TOO_MANY_INFLIGHT", "NO_OWNER"];

/** One session's durable record: the only truth. */
class Record {
  epoch = 1;
  events = []; //  {ver, uid, lane, seq, by, hidden}
  lanes = new Map(); // lane -> {last, outcomes: Map(seq -> {ver, code, digest})}
  lost = new Set(); // uids that were in the record before it was rolled back
  back; //            [{epoch, ver}] of rollbacks

  get ver() {
    return this.events.length;
  }
  lane(lane) {
    if (!this.lanes.has(lane)) this.lanes.set(lane, { last: 0, outcomes: new Map() });
    return this.lanes.get(lane);
  }
  add(event) {
    this.events.push({ ver: this.ver + 1, ...event });
    return this.events.at(-1);
  }
  /** The owner's verdict on an op, written before it is said. */
  decide({ lane, seq, settled, digest, data }) {
    const l = this.lane(lane);
    const known = l.outcomes.get(seq);
    if (known) return known.digest === digest ? { dup: true, ...known } : { code: "OP_ID_REUSED" };
    if (seq <= l.last) return { code: "OUTCOME_EXPIRED", applied: "unknown" };
    const expected = Math.max(l.last, settled - 1) + 1;
    if (seq !== expected) return { code: "GAP", expected };
    l.last = seq;
    if (data.bad) {
      l.outcomes.set(seq, { code: "REJECTED", app_code: 7, digest });
      return { code: "REJECTED", app_code: 7 };
    }
    if (data.two) this.add({ uid: data.uid + "'", by: "alice" });
    const event = this.add({ uid: data.uid, lane, seq, by: "alice" });
    l.outcomes.set(seq, { ver: event.ver, digest });
    return { ver: event.ver };
  }
  answer(lane) {
    const l = this.lane(lane);
    const no = [...l.outcomes].filter(([, o]) => o.code);
    return { lane_seq: l.last, rejected: no.map(([op, o]) => ({ op, code: o.code, app_code: o.app_code })) };
  }
  /** A regional disaster: what came after `ver` never was. */
  rollBack(ver) {
    if (this.events[ver - 1]?.uid.endsWith("'")) ver--; // one write is one write
    for (const e of this.events.splice(ver)) this.lost.add(e.uid);
    for (const l of this.lanes.values()) {
      for (const [seq, o] of l.outcomes) if (o.ver > ver) l.outcomes.delete(seq);
      l.last = Math.max(0, ...l.outcomes.keys());
    }
    (this.back ??= []).push({ epoch: this.epoch + 1, ver });
  }
  /** Whether what somebody saw in `epoch` has gone since. */
  went({ epoch, ver }) {
    return ver > this.ver || (this.back ?? []).some(b => epoch < b.epoch && ver > b.ver);
  }
}

export class Service {
  records = new Map();
  gateways = [];
  faults = true;
  slots = new Map(); // ticket -> when it is good
  connects = 0;
  seen = new Map(); //  op key -> {digest, attempt}: what a client ever sent
  top = new Map(); //   session and lane -> highest seq ever sent
  notBefore = 0;

  constructor(clock, random, rates = {}) {
    Object.assign(this, { clock, random });
    this.p = { refuse: 0.08, final: 0.02, stale: 0.03, slow: 0.03, hole: 0.01, slot: 0.15, ambiguous: 0.03, detach: 0.02, ...rates };
    for (let i = 0; i < 3; i++) this.gateways.push({ name: `gw-${i}`, alive: true, conns: new Set(), sessions: new Map(), boot: 0 });
  }

  chance(what) {
    return this.faults && this.random.chance(this.p[what]);
  }
  record(id) {
    if (!this.records.has(id)) this.records.set(id, Object.assign(new Record(), { id, alive: true }));
    return this.records.get(id);
  }

  // ---- connections ----

  connect(ws) {
    this.connects++;
    const { clock, random } = this;
    assert.equal(ws.protocol, "holdfast.v1.json");
    assert.ok(clock.now >= this.notBefore, `came back at ${clock.now}, told not before ${this.notBefore}`);
    const k = ws.url.searchParams.get("k");
    if (k) assert.ok(this.slots.has(k) && clock.now >= this.slots.get(k) - 50, `ticket ${k} presented at ${clock.now}`);
    if (this.faults && random.chance(0.05)) return; // into the void: the client has to give up by itself
    if (this.faults && random.chance(0.05)) return void clock.after(random.int(1, 300), () => ws.end(1006));
    const gw = random.pick(this.gateways.filter(g => g.alive));
    if (!gw) return void clock.after(5, () => ws.end(1006));
    clock.after(random.int(2, 40), () => {
      if (!gw.alive || ws.readyState) return ws.end(1006);
      if (!k && this.chance("slot")) {
        ws.open();
        return this.refuse(ws, random.pick([1012, 1013]));
      }
      const conn = { ws, gw, boot: gw.boot, up: 0, down: 0, atts: new Map() };
      gw.conns.add(conn);
      ws.heard = text => {
        conn.up = Math.max(conn.up, clock.now + random.int(1, 30));
        if (!conn.dark) clock.at(conn.up, () => { if (this.open(conn)) text.split("\n").forEach(l => this.hear(conn, JSON.parse(l))); });
      };
      ws.left = () => clock.at(Math.max(conn.up, clock.now + 5), () => this.gone(conn));
      ws.open();
    });
  }

  refuse(ws, code) {
    const { clock, random } = this;
    const ms = random.int(50, 3_000);
    const k = `t${random.int(0, 1e9)}`;
    this.slots.set(k, clock.now + ms);
    this.notBefore = clock.now + ms - 1;
    ws.end(code, { r: code === 1012 ? "drain" : "slot", ms, k });
  }

  open(conn) {
    return conn.gw.conns.has(conn);
  }
  gone(conn) {
    conn.gw.conns.delete(conn);
    for (const s of conn.gw.sessions.values()) s.atts.delete(conn);
  }
  /** The connection ends; what is on its way is lost. */
  cut(conn, code = 1006, reason = "") {
    if (!this.open(conn)) return;
    this.gone(conn);
    this.clock.after(this.random.int(0, 20), () => conn.ws.end(code, reason));
  }
  say(conn, ...frames) {
    if (!this.open(conn) || conn.dark) return;
    conn.down = Math.max(conn.down, this.clock.now + this.random.int(1, 30));
    this.clock.at(conn.down, () => { if (this.open(conn) && !conn.dark) conn.ws.say(...frames); });
  }

  // ---- frames of a client ----

  hear(conn, f) {
    if (!this.open(conn)) return;
    if (!conn.lane) {
      assert.equal(f.t, "hello", "the first frame");
      conn.lane = f.lane;
      for (const other of this.gateways.flatMap(g => [...g.conns])) {
        if (other === conn || other.lane !== f.lane) continue;
        assert.ok(other.seq < f.conn_seq, "conn_seq grows");
        if (other.gw === conn.gw) this.cut(other, 1006); // replaced; the client has left it already
      }
      conn.seq = f.conn_seq;
      const reconnect = { spread_ms: 1000, rank_ppm: this.random.int(0, 999_999), base_ms: 50, cap_ms: 1500 };
      this.say(conn, {
        t: "welcome", conn: "c", gateway: conn.gw.name, now_us: this.clock.now * 1000, ping_ms: 2500, dead_ms: 6000, token_exp_us: 0,
        features: [], resume: "", limits: { frame_bytes: 65536, payload_bytes: 16384, inflight: 8 }, reconnect,
      });
      return this.ping(conn, 1);
    }
    assert.notEqual(f.t, "hello", "one hello per connection");
    this[f.t]?.(conn, f);
  }

  ping(conn, n) {
    this.clock.after(2500, () => { if (this.open(conn)) (this.say(conn, { t: "ping", n }), this.ping(conn, n + 1)); });
  }

  session(gw, id) {
    if (!gw.sessions.has(id)) gw.sessions.set(id, { id, gw, hold: new Map(), backTo: new Map(), atts: new Map(), epoch: 0 });
    const s = gw.sessions.get(id);
    const r = this.record(id);
    if (r.alive && !s.epoch) s.epoch = r.epoch;
    return s;
  }

  attach(conn, f) {
    const s = this.session(conn.gw, f.session);
    const att = { conn, n: f.n, seen: f.seen, lane: conn.lane, ver: f.seen.ver, live: false, sid: f.session };
    s.atts.set(conn, att);
    for (const h of s.hold.values()) if (h.lane === conn.lane) h.conn = conn;
    if (this.chance("stale")) this.say(conn, { t: "event", session: s.id, epoch: 99, ver: f.seen.ver + 1, data: "EARLY" });
    if (this.chance("stale")) this.say(conn, { t: "attached", session: s.id, n: f.n - 1, ...f.seen, resume: "nothing", lane_seq: this.top.get(s.id + conn.lane) ?? 0 });
    if (this.chance("detach")) return this.detachLoud(s, att, this.random.pick(["OVERLOADED", "NO_OWNER"]));
    this.clock.after(1_000, () => { if (s.atts.get(conn) === att && !att.live) this.say(conn, this.status(s, "moving")); });
    this.clock.after(HOLD_TTL_MS, () => { if (s.atts.get(conn) === att && !att.live) this.detachLoud(s, att, "NO_OWNER"); });
    this.askAttach(s, att);
  }
  detachLoud(s, att, code) {
    s.atts.delete(att.conn);
    this.say(att.conn, { t: "detached", session: s.id, n: att.n, code, retry_after_ms: this.random.int(0, 500) });
  }
  status(s, state) {
    return { t: "status", session: s.id, state, epoch: s.epoch, ver: 0 };
  }
  detach(conn, f) {
    this.session(conn.gw, f.session).atts.delete(conn);
  }

  askAttach(s, att) {
    this.toOwner(s, r => {
      const [answer, ver] = [r.answer(att.lane), r.ver];
      const why = !att.seen.epoch ? "first" : r.went(att.seen) ? "diverged" : this.random.chance(0.3) ? "behind" : "";
      const rest = this.catchUp(r, att, why, answer);
      this.fromOwner(s, r.epoch, () => {
        if (s.atts.get(att.conn) !== att) return;
        [att.live, att.ver] = [true, ver];
        const resume = why ? "snapshot" : rest.length ? "events" : "nothing";
        const head = { epoch: s.epoch, ver, resume, ...answer, role: "participant", stamped: false, hold_ttl_ms: HOLD_TTL_MS };
        this.say(att.conn, { t: "attached", session: s.id, n: att.n, ...head });
        for (const f of rest) this.say(att.conn, { ...f, epoch: s.epoch });
      });
    });
  }
  /** What an attachment misses: frames without an epoch. */
  catchUp(r, att, why, answer) {
    if (!why) return r.events.slice(att.ver).map(e => this.event(r.id, e, att));
    const shown = r.events.filter(e => !e.hidden).map(e => [e.ver, e.uid]);
    return [{ t: "snapshot", session: r.id, ver: r.ver, ...answer, why, data: shown }];
  }
  event(session, e, att) {
    const op = e.lane === att.lane ? { op: e.seq } : {};
    return e.hidden ? { t: "event", session, ver: e.ver, to: e.ver } : { t: "event", session, ver: e.ver, ...op, by: e.by, data: e.uid };
  }
  resync(conn, f) {
    const s = this.session(conn.gw, f.session);
    const att = s.atts.get(conn);
    if (!att?.live) return;
    [att.live, att.ver] = [false, f.seen.ver];
    this.pull(s, att, this.record(s.id).went(f.seen) ? "diverged" : f.snapshot ? "asked" : "");
  }
  pull(s, att, why) {
    att.pulling = why;
    this.toOwner(s, r => {
      const [ver, rest] = [r.ver, this.catchUp(r, att, why, r.answer(att.lane))];
      this.fromOwner(s, r.epoch, () => {
        if (s.atts.get(att.conn) !== att || att.live) return;
        Object.assign(att, { live: true, ver, pulling: undefined });
        for (const f of rest) this.say(att.conn, { ...f, epoch: s.epoch });
      });
    });
  }

  op(conn, f) {
    const s = this.session(conn.gw, f.session);
    const [lane, seq] = typeof f.op === "string" ? [f.op.split(":")[0], Number(f.op.split(":")[1])] : [conn.lane, f.op];
    const digest = JSON.stringify([f.base, f.kind, f.data]);
    this.checkSent(s.id, lane, seq, digest, f);
    const att = s.atts.get(conn);
    const no = (code, more = {}) => this.nack(conn, s, f.op, { code, attempt: f.attempt, applied: f.attempt > 1 ? "unknown" : "no", ...more });
    if (att && this.chance("detach")) s.atts.delete(conn); // as if it had never been
    if (!s.atts.has(conn)) return no("TRY_AFTER_ATTACH");
    const key = `${lane}:${seq}`;
    const held = s.hold.get(key);
    if (held) return void Object.assign(held, { conn, attempt: Math.max(held.attempt, f.attempt) });
    if (f.attempt === 1 && this.chance("final")) return no(this.random.pick(FINAL));
    const back = s.backTo.get(lane);
    if (back !== undefined && (f.settled > back || seq === back)) s.backTo.delete(lane);
    else if (seq > back) return no("GAP", { expected: back });
    if (this.chance("refuse")) {
      s.backTo.set(lane, Math.min(s.backTo.get(lane) ?? seq, seq));
      return no(this.random.pick(FOR_NOW), { retry_after_ms: this.random.pick([0, 20, 300, 1500]), receipt: `R${key}` });
    }
    const h = { conn, lane, seq, key, settled: f.settled, digest, data: f.data, attempt: f.attempt, first: f.attempt, sends: 0 };
    s.hold.set(key, h);
    this.clock.after(HOLD_TTL_MS, () => { if (s.hold.get(key) === h) this.expire(s, h); });
    this.forward(s, h);
  }

  checkSent(session, lane, seq, digest, f) {
    const key = `${session} ${lane}:${seq}`;
    const known = this.seen.get(key);
    if (known) assert.equal(digest, known.digest, "the same id has the same bytes");
    assert.ok(f.attempt > (known?.attempt ?? 0), `attempt ${f.attempt} of ${key}`);
    assert.ok(f.settled >= 1 && f.settled <= seq, "settled");
    this.seen.set(key, { digest, attempt: f.attempt });
    this.top.set(session + lane, Math.max(seq, this.top.get(session + lane) ?? 0));
  }

  nack(conn, s, op, more) {
    this.say(conn, { t: "nack", session: s.id, op, applied: "no", retry_after_ms: 0, expected: 0, app_code: 0, detail: "", ...more });
  }
  nackHeld(s, h, more) {
    s.hold.delete(h.key);
    if (s.atts.has(h.conn)) this.nack(h.conn, s, h.lane === h.conn.lane ? h.seq : h.key, { attempt: h.attempt, ...more });
  }
  expire(s, h) {
    s.backTo.set(h.lane, Math.min(s.backTo.get(h.lane) ?? h.seq, h.seq));
    const unsent = !h.sends && h.first === 1;
    this.nackHeld(s, h, { code: h.sends ? "HOLD_EXPIRED" : "NO_OWNER", applied: unsent ? "no" : "unknown", retry_after_ms: 1000 });
  }

  // ---- between a gateway and the owner: FIFO both ways, lost when either dies ----

  toOwner(s, fn) {
    const r = this.record(s.id);
    const epoch = s.epoch;
    if (!r.alive || epoch !== r.epoch) return;
    const boot = s.gw.boot;
    s.up = Math.max(s.up ?? 0, this.clock.now + this.random.int(1, 20));
    this.clock.at(s.up, () => { if (r.alive && r.epoch === epoch && s.gw.boot === boot) fn(r); });
  }
  fromOwner(s, epoch, fn) {
    const boot = s.gw.boot;
    s.down = Math.max(s.down ?? 0, this.clock.now + this.random.int(1, 20));
    this.clock.at(s.down, () => { if (s.epoch === epoch && s.gw.boot === boot) fn(); });
  }

  forward(s, h) {
    const r = this.record(s.id);
    if (!r.alive || r.epoch !== s.epoch) return;
    h.sends++;
    this.toOwner(s, () => {
      const head = r.ver;
      const said = r.decide(h);
      if (said.ver && !said.dup) {
        if (this.chance("ambiguous")) {
          // the write was cut off: it is said to be unknown, and turns out to have landed
          this.fromOwner(s, r.epoch, () => this.owned(s, h.key, { code: "STORE_UNAVAILABLE", applied: "unknown", retry_after_ms: 200 }));
        }
        return this.broadcast(r, head);
      }
      this.fromOwner(s, r.epoch, () => this.owned(s, h.key, said));
    });
  }
  /** The owner's word about one held op. */
  owned(s, key, said) {
    const h = s.hold.get(key);
    if (!h) return;
    if (said.ver) {
      s.hold.delete(key);
      const att = s.atts.get(h.conn);
      const op = h.lane === h.conn.lane ? h.seq : h.key;
      if (att?.live) this.say(h.conn, { t: "ack", session: s.id, op, epoch: s.epoch, ver: said.ver, dup: true, held_us: 5 });
      return;
    }
    if (["GAP", "STORE_UNAVAILABLE"].includes(said.code)) s.backTo.set(h.lane, Math.min(s.backTo.get(h.lane) ?? Infinity, said.expected || h.seq));
    this.nackHeld(s, h, { ...said, digest: undefined });
  }
  /** Events after `from`, to everybody. */
  broadcast(r, from) {
    for (const gw of this.gateways.filter(g => g.alive && g.sessions.has(r.id))) {
      const s = gw.sessions.get(r.id);
      for (const e of r.events.slice(from)) this.fromOwner(s, r.epoch, () => this.deliver(s, e));
    }
  }
  deliver(s, e) {
    const h = s.hold.get(`${e.lane}:${e.seq}`);
    if (h) s.hold.delete(h.key);
    for (const att of s.atts.values()) {
      if (!att.live || e.ver <= att.ver) continue;
      if (e.ver > att.ver + 1 || this.chance("slow")) {
        att.live = false;
        this.pull(s, att, "slow");
        continue;
      }
      att.ver = e.ver;
      if (this.chance("hole")) {
        this.record(s.id).holes = true; // a gateway's mistake: what follows it may be told out of order
        continue;
      }
      if (this.chance("stale")) this.say(att.conn, { t: "event", session: s.id, epoch: s.epoch - 1, ver: e.ver, data: "STALE" });
      if (this.chance("stale")) this.say(att.conn, { t: "snapshot", session: s.id, epoch: s.epoch - 1, ver: 0, lane_seq: 0, data: "STALE" });
      this.say(att.conn, { ...this.event(s.id, e, att), epoch: s.epoch });
      // an old lane's op is acked by its full name
      if (h && h.conn === att.conn && h.lane !== att.lane) this.say(att.conn, { t: "ack", session: s.id, op: h.key, epoch: s.epoch, ver: e.ver, dup: false, held_us: 1 });
    }
  }

  // ---- what goes wrong ----

  killGateway(gw) {
    gw.alive = false;
    gw.boot++;
    for (const conn of [...gw.conns]) this.cut(conn);
    gw.sessions.clear();
    this.clock.after(this.random.int(200, 4_000), () => { gw.alive = true; });
  }
  drain(gw) {
    for (const conn of gw.conns) {
      const [delay_ms, k] = [this.random.int(10, 2_000), `t${this.random.int(0, 1e9)}`];
      this.slots.set(k, this.clock.now + delay_ms);
      this.say(conn, { t: "goaway", code: 1012, delay_ms, window_ms: 4000, ticket: k });
      this.clock.after(delay_ms + 4_000, () => this.cut(conn, 1012, ""));
    }
  }
  /** The owner dies (or is cut off); another takes over with a later epoch. */
  killOwner(r, rollBackTo) {
    if (!r.alive) return;
    r.alive = false;
    const gap = this.random.chance(0.15) ? this.random.int(13_000, 16_000) : this.random.int(50, 4_000);
    this.clock.after(1_000, () => { if (!r.alive) this.everywhere(r, s => this.tell(s, "moving")); });
    this.clock.after(gap, () => {
      if (rollBackTo !== undefined && rollBackTo < r.ver) r.rollBack(rollBackTo);
      r.epoch += this.random.int(1, 2);
      r.alive = true;
      this.everywhere(r, s => this.clock.after(this.random.int(1, 50), () => this.rebind(s, r)));
    });
  }
  everywhere(r, fn) {
    for (const gw of this.gateways) if (gw.alive && gw.sessions.has(r.id)) fn(gw.sessions.get(r.id));
  }
  tell(s, state) {
    for (const att of s.atts.values()) if (att.live || att.pulling !== undefined) this.say(att.conn, this.status(s, state));
  }
  rebind(s, r) {
    if (!r.alive || s.epoch === r.epoch || s.gw.sessions.get(s.id) !== s) return;
    const was = s.epoch;
    s.epoch = r.epoch;
    this.tell(s, "live");
    for (const att of s.atts.values()) {
      if (!att.live && att.pulling === undefined) this.askAttach(s, att);
      else {
        const went = r.went({ epoch: was, ver: att.ver });
        att.live = false;
        this.pull(s, att, went ? "diverged" : att.pulling ?? "");
      }
    }
    for (const h of s.hold.values()) this.forward(s, h);
  }
  someoneElse(r, hidden, uid) {
    if (!r.alive) return;
    const from = r.ver;
    r.add({ uid, by: "bob", hidden });
    this.broadcast(r, from);
  }
}
