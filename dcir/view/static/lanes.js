/** Lanes: operators as rows in execution order, and columns as in `git log --graph`; O(operators + reads). */

/** Reads of what was written more rows ago than this are stubs. */
export const NEAR = 12;

/**
 * Where each row stands and what it joins.
 *
 * rows: operators in order, with `reads` and `writes`.
 * Gives lane (column of each row), until (last row whose line comes from it), ins (near rows read), far (rows read that are not near),
 * out (far rows that read it), and the number of columns.
 */
export function lanesOf(rows) {
  const writer = new Map();
  const ins = rows.map(() => []);
  const far = rows.map(() => []);
  const out = rows.map(() => []);
  const until = rows.map((_, n) => n);
  rows.forEach((op, n) => {
    const from = new Set();
    for (const name of op.reads) if (writer.has(name)) from.add(writer.get(name));
    for (const m of from) {
      if (n - m <= NEAR) {
        ins[n].push(m);
        until[m] = n;
      } else {
        far[n].push(m);
        out[m].push(n);
      }
    }
    for (const name of op.writes) writer.set(name, n);
  });
  const lane = [];
  const busy = []; // of each column the last row that it is drawn to
  rows.forEach((_, n) => {
    // The line that ends here goes on as this one, so that a chain is straight.
    const ending = ins[n].filter((m) => until[m] === n).map((m) => lane[m]);
    let column = ending.length ? Math.min(...ending) : busy.findIndex((last) => last < n);
    if (column < 0) column = busy.length;
    lane.push(column);
    busy[column] = until[n];
  });
  return { lane, until, ins, far, out, columns: busy.length };
}

/** The lines of some rows as one path; `x` and `y` say where a column and a row are. */
export function linesOf(lanes, first, last, x, y) {
  const parts = [];
  for (let n = first; n < Math.min(last + NEAR, lanes.lane.length); n += 1) {
    for (const m of lanes.ins[n]) {
      if (n < first || m >= last) continue;
      const [x0, y0, x1, y1] = [x(lanes.lane[m]), y(m), x(lanes.lane[n]), y(n)];
      if (x0 === x1) parts.push(`M${x0} ${y0}V${y1}`);
      else parts.push(`M${x0} ${y0}V${y(n - 1) + 0}C${x0} ${y1} ${x1} ${y(n - 1)} ${x1} ${y1}`);
    }
  }
  return parts.join("");
}
