/** What if: passes switched off, options changed, places skipped; predicted at once, measured on request, as a tree of variants. */
import { bytes, count, ms, percent, plural } from "./format.js";
import { html, useEffect, useState } from "./lib.js";
import { Copy, Missing, Table } from "./parts.js";
import { events, request, served } from "./source.js";
import { Switches } from "./whatif_switches.js";
import { deltaText, equal, inTree, NOTHING, whole } from "./whatif_tree.js";

/** What an address asks for: a pass or a place to be switched off. */
function asked(delta, query) {
  const more = (list, one) => (one && !list.includes(one) ? [...list, one] : list);
  const base = whole(delta);
  return { ...base, disable: more(base.disable, query.disable), skip: more(base.skip, query.skip) };
}

export function WhatIf({ session, route }) {
  const live = served && session.live.predict;
  const first = session.variants[0] ?? { id: 0, parent: null, delta: NOTHING, predicted: null, measured: null, script: "" };
  const [variants, setVariants] = useState(session.variants.length ? session.variants : [first]);
  const [at, setAt] = useState(first.id);
  const [delta, setDelta] = useState(() => (live ? asked(first.delta, route.query) : whole(first.delta)));
  const [state, setState] = useState({ busy: "", error: null });
  const current = variants.find((v) => v.id === at) ?? first;
  const refresh = async () => setVariants((await request("api/variants")).variants);

  useEffect(() => {
    if (!live) return undefined;
    const stop = new AbortController();
    const tell = (e) => {
      if (e.kind === "progress")
        setState({ busy: `variant ${e.variant}: ${e.step} ${e.done} of ${e.total}`, part: e.total ? e.done / e.total : null, error: null });
      else if (e.kind === "failed") setState({ busy: "", error: { message: e.error, details: e.details } });
      else if (e.kind === "done")
        refresh().then(
          () => setState({ busy: "", error: null }),
          (error) => setState({ busy: "", error }),
        );
    };
    refresh().catch(() => {});
    events(tell, stop.signal).catch(() => {});
    return () => stop.abort();
  }, [live]);

  const run = async (words, what) => {
    setState({ busy: words, error: null });
    try {
      await what();
    } catch (error) {
      setState({ busy: "", error });
    }
  };
  const predict = () =>
    run("predicting …", async () => {
      const made = await request("api/variants", { parent: at, delta });
      setVariants((old) => [...old.filter((v) => v.id !== made.id), made]);
      setAt(made.id);
      setState({ busy: "", error: null });
    });
  const measure = () => run("measuring …", () => request(`api/variants/${encodeURIComponent(at)}/measure`, {}));
  const choose = (v) => {
    setAt(v.id);
    setDelta(whole(v.delta));
  };
  const parent = variants.find((v) => v.id === current.parent);
  const changed = !equal(delta, current.delta);
  return html`
    <h2>What if</h2>
    <p class="help">Switch passes off, change their options, or leave single places alone. <em>Predict</em> runs the passes again, without a compiler: bytes, memory and kernels are exact, the floor is a bound.${" "}
      <em>Measure</em> compiles it, runs it in turns with the model as it is, and compares its results with float64.</p>
    ${!live && html`<${Missing} what="This session can be read, not changed."
      cure=${html`<code>dcir view</code> with a model can predict and measure; variants that were made are below.`} />`}
    <div class="whatif">
      <section aria-labelledby="switches"><h3 id="switches">Changes against the session</h3>
        <${Switches} session=${session} delta=${delta} setDelta=${setDelta} disabled=${!live} />
      </section>
      <section aria-labelledby="variants"><h3 id="variants">Variants</h3>
        <p role="status" aria-live="polite">${changed ? html`Not predicted yet: <b>${deltaText(delta)}</b>` : html`Variant ${current.id}: <b>${deltaText(current.delta)}</b>`}</p>
        ${
          live &&
          html`<div class="bar">
          <button type="button" onClick=${predict} disabled=${!changed || Boolean(state.busy)}>Predict</button>
          <button type="button" onClick=${measure}
            disabled=${changed || !session.live.measure || Boolean(state.busy) || Boolean(current.error)}>Measure</button>
          <button type="button" onClick=${() => choose(parent)}
            disabled=${!parent || changed}>Undo (back to ${parent ? `variant ${parent.id}` : "the parent"})</button>
          <button type="button" onClick=${() => setDelta(whole(current.delta))} disabled=${!changed}>Take changes back</button></div>`
        }
        ${state.busy && html`<p role="status">${state.busy}${state.part != null && html` <progress max="1" value=${state.part}
          aria-label="progress"></progress>`}</p>`}
        <${Trouble} error=${state.error ?? (current.error && { message: current.error.message, details: current.error })} />
        <${Tree} variants=${variants} at=${at} onChoose=${choose} base=${variants.find((v) => v.parent == null) ?? first} />
        ${!changed && current.script && html`<h3>As Python</h3><pre tabindex="0" role="region"
          aria-label="script">${current.script}</pre><${Copy} text=${current.script} title="copy as Python" />`}
        ${!changed && current.predicted?.graphs?.length > 0 && html`<${Keys} graphs=${current.predicted.graphs} />`}
      </section>
    </div>`;
}

