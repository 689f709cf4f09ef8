/** The lanes of a graph, drawn: rows with their figures, lines between near ones, stubs for far reads. */
import { bytes, count, shortened } from "./format.js";
import { html, useMemo } from "./lib.js";
import { lanesOf, linesOf } from "./lanes.js";
import { Mark, METRICS, Window } from "./parts.js";

const ROW = 26;
const STEP = 12;
const MOST = 10; // columns that are drawn apart; what is further right shares the last

const x = (lane) => 9 + STEP * Math.min(lane, MOST);

/** How two graphs differ for a row: a sign before its number. */
const SIGNS = { added: "+", changed: "~", removed: "−" };

export function Lanes({
  graph,
  rows = graph.rows,
  columns = graph.snapshots.at(-1).lanes,
  metric,
  chosen,
  onChoose,
  hits,
  marks,
  label,
  side,
}) {
  const lanes = useMemo(() => lanesOf(rows, columns), [rows, columns]);
  const place = useMemo(() => new Map(rows.map((op, n) => [op.id, n])), [rows]);
  const most = useMemo(() => rows.reduce((m, op) => Math.max(m, METRICS[metric].of(op) ?? 0), 0), [rows, metric]);
  const at = chosen == null ? -1 : (place.get(chosen) ?? -1);
  const wide = x(Math.min(lanes.columns, MOST + 1)) + 4;
  const name = side ?? graph.id;
  const onKeyDown = (e) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -rows.length, End: rows.length };
    if (!(e.key in steps) || e.target !== e.currentTarget) return;
    e.preventDefault();
    const to = Math.max(0, Math.min(rows.length - 1, (at < 0 ? -1 : at) + steps[e.key]));
    if (rows[to]) onChoose(rows[to].id);
  };
  const row = (n) => {
    const op = rows[n];
    const figure = METRICS[metric].of(op);
    const level = METRICS[metric].level(figure, most);
    const kept = sideStubs(graph, op);
    const sign = SIGNS[marks?.get(op.id)];
    return html`
      <div key=${n} id=${`row-${name}-${n}`} role="row" aria-rowindex=${n + 2} aria-selected=${String(n === at)}
        class=${`row ${n === at ? "chosen" : ""} ${hits?.has(n) ? "hit" : ""} ${marks?.get(op.id) ?? ""}`} onClick=${() => onChoose(op.id)}>
        <span role="gridcell" class="cell no">${sign && html`<b>${sign}</b>`}${n}</span>
        <span role="gridcell" class="cell lane" style=${{ width: `${wide}px` }} aria-label=${`column ${lanes.lane[n] + 1}`}></span>
        <span role="gridcell" class="cell what"
          title=${op.what}>${op.torch && html`<b class="badge">torch</b> `}${op.prepared && html`<b class="badge"
          title="runs only when parameters change">once</b> `}${shortened(op.what, 90)}</span>
        <span role="gridcell" class="cell number"><${Mark} level=${level} of=${figure} /> ${METRICS[metric].text(figure)}</span>
        <span role="gridcell" class="cell stubs">
          ${lanes.far[n].slice(0, 2).map((m) => html`<button type="button" tabindex="-1"
            title=${`reads what row ${m} wrote: ${rows[m].what}`} onClick=${jump(onChoose, rows[m].id)}>↑${m}</button>`)}
          ${lanes.out[n].slice(0, 2).map((m) => html`<button type="button" tabindex="-1" title=${`is read by row ${m}: ${rows[m].what}`}
            onClick=${jump(onChoose, rows[m].id)}>↓${m}</button>`)}
          ${kept && html`<span class="badge" title=${kept.title}>${kept.sign} ${bytes(kept.bytes)}</span>`}
        </span>
        <span role="gridcell" class="cell module" title=${op.place}>${shortened(op.module || op.place, 34)}</span>
      </div>`;
  };
  const y = (n) => n * ROW + ROW / 2;
  const behind = (first, last) => {
    const dots = new Map();
    for (let n = first; n < last; n += 1) {
      const level = METRICS[metric].level(METRICS[metric].of(rows[n]), most);
      const radius = 3 + level * 0.6;
      dots.set(
        level,
        `${dots.get(level) ?? ""}M${x(lanes.lane[n]) - radius} ${y(n) - first * ROW}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`,
      );
    }
    return html`<svg class="lines" aria-hidden="true" width=${wide} height=${(last - first) * ROW}
      style=${{ transform: `translateY(${first * ROW}px)` }}>
      <path class="line" d=${linesOf(lanes, first, last, x, (n) => y(n) - first * ROW)} />
      ${[...dots].map(([level, d]) => html`<path class=${`dot heat${level}`} d=${d} />`)}
    </svg>`;
  };
  const head = html`
    <div role="rowgroup" class="headrow"><div role="row" aria-rowindex="1" class="row head">
      <span role="columnheader" class="cell no">row</span>
      <span role="columnheader" class="cell lane" style=${{ width: `${wide}px` }}><span class="unseen">column</span></span>
      <span role="columnheader" class="cell what">operator</span>
      <span role="columnheader" class="cell number">${METRICS[metric].title}</span>
      <span role="columnheader" class="cell stubs">far rows, kept</span>
      <span role="columnheader" class="cell module">module</span>
    </div></div>`;
  return html`<${Window} rows=${rows.length} height=${ROW} row=${row} behind=${behind} head=${head} show=${at} role="grid" columns="6"
    active=${at >= 0 ? `row-${name}-${at}` : null} onKeyDown=${onKeyDown} className="lanes"
    label=${label ?? `${graph.title}: ${count(rows.length)} operators in the order in which they run; arrow keys choose one`} />`;
}

function jump(onChoose, id) {
  return (e) => {
    e.stopPropagation();
    onChoose(id);
  };
}

/** What an operator writes for the backward, or reads of what the forward has kept. */
function sideStubs(graph, op) {
  const written = op.writes.reduce((t, name) => t + (graph.saved.get(name)?.bytes ?? 0), 0);
  if (written) return { sign: "⇢", bytes: written, title: "kept for the backward" };
  const read = op.reads.reduce((t, name) => t + (graph.handed.get(name)?.bytes ?? 0), 0);
  return read ? { sign: "⇠", bytes: read, title: "kept by the forward" } : null;
}
