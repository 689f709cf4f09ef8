/** Passes: what each one changed and saved, the difference it made, and what it says of each place. */
import { bytes, count, ms, plural, signed } from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { DifferenceView, Marked } from "./difference_view.js";
import { Choice, chosenGraph, GraphChoice, Missing, Table, TIERS } from "./parts.js";
import { RemarkTable } from "./remarks.js";
import { go, link } from "./route.js";

/** Whether a pass did anything. */
const changed = (p) => p.changed > 0 || p.bytes_before !== p.bytes_after || p.operators_before !== p.operators_after;

export function Passes({ session, route }) {
  const graph = chosenGraph(session, route);
  if (!graph) return html`<${Missing} what="There is no graph in this session." />`;
  return html`<${Shown} key=${graph.id} session=${session} graph=${graph} route=${route} />`;
}

function Shown({ session, graph, route }) {
  const { query } = route;
  const [all, setAll] = useState(false);
  const [text, setText] = useState("");
  const to = (change) => go(link("passes", [graph.id], { ...query, ...change }), true);
  const word = text.trim().toLowerCase();
  const rows = graph.passes.filter((p) => (all || changed(p) || p.name === query.pass) && (!word || p.name.includes(word)));
  const still = graph.passes.filter((p) => !changed(p)).length;
  const pass = graph.passes.find((p) => String(p.index) === query.run) ?? graph.passes.find((p) => p.name === query.pass) ?? null;
  const columns = [
    { title: "run", numeric: true, cell: (p) => p.index },
    {
      title: "pass",
      cell: (p) =>
        html`<a href=${link("passes", [graph.id], { ...query, pass: p.name, run: p.index })}
          aria-current=${p === pass ? "true" : null}>${p.name}</a>`,
    },
    { title: "tier", cell: (p) => `${p.tier} ${TIERS[p.tier] ?? ""}` },
    { title: "rewrites", numeric: true, cell: (p) => count(p.changed) },
    { title: "operators", numeric: true, cell: (p) => `${count(p.operators_before)} → ${count(p.operators_after)}` },
    { title: "bytes a call", numeric: true, cell: (p) => signed(p.bytes_after - p.bytes_before, bytes) },
    { title: "scratch", numeric: true, cell: (p) => signed(p.peak_after - p.peak_before, bytes) },
    { title: "took", numeric: true, cell: (p) => ms(p.ms) },
    {
      title: "not made",
      numeric: true,
      hint: "places where it could have rewritten and did not",
      cell: (p) => count(Object.values(p.refused ?? {}).reduce((t, n) => t + n, 0)),
    },
  ];
  return html`
    <div class="bar controls">
      <${GraphChoice} session=${session} graph=${graph} page="passes" />
      <label class="choice"><span class="label">pass</span><input type="search" value=${text} placeholder="part of its name"
        onInput=${(e) => setText(e.target.value)} /></label>
      <label class="choice"><input type="checkbox" checked=${all}
        onChange=${(e) => setAll(e.target.checked)} /> show ${plural(still, "run")} that changed nothing</label>
    </div>
    <h2>What each pass did</h2>
    ${
      graph.passes.length
        ? html`<${Table} caption=${`${plural(rows.length, "run")} of ${graph.passes.length}; bytes, operators and scratch memory are those before and after it`}
      columns=${columns} rows=${rows.map((p) => ({ ...p, highlight: p === pass }))} keyOf=${(p) => p.index} />`
        : html`<${Missing} what="This session says nothing of passes." cure="Records made with an older dcir have none." />`
    }
    <${Steps} session=${session} graph=${graph} pass=${pass} query=${query} to=${to} />
    <${RemarkTable} session=${session} graph=${graph} pass=${pass} query=${query} to=${to} />`;
}

