/** A difference of two snapshots, drawn: signs, operators, and the words that changed. */
import { bytes, count, plural } from "./format.js";
import { difference, words } from "./difference.js";
import { Lanes } from "./lanes_view.js";
import { html, useMemo } from "./lib.js";
import { Window } from "./parts.js";
import { link } from "./route.js";

const CLASSES = { "+": "added", "−": "removed", "~": "changed", " ": "", "…": "left" };
const ROW = 26;

const textOf = (op) => `${op.what}${op.place ? `   ${op.place}` : ""}`;

export function DifferenceView({ graph, before, after }) {
  const { lines, counts, moved } = useMemo(() => difference(graph, before, after), [graph, before, after]);
  const said = [
    counts["+"] && `+ ${plural(counts["+"], "new operator")}`,
    counts["−"] && `− ${count(counts["−"])} removed`,
    counts["~"] && `~ ${count(counts["~"])} changed`,
    moved && `${count(moved)} in another place of the order`,
  ]
    .filter(Boolean)
    .join(", ");
  if (!lines.length) return html`<p>${said ? `${said}; the operators are the same.` : "The network is the same."}</p>`;
  const row = (n) => {
    const { sign, op, was, left } = lines[n];
    if (sign === "…")
      return html`<div key=${n} class="row left"><span class="no">…</span> <span>${plural(left, "operator")} left out, the same in both</span></div>`;
    return html`<div key=${n} class=${`row ${CLASSES[sign]}`} title=${op.what}>
      <span class="no"><b>${sign}</b></span>
      <span class="what mono">${was ? words(textOf(was), textOf(op)).map(([text, s]) => (s === "+" ? html`<ins>${text}</ins>` : s === "−" ? html`<del>${text}</del>` : text)) : textOf(op)}</span>
      <span class="module">${op.madeBy}</span><span class="number">${bytes(op.bytes)}</span></div>`;
  };
  return html`<p>${said}</p>
    <${Window} rows=${lines.length} height=${ROW} row=${row} className="difference" role="region" label="operators that differ" />`;
}

const NAMES = { "+": "added", "~": "changed", "−": "removed" };

/** The later network as lanes, in which new and changed rows are marked, and the earlier one beside it, in which removed ones are. */
export function Marked({ graph, before, after }) {
  const [left, right] = useMemo(() => {
    const { lines } = difference(graph, before.order, after.order);
    const marks = (signs) => new Map(lines.filter((l) => signs.includes(l.sign)).map((l) => [l.op.id, NAMES[l.sign]]));
    const older = marks(["−"]);
    for (const l of lines) if (l.was) older.set(l.was.id, "changed");
    return [older, marks(["+", "~"])];
  }, [graph, before, after]);
  const rows = (s) => s.order.map((id) => graph.ops.get(id)).filter(Boolean);
  const [one, two] = useMemo(() => [rows(before), rows(after)], [before, after]);
  const choose = (id) => {
    location.hash = link("graph", [graph.id], { op: id });
  };
  const pane = (title, list, snapshot, marks, side) => html`<div class="pane"><h3>${title}</h3>
    <${Lanes} graph=${graph} rows=${list} columns=${snapshot.lanes} metric="bytes" marks=${marks} onChoose=${choose} side=${side}
      label=${`${title}: ${plural(list.length, "operator")}`} /></div>`;
  return html`<div class="panes">${pane("before", one, before, left, "before")}${pane("after", two, after, right, "after")}</div>`;
}
