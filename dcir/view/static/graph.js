/** Graph: modules as boxes or operators as lanes, coloured by a figure, with search and what is known of the chosen operator. */
import { html, useEffect, useMemo, useState } from "./lib.js";
import { Lanes } from "./lanes_view.js";
import { openAtFirst, pathTo, treeOf } from "./module_tree.js";
import { Modules } from "./modules_view.js";
import { Choice, chosenGraph, GraphChoice, METRICS, Missing } from "./parts.js";
import { go, link } from "./route.js";
import { Search } from "./search_view.js";
import { Side } from "./side.js";

export function GraphPage({ session, route }) {
  const graph = chosenGraph(session, route);
  if (!graph) return html`<${Missing} what="There is no graph in this session." cure="Call the model once, then look again." />`;
  return html`<${Shown} key=${graph.id} session=${session} graph=${graph} route=${route} />`;
}

function Shown({ session, graph, route }) {
  const { query } = route;
  const view = query.view === "modules" ? "modules" : "lanes";
  const metric = METRICS[query.by] ? query.by : graph.measured ? "time" : "bytes";
  const [hits, setHits] = useState(new Set());
  const root = useMemo(() => treeOf(graph), [graph]);
  const [opened, setOpened] = useState(() => openAtFirst(root));
  const partner = useMemo(
    () => session.graphs.find((g) => g !== graph && g.together != null && g.together === graph.together),
    [session, graph],
  );
  const beside = query.beside === "1" && partner && view === "lanes" ? partner : null;
  const panes = [graph, beside].filter(Boolean);
  const owner = panes.find((g) => g.id === (query.of ?? graph.id)) ?? graph;
  const op = owner.ops.get(query.op) ?? null;
  const to = (change, replace = true) => go(link("graph", [graph.id], { ...query, ...change }), replace);
  const choose = (g) => (id) => to({ op: id, of: g === graph ? null : g.id });
  useEffect(() => {
    if (op && view === "modules") setOpened((old) => new Set([...old, ...pathTo(root, op)]));
  }, [op, view]);
  const colours = Object.entries(METRICS).map(([key, m]) => [key, m.title, key !== "bytes" && !graph.measured]);
  return html`
    <h2 class="unseen">Graph</h2>
    <div class="bar controls">
      <${GraphChoice} session=${session} graph=${graph} page="graph" query=${{ view: query.view, by: query.by }} />
      <${Choice} label="show" options=${[
        ["lanes", "operators"],
        ["modules", "modules"],
      ]} value=${view} onChange=${(v) => to({ view: v })} />
      <${Choice} label="colour and mark by" options=${colours} value=${metric} onChange=${(by) => to({ by })} />
      ${
        partner &&
        view === "lanes" &&
        html`<${Choice} label="beside it" options=${[
          ["0", "nothing"],
          ["1", partner.kind],
        ]} value=${beside ? "1" : "0"}
        onChange=${(v) => to({ beside: v === "1" ? "1" : null, op: null, of: null })} />`
      }
      <${Search} graph=${graph} onHits=${setHits} onChoose=${choose(graph)} />
    </div>
    <p class="help">${HELP[view]} Figures are ${METRICS[metric].means}.${graph.measured ? "" : " Nothing was measured in this session, so time is not known."}</p>
    <div class=${`split ${op ? "with-side" : ""}`}>
      <div class=${beside ? "panes" : "pane"}>
        ${
          view === "modules"
            ? html`<${Modules} graph=${graph} root=${root} metric=${metric} chosen=${op?.id}
              onChoose=${choose(graph)} opened=${opened} setOpened=${setOpened} />`
            : panes.map(
                (g) => html`<div class="pane" key=${g.id}>${beside && html`<h3>${g.title}</h3>`}<${Lanes} graph=${g} metric=${metric}
              chosen=${owner === g ? op?.id : null} onChoose=${choose(g)} hits=${g === graph ? hits : null} /></div>`,
              )
        }
      </div>
      ${op && html`<${Side} graph=${owner} op=${op} onChoose=${choose(owner)} onClose=${() => to({ op: null, of: null })} />`}
    </div>`;
}

const HELP = {
  lanes:
    "Operators in the order in which they run. Lines join who writes a value with who reads it; ↑ and ↓ lead to rows that are far away.",
  modules: "The modules of the model. Open a box to see what is in it; equal blocks in a row are one box until they are unfolded.",
};