/** Which two snapshots are compared: before and after the chosen pass, or as the slider says. */
function Steps({ session, graph, pass, query, to }) {
  const last = graph.snapshots.length - 1;
  const [form, setForm] = useState("text");
  // Of a pass that changed nothing there is no snapshot: it is that of the one before.
  const until0 = pass ? graph.snapshots.findLastIndex((s) => s.index <= pass.index) : last;
  const from0 = pass ? graph.snapshots.findLastIndex((s) => s.index < pass.index) : 0;
  const number = (text, usual) => (/^\d+$/.test(text ?? "") ? Math.min(last, Number(text)) : usual);
  const from = number(query.from, from0);
  const until = number(query.until, until0);
  const [one, two] = [graph.snapshots[from], graph.snapshots[until]];
  const moved = (n) =>
    graph.snapshots[n].bytes ??
    (n <= 0 ? graph.passes[0]?.bytes_before : graph.passes.find((p) => p.index === graph.snapshots[n].index)?.bytes_after);
  const saved = useMemo(() => {
    const [a, b] = [moved(from), moved(until)];
    return a == null || b == null ? null : b - a;
  }, [graph, from, until]);
  if (last < 1)
    return html`<section><h2>Difference</h2><${Missing} what="This session holds the network after all passes only."
      cure="Records with snapshots show what each pass changed." /></section>`;
  const reasons = Object.entries(pass?.refused ?? {}).sort((a, b) => b[1] - a[1]);
  const summary = pass && session.pipeline.find((p) => p.name === pass.name)?.summary;
  const name = (n) => (n === 0 ? "import" : `${graph.snapshots[n].index} ${graph.snapshots[n].pass}`);
  const slider = (label, key, value) => html`
    <label class="slider"><span class="label">${label}</span>
      <input type="range" min="0" max=${last} value=${value} aria-valuetext=${name(value)} onInput=${(e) => to({ [key]: e.target.value })} />
      <output>${value === 0 ? "as imported" : `after ${name(value)}`}</output></label>`;
  return html`
    <section aria-labelledby="difference"><h2 id="difference">Difference${pass && query.from == null && query.until == null ? ` made by ${pass.name}` : ""}</h2>
      ${summary && html`<p>${summary}${session.live.predict && html` <a href=${link("whatif", [], { disable: pass.name })}>What if it did not run?</a>`}</p>`}
      ${
        pass &&
        Object.keys(pass.fields ?? {}).length > 0 &&
        html`<p class="facts">options: <code>${Object.entries(pass.fields)
          .map(([k, v]) => `${k} = ${v}`)
          .join(", ")}</code></p>`
      }
      <div class="bar">${slider("from", "from", from)}${slider("to", "until", until)}
        <button type="button" onClick=${() => to({ from: Math.max(0, from - 1), until: Math.max(1, until - 1) })}
          disabled=${from === 0}>← one pass back</button>
        <button type="button" onClick=${() => to({ from: Math.min(last - 1, from + 1), until: Math.min(last, until + 1) })}
          disabled=${until === last}>one pass on →</button>
        ${(query.from != null || query.until != null) && html`<button type="button"
          onClick=${() => to({ from: null, until: null })}>${pass ? "the chosen pass" : "all passes"}</button>`}</div>
      ${saved != null && html`<p>Between these two: <strong>${signed(saved, bytes)}</strong> moved in a call (${bytes(moved(from))} → ${bytes(moved(until))}).</p>`}
      ${
        pass &&
        reasons.length > 0 &&
        html`<details><summary>Not made, and why (${reasons.length} ${reasons.length === 1 ? "reason" : "reasons"})</summary>
        <ul>${reasons.slice(0, 40).map(([why, n]) => html`<li>${why} <span class="badge">${count(n)}</span></li>`)}</ul></details>`
      }
      <${Choice} label="show" options=${[
        ["text", "what differs"],
        ["lanes", "all operators, with what differs marked"],
      ]} value=${form} onChange=${setForm} />
      ${
        form === "text"
          ? html`<${DifferenceView} graph=${graph} before=${one.order} after=${two.order} />`
          : html`<${Marked} graph=${graph} before=${one} after=${two} />`
      }
    </section>`;
}
