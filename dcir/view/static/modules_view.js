/** The tree of modules, drawn: boxes that open and close, with their figures. */
import { MARKS, plural, shortened } from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { laid } from "./module_layout.js";
import { MOST_BOXES, visible } from "./module_tree.js";
import { METRICS, Choice } from "./parts.js";
import { sum } from "./session.js";

/** A metric of several operators: sums, and for the distance the quotient of sums. */
function figureOf(ops, metric) {
  if (metric !== "distance") return ops.some((op) => METRICS[metric].of(op) != null) ? sum(ops, METRICS[metric].of) : null;
  const [time, floor] = [sum(ops, (op) => op.ms), sum(ops, (op) => op.floor)];
  return time && floor ? time / floor : null;
}

/** Whether boxes alone are drawn (no children inside). */
const opens = (box) => box.kind === "module" || box.kind === "run";

export function Modules({ graph, root, metric, chosen, onChoose, opened, setOpened }) {
  const drawn = useMemo(() => laid(visible(graph, root, opened)), [graph, root, opened]);
  const [zoom, setZoom] = useState("fit");
  const most = figureOf(graph.rows, metric) ?? 0;
  const toggle = (box) => {
    if (box.kind === "rest") return;
    if (box.kind === "op") {
      onChoose(box.ops[0].id);
      return;
    }
    const next = new Set(opened);
    if (!next.delete(box.key)) next.add(box.key);
    setOpened(next);
  };
  const width = Math.ceil(drawn.width);
  const height = Math.ceil(drawn.height);
  const all = () => {
    const keys = new Set();
    const walk = (box) =>
      box.children.forEach((child) => {
        if (child.kind === "module") {
          keys.add(child.key);
          walk(child);
        }
      });
    walk(root);
    setOpened(keys);
  };
  return html`
    <div class="bar">
      <button type="button" onClick=${all}>open all (to ${MOST_BOXES} boxes)</button>
      <button type="button" onClick=${() => setOpened(new Set())}>close all</button>
      <${Choice} label="size" options=${[
        ["fit", "fit the width"],
        ["full", "full size"],
      ]} value=${zoom} onChange=${setZoom} />
    </div>
    <div class="modules" role="region" aria-label=${`modules of ${graph.title}`} tabindex="0">
      <svg class=${zoom === "fit" ? "fit" : ""} width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="group"
        aria-label=${`modules of ${graph.title}`}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path class="arrow" d="M0 0L8 4L0 8z" /></marker></defs>
        <${Box} node=${drawn} metric=${metric} most=${most} toggle=${toggle} chosen=${chosen} top=${true} />
      </svg>
    </div>`;
}

function Box({ node, metric, most, toggle, chosen, top = false }) {
  const { box } = node;
  const figure = figureOf(box.ops, metric);
  const level = METRICS[metric].level(figure, most);
  const text = METRICS[metric].text(figure);
  const here = chosen != null && box.ops.some((op) => op.id === chosen);
  const size = plural(box.ops.length, "operator");
  const verb = box.kind === "op" ? "show" : node.open ? "close" : box.kind === "run" ? "unfold" : "open";
  const below = `${text}${box.kind === "op" ? "" : ` · ${size}`}`;
  const seen = node.open ? shortened(box.title, 34) : `${shortened(box.title, 34)} ${below}`;
  const pressed = (e) => {
    if (e.key !== "Enter" && e.key !== " ") return;
    e.preventDefault();
    e.stopPropagation();
    toggle(box);
  };
  const can = !top && box.kind !== "rest";
  const words = box.kind === "op" ? box.ops[0].what : `${box.key.replace(/^run:/, "") || "model"} (${box.title}), ${size}`;
  const control = can
    ? {
        role: "button",
        tabindex: "0",
        onKeyDown: pressed,
        onClick: () => toggle(box),
        "aria-expanded": opens(box) ? String(node.open) : null,
      }
    : { role: "img" };
  return html`
    <g transform=${top ? null : `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)})`}>
      <g class=${`box ${box.kind} ${node.open ? "open" : `heat${level}`} ${here ? "chosen" : ""}`} ...${control}
        aria-label=${can ? `${seen}: ${verb} ${words}, ${METRICS[metric].title} ${text}` : words}>
        <title>${words}</title>
        <rect width=${node.width} height=${node.height} rx="5" />
        <text x="10" y="18"><tspan aria-hidden="true">${node.open && !top ? "▾ " : opens(box) && !top ? "▸ " : ""}</tspan>${shortened(top ? graphTitle(box) : box.title, 34)}${node.left ? ` (${plural(node.left, "far read")} not drawn)` : ""}</text>
        ${!node.open && html`<text x="10" y="36" class="small"><tspan aria-hidden="true">${MARKS[level]} </tspan>${below}</text>`}
      </g>
      ${
        node.open &&
        html`
        ${node.paths.map((d) => html`<path class="edge" d=${d} marker-end="url(#arrow)" />`)}
        ${node.children.map((child) => html`<${Box} key=${child.box.key} node=${child}
          metric=${metric} most=${most} toggle=${toggle} chosen=${chosen} />`)}`
      }
    </g>`;
}

const graphTitle = (box) => `${box.title}: ${plural(box.ops.length, "operator")}`;
