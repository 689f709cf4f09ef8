/** Places for boxes: dagre for each opened box by itself, rows where it has too many edges for that. */

const CHAR = 7.2;
const HEAD = 26;
const GAP = 12;
/** Dagre puts a point on every rank that an edge passes; beyond this many it takes longer than a person waits. */
const MOST_POINTS = 260;
/** Then edges over more boxes than this are left out, and how many is said. */
const LONG = 6;
const MOST_EDGES = 400;

function sizeOf(node) {
  const letters = Math.max(Math.min(node.box.title.length + 2, 34), 21); // the second line has a figure and a number of operators
  return [Math.round(letters * CHAR + 20), 46];
}

/** Sets x, y (of a box inside of its parent), width and height of each node, `paths` of its edges, and `left`: how many are not drawn. */
export function laid(node) {
  if (!node.open) {
    [node.width, node.height] = sizeOf(node);
    return node;
  }
  node.children.forEach(laid);
  const points = node.edges.reduce((t, [from, to]) => t + Math.abs(to - from), 0);
  if (points > MOST_POINTS) {
    const near = node.edges.filter(([from, to]) => Math.abs(to - from) <= LONG);
    node.left = node.edges.length - near.length;
    node.edges = near;
  }
  if (node.edges.length > MOST_EDGES || !globalThis.dagre) inRows(node);
  else byDagre(node);
  return node;
}

function byDagre(node) {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 14, ranksep: 26, marginx: GAP, marginy: GAP });
  graph.setDefaultEdgeLabel(() => ({}));
  node.children.forEach((child, n) => graph.setNode(String(n), { width: child.width, height: child.height }));
  for (const [from, to] of node.edges) graph.setEdge(String(from), String(to));
  dagre.layout(graph);
  node.children.forEach((child, n) => {
    const at = graph.node(String(n));
    child.x = at.x - child.width / 2;
    child.y = at.y - child.height / 2 + HEAD;
  });
  node.paths = graph.edges().map(
    (e) =>
      `M${graph
        .edge(e)
        .points.map((p) => `${p.x.toFixed(1)} ${(p.y + HEAD).toFixed(1)}`)
        .join("L")}`,
  );
  closed(node);
}

function inRows(node) {
  const across = Math.max(1, Math.ceil(Math.sqrt(node.children.length / 2)));
  let [left, top, tall] = [GAP, HEAD + GAP, 0];
  node.children.forEach((child, n) => {
    if (n % across === 0 && n) [left, top, tall] = [GAP, top + tall + GAP, 0];
    [child.x, child.y] = [left, top];
    left += child.width + GAP;
    tall = Math.max(tall, child.height);
  });
  node.paths = [];
  closed(node);
}

/** The box around its children. */
function closed(node) {
  const right = Math.max(...node.children.map((c) => c.x + c.width), node.box.title.length * CHAR + 40, 230);
  node.width = right + GAP;
  node.height = Math.max(...node.children.map((c) => c.y + c.height), HEAD) + GAP;
}
