// Compiled by tsc, never run: each way to use the SDK has the type it should have.

import Default, { Holdfast, HoldfastError, type Check, type Done, type HoldfastEvent, type Pending, type SessionState } from "../../src/client/holdfast.js";

const fresh = async (): Promise<string> => "token";
const hf: Holdfast = new Default(["wss://a.example", new URL("https://b.example")], { token: fresh, persist: true, transport: "auto", guard: false });
const s = hf.session("g_8Kd2", { role: "spectator", token: "invitation" });

export async function use(): Promise<SessionState> {
  const done: Done = await s.op({ move: "e2e4" }, { base: 4, kind: 1 });
  const at: number = done.ver + done.epoch + (done.held_us ?? 0);
  try {
    await s.op(new Uint8Array([1]));
  } catch (e) {
    if (e instanceof HoldfastError && e.retry && e.applied === "no") console.log(e.code, at);
  }
  const off: () => void = s.on("event", (e: HoldfastEvent<{ move: string }>) => console.log(e.data.move, e.mine, e.by));
  s.on("snapshot", e => console.log(e.why, e.data));
  s.on("check", (o: Check) => console.log(o.ver));
  s.on("reaction", r => console.log(r.class, r.counts?.wave));
  s.on("status", st => console.log(st.state === "store_down", st.words));
  s.on("op", n => console.log(n.what, n.op.attempt, n.retry_ms));
  hf.on("state", st => { if (st.state === "waiting") console.log(new Date(st.until ?? 0), st.words, st.transport); });
  const waiting: readonly Pending[] = s.pending;
  console.log(waiting.length, hf.pending.length, s.react("applause"));
  off();
  for await (const e of s) {
    if (e.type === "snapshot") console.log(e.why);
    else console.log(e.at_us);
  }
  // @ts-expect-error there is no such event
  s.on("nothing", () => {});
  // @ts-expect-error sessions come from hf.session
  new (await import("../../src/client/holdfast.js")).Session();
  hf.restart("other");
  hf.close();
  return s.state;
}
