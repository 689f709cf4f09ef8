/** Kernel: lines of the model, what it computes and what was chosen, and its C++, side by side. */
import { bytes, count, flops, ms, percent, plural, ratio, rate, shortened } from "./format.js";
import { linesOfCode } from "./code.js";
import { html, useEffect, useMemo, useState } from "./lib.js";
import { chosenGraph, Copy, GraphChoice, Mark, METRICS, Missing, Share, Table, Window } from "./parts.js";
import { link } from "./route.js";
import { kernelRows, lineText, sum } from "./session.js";
import { textOf } from "./source.js";

/** In an address: what calls the kernels of a graph; no kernel has such a name. */
const DRIVER = "the-driver";

export function Kernel({ session, route }) {
  const graph = chosenGraph(session, route);
  if (!graph) return html`<${Missing} what="There is no graph in this session." />`;
  const name = route.path[1];
  const rows = kernelRows(graph);
  const row = rows.find((r) => r.kernel === name);
  if (name === DRIVER && graph.raw.driver) return html`<${Driver} session=${session} graph=${graph} />`;
  return html`
    <div class="bar controls"><${GraphChoice} session=${session} graph=${graph} page="kernel" /></div>
    ${
      row
        ? html`<${One} key=${name} session=${session} graph=${graph} row=${row} />`
        : html`
      ${name && html`<${Missing} what=${`${graph.title} has no kernel ${name}.`} />`}
      <${All} graph=${graph} rows=${rows} />`
    }`;
}

function All({ graph, rows }) {
  const once = graph.prepared ? `; ${plural(graph.prepared, "operator")} only for when parameters change left out` : "";
  const total = sum(rows, (r) => (graph.measured ? r.ms : r.bytes));
  const columns = [
    {
      title: "kernel",
      wide: true,
      cell: (r) =>
        r.torch || !r.ops[0].kernel
          ? html`${r.what} <span class="badge">${r.torch ? "torch" : "no kernel"}</span>`
          : html`<a href=${link("kernel", [graph.id, r.kernel])}>${r.kernel}</a>`,
    },
    { title: "what it computes", wide: true, cell: (r) => r.what },
    { title: "calls", numeric: true, cell: (r) => count(r.ops.length) },
    ...(graph.measured ? [{ title: "time", numeric: true, cell: (r) => ms(r.ms) }] : []),
    {
      title: graph.measured ? "share of time" : "share of bytes",
      numeric: true,
      cell: (r) => html`<${Share} part=${(graph.measured ? r.ms : r.bytes) / total} />`,
    },
    ...(graph.measured
      ? [
          {
            title: "over floor",
            hint: METRICS.distance.means,
            numeric: true,
            cell: (r) => html`<${Mark} level=${METRICS.distance.level(r.distance)} of=${r.distance} /> ${ratio(r.distance)}`,
          },
        ]
      : []),
    { title: "bytes", numeric: true, cell: (r) => bytes(r.bytes) },
    { title: "operations", numeric: true, cell: (r) => flops(r.flops) },
  ];
  return html`<h2>Kernels of ${graph.title}</h2>
    ${graph.raw.driver && html`<p><a href=${link("kernel", [graph.id, DRIVER])}>the driver, which calls them</a></p>`}
    <${Table} caption=${`${rows.length} kernels, ${graph.measured ? "the one that takes longest" : "the one that moves most"} first${once}`}
      columns=${columns} rows=${rows} keyOf=${(r) => r.kernel} />`;
}

/** A text of the session, and while there is none why not. */
function useText(session, name, sha) {
  const [text, setText] = useState(session.texts[sha] ?? null);
  const [why, setWhy] = useState("");
  useEffect(() => {
    if (text != null) return;
    textOf(session, name, sha).then(
      (t) => (t == null ? setWhy("This session does not hold it.") : setText(t)),
      (error) => setWhy(error.message),
    );
  }, [name]);
  return [text, why];
}

function Driver({ session, graph }) {
  const [text, why] = useText(session, `driver-${graph.id}`, graph.raw.driver);
  return html`<h2>The driver of ${graph.title}</h2><p><a href=${link("kernel", [graph.id])}>all kernels</a></p>
    ${text == null ? html`<p role="status">${why || "Reading …"}</p>` : html`<${Code} text=${text} />`}`;
}

