/**
 * Holdfast's client for browsers and Node; the API is described in holdfast.d.ts.
 *
 * `Holdfast` is one connection after another: token, transport, hello, watchdog, when to come back (design 4.4, 9.2, 9.3).
 * `Session` is one attachment after another: order, epochs, pending ops and how each is settled (design 4.3). Time, randomness
 * and sockets come from `env`.
 */

export const VERSION = "0.1.0";

/** Why an op failed. */
export class HoldfastError extends Error {
  constructor(code, { detail = "", applied = "no", app_code = 0 } = {}) {
    super(detail ? `${code}: ${detail}` : code);
    this.name = "HoldfastError";
    this.code = code;
    this.detail = detail;
    this.applied = applied;
    this.app_code = app_code;
    this.retry = applied === "no" && ["BASE_CONFLICT", "OP_ID_REUSED", "TOO_MANY_PENDING", "STOPPED"].includes(code);
  }
}

// ---- numbers, with their reasons

const LANE_BYTES = 12; // of 8..16
const OPEN_MS = 10_000; // to `welcome`
const HEAD_START_MS = 1_000; // for WebTransport: half of the 2 s promised
const BAN_MS = 600_000; // no WebTransport after it failed
const STABLE_MS = 5_000; // a connection that lived so long resets the backoff
const PROBE_MS = 2_000; // for an answer after the page slept or the network changed
const LATE_MS = 1_000; // a timer so late: the page slept, silence proves nothing
const RESYNC_MS = 2_000; // a hole still there is told again
const ATTACH_MS = 30_000; // to its answer: above the longest hold TTL (25 s)
const NACK_MS = [50, 2_000]; // first and longest pause after a refusal
const TICKET_MS = 5_000; // a ticket is good so long after its slot
const REFRESH_MS = 60_000; // before a token expires, or half of its life
const PENDING_MAX = 1_000; // ops per session: at most 16 KiB each
const PAST_MAX = 256; // settled ops remembered, to be checked after a disaster
const QUEUE_MAX = 1_024; // events waiting for an iterator; then it gets a snapshot
const LIMITS = { payload_bytes: 16_384, inflight: 32 }; // until `welcome` says
const RECONNECT = { spread_ms: 4_000, rank_ppm: 0, base_ms: 250, cap_ms: 8_000 };

/** Refusals after which the same op is sent again; all others are final. */
const AGAIN = new Set(
  "STORE_UNAVAILABLE OVERLOADED NO_OWNER GAP TOO_MANY_INFLIGHT HOLD_EXPIRED TRY_AFTER_ATTACH NOT_ATTACHED".split(" "),
);

/** For people. */
const WORDS = {
  connecting: "Connecting.",
  live: "Connected.",
  moving: "Moving to another server. What you do is kept and sent on.",
  store_down: "Nothing can be saved just now. What you do is kept and sent again.",
  read_only: "Read only for a moment. What you do is kept and sent again.",
  offline: "No connection. What you do is kept and sent later.",
  waiting: "Many people are coming in. You have a place in the queue.",
  ended: "This has ended.",
  closed: "Closed.",
  4000: "This page does not fit the server. Reload it.",
  4001: "You are not signed in. Sign in again.",
  4002: "You may not be here with this account.",
  4003: "This page does not fit the server. Reload it.",
  4004: "Something sent was too large.",
  4006: "Opened somewhere else. This page has stopped.",
  4007: "This site may not connect.",
  4201: "Your sign-in has expired. Sign in again.",
  FORBIDDEN: "You may not join this.",
  NO_SESSION: "There is no such session.",
  SESSION_CLOSED: "This has ended.",
  UNAUTHENTICATED: "Your invitation is not valid.",
};

// ---- small things

class Emitter {
  #fns = new Map();

  on(name, fn) {
    const fns = this.#fns.get(name) ?? new Set();
    this.#fns.set(name, fns.add(fn));
    return () => fns.delete(fn);
  }

  _emit(name, value) {
    for (const fn of [...(this.#fns.get(name) ?? [])]) {
      try {
        fn(value);
      } catch (e) {
        queueMicrotask(() => { throw e; }); // the app's mistake: reported, but the protocol goes on
      }
    }
  }
}

const base64url = bytes => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
const unbase64 = text => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), c => c.charCodeAt(0));
const payload = f => (f.b64 === undefined ? f.data : unbase64(f.b64));

/** The claims of a JWT, unverified. */
function claims(token) {
  try {
    return JSON.parse(new TextDecoder().decode(unbase64(token.split(".")[1])));
  } catch {
    return {};
  }
}

function makeLane(env) {
  const bytes = env.bytes(LANE_BYTES);
  if (bytes[0] === 33) bytes[0] = 34; // '!' is reserved
  return base64url(bytes);
}

