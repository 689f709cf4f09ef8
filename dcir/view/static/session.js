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
  return value?.name || name;
}

/** "f32[8, 128]" and, where they are not the usual ones, strides. */
export function shapeText(value) {
  if (!value) return "";
  const shape = list(value.shape);
  const text = `${value.dtype ?? ""}[${shape.join(", ")}]`;
  let dense = 1;
  const usual = [...shape]
    .reverse()
    .map((n) => {
      const step = dense;
      dense *= n;
      return step;
    })
    .reverse();
  const strides = list(value.strides);
  return strides.length && strides.some((s, n) => s !== usual[n] && shape[n] !== 1) ? `${text} strides (${strides.join(", ")})` : text;
}

/** An operator's operand: the value, where it begins, and how it lies. */
const operand = (raw) => (o) => ({ name: o[0], offset: o[1] ?? 0, layout: list(raw.layouts)[o[2]] ?? null });

function operator(id, raw, graph, tiers) {
  const lines = list(graph.lines);
  const [ins, outs] = [list(raw.reads).map(operand(graph)), list(raw.writes).map(operand(graph))];
  const origins = list(raw.origins)
    .map((n) => lines[n])
    .filter(Boolean);
  return {
    id,
    ins,
    outs,
    origins,
    label: raw.label ?? id,
    kind: raw.kind ?? "",
    what: raw.what || raw.kind || id,
    reads: ins.map((o) => o.name),
    writes: outs.map((o) => o.name),
    module: raw.group || origins[0]?.module || "",
    place: raw.place || (origins.length ? placeText(origins[0]) : ""),
    imported: list(raw.came_from)
      .map((n) => list(graph.places)[n])
      .filter(Boolean),
    before: list(raw.before),
    kernel: raw.kernel ?? null,
    torch: Boolean(raw.torch),
    madeBy: raw.made_by || "import",
    tier: tiers.get(raw.made_by) ?? null,
    schedule: raw.schedule ?? null,
    bodies: raw.bodies ?? 0,
    flops: raw.flops ?? null,
    bytes: raw.bytes ?? null,
    ms: raw.ms ?? null,
    floor: raw.floor_ms ?? null,
    bound: raw.bound ?? null,
    distance: raw.ms && raw.floor_ms ? raw.ms / raw.floor_ms : null,
  };
}

function snapshotsOf(raw, ops) {
  const found = list(raw.snapshots).map((s) => {
    const after = s.after === "import" || !s.after ? { pass: "import", index: -1 } : s.after;
    return { ...s, pass: after.pass, index: after.index, order: list(s.order) };
  });
  return found.length ? found : [{ pass: "import", index: -1, order: list(raw.execution).length ? raw.execution : [...ops.keys()] }];
}

function graphOf(raw, number) {
  const passes = list(raw.passes).map((p, index) => ({ index, ...p }));
  const tiers = new Map(passes.map((p) => [p.name, p.tier]));
  const ops = new Map(Object.entries(dict(raw.ops)).map(([id, op]) => [id, operator(id, op, raw, tiers)]));
  const values = new Map(Object.entries(dict(raw.values)));
  const snapshots = snapshotsOf(raw, ops);
  const rows = snapshots
    .at(-1)
    .order.map((id) => ops.get(id))
    .filter(Boolean);
  const position = new Map(rows.map((op, n) => [op.id, n]));
  const writers = new Map();
  const readers = new Map();
  for (const op of rows) {
    for (const name of op.writes) added(writers, name, op);
    for (const name of new Set(op.reads)) added(readers, name, op);
  }
  const figures = dict(raw.figures);
  const prepared = new Set(list(raw.prepared));
  for (const op of rows) op.prepared = prepared.has(op.id);
  const floors = rows.filter((op) => !op.prepared).map((op) => op.floor);
  return {
    id: String(raw.id ?? number),
    raw,
    number,
    ops,
    values,
    snapshots,
    rows,
    position,
    writers,
    readers,
    passes,
    figures,
    measured: rows.some((op) => op.ms != null),
    kind: raw.kind ?? "graph",
    title: `${raw.id ?? number}: ${raw.kind ?? "graph"}${sizesText(raw.sizes)}`,
    together: raw.together ?? null,
    remarks: list(raw.remarks),
    kernels: new Map(Object.entries(dict(raw.kernels))),
    saved: new Map(list(raw.saved).map((s) => [s.value, s])),
    execution: (list(raw.execution).length ? raw.execution : snapshots.at(-1).order).map((id) => ops.get(id)).filter(Boolean),
    totalMs: sum(rows, (op) => op.ms),
    floorMs: figures.floor_ms ?? (floors.length && floors.every((f) => f != null) ? floors.reduce((a, f) => a + f, 0) : null),
    prepared: prepared.size,
    totalBytes: figures.bytes_after ?? sum(rows, (op) => (op.prepared ? 0 : op.bytes)),
    totalFlops: figures.flops ?? sum(rows, (op) => op.flops),
  };
}

function added(map, key, op) {
  if (map.has(key)) map.get(key).push(op);
  else map.set(key, [op]);
}

function sizesText(sizes) {
  const text = list(sizes)
    .map((s) => (Array.isArray(s) ? `${s[0]} = ${s[1]}` : String(s)))
    .join(", ");
  return text && ` at ${text}`;
}

export const sum = (rows, of) => rows.reduce((total, row) => total + (of(row) ?? 0), 0);

/** A record with its graphs indexed; an Error that says what is wrong with it where it is none. */
export function sessionOf(raw) {
  if (!raw || typeof raw !== "object" || raw.format !== "dcir-session/1") {
    throw new Error(`this is no session of dcir: its format is ${JSON.stringify(raw?.format ?? null)}, not "dcir-session/1"`);
  }
  const graphs = list(raw.graphs).map(graphOf);
  for (const graph of graphs) graph.handed = handed(graph, graphs);
  return {
    raw,
    graphs,
    name: raw.model?.name || "model",
    inputs: list(raw.model?.inputs).map((x) => `${x.name ? `${x.name} ` : ""}${shapeText(x)}`),
    model: dict(raw.model),
    made: dict(raw.made),
    options: dict(raw.options),
    machine: raw.machine ?? null,
    profile: raw.profile ?? null,
    pipeline: list(raw.pipeline),
    levels: list(raw.levels),
    live: dict(raw.live),
    notes: list(raw.notes),
    advice: raw.advice ?? null,
    variants: list(raw.variants),
    roofline: raw.roofline ?? null,
    texts: dict(raw.texts),
    measured: graphs.some((g) => g.measured),
  };
}

/**
 * Of a backward: what its forward hands to it, by name: {graph, value, bytes}. Tensors come in the order in which the forward returns
 * them; where shapes are others, sizes stand between them, and nothing is said.
 */
function handed(graph, graphs) {
  const forward = graphs.find((g) => g !== graph && g.together != null && g.together === graph.together && g.saved.size > 0);
  const found = new Map();
  if (!forward) return found;
  const kept = [...forward.saved.values()].sort((a, b) => a.result - b.result);
  list(graph.raw.inputs).forEach((name, n) => {
    const one = kept[n];
    if (one && String(one.shape) === String(graph.values.get(name)?.shape))
      found.set(name, { graph: forward, value: one.value, bytes: one.bytes });
  });
  return found;
}

/** Operators of a graph's calls by kernel, the one that takes longest (or, unmeasured, moves most) first. */
export function kernelRows(graph) {
  const groups = new Map();
  for (const op of graph.rows.filter((o) => !o.prepared)) {
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
