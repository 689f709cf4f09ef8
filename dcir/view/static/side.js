/** All that is known of one operator: what it does, operands, places in the model, history, remarks, and ways to its neighbours. */
import { bytes, flops, ms, ratio } from "./format.js";
import { html } from "./lib.js";
import { Mark, METRICS, TIERS } from "./parts.js";
import { link } from "./route.js";
import { lineText, shapeText, valueText } from "./session.js";

const MOST = 12;

/** Remarks that name an operator, by its label, its version, or one that it came from. */
export function remarksOf(graph, op) {
  const names = new Set([op.label, ...op.before.map((id) => graph.ops.get(id)?.label), ...op.imported.map((p) => p.label)]);
  const named = (o) => names.has(o.label);
  return graph.remarks.filter((r) => (r.ops ?? []).some(named) || (r.made ?? []).some(named));
}

export function Side({ graph, op, onChoose, onClose }) {
  const remarks = remarksOf(graph, op);
  const row = graph.position.get(op.id);
  const facts = [
    ["row", row == null ? "not in the network that runs" : `${row} of ${graph.rows.length}`],
    ["time", op.ms == null ? null : html`${ms(op.ms)}${op.floor ? ` (floor ${ms(op.floor)})` : ""}`],
    ["over floor", op.distance && html`<${Mark} level=${METRICS.distance.level(op.distance)} /> ${ratio(op.distance)}`],
    ["bound by", op.bound],
    ["operations", op.flops == null ? null : flops(op.flops)],
    ["bytes", op.bytes == null ? null : bytes(op.bytes)],
    [
      "made by",
      op.tier == null
        ? op.madeBy
        : html`<a href=${link("passes", [graph.id], { pass: op.madeBy })}>${op.madeBy}</a> (tier ${op.tier}: ${TIERS[op.tier] ?? ""})`,
    ],
    [
      "kernel",
      op.kernel && (graph.kernels.has(op.kernel) ? html`<a href=${link("kernel", [graph.id, op.kernel])}>${op.kernel}</a>` : op.kernel),
    ],
    ["schedule", op.schedule && html`<code>${op.schedule}</code>`],
    ["runs", op.torch ? "in torch: no kernel of dcir does this" : op.prepared ? "only when parameters change, not in every call" : null],
    ["bodies", op.bodies || null],
  ];
  return html`
    <aside class="side" aria-labelledby="side-title">
      <div class="bar"><h3 id="side-title">${op.label}</h3><button type="button" onClick=${onClose} aria-label="close this panel">✕</button></div>
      <p class="spec">${op.what}</p>
      <dl>${facts.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      <${Operands} title="reads" graph=${graph} op=${op} onChoose=${onChoose} />
      <${Operands} title="writes" graph=${graph} op=${op} onChoose=${onChoose} />
      <h4>Lines of the model (${op.origins.length})</h4>
      ${
        op.origins.length
          ? html`<ul class="origins">${op.origins.slice(0, MOST).map(
              (o) => html`
        <li><span>${o.module || "model"}</span> ${lineText(o) && html`<span class="line"
          title=${o.file}>${lineText(o)}</span>`}${o.code && html`<code>${o.code}</code>`}</li>`,
            )}
        ${op.origins.length > MOST && html`<li>and ${op.origins.length - MOST} more</li>`}</ul>`
          : html`<p>none known</p>`
      }
      ${
        op.imported.length > 0 &&
        html`<h4>Does the work of (${op.imported.length})</h4>
        <p class="names">${op.imported
          .slice(0, 3 * MOST)
          .map((p) => [p.label, p.operator && p.operator !== p.label && `(${p.operator})`].filter(Boolean).join(" "))
          .join(", ")}${op.imported.length > 3 * MOST ? " …" : ""}</p>`
      }
      ${
        op.before.length > 0 &&
        html`<h4>${op.madeBy} made it of</h4>
        <ul>${op.before.slice(0, MOST).map((id) => html`<li>${graph.ops.get(id)?.what ?? id} <span class="facts">${graph.ops.get(id)?.madeBy}</span></li>`)}</ul>`
      }
      <h4>Remarks (${remarks.length})</h4>
      <ul class="remarks">${remarks.slice(0, MOST).map((r) => html`<${RemarkLine} remark=${r} graph=${graph} />`)}</ul>
    </aside>`;
}

export const REMARK_SIGNS = { passed: "✓", missed: "✗", analysis: "i" };

function RemarkLine({ remark, graph }) {
  return html`<li><b class=${`sign ${remark.kind}`}>${REMARK_SIGNS[remark.kind] ?? "?"} ${remark.kind}</b>${" "}
    <a href=${link("passes", [graph.id], { pass: remark.pass, run: remark.index })}>${remark.pass}</a> ${remark.reason}</li>`;
}

/** Operands with shapes and places in memory, and buttons to who writes or reads them. */
function Operands({ title, graph, op, onChoose }) {
  const rows = title === "reads" ? op.ins : op.outs;
  return html`
    <h4>${title === "reads" ? "Reads" : "Writes"} (${rows.length})</h4>
    <ul class="operands">
      ${rows.slice(0, MOST).map(({ name, offset, layout }) => {
        const value = graph.values.get(name);
        const near = ((title === "reads" ? graph.writers : graph.readers).get(name) ?? []).filter((other) => other !== op);
        const facts = [
          value?.role,
          value?.bytes != null && bytes(value.bytes),
          offset ? `from element ${offset}` : "",
          graph.saved.has(name) && "kept for the backward",
          value?.place && `${value.place.block} + ${bytes(value.place.offset)}`,
          value?.alias && `in the memory of ${value.alias}`,
        ];
        return html`<li><b>${valueText(graph, name)}</b> <code>${shapeText(layout ?? value)}</code> <span class="facts">${facts.filter(Boolean).join(", ")}</span>${" "}
          ${near.slice(0, 4).map(
            (other) => html`<button type="button" onClick=${() => onChoose(other.id)}
            title=${other.what}>${title === "reads" ? "written by" : "read by"} row ${graph.position.get(other.id)}</button>`,
          )}
          ${graph.handed.has(name) && html`<a href=${partnerLink(graph, name)}>kept by the forward</a>`}
          ${near.length > 4 && html`<span>and ${near.length - 4} more</span>`}</li>`;
      })}
      ${rows.length > MOST && html`<li>and ${rows.length - MOST} more</li>`}
    </ul>`;
}

/** Who wrote a value in the forward. */
function partnerLink(graph, name) {
  const { graph: forward, value } = graph.handed.get(name);
  return link("graph", [forward.id], { op: forward.writers.get(value)?.[0]?.id ?? forward.readers.get(value)?.[0]?.id });
}