/** One timer per name; no `fn` ends it. */
function timer(env, timers, name, ms, fn) {
  env.clearTimeout(timers[name]);
  timers[name] = fn && env.setTimeout(fn, Math.min(ms, 1e9)); // longer ones wrap around in browsers
}

/** What tests bring themselves. */
function world(own = {}) {
  const g = globalThis;
  return {
    WebSocket: g.WebSocket,
    WebTransport: g.WebTransport,
    now: () => g.performance.now(),
    wall: () => Date.now(),
    setTimeout: (fn, ms) => g.setTimeout(fn, ms),
    clearTimeout: id => g.clearTimeout(id),
    random: () => Math.random(),
    bytes: n => g.crypto.getRandomValues(new Uint8Array(n)),
    window: g.window,
    document: g.document,
    navigator: g.navigator,
    ...own,
  };
}

// ---- transports

function webSocket(env, url, on) {
  const ws = new env.WebSocket(url, "holdfast.v1.json");
  const link = {
    name: "websocket",
    send: (frames, text) => { if (ws.readyState === 1) ws.send(text); },
    close(code) {
      ws.onopen = ws.onmessage = ws.onclose = null;
      ws.close(code);
    },
  };
  ws.onopen = () => on.open(link);
  ws.onmessage = m => on.text(link, m.data);
  ws.onclose = c => on.close(link, c.code, c.reason);
  ws.onerror = () => {}; // `close` follows
  return link;
}

/** One stream for the connection and one per session (design 4.6), each newline-delimited. */
function webTransport(env, url, on) {
  const wt = new env.WebTransport(url);
  const streams = new Map();
  let over = false;
  const end = (code, reason) => {
    if (!over) on.close(link, code, reason);
    over = true;
  };
  const fail = () => end(1006, "");
  async function read(readable) {
    const reader = readable.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done || over) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (lines.length) on.text(link, lines.join("\n"));
    }
  }
  const stream = key => {
    const opened = wt.createBidirectionalStream().then(s => {
      read(s.readable).catch(() => {}); // the end of the connection is told by `closed`
      return s.writable.getWriter();
    });
    streams.set(key, opened);
    return opened;
  };
  const link = {
    name: "webtransport",
    send(frames) {
      for (const f of frames) {
        const key = f.session ?? "";
        if (f.t === "attach") streams.get(key)?.then(w => w.close()).catch(() => {});
        const to = f.t === "attach" || !streams.has(key) ? stream(key) : streams.get(key);
        to.then(w => w.write(new TextEncoder().encode((f.text ?? JSON.stringify(f)) + "\n"))).catch(fail);
      }
    },
    close(code = 1000) {
      over = true;
      wt.ready.then(() => wt.close({ closeCode: code, reason: "" })).catch(() => {});
    },
  };
  wt.ready.then(() => { if (!over) on.open(link); }, fail);
  wt.closed.then(c => end(c?.closeCode ?? 1006, c?.reason ?? ""), fail);
  return link;
}

// ---- the connection

export class Holdfast extends Emitter {
  constructor(url, options = {}) {
    super();
    this._o = { transport: "auto", guard: true, client: `holdfast-js/${VERSION}`, ...options };
    this._env = world({ ...(options.WebSocket && { WebSocket: options.WebSocket }), ...options.env });
    this._urls = [url].flat().map(u => {
      const full = new URL(u, globalThis.location?.href);
      full.protocol = full.protocol.replace("http", "ws");
      if (full.pathname === "/") full.pathname = "/v1/ws";
      return full;
    });
    Object.assign(this, { lane: makeLane(this._env), state: "connecting", limits: LIMITS, gateway: "", transport: "" });
    this.sessions = new Map();
    this._reconnect = RECONNECT;
    this._seq = this._n = this._attempt = this._gen = this._expired = 0;
    this._timers = {};
    this._fresh(true);
    if (options.persist) this._store = this._opened(options.persist);
    this._listen();
    this._connect();
  }

  session(id, options = {}) {
    let s = this.sessions.get(id);
    if (!s) {
      this.sessions.set(id, (s = new Session(this, id, options)));
      s._attach();
      if (this._stopped) s._fail("STOPPED", this._stopped.words);
    }
    return s;
  }

  get pending() {
    return [...this.sessions.values()].flatMap(s => s.pending);
  }

  close() {
    if (this._link && this.state === "live") this._send({ t: "bye" });
    this._stop(1000, WORDS.closed);
  }

  /** After `stopped`. */
  restart(token) {
    if (token !== undefined) this._o.token = token;
    this._stopped = this._token = undefined;
    this._fresh(true);
    this._connect();
  }

  // -- coming in --

  _fresh(all) {
    this._ranked = this._quick = false;
    this._pause = 0;
    if (all) this._expired = 0;
  }

  _timer(name, ms, fn) {
    timer(this._env, this._timers, name, ms, fn);
  }