function One({ session, graph, row }) {
  const record = graph.kernels.get(row.kernel) ?? {};
  const [text, why] = useText(session, row.kernel, record.text);
  const share = graph.totalMs ? (row.ms ?? 0) / graph.totalMs : null;
  const facts = [
    ["computes", record.what ?? row.what],
    ["calls", count(row.ops.length)],
    ["time", row.ms == null ? null : `${ms(row.ms)} for all calls (${percent(share)})`],
    ["floor", row.floor == null ? null : ms(row.floor)],
    ["over floor", row.distance && html`<${Mark} level=${METRICS.distance.level(row.distance)} /> ${ratio(row.distance)}`],
    ["bound by", row.bound],
    ["operations", flops(row.flops)],
    ["bytes", bytes(row.bytes)],
    ["intensity", row.flops && row.bytes ? rate(row.flops / row.bytes, "FLOP/B") : null],
    ["reached", row.ms ? `${rate((row.flops * 1e-6) / row.ms, "GFLOP/s")}, ${rate((row.bytes * 1e-6) / row.ms, "GB/s")}` : null],
    ["chosen", record.choice],
    ["schedule", record.schedule && html`<code>${record.schedule}</code>`],
  ];
  return html`
    <h2 class="kernel-name">${row.kernel}</h2>
    <p class="bar"><a href=${link("kernel", [graph.id])}>all kernels</a> <a href=${link("graph", [graph.id], { op: row.ops[0].id })}>in the graph</a>
      <a href=${link("roofline", [graph.id], { kernel: row.kernel })}>in the roofline</a></p>
    <div class="three">
      <section aria-labelledby="lines"><h3 id="lines">Lines of the model</h3><${Lines} row=${row} graph=${graph} /></section>
      <section aria-labelledby="spec"><h3 id="spec">What was made of them</h3>
        <dl>${facts.filter(([, v]) => v).map(([n, v]) => html`<div><dt>${n}</dt><dd>${v}</dd></div>`)}</dl>
        <${Alternatives} record=${record} /></section>
      <section aria-labelledby="text"><h3 id="text">C++</h3>
        ${text == null ? html`<p role="status">${why || "Reading …"}</p>` : html`<${Code} text=${text} />`}</section>
    </div>`;
}

function Lines({ row, graph }) {
  const seen = new Map();
  for (const op of row.ops) {
    for (const o of op.origins) {
      const key = `${o.file}:${o.line}:${o.code ?? ""}`;
      if (!seen.has(key)) seen.set(key, { ...o, modules: new Set(), op });
      if (o.module) seen.get(key).modules.add(o.module);
    }
  }
  if (!seen.size) return html`<p>none known</p>`;
  return html`<ul class="origins">${[...seen.values()].slice(0, 40).map(
    (o) => html`
    <li><a href=${link("graph", [graph.id], { op: o.op.id })} title=${o.file}>${lineText(o) || "model"}</a>${" "}
      <span class="facts">${shortened([...o.modules].slice(0, 3).join(", "), 60)}${o.modules.size > 3 ? ` and ${o.modules.size - 3} more` : ""}</span>
      ${o.code && html`<code>${o.code}</code>`}</li>`,
  )}</ul>`;
}

function Alternatives({ record }) {
  const rows = record.alternatives ?? [];
  if (!rows.length) return html`<p class="facts">No alternatives were measured; <code>dcir tune</code> measures them.</p>`;
  const best = Math.min(...rows.map((a) => a.ms ?? Infinity));
  const columns = [
    { title: "way", cell: (a) => html`${a.choice === record.choice ? html`<b>→ ${a.choice}</b>` : a.choice}` },
    { title: "time", numeric: true, cell: (a) => ms(a.ms) },
    { title: "of the best", numeric: true, cell: (a) => ratio(a.ms / best) },
  ];
  return html`<${Table} caption="Alternatives that were measured; → is the one that runs" columns=${columns} rows=${rows} />`;
}

function Code({ text }) {
  const lines = useMemo(() => linesOfCode(text), [text]);
  const row = (n) =>
    html`<div key=${n} class="codeline"><span class="no"
      aria-hidden="true">${n + 1}</span><code>${lines[n].map(([piece, kind]) => (kind ? html`<span class=${`t-${kind}`}>${piece}</span>` : piece))}</code></div>`;
  return html`<div class="bar"><span class="facts">${count(lines.length)} lines</span><${Copy} text=${text} title="copy" /></div>
    <${Window} rows=${lines.length} height=${20} row=${row} className="code" role="region" label="text of the kernel" />`;
}
