/**
 * Holdfast's client: ops that survive the loss of any node, reactions that survive nothing.
 *
 * ```js
 * import { Holdfast } from "/holdfast.js";
 * const hf = new Holdfast("wss://play.example", { token });
 * const game = hf.session("g_8Kd2");
 * game.on("event", e => draw(e.data));
 * await game.op({ move: "e2e4" }); // in the record, whatever happened to gateways and owners meanwhile
 * ```
 * Nothing else needs to be done: connections, slots, resends and holes are the library's. What the app may want to show is in
 * `state` and `status` events, in words.
 */

/** Of the connection. */
export type ConnectionState = "connecting" | "live" | "offline" | "waiting" | "stopped";
/** Of a session: what it says itself while the connection is live, else what the connection says. */
export type SessionState = ConnectionState | "moving" | "store_down" | "read_only" | "ended";

export interface Status<S = ConnectionState> {
  state: S;
  /** For the user. */
  words: string;
  /** `waiting`, and while a lost connection waits for its next try: then, in ms since 1970. */
  until?: number;
  /** `stopped`: a close code (4001 not signed in, 4006 opened somewhere else, …), or a session's refusal ("FORBIDDEN", …). */
  code?: number | string;
  /** Label of the gateway. */
  gateway: string;
  transport: "" | "websocket" | "webtransport";
  /** Tries since the last live connection. */
  attempt: number;
}

export interface SessionStatus extends Partial<Omit<Status, "state">> {
  state: SessionState;
  words: string;
  session: string;
  /** Fencing token of the session's owner: grows with each change of owner. */
  epoch: number;
  /** Newest version seen. */
  ver: number;
}

/** A durable change, in the order of the record; none is missing, none comes twice. */
export interface HoldfastEvent<D = any> {
  type: "event";
  epoch: number;
  ver: number;
  /** Caused by an op of this page. */
  mine: boolean;
  op?: number | string;
  /** The participant. */
  by?: string;
  /** When the owner committed it: microseconds since 1970. */
  at_us: number;
  data: D;
}

/** The whole state: replaces what was known. */
export interface HoldfastSnapshot<D = any> {
  type: "snapshot";
  epoch: number;
  /** May be lower than before if `why` is "diverged". */
  ver: number;
  why: "first" | "behind" | "diverged" | "asked" | "slow";
  data: D;
}

export interface Reaction<D = any> {
  class: string;
  epoch: number;
  by?: string;
  /** How many of each class, where they were counted together. */
  counts?: Record<string, number>;
  data: D;
}

export interface Done {
  /** Its version, or one by which it is in the record. */
  ver: number;
  epoch: number;
  /** Told again: the first word of it was lost. */
  dup: boolean;
  /** From its arrival to its echo at the gateway, microseconds; not always known. */
  held_us?: number;
  /** Times it was sent. */
  attempts: number;
}

/** An op that is not settled yet. */
export interface Pending<D = any> {
  readonly data: D;
  readonly lane: string;
  readonly seq: number;
  readonly base: number;
  /** Times sent; 0: not yet. */
  readonly attempt: number;
  /** When it was asked for, ms since 1970. */
  readonly at: number;
  /** The gateway's sealed copy of its first time of arrival. */
  readonly receipt?: string;
  /** Made by an earlier page. */
  readonly restored?: boolean;
  readonly settled: Promise<Done>;
}

/** What happens to ops, for those who want to show it. */
export interface OpNews {
  what: "sent" | "resent" | "refused" | "settled" | "failed";
  op: Pending;
  /** `refused`: why, and after how many ms it is sent again. */
  code?: string;
  retry_ms?: number;
  outcome?: Done | HoldfastError;
}

/** An op that was in the record before the record went back (a disaster): look whether it is still wanted. */
export interface Check<D = any> {
  data: D;
  seq: number;
  ver: number;
  epoch: number;
}

export class HoldfastError extends Error {
  /**
   * "REJECTED" (by the application), "FORBIDDEN", "BASE_CONFLICT", "TOO_LARGE", "SESSION_CLOSED", "OP_ID_REUSED",
   * "OUTCOME_EXPIRED", …; by this library: "STOPPED", "LEFT", "TOO_LARGE", "TOO_MANY_PENDING".
   */
  readonly code: string;
  readonly detail: string;
  /** "no": it is not in the record and never will be. "unknown": look at the state, or ask the user. */
  readonly applied: "no" | "unknown";
  /** The application's number. */
  readonly app_code: number;
  /** Whether a new op, made from the newest state, has a chance. */
  readonly retry: boolean;
}

