// Virtual time, seeded randomness and sockets without a network: what holdfast.js takes from `env` in these tests.

/** Numbers in [0, 1) from a seed (mulberry32). */
export class Random {
  constructor(seed) {
    this.state = seed >>> 0;
  }
  next() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  chance(p) {
    return this.next() < p;
  }
  int(low, high) {
    return low + Math.floor(this.next() * (high - low + 1));
  }
  pick(all) {
    return all[Math.floor(this.next() * all.length)];
  }
}

/** Timers on a heap; time moves from one to the next. */
export class Clock {
  now = 0;
  #heap = [];
  #ids = 0;
  #live = new Map();

  at(ms, fn) {
    if (Number.isNaN(ms)) throw new Error("a timer at NaN");
    const timer = { at: Math.max(ms, this.now), id: ++this.#ids, fn };
    this.#live.set(timer.id, timer);
    const heap = this.#heap;
    let i = heap.push(timer) - 1;
    for (let up; i > 0 && before(timer, heap[(up = (i - 1) >> 1)]); i = up) [heap[i], heap[up]] = [heap[up], heap[i]];
    return timer.id;
  }
  after(ms, fn) {
    return this.at(this.now + Math.max(0, ms), fn);
  }
  clear(id) {
    this.#live.delete(id);
  }
  /** Runs the next timer, if it is due by `until`; false: there is none. */
  step(until = Infinity) {
    for (;;) {
      const top = this.#heap[0];
      if (!top || top.at > until) return false;
      this.#pop();
      if (!this.#live.delete(top.id)) continue;
      this.now = top.at;
      top.fn();
      return true;
    }
  }
  /** Runs everything up to `ms` from now, promises included. */
  async run(ms) {
    const until = this.now + ms;
    await settle();
    while (this.step(until)) await settle();
    this.now = until;
  }
  #pop() {
    const heap = this.#heap;
    const last = heap.pop();
    if (!heap.length) return;
    heap[0] = last;
    for (let i = 0, down; (down = 2 * i + 1) < heap.length; i = down) {
      if (down + 1 < heap.length && before(heap[down + 1], heap[down])) down++;
      if (before(last, heap[down])) break;
      [heap[i], heap[down]] = [heap[down], heap[i]];
    }
  }
}

const before = (a, b) => a.at < b.at || (a.at === b.at && a.id < b.id);

/** Lets promises go on; a chain in the SDK (token, then open) is shorter than this. */
export async function settle() {
  for (let i = 0; i < 6; i++) await null;
}

/** `env` of the SDK on a clock. `connect(socket)` is the network. */
export function envOf(clock, random, connect, more = {}) {
  return {
    now: () => clock.now,
    wall: () => 1_700_000_000_000 + clock.now,
    setTimeout: (fn, ms) => clock.after(ms, fn),
    clearTimeout: id => clock.clear(id),
    random: () => random.next(),
    bytes: n => Uint8Array.from({ length: n }, () => random.int(0, 255)),
    WebTransport: undefined,
    window: undefined,
    document: undefined,
    navigator: undefined,
    WebSocket: class extends Socket {
      constructor(url, protocol) {
        super(url, protocol);
        connect(this);
      }
    },
    ...more,
  };
}

/** A browser's WebSocket, played by hand. */
export class Socket {
  readyState = 0;
  sent = [];
  constructor(url, protocol) {
    Object.assign(this, { url: new URL(url), protocol });
  }
  send(text) {
    if (this.readyState !== 1) throw new Error("InvalidStateError");
    this.sent.push(...text.split("\n").map(l => JSON.parse(l)));
    this.heard?.(text);
  }
  close(code) {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.closedBy = code ?? 1005;
    this.left?.();
  }

  // the other side
  open() {
    if (this.readyState !== 0) return;
    this.readyState = 1;
    this.onopen?.({});
  }
  say(...frames) {
    if (this.readyState === 1) this.onmessage?.({ data: frames.map(f => JSON.stringify(f)).join("\n") });
  }
  end(code, reason = "") {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose?.({ code, reason: typeof reason === "string" ? reason : JSON.stringify(reason), wasClean: code !== 1006 });
  }
}
