/** Remarks of passes, filtered by kind, pass and words: what was rewritten, what was not and why, what was found out. */
import { bytes, flops, ms, plural, shortened, count } from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { Choice, Table } from "./parts.js";
import { link } from "./route.js";
import { REMARK_SIGNS } from "./side.js";

const FIGURES = { bytes, bytes_saved: bytes, flops, ms };

const named = (o) => (typeof o === "string" ? { label: o, what: "", origin: "" } : o);

function figuresOf(remark) {
  return Object.entries(remark.args ?? {})
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? (FIGURES[name] ?? count)(value) : value}`)
    .join(", ");
}

const textOf = (r) =>
  [r.kind, r.pass, r.reason, r.site, ...[...(r.ops ?? []), ...(r.made ?? [])].map(named).flatMap((o) => [o.label, o.what, o.origin])]
    .join(" ")
    .toLowerCase();

export function RemarkTable({ session, graph, pass, query, to }) {
  const [kind, setKind] = useState("all");
  const [text, setText] = useState("");
  const texts = useMemo(() => graph.remarks.map(textOf), [graph]);
  // A pass that stands in the pipeline twice is two runs; which one is meant, an address may leave open.
  const of = (r) => !pass || (r.pass === pass.name && (query.run == null || r.index === pass.index));
  const asked = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = graph.remarks.filter((r, n) => of(r) && (kind === "all" || r.kind === kind) && asked.every((w) => texts[n].includes(w)));
  const labels = useMemo(() => new Map(graph.rows.map((op) => [op.label, op])), [graph]);
  const Operators = ({ ops }) =>
    html`${(ops ?? [])
      .slice(0, 4)
      .map(named)
      .map((o, n) => {
        const op = labels.get(o.label) ?? graph.ops.get(o.label);
        const here = op && graph.position.has(op.id);
        return html`${n > 0 && ", "}${here ? html`<a href=${link("graph", [graph.id], { op: op.id })}>${o.label}</a>` : html`<b>${o.label}</b>`} ${o.what ? shortened(o.what, 60) : (op?.what ?? "")}${o.origin ? html` <span class="facts">${o.origin}</span>` : ""}`;
      })}${(ops ?? []).length > 4 && ` and ${ops.length - 4} more`}`;
  const columns = [
    { title: "what", cell: (r) => html`<b class=${`sign ${r.kind}`}>${REMARK_SIGNS[r.kind] ?? "?"} ${r.kind}</b>` },
    { title: "pass", cell: (r) => r.pass },
    { title: "operators", wide: true, cell: (r) => html`<${Operators} ops=${r.ops} />` },
    {
      title: "why, or what it became",
      wide: true,
      cell: (r) =>
        html`${r.reason}${r.reason && r.made?.length ? "; " : ""}${r.made?.length > 0 && html`<${Operators} ops=${r.made} />`}${r.count > 1 && html` <span class="badge">${r.count} times</span>`}`,
    },
    { title: "figures", cell: figuresOf },
    {
      title: "name of the place",
      wide: true,
      hint: "what to give as skip= to switch it off",
      cell: (r) =>
        r.site
          ? html`<code>${shortened(r.site, 90)}</code>${r.kind === "passed" && session.live.predict && html` <a href=${link("whatif", [], { skip: r.site })}>what if not?</a>`}`
          : "",
    },
  ];
  const kinds = [
    ["all", "all"],
    ...["passed", "missed", "analysis"].map((k) => [
      k,
      `${REMARK_SIGNS[k]} ${k} (${graph.remarks.filter((r) => r.kind === k && of(r)).length})`,
    ]),
  ];
  return html`
    <section aria-labelledby="remarks"><h2 id="remarks">Remarks${pass ? ` of ${pass.name}` : ""}</h2>
      ${
        graph.remarks.length === 0
          ? html`<p>None were recorded.</p>`
          : html`
      <div class="bar"><${Choice} label="show" options=${kinds} value=${kind} onChange=${setKind} />
        <label class="choice"><span class="label">words</span><input type="search" value=${text} placeholder="operator, module, reason"
          onInput=${(e) => setText(e.target.value)} /></label>
        ${pass && html`<button type="button" onClick=${() => to({ pass: null, run: null, from: null, until: null })}>of all passes</button>`}</div>
      <${Table} caption=${plural(rows.length, "remark")} columns=${columns} rows=${rows} piece=${20} />`
      }
    </section>`;
}