export type Token = string | ((this: void) => string | Promise<string>);

/** Keeps ops across a reload. */
export interface Store {
  load(session: string): Promise<StoredOp[]>;
  put(session: string, op: StoredOp): Promise<unknown>;
  remove(session: string, op: StoredOp): Promise<unknown>;
}
export interface StoredOp {
  lane: string;
  seq: number;
  base: number;
  kind: number;
  field: string;
  data: unknown;
}

export interface Options {
  /** A function is asked again before the token expires, and when the server calls it expired. */
  token?: Token;
  /** Default "auto": WebTransport where it works, else WebSocket within two seconds. */
  transport?: "auto" | "websocket" | "webtransport";
  /** Keeps pending ops across a reload: true = in IndexedDB, by the token's `sub`. Default: no. */
  persist?: boolean | Store;
  /** Asks the user before the page is left with pending ops. Default: yes. */
  guard?: boolean;
  /** A name for the server's logs. */
  client?: string;
  /** Where the runtime has none. */
  WebSocket?: new (url: string, protocol: string) => any;
  /** For tests: clock, randomness, sockets. */
  env?: Record<string, unknown>;
}

type Off = () => void;

export class Holdfast {
  /** Connects at once. `url`: of the service (http(s) or ws(s); the path is `/v1/ws` if there is none); several are tried in turn. */
  constructor(url: string | URL | readonly (string | URL)[], options?: Options);
  readonly state: ConnectionState;
  readonly status: Status;
  readonly gateway: string;
  readonly transport: "" | "websocket" | "webtransport";
  readonly lane: string;
  readonly limits: Readonly<Record<string, number>>;
  readonly sessions: ReadonlyMap<string, Session>;
  /** Ops of all sessions that are not settled. */
  readonly pending: Pending[];
  /** The same object each time. `token`: for this session only. */
  session(id: string, options?: { role?: "participant" | "spectator"; token?: string | (() => string) }): Session;
  /** Says goodbye; ops that are not settled are rejected. */
  close(): void;
  /** After `stopped`: begins anew; sessions are to be asked for again. */
  restart(token?: Token): void;
  /** Returns what ends it. */
  on(name: "state", fn: (status: Status) => void): Off;
  on(name: "error", fn: (error: { code?: string; detail?: string } | Error) => void): Off;
}

export class Session implements AsyncIterable<HoldfastEvent | HoldfastSnapshot> {
  private constructor();
  readonly id: string;
  readonly role: "participant" | "spectator";
  readonly epoch: number;
  readonly ver: number;
  readonly state: SessionState;
  /** In the order in which they will enter the record: apply them to the state to show what will be. */
  readonly pending: readonly Pending[];
  /**
   * Asks for a durable change. Resolves when it is in the record, after whatever outages; rejects with a `HoldfastError` when
   * it was refused for good. `data`: any JSON value, or bytes. `base`: the version it starts from, if not the newest seen.
   */
  op(data: unknown, options?: { kind?: number; base?: number }): Promise<Done>;
  /** Asks for nothing durable: may be lost, is never late. False: it was not even sent. */
  react(cls: string, data?: unknown): boolean;
  /** Asks for a snapshot. */
  refresh(): void;
  /** Leaves; ops that are not settled are rejected. */
  leave(): void;
  on(name: "event", fn: (event: HoldfastEvent) => void): Off;
  on(name: "snapshot", fn: (snapshot: HoldfastSnapshot) => void): Off;
  on(name: "status", fn: (status: SessionStatus) => void): Off;
  on(name: "reaction", fn: (reaction: Reaction) => void): Off;
  on(name: "check", fn: (op: Check) => void): Off;
  on(name: "op", fn: (news: OpNews) => void): Off;
  /** Ops of an earlier page of this user, about to be sent on. */
  on(name: "restored", fn: (ops: Pending[]) => void): Off;
  /** Events and snapshots from now on. An iterator that is too slow gets a snapshot in place of what it missed. */
  [Symbol.asyncIterator](): AsyncIterableIterator<HoldfastEvent | HoldfastSnapshot>;
}

export const VERSION: string;
export default Holdfast;
