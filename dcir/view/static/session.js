/** A record `dcir-session/1` as the page wants it: operators in order, who writes and reads a value, totals, kernels by name. */

const list = (x) => (Array.isArray(x) ? x : []);
const dict = (x) => (x && typeof x === "object" && !Array.isArray(x) ? x : {});

/** A place in the model as text: module and line. */
export function placeText(origin) {
  const line = lineText(origin);
  return [origin.module, line && `(${line})`].filter(Boolean).join(" ");
}

/** file:line without folders, or "". */
export function lineText(origin) {
  return origin.file ? `${origin.file.split(/[\\/]/).pop()}:${origin.line}` : "";
}

/** A value as text: its name where it has one, else its number. */
export function valueText(graph, name) {
  const value = graph.values.get(name);
  return value?.name ?? name;
}

/** "f32[8, 128]" and, where they are not the usual ones, strides. */
export function shapeText(value) {
  if (!value) return "";
  const shape = list(value.shape);
  const text = `${value.dtype ?? ""}[${shape.join(", ")}]`;
  let dense = 1;
  const usual = [...shape].reverse().map((n) => {
    const step = dense;
    dense *= n;
    return step;
  }).reverse();
  const strides = list(value.strides);
  return strides.length && strides.some((s, n) => s !== usual[n] && shape[n] !== 1) ? `${text} strides (${strides.join(", ")})` : text;
}

function operator(id, raw, tiers) {
  const origins = list(raw.origins);
  const reads = list(raw.reads).map((o) => (Array.isArray(o) ? o[0] : o));
  const writes = list(raw.writes).map((o) => (Array.isArray(o) ? o[0] : o));
  const what = raw.what || raw.spec || raw.label || id;
  const op = {
    id, raw, what, origins, reads, writes,
    label: raw.label ?? id,
    kind: raw.operator ?? raw.group ?? "",
    module: origins.find((o) => o.module)?.module ?? "",
    place: origins.length ? placeText(origins[0]) : "",
    kernel: raw.kernel ?? null,
    torch: Boolean(raw.torch),
    madeBy: raw.made_by ?? "import",
    tier: tiers.get(raw.made_by) ?? null,
    flops: raw.flops ?? null,
    bytes: raw.bytes ?? null,
    ms: raw.ms ?? null,
    floor: raw.floor_ms ?? null,
    bound: raw.bound?.name ?? raw.bound ?? null,
  };
  op.distance = op.ms && op.floor ? op.ms / op.floor : null;
  return op;
}

function snapshotsOf(raw, ops) {
  const found = list(raw.snapshots).map((s) => {
    const after = s.after === "import" || !s.after ? { pass: "import", index: -1 } : s.after;
    return { pass: after.pass, index: after.index, order: list(s.order) };
  });
  if (found.length) return found;
  return [{ pass: "import", index: -1, order: list(raw.order).length ? raw.order : [...ops.keys()] }];
}

function graphOf(raw, number) {
  const passes = list(raw.passes).map((p, index) => ({ index, ...p }));
  const tiers = new Map(passes.map((p) => [p.name, p.tier]));
  const ops = new Map(Object.entries(dict(raw.ops)).map(([id, op]) => [id, operator(id, op, tiers)]));
  const values = new Map(Object.entries(dict(raw.values)));
  const snapshots = snapshotsOf(raw, ops);
  const rows = snapshots.at(-1).order.map((id) => ops.get(id)).filter(Boolean);
  const position = new Map(rows.map((op, n) => [op.id, n]));
  const writers = new Map();
  const readers = new Map();
  for (const op of rows) {
    for (const name of op.writes) added(writers, name, op);
    for (const name of new Set(op.reads)) added(readers, name, op);
  }
  const measured = rows.some((op) => op.ms != null);
  return {
    id: String(raw.id ?? number), raw, number, ops, values, snapshots, rows, position, writers, readers, passes, measured,
    kind: raw.kind ?? "graph",
    title: `${number}: ${raw.kind ?? "graph"}${sizesText(raw.sizes)}`,
    together: raw.together ?? null,
    remarks: list(raw.remarks),
    kernels: new Map(Object.entries(dict(raw.kernels))),
    profile: raw.profile ?? null,
    totalMs: sum(rows, (op) => op.ms),
    floorMs: rows.every((op) => op.floor != null) && rows.length ? sum(rows, (op) => op.floor) : null,
    totalBytes: sum(rows, (op) => op.bytes),
    totalFlops: sum(rows, (op) => op.flops),
    arena: raw.arena_bytes ?? null,
    saved: raw.saved_bytes ?? null,
  };
}

function added(map, key, op) {
  if (map.has(key)) map.get(key).push(op);
  else map.set(key, [op]);
}

function sizesText(sizes) {
  const text = list(sizes).map((s) => (Array.isArray(s) ? `${s[0]} = ${s[1]}` : String(s))).join(", ");
  return text && ` at ${text}`;
}

export const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);

/** A record with its graphs indexed; an Error that says what is wrong with it where it is none. */
export function sessionOf(raw) {
  if (!raw || typeof raw !== "object" || !String(raw.format).startsWith("dcir-session/1")) {
    throw new Error(`this is no session of dcir: its format is ${JSON.stringify(raw?.format ?? null)}, not "dcir-session/1"`);
  }
  const graphs = list(raw.graphs).map(graphOf);
  return {
    raw, graphs,
    name: raw.model?.name || "model",
    inputs: list(raw.model?.inputs).map((x) => (typeof x === "string" ? x : shapeText(x))),
    made: dict(raw.made),
    machine: raw.machine ?? null,
    notes: list(raw.notes),
    advice: list(raw.advice),
    variants: list(raw.variants),
    roofline: raw.roofline ?? null,
    measured: graphs.some((g) => g.measured),
  };
}

/** Operators of a graph by kernel, the one that takes longest (or, unmeasured, moves most) first. */
export function kernelRows(graph) {
  const groups = new Map();
  for (const op of graph.rows) {
    const key = op.kernel ?? (op.torch ? `torch: ${op.what}` : op.what);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(op);
  }
  const rows = [...groups].map(([kernel, ops]) => {
    const row = { kernel, ops, graph, what: ops[0].what, torch: ops[0].torch, known: graph.kernels.has(kernel) };
    for (const key of ["ms", "floor", "bytes", "flops"]) row[key] = ops.some((op) => op[key] != null) ? sum(ops, (op) => op[key]) : null;
    row.distance = row.ms && row.floor ? row.ms / row.floor : null;
    row.bound = ops.find((op) => op.bound)?.bound ?? null;
    row.origins = [...new Set(ops.map((op) => op.place).filter(Boolean))];
    return row;
  });
  return rows.sort((a, b) => (b.ms ?? 0) - (a.ms ?? 0) || (b.bytes ?? 0) - (a.bytes ?? 0));
}