  _connect() {
    if (this._stopped || this._link || this._opening) return;
    this._opening = true;
    this._timer("wait");
    this._timer("open", OPEN_MS, () => this._failed());
    this._set(this._away ? "offline" : "connecting");
    const gen = ++this._gen;
    this._began = this._env.now();
    const { token } = this._o;
    if (typeof token !== "function") return this._open(gen, token ?? "");
    if (this._token !== undefined && !(this._expires < this._env.wall() + REFRESH_MS / 2)) return this._open(gen, this._token);
    this._ask(t => this._open(gen, t), () => { if (gen === this._gen) this._failed("No token could be had. "); });
  }

  _ask(got, failed) {
    const next = t => {
      this._token = t;
      this._expires = claims(t).exp * 1000 + (this._skew ?? 0); // NaN: not a JWT, the server will say
      got(t);
    };
    new Promise(ok => ok(this._o.token())).then(next, failed);
  }

  _open(gen, token) {
    if (gen !== this._gen || this._stopped) return;
    this._token = token;
    this._signed?.(token);
    const env = this._env;
    const url = new URL(this._urls[this._seq % this._urls.length]);
    if (this._ticket && env.now() > this._ticket.at + TICKET_MS) this._ticket = undefined;
    if (this._ticket?.k) url.searchParams.set("k", this._ticket.k);
    if (this._resume) url.searchParams.set("r", this._resume);
    const fast = new URL(url);
    fast.protocol = "https:";
    fast.pathname = url.pathname.replace(/ws$/, "wt");
    fast.searchParams.set("f", "json");

    let running = new Set();
    const on = {
      open: link => {
        // the hello goes out on the winner only: a second one, with a higher conn_seq, would end the first (4006)
        if (gen !== this._gen || this._link) return link.close();
        running.delete(link);
        running.forEach(l => l.close());
        running.clear();
        this._timer("ws");
        this._hello(link, token);
      },
      text: (link, text) => { if (link === this._link) this._heard(text); },
      close: (link, code, reason) => {
        if (link === this._link) return this._closed(code, reason);
        running.delete(link);
        if (gen !== this._gen || this._link) return;
        if (link.name === "webtransport" && how === "auto") second();
        else if (!running.size) this._closed(code, reason);
      },
    };
    const start = (transport, to) => {
      try {
        running.add(transport(env, to.href, on));
      } catch (e) {
        this._stop(0, String(e.message ?? e)); // not allowed from this page, or no such thing here
      }
    };
    const may = env.WebTransport && url.protocol === "wss:" && !(env.now() < this._banned);
    const how = this._o.transport;
    const second = () => {
      this._timer("ws");
      this._banned = env.now() + BAN_MS;
      if (!fallback) start((fallback = webSocket), url);
    };
    let fallback;
    this._abandon = () => running.forEach(l => l.close());
    if (how === "webtransport" || (how === "auto" && may)) {
      start(webTransport, fast);
      if (how === "auto") this._timer("ws", HEAD_START_MS, second);
    } else start(webSocket, url);
  }

  _hello(link, token) {
    this._link = link;
    this._seq++;
    const hello = { t: "hello", token, lane: this.lane, conn_seq: this._seq, client: this._o.client, features: ["receipts"] };
    if (this._attempt) hello.attempt = this._attempt;
    if (this._ticket?.k) hello.ticket = this._ticket.k;
    if (this._resume) hello.resume = this._resume;
    const attaches = [...this.sessions.values()].map(s => s._begin()).filter(Boolean);
    this._send(hello, ...attaches); // one flight
  }

  _welcome(f) {
    const env = this._env;
    this._opening = false;
    this._timer("open");
    Object.assign(this, { gateway: f.gateway, transport: this._link.name, limits: { ...LIMITS, ...f.limits } });
    this._attempt = this._expired = 0;
    this._ticket = this._goaway = undefined;
    this._changed = false;
    this._since = env.now();
    this._dead = f.dead_ms || 6_000;
    this._resume = f.resume || undefined;
    this._reconnect = { ...RECONNECT, ...f.reconnect };
    this._skew = env.wall() - f.now_us / 1000; // ours minus theirs
    if (f.token_exp_us) this._renewAt(f.token_exp_us / 1000 + this._skew);
    this._alive();
    this._watch(this._dead);
    this._set("live");
  }

  _renewAt(expires) {
    if (typeof this._o.token !== "function" || !(expires > 0)) return;
    const left = expires - this._env.wall();
    this._timer("token", Math.max(left - REFRESH_MS, left / 2, 1_000), () => this._renew());
  }

  _renew() {
    const link = this._link;
    const again = () => { if (link && link === this._link) this._timer("token", PROBE_MS, () => this._renew()); };
    this._ask(token => {
      if (!link || link !== this._link) return;
      this._send({ t: "auth", token });
      this._renewAt(this._expires || this._env.wall() + 2 * REFRESH_MS);
    }, again);
  }

  // -- frames --

