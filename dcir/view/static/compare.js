/** Compare: two sessions, graph by graph and kernel by kernel, with what was gained. */
import { bytes, count, flops, ms, plural, ratio, shortened, signed } from "./format.js";
import { html } from "./lib.js";
import { Missing, Table } from "./parts.js";
import { link } from "./route.js";
import { kernelRows, sum } from "./session.js";

const ROWS = [
  ["operators", (g) => g.rows.length, count],
  ["kernels", (g) => g.figures.kernels ?? kernelRows(g).length, count],
  ["calls", (g) => g.figures.calls ?? g.rows.length, count],
  ["bytes a call", (g) => g.totalBytes, bytes],
  ["operations", (g) => g.totalFlops, flops],
  ["scratch memory", (g) => g.figures.arena_bytes, bytes],
  ["saved for the backward", (g) => g.figures.saved_bytes, bytes],
  ["floor", (g) => g.floorMs, ms],
  ["time of kernels", (g) => (g.measured ? g.totalMs : null), ms],
];

/** Graphs of two sessions that belong together: the same kind, in order. */
function pairs(one, two) {
  const left = new Map();
  for (const g of two.graphs) left.set(g.kind, [...(left.get(g.kind) ?? []), g]);
  return one.graphs.map((g) => [g, left.get(g.kind)?.shift() ?? null]);
}

/** Kernels of two graphs by what they compute and where: [what, of the first, of the second]. */
export function matched(one, two) {
  const key = (r) => `${r.what}\n${r.origins[0] ?? ""}`;
  const found = new Map(kernelRows(one).map((r) => [key(r), [r, null]]));
  for (const r of two ? kernelRows(two) : []) {
    if (found.has(key(r)) && !found.get(key(r))[1]) found.get(key(r))[1] = r;
    else found.set(`${key(r)}\nonly the second`, [null, r]);
  }
  return [...found.values()];
}

export function Compare({ all }) {
  if (all.length < 2)
    return html`<h2>Compare</h2><${Missing} what="There is one session only." cure=${html`<code>dcir view A B</code> opens two side by side.`} />`;
  const [one, two] = all;
  return html`<h2>Compare</h2>
    <p><b>A</b> ${one.name} <span class="facts">${about(one)}</span><br /><b>B</b> ${two.name} <span class="facts">${about(two)}</span></p>
    <${Whole} one=${one} two=${two} />
    ${pairs(one, two).map(([a, b]) => html`<${Pair} key=${a.id} a=${a} b=${b} />`)}`;
}

/** How a session was made, in a line. */
function about({ made, options }) {
  const { level, threads, skip } = options;
  const facts = [
    made.when?.replace("T", " ").slice(0, 16),
    level != null && `level ${level}`,
    threads != null && plural(threads, "thread"),
    skip?.length && `${skip.length} places off`,
    made.processor,
  ];
  return facts.filter(Boolean).join(" · ");
}

function Whole({ one, two }) {
  if (!one.profile || !two.profile) return null;
  const rows = [
    ["a call", "wall_ms"],
    ["kernels", "kernel_ms"],
    ["teams", "team_ms"],
    ["Python and torch around", "around_ms"],
    ["floor", "floor_ms"],
  ].map(([title, key]) => [title, one.profile[key], two.profile[key]]);
  return html`<${Table} caption="Times of a whole call" columns=${columnsOf(ms)} rows=${rows} />`;
}

const columnsOf = (format) => [
  { title: "", cell: (r) => r[0] },
  { title: "A", numeric: true, cell: (r) => (r[3] ?? format)(r[1]) },
  { title: "B", numeric: true, cell: (r) => (r[3] ?? format)(r[2]) },
  { title: "B − A", numeric: true, cell: (r) => (r[1] == null || r[2] == null ? "–" : signed(r[2] - r[1], r[3] ?? format)) },
  { title: "A / B", numeric: true, cell: (r) => (r[1] && r[2] ? ratio(r[1] / r[2]) : "–") },
];

function Pair({ a, b }) {
  if (!b) return html`<h3>${a.title}</h3><p>The second session has no such graph.</p>`;
  const figures = ROWS.map(([title, of, format]) => [title, of(a), of(b), format]);
  const both = a.measured && b.measured;
  const of = (r) => (both ? r?.ms : r?.bytes) ?? 0;
  const rows = matched(a, b).sort(([a1, b1], [a2, b2]) => Math.abs(of(b2) - of(a2)) - Math.abs(of(b1) - of(a1)));
  const format = both ? ms : bytes;
  const name = (g, r) =>
    r
      ? html`<a href=${link(r.known ? "kernel" : "graph", r.known ? [g.id, r.kernel] : [g.id], r.known ? {} : { op: r.ops[0].id })}>${shortened(r.what, 70)}</a>`
      : null;
  const columns = [
    {
      title: "kernel",
      wide: true,
      cell: ([x, y]) =>
        html`${x ? name(a, x) : shortened(y.what, 70)} ${!x && html`<span class="badge">+ only in B</span>`}${!y && html`<span class="badge">− only in A</span>`}`,
    },
    { title: "where in the model", cell: ([x, y]) => (x ?? y).origins[0] ?? "–" },
    { title: both ? "time A" : "bytes A", numeric: true, cell: ([x]) => (x ? format(of(x)) : "–") },
    { title: both ? "time B" : "bytes B", numeric: true, cell: ([, y]) => (y ? format(of(y)) : "–") },
    {
      title: "B − A",
      numeric: true,
      cell: ([x, y]) =>
        html`<span class=${of(y) < of(x) ? "good" : of(y) > of(x) ? "bad" : ""}>${of(y) < of(x) ? "▼ " : of(y) > of(x) ? "▲ " : ""}${signed(of(y) - of(x), format)}</span>`,
    },
    { title: "A / B", numeric: true, cell: ([x, y]) => (of(x) && of(y) ? ratio(of(x) / of(y)) : "–") },
  ];
  return html`<h3>${a.title}</h3>
    <${Table} caption=${`Figures of the two graphs`} columns=${columnsOf(count)} rows=${figures} />
    <${Table} caption=${`${rows.length} kernels, the largest difference first; together ${signed(
      sum(rows, ([x, y]) => of(y) - of(x)),
      format,
    )}`} columns=${columns} rows=${rows} piece=${15} />`;
}
