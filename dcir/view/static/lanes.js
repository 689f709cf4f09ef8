/** Lanes: operators as rows in execution order, and columns, which the record has, as in `git log --graph`; what joins rows. */

/** Reads of what was written more rows ago than this are stubs; the columns (dcir/report/session_lanes.py) are made for that. */
export const NEAR = 40;

/**
 * What each row joins.
 *
 * rows: operators in order, with `reads` and `writes`; lane: the column of each.
 * Gives ins (near rows read), far (rows read that are not near), out (far rows that read it), and the number of columns.
 */
export function lanesOf(rows, lane = []) {
  const writer = new Map();
  const ins = rows.map(() => []);
  const far = rows.map(() => []);
  const out = rows.map(() => []);
  rows.forEach((op, n) => {
    const from = new Set();
    for (const name of op.reads) if (writer.has(name)) from.add(writer.get(name));
    for (const m of from) {
      if (n - m <= NEAR) ins[n].push(m);
      else {
        far[n].push(m);
        out[m].push(n);
      }
    }
    for (const name of op.writes) writer.set(name, n);
  });
  const columns = rows.map((_, n) => lane[n] ?? 0);
  return { lane: columns, ins, far, out, columns: columns.reduce((most, c) => Math.max(most, c + 1), 0) };
}

/** The lines that are seen in some rows, as one path; `x` and `y` say where a column and a row are. */
export function linesOf(lanes, first, last, x, y) {
  const parts = [];
  for (let n = first; n < Math.min(last + NEAR, lanes.lane.length); n += 1) {
    for (const m of lanes.ins[n]) {
      if (m >= last) continue;
      const [x0, y0, x1, y1] = [x(lanes.lane[m]), y(m), x(lanes.lane[n]), y(n)];
      if (x0 === x1) parts.push(`M${x0} ${y0}V${y1}`);
      else parts.push(`M${x0} ${y0}V${y(n - 1)}C${x0} ${y1} ${x1} ${y(n - 1)} ${x1} ${y1}`);
    }
  }
  return parts.join("");
}
