// What is published: small enough, with types that hold, and complete.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import * as sdk from "../../src/client/holdfast.js";

const file = name => new URL(`../../src/client/${name}`, import.meta.url);
const GZIP_MAX = 12 * 1024;

test("holdfast.js is one module under 12 KiB gzipped", () => {
  const source = readFileSync(file("holdfast.js"));
  assert.ok(gzipSync(source, { level: 9 }).length < GZIP_MAX, `${gzipSync(source, { level: 9 }).length} bytes`);
  assert.doesNotMatch(source.toString(), /^import |[^.]import\(|require\(/m);
});

test("package.json names what is there", () => {
  const p = JSON.parse(readFileSync(file("package.json")));
  for (const name of p.files) readFileSync(file(name));
  assert.equal(p.version, sdk.VERSION);
  assert.equal(sdk.default, sdk.Holdfast);
  assert.deepEqual(Object.keys(p.dependencies ?? {}), []);
});

test("holdfast.d.ts says what is exported, and tsc agrees with its use", t => {
  const types = readFileSync(file("holdfast.d.ts"), "utf8");
  for (const name of Object.keys(sdk)) assert.match(types, name === "default" ? /export default Holdfast/ : new RegExp(`export (class|const) ${name}\\b`));
  if (spawnSync("tsc", ["--version"]).status !== 0) return t.skip("no tsc");
  const use = fileURLToPath(new URL("types.ts", import.meta.url));
  const args = ["--noEmit", "--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "node", "--lib", "es2022,dom", use];
  const { status, stdout } = spawnSync("tsc", args, { encoding: "utf8" });
  assert.equal(status, 0, stdout);
});
