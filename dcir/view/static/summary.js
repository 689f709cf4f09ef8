/** Summary: where the time goes, what it could be, and what would help. */
import { bytes, count, flops, ms, percent, plural, ratio } from "./format.js";
import { html } from "./lib.js";
import { Mark, METRICS, Missing, Share, Table } from "./parts.js";
import { link } from "./route.js";
import { kernelRows, sum } from "./session.js";

const PARTS = [
  ["kernel_ms", "kernels", "a"],
  ["team_ms", "teams of threads", "b"],
  ["around_ms", "Python and torch", "c"],
];

/** One bar a graph: what a call is made of, and below it the floor. */
function TimeBar({ graph, largest }) {
  const profile = graph.profile ?? { kernel_ms: graph.totalMs };
  const wall = profile.wall_ms ?? PARTS.reduce((t, [key]) => t + (profile[key] ?? 0), 0);
  const floor = profile.floor_ms ?? graph.floorMs;
  const wide = (x) => `${(100 * x) / largest}%`;
  let from = 0;
  const pieces = PARTS.filter(([key]) => profile[key] > 0).map(([key, title, name]) => {
    const piece = { title, name, ms: profile[key], from };
    from += profile[key];
    return piece;
  });
  const words = pieces.map((p) => `${p.title} ${ms(p.ms)}`).join(", ");
  return html`
    <figure class="timebar">
      <figcaption>${graph.title}: <strong>${ms(wall)}</strong> a call${floor ? html`; no less than ${ms(floor)} on this machine (${percent(floor / wall)})` : ""}</figcaption>
      <svg width="100%" height="44" role="img" aria-label=${`${words}; floor ${ms(floor)}`}>
        ${pieces.map((p) => html`<rect class=${`part-${p.name}`} x=${wide(p.from)} width=${wide(p.ms)} y="0" height="24" />`)}
        ${floor > 0 && html`<rect class="floor" x="0" width=${wide(floor)} y="30" height="10" />`}
      </svg>
      <ul class="legend">
        ${pieces.map((p) => html`<li><span class=${`key part-${p.name}`} aria-hidden="true">${{ a: "▇", b: "▒", c: "░" }[p.name]}</span> ${p.title} ${ms(p.ms)} (${percent(p.ms / wall)})</li>`)}
        ${floor > 0 && html`<li><span class="key floor" aria-hidden="true">▁</span> floor ${ms(floor)}</li>`}
      </ul>
    </figure>`;
}

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
      title: "kernel", wide: true,
      cell: (r) => html`<a href=${r.known ? link("kernel", [r.graph.id, r.kernel]) : link("graph", [r.graph.id], { op: r.ops[0].id })}>${r.what}</a>
        ${r.torch && html` <span class="badge">torch</span>`}`,
    },
    { title: "calls", numeric: true, cell: (r) => count(r.ops.length) },
    ...(session.measured ? [{ title: "time", numeric: true, cell: (r) => ms(r.ms) }] : []),
    { title: session.measured ? "share of time" : "share of bytes", numeric: true, cell: (r) => html`<${Share} part=${(r[by] ?? 0) / total} />` },
    ...(session.measured ? [
      { title: "over floor", hint: METRICS.distance.means, numeric: true, cell: (r) => html`<${Mark} level=${METRICS.distance.level(r.distance)} /> ${ratio(r.distance)}` },
      { title: "bound by", cell: (r) => r.bound ?? "–" },
    ] : [{ title: "bytes", numeric: true, cell: (r) => bytes(r.bytes) }, { title: "operations", numeric: true, cell: (r) => flops(r.flops) }]),
    { title: "graph", cell: (r) => r.graph.kind },
    { title: "where in the model", wide: true, cell: (r) => html`<${Places} row=${r} />` },
  ];
  const caption = `${top.length === rows.length ? "All kernels" : `The ${top.length} largest of ${rows.length} kernels`}: ${percent(covered)} of the ${session.measured ? "time of all" : "bytes of all"}`;
  return html`<${Table} caption=${caption} columns=${columns} rows=${top} />`;
}

