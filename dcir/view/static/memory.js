/** Memory: what lies where in the arena while the network runs, who is there at the fullest moment, and what is kept for the backward. */
import { bytes, count, ms, percent, plural, shortened } from "./format.js";
import { html, useMemo, useRef, useState } from "./lib.js";
import { Choice, chosenGraph, GraphChoice, Missing, Share, Table } from "./parts.js";
import { link } from "./route.js";
import { shapeText, valueText } from "./session.js";

const [WIDTH, HEIGHT] = [1000, 360];
const QUARTERS = [0, 0.25, 0.5, 0.75, 1];
const MANY = 250; // values beyond which an edge would hide them
const [LEFT, TOP, BOTTOM] = [86, 10, HEIGHT - 40];

export function Memory({ session, route }) {
  const graph = chosenGraph(session, route);
  if (!graph) return html`<${Missing} what="There is no graph in this session." />`;
  return html`<${Shown} key=${graph.id} session=${session} graph=${graph} />`;
}

function Shown({ session, graph }) {
  const memory = graph.raw.memory ?? {};
  const rectangles = useMemo(
    () => (memory.rectangles ?? []).map(([value, block, offset, size, first, last]) => ({ value, block, offset, size, first, last })),
    [graph],
  );
  const blocks = Object.entries(memory.blocks ?? {}).filter(([, size]) => size > 0);
  const [block, setBlock] = useState(blocks[0]?.[0] ?? null);
  const inside = rectangles.filter((r) => r.block === block);
  const peak = memory.peak ?? null;
  return html`
    <div class="bar controls"><${GraphChoice} session=${session} graph=${graph} page="memory" />
      ${blocks.length > 1 && html`<${Choice} label="block" options=${blocks.map(([name, size]) => [name, `${name} ${bytes(size)}`])}
        value=${block} onChange=${setBlock} />`}</div>
    <h2>Scratch memory of ${graph.title}</h2>
    ${
      block == null || !inside.length
        ? html`<p>No value of this graph needs scratch memory: all are inputs, parameters or results${session.options.level < 4 ? ", or have places of their own, since memory is planned at level 4" : ""}.</p>`
        : html`<${Arena} key=${block} graph=${graph} rectangles=${inside} size=${memory.blocks[block]} block=${block} peak=${block === "arena" ? peak : null} />`
    }
    <${Peak} graph=${graph} peak=${peak} />
    <${Saved} graph=${graph} />`;
}

