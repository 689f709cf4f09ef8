/** Summary: where the time goes, what it could be, and what would help. */
import { bytes, count, flops, ms, percent, ratio } from "./format.js";
import { html } from "./lib.js";
import { BOUND, Copy, Mark, METRICS, Missing, Share, Table } from "./parts.js";
import { link } from "./route.js";
import { kernelRows, sum } from "./session.js";

const LEAST_REST = 0.03;

/** What a call is made of: [title, milliseconds, name of its look]. Kernels are split by graph where there are several. */
function partsOf(session) {
  const { profile, graphs } = session;
  const timed = graphs.filter((g) => g.totalMs > 0);
  const kernels =
    timed.length > 1
      ? timed.map((g, n) => [`kernels, ${g.kind}`, g.totalMs, n % 2 ? "d" : "a"])
      : [["kernels", profile?.kernel_ms ?? timed[0]?.totalMs, "a"]];
  const known = [...kernels, ["teams of threads", profile?.team_ms, "b"], ["Python and torch around", profile?.around_ms, "c"]].filter(
    ([, x]) => x > 0,
  );
  // Each part is a median of its own; on a busy machine they are less than the median of whole calls.
  const rest = (profile?.wall_ms ?? 0) - sum(known, ([, x]) => x);
  return rest > LEAST_REST * (profile?.wall_ms ?? 0) ? [...known, ["in none of these (calls differ by as much)", rest, "e"]] : known;
}

/** One bar: what a call is made of, and below it the floor. */
function TimeBar({ session }) {
  const parts = partsOf(session);
  const floors = session.graphs.map((g) => g.floorMs);
  const floor = session.profile?.floor_ms ?? (floors.every((f) => f != null) ? sum(floors, (f) => f) : null);
  const wall = session.profile?.wall_ms ?? sum(parts, ([, x]) => x);
  const largest = Math.max(
    wall,
    sum(parts, ([, x]) => x),
    floor ?? 0,
  );
  const wide = (x) => `${(100 * x) / largest}%`;
  let from = 0;
  const pieces = parts.map(([title, time, name]) => {
    from += time;
    return { title, name, time, from: from - time };
  });
  const least = floor
    ? html`; this machine could not do its kernels' work in less than <strong>${ms(floor)}</strong> (${percent(floor / wall)} of it)`
    : html`. What its kernels would take at least is not known: <code>dcir machine</code> measures it`;
  const words = pieces.map((p) => `${p.title} ${ms(p.time)}`).join(", ");
  return html`
    <figure class="timebar">
      <figcaption>A call takes <strong>${ms(wall)}</strong>${least}.</figcaption>
      <svg width="100%" height="46" role="img" aria-label=${`${words}; floor ${ms(floor)}`}>
        <defs>${HATCHES.map(([name, d]) => html`<pattern id=${`hatch-${name}`} width="8" height="8" patternUnits="userSpaceOnUse"><rect class=${`part-${name}`} width="8" height="8" /><path class="hatch" d=${d} /></pattern>`)}</defs>
        ${pieces.map((p) => html`<rect fill=${`url(#hatch-${p.name})`} class="piece" x=${wide(p.from)} width=${wide(p.time)} y="0" height="26" />`)}
        ${floor > 0 && html`<rect class="floor" x="0" width=${wide(floor)} y="32" height="10" />`}
      </svg>
      <ul class="legend">
        ${pieces.map((p) => html`<li><svg width="22" height="12"
          aria-hidden="true"><rect class="piece" fill=${`url(#hatch-${p.name})`} width="22" height="12" /></svg> ${p.title} ${ms(p.time)} (${percent(p.time / wall)})</li>`)}
        ${floor > 0 && html`<li><svg width="22" height="12"
          aria-hidden="true"><rect class="floor" y="3" width="22" height="6" /></svg> floor ${ms(floor)}</li>`}
      </ul>
    </figure>`;
}

