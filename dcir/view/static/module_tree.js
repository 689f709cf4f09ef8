/** The tree of modules of a graph as boxes: what is visible, repeated blocks as one box, and edges between neighbours. */

/** Boxes that are drawn at most. */
export const MOST_BOXES = 150;
const LEAST_FOLDED = 3;

function newBox(key, title, kind) {
  return { key, title, kind, ops: [], children: new Map() };
}

/** The tree: modules by their path, operators as leaves. */
export function treeOf(graph) {
  const root = newBox("", graph.kind, "module");
  for (const op of graph.rows) {
    let box = root;
    box.ops.push(op);
    for (const part of op.module ? op.module.split(".") : []) {
      const key = box.key ? `${box.key}.${part}` : part;
      if (!box.children.has(part)) box.children.set(part, newBox(key, part, "module"));
      box = box.children.get(part);
      box.ops.push(op);
    }
    const leaf = newBox(`op:${op.id}`, op.what, "op");
    leaf.ops.push(op);
    box.children.set(leaf.key, leaf);
  }
  return root;
}

/** What makes two blocks equal: their operators by kernel (or words), in the same inner modules. */
function signature(box) {
  const inner = (op) => (op.module.startsWith(box.key) ? op.module.slice(box.key.length) : op.module);
  return box.ops.map((op) => `${inner(op)} ${op.kernel ?? op.what}`).join("\n");
}

/** Children of a box; runs of equal numbered modules as one, unless that is opened. */
export function childrenOf(box, opened) {
  const all = [...box.children.values()];
  const found = [];
  for (let n = 0; n < all.length;) {
    let end = n + 1;
    if (all[n].kind === "module" && /^\d+$/.test(all[n].title)) {
      const wanted = signature(all[n]);
      while (
        end < all.length &&
        /^\d+$/.test(all[end].title) &&
        all[end].ops.length === all[n].ops.length &&
        signature(all[end]) === wanted
      )
        end += 1;
    }
    const key = `run:${all[n].key}`;
    if (end - n >= LEAST_FOLDED && !opened.has(key)) {
      const run = newBox(key, `${all[n].title} to ${all[end - 1].title}: ${end - n} × alike`, "run");
      for (const one of all.slice(n, end)) run.ops.push(...one.ops);
      found.push(run);
    } else {
      found.push(...all.slice(n, end));
    }
    n = end;
  }
  return found;
}

/**
 * Visible boxes as a nested structure: {box, open, children, edges}, of which `edges` joins children by their places in the list.
 * Boxes beyond MOST_BOXES become one that says how many they are.
 */
export function visible(graph, root, opened) {
  const budget = { left: MOST_BOXES };
  const build = (box) => {
    const open = box.kind === "module" && (box === root || opened.has(box.key));
    const node = { box, open, children: [], edges: [], hidden: 0 };
    if (!open) return node;
    const all = childrenOf(box, opened);
    const kept = keptOf(all, opened, budget);
    node.children = kept.map(build);
    if (kept.length < all.length) {
      node.hidden = all.length - kept.length;
      const rest = newBox(`rest:${box.key}`, `${node.hidden} more`, "rest");
      for (const one of all) if (!kept.includes(one)) rest.ops.push(...one.ops);
      node.children.push({ box: rest, open: false, children: [], edges: [], hidden: 0 });
    }
    node.edges = edgesOf(graph, node.children);
    return node;
  };
  return build(root);
}

/** The children that are drawn: those that are open, and the first of the others; half of what is left is for what is in open ones. */
function keptOf(all, opened, budget) {
  const open = all.filter((box) => opened.has(box.key));
  const room = Math.min(all.length, Math.max(0, open.length ? Math.ceil(budget.left / 2) : budget.left));
  const first = new Set(open.slice(0, room));
  for (const box of all) if (first.size < room) first.add(box);
  budget.left -= first.size;
  return all.filter((box) => first.has(box));
}

/** Who reads what of whom, between boxes next to each other: [from, to, bytes]. */
function edgesOf(graph, children) {
  const owner = new Map();
  children.forEach((node, n) => node.box.ops.forEach((op) => owner.set(op.id, n)));
  const found = new Map();
  const written = new Map();
  for (const node of children) for (const op of node.box.ops) for (const name of op.writes) written.set(name, owner.get(op.id));
  for (const node of children) {
    for (const op of node.box.ops) {
      for (const name of op.reads) {
        const from = written.get(name);
        const to = owner.get(op.id);
        if (from === undefined || from === to) continue;
        const key = `${from} ${to}`;
        if (!found.has(key)) found.set(key, { from, to, names: new Set() });
        found.get(key).names.add(name);
      }
    }
  }
  return [...found.values()].map(({ from, to, names }) => [
    from,
    to,
    [...names].reduce((t, name) => t + (graph.values.get(name)?.bytes ?? 0), 0),
  ]);
}

/** The boxes that have to be open for an operator to be seen. */
export function pathTo(root, op) {
  const keys = [];
  let box = root;
  for (const part of op.module ? op.module.split(".") : []) {
    const folded = childrenOf(box, new Set()).find((c) => c.kind === "run" && c.ops.includes(op));
    if (folded) keys.push(folded.key);
    box = box.children.get(part);
    if (!box) break;
    keys.push(box.key);
  }
  return keys;
}

/** What is open at first: modules that hold nothing but one other. */
export function openAtFirst(root) {
  const keys = new Set();
  let box = root;
  while (box.children.size === 1) {
    [box] = box.children.values();
    if (box.kind !== "module") break;
    keys.add(box.key);
  }
  return keys;
}