function Advice({ session }) {
  if (!session.advice.length) return null;
  return html`<section aria-labelledby="advice"><h2 id="advice">What would help</h2><ol class="cards">
    ${session.advice.slice(0, 10).map((a) => html`<li>
      <strong>${a.what ?? a.text ?? a.title}</strong>
      ${a.gain && html` <span class="badge">${ratio(a.gain)} ${a.predicted === false ? "measured" : "predicted"}</span>`}
      ${a.exact === false && html` <span class="badge">changes numbers</span>`}
      ${(a.evidence ?? a.why) && html`<p>${String(a.evidence ?? a.why)}</p>`}
      ${(a.cure ?? a.how) && html`<p><code>${a.cure ?? a.how}</code></p>`}</li>`)}
  </ol></section>`;
}

const NOTE_TITLES = { break: "graph break", fallback: "runs in torch", recompile: "compiled again", uncompiled: "not compiled" };

function Notes({ session }) {
  if (!session.notes.length) return html`<section><h2>What dcir did not take</h2><p>Nothing: no graph breaks, no operators left to torch, nothing compiled again.</p></section>`;
  const columns = [
    { title: "what", cell: (n) => NOTE_TITLES[n.kind] ?? n.kind },
    { title: "why", wide: true, cell: (n) => n.text ?? n.reason },
    { title: "where in the model", cell: (n) => n.place || "–" },
    { title: "what cures it", wide: true, cell: (n) => (n.cure ? html`<code>${n.cure}</code>` : "–") },
  ];
  return html`<section><h2>What dcir did not take</h2><${Table} caption="Graph breaks, operators in torch, repeated compilations" quiet columns=${columns} rows=${session.notes} /></section>`;
}

function Totals({ session }) {
  const columns = [
    { title: "graph", cell: (g) => html`<a href=${link("graph", [g.id])}>${g.title}</a>` },
    { title: "operators", numeric: true, cell: (g) => count(g.snapshots[0].order.length) },
    { title: "after all passes", numeric: true, cell: (g) => count(g.rows.length) },
    { title: "bytes imported", numeric: true, cell: (g) => bytes(g.passes[0]?.bytes_before) },
    { title: "bytes now", numeric: true, cell: (g) => bytes(g.passes.at(-1)?.bytes_after ?? g.totalBytes) },
    { title: "operations", numeric: true, cell: (g) => flops(g.totalFlops) },
    { title: "scratch memory", numeric: true, cell: (g) => html`<a href=${link("memory", [g.id])}>${bytes(g.arena)}</a>` },
    { title: "saved for backward", numeric: true, cell: (g) => (g.saved ? bytes(g.saved) : "–") },
  ];
  return html`<section><h2>What became of the model</h2><${Table} caption="Graphs, before and after the passes" quiet columns=${columns} rows=${session.graphs} /></section>`;
}

export function Summary({ session }) {
  const largest = Math.max(...session.graphs.map((g) => g.profile?.wall_ms ?? g.totalMs ?? 0), ...session.graphs.map((g) => g.profile?.floor_ms ?? 0));
  const shown = session.graphs.filter((g) => g.measured || g.profile);
  return html`
    <h2>Where the time goes</h2>
    ${shown.length > 0 ? shown.slice(0, 8).map((g) => html`<${TimeBar} graph=${g} largest=${largest} />`)
      : html`<${Missing} what="Nothing was measured in this session." cure="\`dcir view --profile\` measures every kernel; until then bytes stand for time." />`}
    ${session.graphs.length > 0 ? html`<${TenKernels} session=${session} />` : html`<${Missing} what=${`${plural(0, "graph")} in this session.`} />`}
    <${Advice} session=${session} />
    <${Notes} session=${session} />
    ${session.graphs.length > 0 && html`<${Totals} session=${session} />`}`;
}
