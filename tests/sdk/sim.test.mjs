// The seeds of sim.mjs on all cores, and defects of the SDK that they must find. HOLDFAST_SDK_RUNS: how many seeds.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { pathToFileURL } from "node:url";
import { Worker } from "node:worker_threads";

const RUNS = Number(process.env.HOLDFAST_SDK_RUNS ?? 10_000);
const CHUNK = 250;

/** In threads of their own: the hooks of node:test make promises three times slower. */
function inWorker(first, count, sdk) {
  return new Promise((ok, no) => {
    const worker = new Worker(new URL("sim.mjs", import.meta.url), { workerData: { first, count, sdk } });
    worker.on("message", m => (m.error ? no(Object.assign(new Error(m.message), { stack: m.error })) : ok(m.sum)));
    worker.on("error", no);
  });
}

test(`${RUNS} seeded runs`, async () => {
  const sum = { connects: 0, acked: 0, refused: 0, resent: 0 };
  let next = 1;
  const one = async () => {
    while (next <= RUNS) {
      const first = next;
      next += CHUNK;
      const part = await inWorker(first, Math.min(CHUNK, RUNS - first + 1));
      for (const key in sum) sum[key] += part[key];
    }
  };
  await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, one));
  console.log(JSON.stringify(sum));
  assert.ok(sum.acked > 10 * RUNS && sum.resent > 5 * RUNS && sum.connects > 4 * RUNS && sum.refused > RUNS / 2, "faults did happen");
});

/** Each takes one rule away. */
const DEFECTS = {
  "old epochs are heard": ["if (f.epoch < this.epoch) return; // of an owner", "// of an owner"],
  "holes are not seen": ["if (f.ver > this.ver + 1) return this._hole();", ""],
  "attempt does not decide": ["(f.attempt ?? 1) < op.attempt", "false"],
  "rejected is taken for committed": ["if (no) this._settle(op, new", "if (no && 0) this._settle(op, new"],
  "nothing is resent after attached": ["for (const op of this.pending) op.again = op.attempt > 0;", ""],
  "a refused op is not sent again": ["o.again = true;\n    const pause", "o.again = false;\n    const pause"],
  "a new lane is not taken": ["if (f.lane_seq > this._sent) return this._hf._newLane();", ""],
  "frames before attached are heard": ["else if (this._live) {", "else {"],
  "another attach's answer is believed": ["if (f.n === this._n) this", "this"],
  "slots are not obeyed": ["this._wait(said.ms, \"waiting\");", "this._wait(0, \"waiting\");"],
  "silence is borne": ["else this._closed(0, \"\");\n    });", "else this._watch(this._dead);\n    });"],
  "what went back is not shown": ["for (const o of gone) this._emit(\"check\", o);", ""],
  "a resend has other bytes": ["+ op.field +", "+ op.field.replace(\"{\", \"{ \".repeat(op.attempt > 1)) +"],
  "the same op gets another id": ["op.attempt++;", "if (op.attempt++ > 1) op.seq = ++this._seq, op.key = `${op.lane}:${op.seq}`;"],
};

test("a defect in a rule is found", async t => {
  const source = readFileSync(new URL("../../src/client/holdfast.js", import.meta.url), "utf8");
  const dir = mkdtempSync(join(tmpdir(), "holdfast-sdk-"));
  t.after(() => rmSync(dir, { recursive: true }));
  for (const [what, [from, to]] of Object.entries(DEFECTS)) {
    await t.test(what, async () => {
      assert.ok(source.includes(from), `holdfast.js no longer has: ${from}`);
      const file = join(dir, `${what.replace(/\W/g, "-")}.mjs`);
      writeFileSync(file, source.replaceAll(from, to));
      await assert.rejects(inWorker(1, 400, pathToFileURL(file).href), `400 seeds do not notice that ${what}`);
    });
  }
});
