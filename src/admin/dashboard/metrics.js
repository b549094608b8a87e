// Prometheus' text to numbers, and numbers to rates and quantiles. No DOM here: the tests run it in Node.

/** Text exposition -> Map of `name{labels}` to value, in the order of the text. */
export function parse(text) {
  const all = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const space = line.lastIndexOf("} ") > 0 ? line.lastIndexOf("} ") + 1 : line.indexOf(" ");
    all.set(line.slice(0, space), Number(line.slice(space + 1).split(" ")[0]));
  }
  return all;
}

/** The labels of a key of `parse`, as an object. */
export function labels(key) {
  return Object.fromEntries([...key.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
}

/** Sum over all series of a family whose labels have what `want` has. */
export function sum(metrics, name, want = {}) {
  let total = 0;
  for (const [key, value] of series(metrics, name)) {
    const has = labels(key);
    if (Object.entries(want).every(([k, v]) => has[k] === v)) total += value;
  }
  return total;
}

/** The series of a family. */
export function series(metrics, name) {
  return [...metrics].filter(([key]) => key === name || key.startsWith(name + "{"));
}

/** Sums of a family by the values of one label. */
export function by(metrics, name, label) {
  const sums = new Map();
  for (const [key, value] of series(metrics, name)) {
    const of = labels(key)[label] ?? "";
    sums.set(of, (sums.get(of) ?? 0) + value);
  }
  return sums;
}

/** Quantile of what a histogram counted between two scrapes, in its unit; null = nothing was counted. */
export function quantile(before, after, name, q) {
  const buckets = new Map();
  for (const [key, value] of series(after, name + "_bucket")) {
    const le = labels(key).le, bound = le === "+Inf" ? Infinity : Number(le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + value - (before?.get(key) ?? 0));
  }
  const sorted = [...buckets].sort((a, b) => a[0] - b[0]);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let low = 0, below = 0;
  for (const [bound, count] of sorted) {
    if (count >= q * total) {
      if (bound === Infinity) return low;
      return low + (bound - low) * (count > below ? (q * total - below) / (count - below) : 1);
    }
    [low, below] = [bound, count];
  }
  return low;
}

/** 12345.6 -> "12,346"; small numbers keep a digit. */
export function number(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  return n.toLocaleString("en", { maximumFractionDigits: Math.abs(n) < 10 ? 1 : 0 });
}

/** Seconds in the unit that reads best. */
export function time(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return "–";
  if (s < 0.001) return `${number(s * 1e6)} µs`;
  if (s < 1) return `${number(s * 1e3)} ms`;
  return s < 120 ? `${number(s)} s` : `${number(s / 60)} min`;
}