  _send(...frames) {
    this._link?.send(frames, frames.map(f => f.text ?? JSON.stringify(f)).join("\n"));
  }

  _heard(text) {
    this._alive();
    const link = this._link;
    for (const line of text.split("\n")) {
      if (!line) continue;
      let f;
      try {
        f = JSON.parse(line);
      } catch {
        continue; // what it was is asked for again
      }
      this._frame(f);
      if (link !== this._link) return;
    }
  }

  _frame(f) {
    switch (f.t) {
      case "welcome": return this._welcome(f);
      case "ping":
        if (f.reconnect) this._reconnect = { ...this._reconnect, ...f.reconnect };
        return this._send({ t: "pong", n: f.n });
      case "goaway": return this._leaves(f);
      case "error": return this._emit("error", { code: f.code, detail: f.detail });
      default: this.sessions.get(f.session)?._frame(f);
    }
  }

  /** The gateway leaves. Ops go through until our slot; the next gateway expects us then. */
  _leaves(f) {
    this._goaway = { k: f.ticket, at: this._env.now() + f.delay_ms };
    this._timer("away", f.delay_ms, () => {
      this._ticket = this._goaway;
      this._drop();
      this._connect();
    });
  }

  // -- signs of life --

  _alive() {
    this._deadAt = this._env.now() + this._dead;
  }

  _watch(ms) {
    const due = this._env.now() + ms;
    this._timer("dead", ms, () => {
      if (this.state !== "live") return;
      const now = this._env.now();
      if (now < this._deadAt) this._watch(this._deadAt - now);
      else if (now > due + LATE_MS) this._probe();
      else this._closed(0, "");
    });
  }

  /** Says something that must be answered, soon. */
  _probe() {
    this._deadAt = this._env.now() + PROBE_MS;
    this._send({ t: "ping", n: 1 });
    this._watch(PROBE_MS);
  }

  _listen() {
    const { window, document } = this._env;
    const add = (to, name, fn) => to?.addEventListener?.(name, fn);
    add(window, "online", () => this._wake(true));
    add(window, "offline", () => {
      this._changed = true;
      if (this.state === "live") this._probe();
      else if (this._timers.wait && this.state === "connecting") this._set("offline");
    });
    add(window, "pageshow", () => this._wake());
    add(document, "resume", () => this._wake());
    add(document, "visibilitychange", () => { if (!document.hidden) this._wake(); });
    this._beforeunload = e => e.preventDefault();
  }

  /** The network or the page is back: no reason to wait any longer, unless a slot was given. */
  _wake(changed) {
    if (changed) this._changed = true;
    if (this.state === "live") this._probe();
    else if (this.state !== "waiting" && this._timers.wait && this._env.now() > this._began + LATE_MS) this._connect();
  }

  /** The listener costs the page its back cache, so it is there only while something is pending. */
  _guard() {
    const { window } = this._env;
    const want = Boolean(this._o.guard && window?.addEventListener && this.pending.length);
    if (want !== Boolean(this._guarded)) window[want ? "addEventListener" : "removeEventListener"]("beforeunload", this._beforeunload);
    this._guarded = want;
  }

  // -- going out and coming back --

  _drop() {
    this._gen++;
    this._opening = false;
    const { _link, _abandon } = this;
    this._link = this._abandon = undefined;
    _link?.close(1000);
    _abandon?.();
    for (const name of ["open", "ws", "dead", "token", "away"]) this._timer(name);
    for (const s of this.sessions.values()) s._cut();
  }

  _failed(words) {
    this._closed(1006, "", words);
  }

  /** `code` 0: we heard nothing for too long. */
  _closed(code, reason, words) {
    const now = this._env.now();
    const was = this.state === "live";
    if (was && now - this._since >= STABLE_MS) this._fresh();
    const goaway = this._goaway;
    this._drop();
    this._goaway = undefined;
    this._attempt++;
    if (code === 1012 || code === 1013) return this._slot(reason, goaway);
    if (code >= 4200 && code < 4300) return this._comeBack(code);
    const lost = [0, 1001, 1005, 1006, 1011, 1014, 1015].includes(code) || (code >= 4100 && code < 4200);
    if (!lost) return this._stop(code, WORDS[code] ?? `The server ended the connection (${code}${reason && ": " + reason}).`);
    if (was && code === 0) return this._atOnce();
    const crashed = was && !this._ranked && code < 4000;
    if (crashed && this._changed) return this._atOnce();
    if (crashed) {
      // a gateway died with all its clients: everybody comes back in the order it was given (design 9.2)
      this._ranked = true;
      return this._wait((this._reconnect.spread_ms * this._reconnect.rank_ppm) / 1e6);
    }
    this._backOff(words);
  }