function Arena({ graph, rectangles, size, block, peak }) {
  const picture = useRef(null);
  const [row, setRow] = useState(peak?.at ?? 0);
  const rows = Math.max(graph.execution.length, 1);
  const x = (n) => LEFT + ((WIDTH - LEFT - 6) * n) / rows;
  const y = (offset) => BOTTOM - ((BOTTOM - TOP) * offset) / size;
  const shape = (list) =>
    list
      .map(
        (r) =>
          `M${x(r.first).toFixed(1)} ${y(r.offset + r.size).toFixed(1)}H${x(r.last + 1).toFixed(1)}V${y(r.offset).toFixed(1)}H${x(r.first).toFixed(1)}z`,
      )
      .join("");
  const there = rectangles.filter((r) => r.first <= row && row <= r.last).sort((a, b) => b.size - a.size);
  const kept = new Set(there);
  const pieces = useMemo(
    () => [shape(rectangles.filter((_, n) => n % 2 === 0)), shape(rectangles.filter((_, n) => n % 2 === 1))],
    [rectangles, size],
  );
  const sum = there.reduce((t, r) => t + r.size, 0);
  const pick = (e) => {
    const box = picture.current.getBoundingClientRect();
    const at = ((e.clientX - box.left) / box.width) * WIDTH;
    setRow(Math.max(0, Math.min(rows - 1, Math.floor(((at - LEFT) / (WIDTH - LEFT - 6)) * rows))));
  };
  const op = graph.execution[row];
  const columns = [
    { title: "value", cell: (r) => valueText(graph, r.value) },
    { title: "shape", cell: (r) => html`<code>${shapeText(graph.values.get(r.value))}</code>` },
    { title: "bytes", numeric: true, cell: (r) => bytes(r.size) },
    { title: "of the block", numeric: true, cell: (r) => html`<${Share} part=${r.size / size} />` },
    { title: "from byte", numeric: true, cell: (r) => count(r.offset) },
    { title: "lives", numeric: true, cell: (r) => `${r.first} to ${r.last}` },
    {
      title: "written by",
      wide: true,
      cell: (r) =>
        (graph.writers.get(r.value) ?? [])
          .slice(0, 1)
          .map((w) => html`<a href=${link("graph", [graph.id], { op: w.id })}>${shortened(w.what, 60)}</a>`),
    },
  ];
  return html`
    <p class="help">Left to right: operators in the order in which they run. Bottom to top: the block ${block}, ${bytes(size)}. Each rectangle is a value, as long as it is needed;
      ${` ${plural(rectangles.length, "value")} of ${bytes(rectangles.reduce((t, r) => t + r.size, 0))} share it. `}Click, or move the slider, to ask who is there.</p>
    <div class="scroll" tabindex="0" role="region"
      aria-label="arena"><svg class=${`arena ${rectangles.length > MANY ? "many" : ""}`} ref=${picture} width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img"
      aria-label=${`${rectangles.length} values in ${bytes(size)}; at operator ${row} there are ${there.length} with ${bytes(sum)}`} onClick=${pick}>
      <path class="value even" d=${pieces[0]} /><path class="value odd" d=${pieces[1]} />
      <path class="value there" d=${shape([...kept])} />
      ${peak && html`<line class="peak" x1=${x(peak.at + 0.5)} x2=${x(peak.at + 0.5)} y1=${TOP}
        y2=${BOTTOM} /><text class="tick" x=${Math.min(x(peak.at + 0.5) + 5, WIDTH - 90)} y=${TOP + 12}>← fullest</text>`}
      <line class="now" x1=${x(row + 0.5)} x2=${x(row + 0.5)} y1=${TOP} y2=${BOTTOM} />
      <path class="axis" d=${`M${LEFT} ${TOP}V${BOTTOM}H${WIDTH - 6}`} />
      ${QUARTERS.map((part) => html`<text class="tick" x=${LEFT - 6} y=${y(size * part) + 4} text-anchor="end">${bytes(size * part)}</text>`)}
      ${[...new Set(QUARTERS.map((part) => Math.round(part * (rows - 1))))].map(
        (n) => html`
        <text class="tick" x=${x(n + 0.5)} y=${BOTTOM + 16} text-anchor=${x(n + 0.5) > WIDTH - 30 ? "end" : "middle"}>${n}</text>`,
      )}
      <text class="tick" x=${(LEFT + WIDTH) / 2} y=${HEIGHT - 6} text-anchor="middle">operators in the order in which they run</text>
    </svg></div>
    <label class="slider"><span class="label">operator</span><input type="range" min="0" max=${rows - 1} value=${row}
      onInput=${(e) => setRow(Number(e.target.value))} aria-valuetext=${`${row}: ${op?.what ?? ""}`} />
      <output>${row}${op ? html`: <a href=${link("graph", [graph.id], { op: op.id })}>${shortened(op.what, 70)}</a>` : ""}</output></label>
    ${peak && html` <button type="button" onClick=${() => setRow(peak.at)}>the fullest moment</button>`}
    <${Table} caption=${`${plural(there.length, "value")} there, ${bytes(sum)} of ${bytes(size)} (${percent(sum / size)})`}
      columns=${columns} rows=${there} keyOf=${(r) => r.value} piece=${15} />`;
}

function Peak({ graph, peak }) {
  if (!peak) return null;
  const op = graph.execution[peak.at];
  return html`<p>The fullest moment is operator ${peak.at}${op ? html`, <a href=${link("graph", [graph.id], { op: op.id })}>${shortened(op.what, 80)}</a>` : ""}: ${plural(peak.values?.length ?? 0, "value")}, ${bytes(peak.bytes)}.</p>`;
}

function Saved({ graph }) {
  const rows = [...graph.saved.values()].sort((a, b) => b.bytes - a.bytes);
  const { partition } = graph.raw;
  if (!rows.length && !partition)
    return graph.kind === "forward" ? html`<h2>Saved for the backward</h2><p>Nothing but inputs and results.</p>` : null;
  const total = rows.reduce((t, s) => t + s.bytes, 0);
  const columns = [
    { title: "value", cell: (s) => valueText(graph, s.value) },
    { title: "shape", cell: (s) => html`<code>[${(s.shape ?? []).join(", ")}]</code>` },
    { title: "bytes", numeric: true, cell: (s) => bytes(s.bytes) },
    { title: "of all", numeric: true, cell: (s) => html`<${Share} part=${s.bytes / total} />` },
    { title: "why", wide: true, cell: (s) => s.why || "–" },
    {
      title: "written by",
      wide: true,
      cell: (s) =>
        (graph.writers.get(s.value) ?? [])
          .slice(0, 1)
          .map((w) => html`<a href=${link("graph", [graph.id], { op: w.id })}>${shortened(w.what, 60)}</a>`),
    },
  ];
  return html`<h2>Saved for the backward</h2>
    ${
      partition &&
      html`<p>Under the limit of memory: ${Object.entries(partition.chosen ?? {})
        .map(([what, [n, size]]) => `${what} ${plural(n, "value")} (${bytes(size)})`)
        .join(", ")};
      ${partition.proven ? " no choice is faster, as the model predicts times" : " the best that was found in time"}${partition.ms != null ? `, ${ms(partition.ms)} predicted` : ""}.</p>`
    }
    ${rows.length > 0 && html`<${Table} caption=${`${plural(rows.length, "value")}, ${bytes(total)}`} columns=${columns} rows=${rows}
      keyOf=${(s) => s.value} piece=${15} />`}`;
}
