/** A difference of two snapshots, drawn: signs, operators, and the words that changed. */
import { bytes, count, plural } from "./format.js";
import { difference, words } from "./difference.js";
import { html, useMemo } from "./lib.js";
import { Window } from "./parts.js";

const CLASSES = { "+": "added", "−": "removed", "~": "changed", " ": "", "…": "left" };
const ROW = 26;

const textOf = (op) => `${op.what}${op.place ? `   ${op.place}` : ""}`;

export function DifferenceView({ graph, before, after }) {
  const { lines, counts, moved } = useMemo(() => difference(graph, before, after), [graph, before, after]);
  const said = [
    counts["+"] && `+ ${plural(counts["+"], "new operator")}`, counts["−"] && `− ${count(counts["−"])} removed`, counts["~"] && `~ ${count(counts["~"])} changed`,
    moved && `${count(moved)} in another place of the order`,
  ].filter(Boolean).join(", ");
  if (!lines.length) return html`<p>${said ? `${said}; the operators are the same.` : "The network is the same."}</p>`;
  const row = (n) => {
    const { sign, op, was, left } = lines[n];
    if (sign === "…") return html`<div key=${n} class="row left"><span class="no">…</span> <span>${plural(left, "operator")} left out, the same in both</span></div>`;
    return html`<div key=${n} class=${`row ${CLASSES[sign]}`} title=${op.what}>
      <span class="no"><b>${sign}</b></span>
      <span class="what mono">${was ? words(textOf(was), textOf(op)).map(([text, s]) => (s === "+" ? html`<ins>${text}</ins>` : s === "−" ? html`<del>${text}</del>` : text)) : textOf(op)}</span>
      <span class="module">${op.madeBy}</span><span class="number">${bytes(op.bytes)}</span></div>`;
  };
  return html`<p>${said}</p>
    <${Window} rows=${lines.length} height=${ROW} row=${row} className="difference" role="region" label="operators that differ" />`;
}