/** So that parts differ without their colours, too. */
const HATCHES = [
  ["a", ""],
  ["d", "M0 8L8 0"],
  ["b", "M0 0L8 8M0 8L8 0"],
  ["c", "M0 4H8"],
  ["e", "M4 0V8"],
];

function Places({ row }) {
  const [first, ...rest] = row.origins;
  return html`<span>${first ?? "–"}${rest.length > 0 && html` <span class="more" title=${rest.join("\n")}>and ${rest.length} more</span>`}</span>`;
}

function TenKernels({ session }) {
  const rows = session.graphs.flatMap(kernelRows);
  const by = session.measured ? "ms" : "bytes";
  const total = sum(rows, (r) => r[by]);
  const top = rows.sort((a, b) => (b[by] ?? 0) - (a[by] ?? 0)).slice(0, 10);
  const covered = sum(top, (r) => r[by]) / total;
  const columns = [
    {
      title: "kernel",
      wide: true,
      cell: (
        r,
      ) => html`<a href=${r.known ? link("kernel", [r.graph.id, r.kernel]) : link("graph", [r.graph.id], { op: r.ops[0].id })}>${r.what}</a>
        ${r.torch && html` <span class="badge">torch</span>`}`,
    },
    { title: "calls", numeric: true, cell: (r) => count(r.ops.length) },
    ...(session.measured ? [{ title: "time", numeric: true, cell: (r) => ms(r.ms) }] : []),
    {
      title: session.measured ? "share of time" : "share of bytes",
      numeric: true,
      cell: (r) => html`<${Share} part=${(r[by] ?? 0) / total} />`,
    },
    ...(session.measured
      ? [
          {
            title: "over floor",
            hint: METRICS.distance.means,
            numeric: true,
            cell: (r) => html`<${Mark} level=${METRICS.distance.level(r.distance)} of=${r.distance} /> ${ratio(r.distance)}`,
          },
          { title: "bound by", hint: BOUND, cell: (r) => r.bound ?? "–" },
        ]
      : [
          { title: "bytes", numeric: true, cell: (r) => bytes(r.bytes) },
          { title: "operations", numeric: true, cell: (r) => flops(r.flops) },
        ]),
    { title: "graph", cell: (r) => r.graph.kind },
    { title: "where in the model", wide: true, cell: (r) => html`<${Places} row=${r} />` },
  ];
  const caption = `${top.length === rows.length ? "All kernels" : `The ${top.length} largest of ${rows.length} kernels`}: ${percent(covered)} of the ${session.measured ? "time of all" : "bytes of all"}`;
  return html`<${Table} caption=${caption} columns=${columns} rows=${top} />`;
}

function Advice({ session }) {
  const { advice } = session;
  if (!advice)
    return html`<section><h2>What would help</h2><${Missing} what="No advice was asked for."
      cure=${html`<code>dcir view --advise</code> measures more settings and says what to change of a call, with what it is predicted to bring.`} /></section>`;
  const pieces = [...(advice.pieces ?? [])].sort((a, b) => b.gain - a.gain).slice(0, 10);
  const { together } = advice;
  if (together && !pieces.some((a) => JSON.stringify(a.call) === JSON.stringify(together.call))) pieces.push(together);
  return html`<section aria-labelledby="advice"><h2 id="advice">What would help</h2>
    <${Speeds} advice=${advice} />
    ${pieces.length === 0 && html`<p>Nothing that the rules know of.</p>`}
    <ol class="cards">${pieces.map((a) => html`<${Piece} piece=${a} />`)}
    </ol>
    ${(advice.notes ?? []).map((n) => html`<p class="facts">${n}</p>`)}</section>`;
}

/** Items a second in eager PyTorch, as the model is called now, and as advised. */
function Speeds({ advice: { eager, now, advised } }) {
  if (!advised) return null;
  const items = (x) => html`<strong>${count(Math.round(x.items_per_second))}</strong>`;
  return html`<p>Items a second: ${eager && html`eager PyTorch ${items(eager)} → `}${now && html`as it is called now ${items(now)} → `}as
    advised ${items(advised)}${advised.measured ? "" : " (predicted)"}, ${ratio(advised.gain_over_eager)} those of eager PyTorch.</p>`;
}

