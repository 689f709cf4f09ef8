/** Variants as a tree, and their deltas: what differs from the session, as data and as words. */

export const NOTHING = { disable: [], fields: {}, skip: [], level: null, threads: null, batch: null };

/** A delta with all its keys. */
export const whole = (delta) => ({
  ...NOTHING,
  ...delta,
  disable: [...(delta?.disable ?? [])],
  fields: { ...(delta?.fields ?? {}) },
  skip: [...(delta?.skip ?? [])],
});

/** Whether two deltas say the same. */
export function equal(one, two) {
  const text = (d) => {
    const { disable, fields, skip, level, threads, batch } = whole(d);
    const options = Object.entries(fields)
      .filter(([, f]) => Object.keys(f).length)
      .sort()
      .map(([pass, f]) => [pass, Object.entries(f).sort()]);
    return JSON.stringify([disable.sort(), options, skip.sort(), level, threads, batch]);
  };
  return text(one) === text(two);
}

/** What a delta does, in words. */
export function deltaText(delta) {
  const { disable, fields, skip, level, threads, batch } = whole(delta);
  const parts = [
    ...disable.map((name) => `without ${name}`),
    ...Object.entries(fields).flatMap(([pass, f]) =>
      Object.entries(f).map(([field, value]) => `${pass}.${field} = ${JSON.stringify(value)}`),
    ),
    skip.length && `${skip.length} place${skip.length === 1 ? "" : "s"} off`,
    level != null && `level ${level}`,
    threads != null && `${threads} thread${threads === 1 ? "" : "s"}`,
    batch != null && `batch ${batch}`,
  ].filter(Boolean);
  return parts.join(", ") || "as the session is";
}

/** Variants in the order of their tree, each with its depth. */
export function inTree(variants) {
  const children = new Map();
  for (const v of variants) {
    const key = v.parent ?? null;
    children.set(key, [...(children.get(key) ?? []), v]);
  }
  const rows = [];
  const seen = new Set();
  const walk = (id, depth) => {
    for (const v of children.get(id) ?? []) {
      if (seen.has(v.id)) continue; // a record that goes round in a circle ends here
      seen.add(v.id);
      rows.push({ ...v, depth });
      walk(v.id, depth + 1);
    }
  };
  walk(null, 0);
  for (const v of variants) if (!seen.has(v.id)) rows.push({ ...v, depth: 0 });
  return rows;
}

/** A text as the kind of value that it replaces; undefined where it is none. */
export function valueLike(text, old) {
  if (typeof old === "boolean") return text === true || text === "true";
  if (typeof old === "number") {
    const x = Number(text);
    return text === "" || !Number.isFinite(x) || (Number.isInteger(old) && !Number.isInteger(x)) ? undefined : x;
  }
  return String(text);
}
