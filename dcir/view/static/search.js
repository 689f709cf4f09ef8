/** Search over operators: what they do, module, file:line, shapes, kernel; all words have to be found. */
import { lineText, shapeText } from "./session.js";

/** The text of each operator of a graph, in small letters. */
export function indexOf(graph) {
  return graph.rows.map((op) => {
    const shapes = [...op.reads, ...op.writes].map((name) => `${shapeText(graph.values.get(name))} ${graph.values.get(name)?.name ?? ""}`);
    const imported = op.imported.map((p) => `${p.label} ${p.operator ?? ""} ${p.module ?? ""}`);
    const places = op.origins.map((o) => `${o.module ?? ""} ${lineText(o)} ${o.file ?? ""}:${o.line ?? ""} ${o.code ?? ""}`);
    return [op.label, op.kind, op.what, op.kernel ?? "", op.madeBy, op.module, ...imported, ...places, ...shapes].join(" ").toLowerCase();
  });
}

/** Rows that have all words of a query; none for an empty one. */
export function found(index, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const rows = [];
  index.forEach((text, n) => {
    if (words.every((word) => text.includes(word))) rows.push(n);
  });
  return rows;
}