/** A piece of advice: what to change, what that brings, why, and how it is written. */
function Piece({ piece: a }) {
  const written = a.python || a.command;
  return html`<li>
    <strong>${a.what}</strong> <span class="badge">${ratio(a.gain)} predicted</span>
    ${a.measured && html` <span class="badge">${ratio(a.measured.gain)} measured</span>`}${a.exact === false && html` <span class="badge">changes numbers</span>`}
    ${a.slower > 1.05 && html` <span class="badge">a call takes ${ratio(a.slower)} as long</span>`}
    <p>${a.evidence} <span class="facts">(${a.basis})</span></p>
    ${written && html`<p class="bar"><code>${written}</code> <${Copy} text=${written} title="copy" /></p>`}</li>`;
}

const NOTE_TITLES = {
  break: "graph break",
  fallback: "runs in torch",
  recompile: "compiled again",
  uncompiled: "not compiled",
  compared: "compared in every call",
  "not-come-up": "switched off, did not come up",
};

function Notes({ session }) {
  if (!session.notes.length)
    return html`<section><h2>What dcir did not take</h2><p>Nothing: no graph breaks, no operators left to torch, nothing compiled again.</p></section>`;
  const columns = [
    { title: "what", cell: (n) => NOTE_TITLES[n.kind] ?? n.kind },
    { title: "why", wide: true, cell: (n) => html`${n.what}${n.count > 1 && html` <span class="badge">${n.count} times</span>`}` },
    { title: "where in the model", cell: (n) => n.place || "–" },
    { title: "what cures it", wide: true, cell: (n) => (n.cure ? html`<code>${n.cure}</code>` : "–") },
  ];
  return html`<section><h2>What dcir did not take</h2><${Table} caption="Graph breaks, operators in torch, repeated compilations" quiet
    columns=${columns} rows=${session.notes} /></section>`;
}

function Totals({ session }) {
  const columns = [
    { title: "graph", cell: (g) => html`<a href=${link("graph", [g.id])}>${g.title}</a>` },
    { title: "operators", numeric: true, cell: (g) => count(g.figures.operators_before ?? g.snapshots[0].order.length) },
    { title: "after all passes", numeric: true, cell: (g) => count(g.rows.length) },
    { title: "bytes imported", numeric: true, cell: (g) => bytes(g.figures.bytes_before) },
    { title: "bytes now", numeric: true, cell: (g) => bytes(g.totalBytes) },
    { title: "operations", numeric: true, cell: (g) => flops(g.totalFlops) },
    { title: "scratch memory", numeric: true, cell: (g) => html`<a href=${link("memory", [g.id])}>${bytes(g.figures.arena_bytes)}</a>` },
    { title: "saved for backward", numeric: true, cell: (g) => (g.figures.saved_bytes ? bytes(g.figures.saved_bytes) : "–") },
  ];
  return html`<section><h2>What became of the model</h2><${Table} caption="Graphs, before and after the passes" quiet columns=${columns}
    rows=${session.graphs} /></section>`;
}

export function Summary({ session }) {
  return html`
    <h2>Where the time goes</h2>
    ${
      session.measured || session.profile
        ? html`<${TimeBar} session=${session} />`
        : html`<${Missing} what="Nothing was measured in this session; bytes stand for time."
          cure=${html`<code>dcir view</code> measures every kernel, unless it is told <code>--seconds 0</code>.`} />`
    }
    ${session.graphs.length > 0 ? html`<${TenKernels} session=${session} />` : html`<${Missing} what="There is no graph in this session." />`}
    <${Advice} session=${session} />
    <${Notes} session=${session} />
    ${session.graphs.length > 0 && html`<${Totals} session=${session} />`}`;
}
