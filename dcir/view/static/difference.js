/** What a pass changed: operators of two snapshots, line by line, with what is the same left out. */

const CONTEXT = 2;
/** Above this many differences Myers' algorithm takes long; sets of versions say the same without the order. */
const MOST_EDITS = 3000;

/**
 * Lines {sign, op, was}: "+" new, "−" removed, "~" another version of one with the same label, " " the same, "…" with the number left out.
 * Versions do not change, so equal ids are equal operators. What a new operator was made of stands right above it.
 */
export function difference(graph, before, after) {
  const [old, now] = [new Set(before), new Set(after)];
  const removed = new Set(before.filter((id) => !now.has(id)));
  const byLabel = new Map([...removed].map((id) => [graph.ops.get(id)?.label ?? id, id]));
  const renewed = new Map(); // of a changed operator: the version that it had
  const parts = new Map(); // of a new operator: those that it was made of
  const claimed = new Set();
  for (const id of after) {
    if (old.has(id)) continue;
    const was = byLabel.get(graph.ops.get(id)?.label ?? id);
    if (was === undefined) continue;
    renewed.set(id, was);
    claimed.add(was);
  }
  for (const id of after) {
    if (old.has(id)) continue;
    parts.set(
      id,
      sources(graph, id, old).filter((part) => removed.has(part) && !claimed.has(part)),
    );
    for (const part of parts.get(id)) claimed.add(part);
  }
  const lines = [];
  const add = (sign, id, was) => {
    const op = graph.ops.get(id);
    if (op) lines.push(was === undefined ? { sign, op } : { sign, op, was: graph.ops.get(was) });
  };
  for (const [sign, id] of edits(before, after, old, now)) {
    if (sign === "−" && claimed.has(id)) continue;
    if (sign !== "+") {
      add(sign, id);
      continue;
    }
    for (const part of parts.get(id)) add("−", part);
    add(renewed.has(id) ? "~" : "+", id, renewed.get(id));
  }
  return { lines: shortened(lines), counts: countsOf(lines), moved: movedOf(before, after, old, now) };
}

/** Of an operator the versions in an earlier network that it was made of, through those in between. */
function sources(graph, id, old) {
  const found = new Set();
  const seen = new Set();
  const walk = (at) => {
    if (seen.has(at)) return;
    seen.add(at);
    for (const part of graph.ops.get(at)?.before ?? []) {
      if (old.has(part)) found.add(part);
      else walk(part);
    }
  };
  walk(id);
  return [...found];
}

/** [sign, id] in order. */
function edits(before, after, old, now) {
  const parts = globalThis.Diff?.diffArrays(before, after, { maxEditLength: MOST_EDITS });
  if (parts)
    return unmoved(
      parts.flatMap((p) => p.value.map((id) => [p.added ? "+" : p.removed ? "−" : " ", id])),
      old,
      now,
    );
  return [...before.filter((id) => !now.has(id)).map((id) => ["−", id]), ...after.map((id) => [old.has(id) ? " " : "+", id])];
}

/** What is in both and only stands elsewhere is no difference but an order; it stays where it is now. */
function unmoved(signed, old, now) {
  return signed.filter(([sign, id]) => !(sign === "−" && now.has(id))).map(([sign, id]) => [sign === "+" && old.has(id) ? " " : sign, id]);
}

/** How many operators that both have run in another order. */
function movedOf(before, after, old, now) {
  const [left, right] = [before.filter((id) => now.has(id)), after.filter((id) => old.has(id))];
  return left.reduce((n, id, k) => n + (id !== right[k]), 0);
}

function countsOf(lines) {
  const counts = { "+": 0, "−": 0, "~": 0 };
  for (const { sign } of lines) if (sign in counts) counts[sign] += 1;
  return counts;
}

function shortened(lines) {
  const keep = new Set();
  lines.forEach(({ sign }, n) => {
    if (sign === " ") return;
    for (let k = n - CONTEXT; k <= n + CONTEXT; k += 1) keep.add(k);
  });
  const found = [];
  let left = 0;
  lines.forEach((line, n) => {
    if (keep.has(n)) {
      if (left) found.push({ sign: "…", left });
      left = 0;
      found.push(line);
    } else left += 1;
  });
  if (left && found.length) found.push({ sign: "…", left });
  return found;
}

/** Words of two texts: [text, "+" | "−" | " "]. */
export function words(before, after) {
  return globalThis.Diff.diffWordsWithSpace(before, after).map((p) => [p.value, p.added ? "+" : p.removed ? "−" : " "]);
}