  /** Refused for now: the reason says when there is room. */
  _slot(reason, goaway) {
    const now = this._env.now();
    let said = {};
    try {
      said = Object(JSON.parse(reason));
    } catch {
      if (goaway) said = { ms: Math.max(0, goaway.at - now), k: goaway.k };
    }
    if (!(said.ms >= 0)) return this._backOff();
    this._ticket = { k: said.k, at: now + said.ms };
    this._wait(said.ms, "waiting");
  }

  _comeBack(code) {
    if (code === 4201) {
      if (typeof this._o.token !== "function" || ++this._expired > 2) return this._stop(code, WORDS[code]);
      this._token = undefined;
    }
    this._atOnce();
  }

  /** Once; until the next stable connection the rest is backoff. */
  _atOnce() {
    if (this._quick) return this._backOff();
    this._quick = true;
    this._wait(0);
  }

  /** Decorrelated jitter: min(cap, U(base, 3 x previous)). */
  _backOff(words) {
    const { base_ms, cap_ms } = this._reconnect;
    const top = Math.max(base_ms, 3 * (this._pause || base_ms));
    this._pause = Math.min(cap_ms, base_ms + this._env.random() * (top - base_ms));
    this._wait(this._pause, undefined, words);
  }

  /** The network says so, or nothing has answered for a while. */
  get _away() {
    return this._env.navigator?.onLine === false || this._attempt > 2;
  }

  _wait(ms, state, words = "") {
    this._timer("wait", ms, () => {
      this._timers.wait = undefined;
      this._connect();
    });
    state ??= this._away ? "offline" : "connecting";
    this._set(state, { until: this._env.wall() + ms, words: words + WORDS[state] });
  }

  _stop(code, words) {
    this._stopped = { code, words };
    this._drop();
    this._timer("wait");
    this._set("stopped", this._stopped);
    for (const s of this.sessions.values()) s._fail("STOPPED", words, true);
  }

  _set(state, more = {}) {
    const same = this.state === state && state !== "waiting" && !more.code;
    this.state = state;
    this.status = { state, words: WORDS[state], gateway: this.gateway, transport: this.transport, attempt: this._attempt, ...more };
    if (!same || more.until) this._emit("state", this.status);
    if (!same) for (const s of this.sessions.values()) s._tell();
  }

  /** Somebody else writes in our lane (a copy of this page's memory): ours must be another. */
  _newLane() {
    this.lane = makeLane(this._env);
    this.sessions.forEach(s => s._leaveLane());
    this._drop();
    this._connect();
  }

  // -- pending ops across a reload --

  /** A store of its own for each user, known from the token: an op belongs to who made it. */
  _opened(persist) {
    if (typeof persist === "object") return Promise.resolve(persist);
    return new Promise(ok => { this._signed = ok; }).then(token => indexed(this._env, claims(token).sub ?? "", this.lane));
  }
}