function Trouble({ error }) {
  if (!error) return null;
  const { where, try: cure } = error.details ?? {};
  return html`<div class="missing"
    role="alert"><strong class="error">${error.message}</strong>${where && html`<span>where: ${where}</span>`}${cure && html`<span>try: ${cure}</span>`}</div>`;
}

function Tree({ variants, at, onChoose, base }) {
  const change = (v, key) => {
    const [now, was] = [v.predicted?.[key], base.predicted?.[key]];
    return v.id === base.id || now == null || !was
      ? ""
      : ` (${now === was ? "the same" : `${now > was ? "▲" : "▼"} ${percent(Math.abs(now / was - 1))}`})`;
  };
  const columns = [
    {
      title: "variant",
      wide: true,
      cell: (v) =>
        html`<span class=${`depth d${Math.min(v.depth, 8)}`}>${v.depth > 0 && html`<span aria-hidden="true">└ </span>`}<button type="button"
          aria-pressed=${String(v.id === at)} onClick=${() => onChoose(v)}>${v.id}: ${deltaText(v.delta)}</button></span>`,
    },
    {
      title: "speed",
      numeric: true,
      hint: "the session's time over this variant's; more than 1 is faster",
      cell: (v) => (v.measured ? `${v.measured.gain.toFixed(2)}×` : v.error ? "refused" : "–"),
    },
    {
      title: "time (as it is)",
      numeric: true,
      hint: "of a call; both were measured in turns",
      cell: (v) => (v.measured ? `${ms(v.measured.ms)} (${ms(v.measured.base_ms)})` : "–"),
    },
    { title: "kernels", numeric: true, cell: (v) => count(v.predicted?.kernels) },
    { title: "bytes a call", numeric: true, cell: (v) => `${bytes(v.predicted?.bytes)}${change(v, "bytes")}` },
    { title: "scratch", numeric: true, cell: (v) => `${bytes(v.predicted?.scratch)}${change(v, "scratch")}` },
    { title: "floor", numeric: true, cell: (v) => ms(v.predicted?.floor_ms) },
    {
      title: "error",
      numeric: true,
      cell: (v) =>
        v.measured?.error == null
          ? "–"
          : html`<span title=${`against ${v.measured.reference}; the session's ${v.measured.base_error?.toExponential(1)}`}>${v.measured.error.toExponential(1)}</span>`,
    },
  ];
  const rows = inTree(variants).map((v) => ({ ...v, highlight: v.id === at }));
  return html`<${Table} caption=${`${plural(rows.length, "variant")}; each goes on from the one that it hangs on`} columns=${columns}
    rows=${rows} keyOf=${(v) => v.id} />`;
}

function Keys({ graphs }) {
  const columns = [
    { title: "graph", cell: (g) => g.kind },
    { title: "operators", numeric: true, cell: (g) => count(g.operators) },
    { title: "kernels", numeric: true, cell: (g) => count(g.kernels) },
    { title: "bytes", numeric: true, cell: (g) => bytes(g.bytes) },
    { title: "scratch", numeric: true, cell: (g) => bytes(g.scratch) },
    { title: "saved", numeric: true, cell: (g) => bytes(g.saved) },
    { title: "key of its library", cell: (g) => html`<code>${g.key?.slice(0, 16) ?? "–"}</code>` },
  ];
  return html`<${Table} caption="Its graphs; the same key is the same code" columns=${columns} rows=${graphs} />`;
}
