/** Arithmetic of a roofline: points of kernels, roofs, and logarithmic axes. */
import { kernelRows, sum } from "./session.js";

const RATES = { "GB/s": "memory", "GFLOP/s": "compute" };

/** Roofs of a machine for a number of threads: {name, kind, value}. */
export function roofsOf(machine, threads) {
  return (machine?.ceilings ?? [])
    .filter((c) => RATES[c.unit])
    .map((c) => ({ name: c.name, kind: RATES[c.unit], unit: c.unit, value: (threads === 1 ? c.one : c.all) ?? c.all ?? c.one }))
    .filter((c) => c.value > 0);
}

/** The points of one session: each kernel, and the kernels together. */
export function pointsOf(session) {
  const rows = session.graphs.flatMap((g) => kernelRows(g)).filter((r) => r.ms > 0);
  const total = sum(rows, (r) => r.ms);
  const points = rows.map((r) => ({
    key: `${r.graph.id}/${r.kernel}`,
    title: r.what,
    kernel: r.kernel,
    graph: r.graph,
    known: r.known,
    ms: r.ms,
    share: r.ms / total,
    flops: r.flops ?? 0,
    bytes: r.bytes ?? 0,
    bound: r.bound,
    distance: r.distance,
    calls: r.ops.length,
    where: r.origins[0] ?? "",
    op: r.ops[0].id,
  }));
  return points.map(rated);
}

/** The points that `dcir roofline` measured, with one setting. */
export function measuredPoints(run) {
  return [...(run.kernels ?? [])].map((p, n) =>
    rated({
      key: `${n}/${p.what}`,
      title: p.what,
      kernel: p.what,
      ms: p.ms,
      share: p.share,
      flops: p.flops,
      bytes: p.bytes,
      bound: p.bound?.name ?? p.bound ?? null,
      distance: null,
      calls: p.calls,
      where: p.origins?.[0] ?? "",
    }),
  );
}

/** Adds intensity (operations per byte; null where there are none) and rates in 10^9 a second. */
export function rated(p) {
  return {
    ...p,
    intensity: p.flops && p.bytes ? p.flops / p.bytes : null,
    gflops: (p.flops * 1e-6) / p.ms,
    gbytes: (p.bytes * 1e-6) / p.ms,
  };
}

/** A logarithmic axis from the figures that it has to hold, at whole powers of ten. */
export function axis(figures, from, to, least = 2) {
  const logs = figures.filter((x) => x > 0 && Number.isFinite(x)).map(Math.log10);
  let low = Math.floor(Math.min(...logs, Infinity));
  let high = Math.ceil(Math.max(...logs, -Infinity));
  if (!Number.isFinite(low)) [low, high] = [0, least];
  if (high - low < least) high = low + least;
  const at = (x) => from + ((Math.log10(x) - low) / (high - low)) * (to - from);
  const ticks = Array.from({ length: high - low + 1 }, (_, n) => 10 ** (low + n));
  return { at, ticks, low: 10 ** low, high: 10 ** high };
}

/** The least roof over an intensity, of one memory and the highest compute roof. */
export function roofAt(intensity, memory, compute) {
  return Math.min(intensity * memory.value, compute?.value ?? Infinity);
}