/** Ops in IndexedDB. Each living page holds a lock named like its lane, so that its ops stay its own. */
function indexed(env, who, own) {
  const request = r => new Promise((ok, no) => { r.onsuccess = () => ok(r.result); r.onerror = () => no(r.error); });
  const opening = globalThis.indexedDB.open(`holdfast ${who}`, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("ops");
  const db = request(opening);
  const on = async (mode, act) => request(act((await db).transaction("ops", mode).objectStore("ops")));
  const locks = env.navigator?.locks;
  const lock = lane => new Promise(ok => {
    if (!locks) return ok(true);
    locks.request(`holdfast ${lane}`, { ifAvailable: true }, held => { ok(Boolean(held)); return held && new Promise(() => {}); });
  });
  lock(own);
  return {
    put: (session, op) => on("readwrite", s => s.put(op, [session, op.lane, op.seq])),
    remove: (session, op) => on("readwrite", s => s.delete([session, op.lane, op.seq])),
    async load(session) {
      const all = (await on("readonly", s => s.getAll(IDBKeyRange.bound([session], [session, []])))).filter(o => o.lane !== own);
      const free = new Map();
      for (const { lane } of all) if (!free.has(lane)) free.set(lane, await lock(lane));
      return all.filter(o => free.get(o.lane));
    },
  };
}

// ---- a session

export class Session extends Emitter {
  constructor(hf, id, { role = "participant", token } = {}) {
    super();
    Object.assign(this, { id, role, epoch: 0, ver: 0, pending: [] });
    this._hf = hf;
    this._grant = token;
    this._own = "connecting"; // what the session says; the connection may say something worse
    this._past = [];
    this._seq = this._sent = this._n = this._tries = 0;
    this._timers = {};
    hf._store?.then(store => store.load(id)).then(ops => this._restore(ops ?? [])).catch(e => hf._emit("error", e));
  }

  get state() {
    return this._own === "stopped" || this._hf.state === "live" ? this._own : this._hf.state;
  }

  op(data, { kind = 0, base = this.ver } = {}) {
    const refuse = (code, detail) => Promise.reject(new HoldfastError(code, { detail }));
    if (this._own === "stopped") return refuse(this._why.code, this._why.words);
    if (this.pending.length >= PENDING_MAX) return refuse("TOO_MANY_PENDING", `${PENDING_MAX} ops wait already`);
    const bytes = data instanceof Uint8Array;
    const raw = bytes ? JSON.stringify(base64url(data)) : JSON.stringify(data);
    const size = bytes ? data.length : new TextEncoder().encode(raw ?? "").length;
    const max = this._hf.limits.payload_bytes;
    if (size > max) return refuse("TOO_LARGE", `${size} bytes; ${max} are allowed`); // as a frame it might end the connection
    const field = raw === undefined ? "" : `,"${bytes ? "b64" : "data"}":${raw}`;
    const op = this._pend({ lane: this._hf.lane, seq: ++this._seq, base, kind, field, attempt: 0, data });
    this._save("put", op);
    this._flush();
    return op.settled;
  }

  react(cls, data) {
    if (!this._live) return false;
    const f = { t: "reaction", session: this.id, epoch: this.epoch, class: cls };
    if (data instanceof Uint8Array) f.b64 = base64url(data);
    else if (data !== undefined) f.data = data;
    this._hf._send(f);
    return true;
  }

  refresh() {
    if (this._live) this._resync(true);
  }

  leave() {
    if (this._hf.state === "live" && this._n) this._hf._send({ t: "detach", session: this.id });
    this._hf.sessions.delete(this.id);
    this._fail("LEFT", WORDS.closed);
  }

  async *[Symbol.asyncIterator]() {
    let queue = [];
    let wake;
    const put = e => {
      // too slow: what waits is replaced by a state, as the gateway does it
      if (e.type === "event" && queue.length >= QUEUE_MAX) queue = (this.refresh(), []);
      queue.push(e);
      wake?.();
    };
    const offs = ["event", "snapshot"].map(name => this.on(name, put));
    offs.push(this.on("status", () => wake?.()));
    try {
      for (;;) {
        while (queue.length) yield queue.shift();
        if (this._own === "stopped") return;
        await new Promise(ok => { wake = ok; });
      }
    } finally {
      offs.forEach(off => off());
    }
  }

  // -- attaching --

  _timer(name, ms, fn) {
    timer(this._hf._env, this._timers, name, ms, fn);
  }

  /** The attach frame of a new attachment; frames of this session are ignored until its number comes back. */
  _begin() {
    if (this._own === "stopped") return undefined;
    this._cut();
    this._n = ++this._hf._n;
    this._timer("attach", ATTACH_MS, () => this._hf._closed(0, ""));
    const { id: session, epoch, ver, role, _n: n, _grant } = this;
    const token = typeof _grant === "function" ? _grant() : _grant;
    return { t: "attach", session, n, seen: { epoch, ver }, role, token };
  }

  _attach() {
    const frame = this._hf._link && this._begin();
    if (frame) this._hf._send(frame);
  }

  /** No attachment any more. */
  _cut() {
    this._live = false;
    this._n = this._head = 0;
    this._holeAt = undefined;
    for (const name of ["attach", "again", "wait"]) this._timer(name);
    this._timers.again = undefined;
    if (this._own !== "stopped") this._own = "connecting";
  }

  _reattach(ms) {
    this._cut();
    this._timer("wait", ms, () => this._attach());
    this._tell();
  }

  _fail(code, words, keep = false) {
    this._cut();
    this._own = "stopped";
    this._why = { code, words };
    this._tell();
    for (const op of [...this.pending]) {
      // what was sent may be in the record, what is kept may yet be sent
      const applied = op.attempt || (keep && this._hf._store) ? "unknown" : "no";
      this._settle(op, new HoldfastError(code, { detail: words, applied }), keep);
    }
    this._hf.sessions.delete(this.id);
  }

  _tell() {
    const { state, epoch, ver } = this;
    const key = `${state} ${epoch}`;
    if (key === this._told) return;
    this._told = key;
    const why = this._own === "stopped" ? this._why : {};
    const more = state === this._hf.state ? this._hf.status : {};
    this._emit("status", { words: WORDS[state], ...more, ...why, session: this.id, state, epoch, ver });
  }

  // -- what is heard --

  _frame(f) {
    if (f.t === "attached" || f.t === "detached") {
      if (f.n === this._n) this["_" + f.t](f);
    } else if (f.t === "status") this._status(f);
    else if (this._live) {
      if (f.epoch < this.epoch) return; // of an owner that is no more
      if (f.t === "event") this._event(f);
      else if (f.t === "snapshot") this._snapshot(f);
      else if (f.t === "ack") this._ack(f);
      else if (f.t === "nack") this._nack(f);
      else if (f.t === "receipt") Object.assign(this._find(f.op) ?? {}, { receipt: f.receipt });
      else if (f.t === "reaction") {
        const { epoch, by, counts } = f;
        this._emit("reaction", { class: f.class, epoch, by, counts, data: payload(f) });
      }
    }
  }

  _attached(f) {
    if (f.epoch < this.epoch || this._live) return;
    this._timer("attach");
    this._live = true;
    this._tries = 0;
    this.epoch = f.epoch;
    this.role = f.role ?? this.role;
    this._own = "live";
    if (f.lane_seq > this._sent) return this._hf._newLane();
    // committed ops wait for their events, which follow, so that nothing is told done before it is seen
    this._head = { events: f.ver, nothing: 0 }[f.resume] ?? Infinity;
    // an attachment is what an answer needs: whatever was sent on an earlier one is sent again, also on this connection
    for (const op of this.pending) op.again = op.attempt > 0;
    this._decided(f);
    this._tell();
    this._reached(f);
    this._flush();
  }

  /** lane_seq: everything up to it is decided, and in the record unless it is named as rejected. */
  _decided({ lane_seq, rejected = [] }) {
    for (const op of this.pending) {
      if (op.lane !== this._hf.lane || !op.attempt) continue;
      if (op.seq <= lane_seq) op.done = true;
      else if (op.done) [op.done, op.again] = [false, true]; // the record went back before we could say so
    }
    for (const op of this.pending.filter(o => o.done)) {
      const no = rejected.find(r => r.op === op.seq);
      if (no) this._settle(op, new HoldfastError(no.code, { app_code: no.app_code }));
    }
  }

  _reached({ ver, epoch }) {
    if (this.ver < this._head) return;
    this._head = 0;
    for (const op of this.pending.filter(o => o.done)) this._done(op, { ver, epoch, dup: true });
  }

  _detached(f) {
    if (AGAIN.has(f.code)) return this._reattach(Math.max(f.retry_after_ms ?? 0, this._jitter(++this._tries)));
    this._fail(f.code, WORDS[f.code] ?? `The server refused (${f.code}).`);
  }

  _status(f) {
    if (!this._live) {
      // the answer to an attach that takes longer; the rest speaks of an earlier one
      if (this._n && f.state === "moving") this._own = f.state;
    } else if (f.epoch >= this.epoch) [this.epoch, this._own] = [f.epoch, f.state];
    this._tell();
  }

  _event(f) {
    const last = Math.max(f.ver, f.to ?? 0);
    if (last > this.ver) {
      if (f.ver > this.ver + 1) return this._hole();
      this.epoch = f.epoch;
      this.ver = last;
      this._holeAt = undefined;
      const { epoch, ver, op, by, at_us } = f;
      if (!f.to) this._emit("event", { type: "event", epoch, ver, mine: op !== undefined, op, by, at_us, data: payload(f) });
    } else this.epoch = f.epoch;
    if (f.op !== undefined) this._done(this._find(f.op), f);
    this._reached(this);
  }

  _ack(f) {
    this._done(this._find(f.op), f, f);
    if (f.ver > this.ver) this._hole(); // it never overtakes events, so one was lost
  }

  _hole() {
    const now = this._hf._env.now();
    if (now < this._holeAt + RESYNC_MS) return;
    this._holeAt = now;
    this._resync(false);
  }

  _resync(snapshot) {
    this._hf._send({ t: "resync", session: this.id, seen: { epoch: this.epoch, ver: this.ver }, snapshot });
  }

  _snapshot(f) {
    const mine = this.ver;
    const { epoch, ver, why } = f;
    Object.assign(this, { epoch, ver, _holeAt: undefined });
    this._emit("snapshot", { type: "snapshot", epoch, ver, why, data: payload(f) });
    if (ver < mine || why === "diverged") {
      const gone = this._past.filter(o => o.ver > ver);
      this._past = this._past.filter(o => o.ver <= ver);
      for (const o of gone) this._emit("check", o);
      // what the gateway released as done may be gone too; the same id again does no harm
      for (const o of this.pending) o.again = o.attempt > 0;
    }
    if (f.lane_seq > this._sent) return this._hf._newLane();
    this._decided(f);
    this._head = 0;
    this._reached(f);
    this._flush();
  }

  // -- ops --

  _pend(op) {
    op.key = `${op.lane}:${op.seq}`;
    op.at = this._hf._env.wall();
    op.settled = new Promise((ok, no) => Object.assign(op, { ok, no }));
    op.settled.catch(() => {}); // who does not look is not to be shouted at
    if (op.restored) this.pending.splice(this.pending.filter(o => o.restored).length, 0, op);
    else this.pending.push(op);
    this._hf._guard();
    return op;
  }

  _find(id) {
    const key = typeof id === "string" ? id : `${this._hf.lane}:${id}`;
    return this.pending.find(o => o.key === key && o.attempt);
  }

  _nack(f) {
    const op = this._find(f.op);
    if (f.receipt && op) op.receipt = f.receipt;
    // no attachment at the gateway: true whatever has become of the op
    if (f.code === "TRY_AFTER_ATTACH" || f.code === "NOT_ATTACHED") return this._reattach(this._jitter(++this._tries));
    if (!op || op.done || (f.attempt ?? 1) < op.attempt) return; // speaks of an earlier copy; the newest will be answered too
    if (!AGAIN.has(f.code)) {
      if (f.code === "BASE_CONFLICT" || f.code === "OUTCOME_EXPIRED") this._resync(f.code === "OUTCOME_EXPIRED");
      return this._settle(op, new HoldfastError(f.code, { ...f, applied: f.applied === "no" ? "no" : "unknown" }));
    }
    op.nacks = (op.nacks ?? 0) + 1;
    const from = f.code === "GAP" && f.expected ? Math.min(f.expected, op.seq) : op.seq;
    for (const o of this.pending) if (o.lane === op.lane && o.seq >= from && o.attempt && !o.done) o.again = true;
    const pause = f.code === "GAP" && op.nacks === 1 ? 0 : this._jitter(op.nacks);
    const ms = Math.max(f.retry_after_ms ?? 0, pause);
    this._emit("op", { what: "refused", op, code: f.code, retry_ms: ms });
    this._later(ms);
  }

  _jitter(tries) {
    return Math.min(NACK_MS[1], NACK_MS[0] * 2 ** Math.min(tries, 10)) * (0.5 + this._hf._env.random() / 2);
  }

  /** Nothing is sent until then: what follows a refused op would be refused too. */
  _later(ms) {
    const at = Math.max(this._hf._env.now() + ms, (this._timers.again && this._againAt) || 0);
    this._againAt = at;
    this._timer("again", at - this._hf._env.now(), () => {
      this._timers.again = undefined;
      this._flush();
    });
  }

  /** Sends what is due, in order, within the window. */
  _flush() {
    if (!this._live || this._timers.again) return;
    let flying = 0;
    for (const op of this.pending) {
      if (op.done) continue;
      if (++flying > this._hf.limits.inflight) return;
      if (op.attempt && !op.again) continue;
      // an earlier page's ops come first; there is no order between lanes, so they are waited for
      if (op.lane === this._hf.lane && this.pending[0].lane !== op.lane) return;
      this._write(op);
    }
  }

  _write(op) {
    const own = op.lane === this._hf.lane;
    const settled = this.pending.find(o => o.lane === op.lane).seq;
    op.attempt++;
    op.again = false;
    if (own) this._sent = Math.max(this._sent, op.seq);
    const f = { t: "op", session: this.id, op: own ? op.seq : op.key, settled, base: op.base, kind: op.kind, attempt: op.attempt };
    if (op.receipt) f.receipt = op.receipt;
    // the payload as it was first written, byte for byte: its digest is part of the op's identity
    this._hf._send({ ...f, text: JSON.stringify(f).slice(0, -1) + op.field + "}" });
    this._emit("op", { what: op.attempt > 1 ? "resent" : "sent", op });
  }

  /** In the record. */
  _done(op, { ver, epoch, dup = false }, { held_us } = {}) {
    if (op) this._settle(op, { ver, epoch, dup, held_us, attempts: op.attempt });
  }

  _settle(op, outcome, keep) {
    this.pending.splice(this.pending.indexOf(op), 1);
    const failed = outcome instanceof Error;
    if (!failed) {
      this._past.push({ data: op.data, seq: op.seq, ver: outcome.ver, epoch: outcome.epoch });
      if (this._past.length > PAST_MAX) this._past.shift();
    }
    if (!keep) this._save("remove", op);
    (failed ? op.no : op.ok)(outcome);
    this._emit("op", { what: failed ? "failed" : "settled", op, outcome });
    this._hf._guard();
    this._flush();
  }

  _save(how, { lane, seq, base, kind, field, data }) {
    const what = { lane, seq, base, kind, field, data };
    this._hf._store?.then(s => s[how](this.id, what)).catch(e => this._hf._emit("error", e));
  }

  /** Ops of earlier pages, each in its own lane. They may have been sent: only the record knows. */
  _restore(ops) {
    if (this._own === "stopped") return;
    const known = new Set(this.pending.map(o => o.key));
    const back = ops.filter(o => !known.has(`${o.lane}:${o.seq}`));
    for (const o of back) this._pend({ ...o, attempt: 1, again: true, restored: true });
    if (back.length) this._emit("restored", this.pending.slice(0, back.length));
    this._flush();
  }

  /** Ops never sent get new ids; the others keep theirs, and the record says what they are. */
  _leaveLane() {
    this._seq = this._sent = 0;
    for (const op of this.pending) {
      op.done = false;
      if (op.attempt) continue;
      this._save("remove", op);
      op.lane = this._hf.lane;
      op.seq = ++this._seq;
      op.key = `${op.lane}:${op.seq}`;
      this._save("put", op);
    }
  }
}

export default Holdfast;
