/** Small parts that pages share: tables in pieces, rows that are drawn only while they are seen, marks, what is missing and how to get it. */
import { bytes, levelOfDistance, levelOfShare, MARKS, ms, percent, ratio } from "./format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { link } from "./route.js";

const PIECE = 25;

/**
 * A table of at most PIECE rows at a time. Columns: {title, cell(row), numeric, hint}.
 * Where `chosen` and `onChoose` are given, rows have a button in their first cell.
 */
export function Table({ caption, columns, rows, keyOf, quiet = false, piece = PIECE }) {
  const [from, setFrom] = useState(0);
  const start = from < rows.length ? from : 0;
  const shown = rows.slice(start, start + piece);
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}>
      <table>
        <caption class=${quiet ? "unseen" : ""}>${caption}</caption>
        <thead><tr>${columns.map((c) => html`<th scope="col" class=${c.numeric ? "number" : ""} title=${c.hint}>${c.title}</th>`)}</tr></thead>
        <tbody>
          ${shown.map(
            (row, n) => html`<tr key=${keyOf ? keyOf(row) : start + n} class=${row.highlight ? "chosen" : ""}>
            ${columns.map((c) => html`<td class=${c.numeric ? "number" : c.wide ? "wide" : ""}>${c.cell(row, start + n)}</td>`)}</tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${
      rows.length > piece &&
      html`
      <nav class="pieces" aria-label=${`parts of: ${caption}`}>
        <button type="button" disabled=${start === 0} onClick=${() => setFrom(Math.max(0, start - piece))}>← earlier</button>
        <span>${start + 1} to ${Math.min(start + piece, rows.length)} of ${rows.length}</span>
        <button type="button" disabled=${start + piece >= rows.length} onClick=${() => setFrom(start + piece)}>later →</button>
      </nav>`
    }`;
}

/** What there is not, and what to do to have it. */
export function Missing({ what, cure }) {
  return html`<p class="missing"><strong>${what}</strong>${cure && html` <span>${cure}</span>`}</p>`;
}

/** A level as a mark with a colour; the figure stands beside it. */
export function Mark({ level, of = 1 }) {
  if (of == null) return null;
  return html`<span class=${`mark heat${level}`} aria-hidden="true">${MARKS[level]}</span>`;
}

/** A share as a bar with its figure. */
export function Share({ part }) {
  if (part == null || !Number.isFinite(part)) return html`<span>–</span>`;
  const width = Math.max(0, Math.min(1, part)) * 60;
  return html`<span class="share"><svg width="60" height="10" aria-hidden="true"><rect class="groove" width="60" height="10" />
    <rect class="fill" width=${width} height="10" /></svg> ${percent(part)}</span>`;
}

/** What the column "bound by" says. */
export const BOUND =
  "what its time is nearest to: a memory, the operations (FLOP), or opening a team of threads; no roof: ten times as long as any of these explain, as where others have the processor";

/** The three ways to colour operators: title, figure, level, and what the figure means. */
export const METRICS = {
  time: {
    title: "time",
    of: (op) => (op.prepared ? null : op.ms),
    text: ms,
    level: (x, max) => levelOfShare(x, max),
    means: "milliseconds in a call",
  },
  bytes: {
    title: "bytes",
    of: (op) => (op.prepared ? null : op.bytes),
    text: bytes,
    level: (x, max) => levelOfShare(x, max),
    means: "distinct bytes that a call touches",
  },
  distance: {
    title: "distance to floor",
    of: (op) => op.distance,
    text: ratio,
    level: (x) => levelOfDistance(x),
    means: "time over the least that the machine needs for these operations and bytes",
  },
};

/** Names of a pass's tiers. */
export const TIERS = ["tidy", "inside operators", "fusion", "layout", "movement"];

/** A choice between a few words, as buttons of which one is pressed. */
export function Choice({ label, options, value, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}><span class="label">${label}</span>
    ${options.map(
      ([key, title, disabled]) => html`
      <button type="button" aria-pressed=${String(key === value)} disabled=${disabled} onClick=${() => onChange(key)}>${title}</button>`,
    )}</div>`;
}

/** Which graph of the session is shown. */
export function GraphChoice({ session, graph, page, query = {} }) {
  if (session.graphs.length < 2) return null;
  const options = session.graphs.map((g) => [g.id, g.title]);
  if (options.length <= 4) {
    return html`<${Choice} label="graph" options=${options} value=${graph.id} onChange=${(id) => {
      location.hash = link(page, [id], query);
    }} />`;
  }
  return html`<label class="choice"><span class="label">graph</span>
    <select value=${graph.id} onChange=${(e) => {
      location.hash = link(page, [e.target.value], query);
    }}>
      ${options.map(([id, title]) => html`<option value=${id}>${title}</option>`)}</select></label>`;
}

/** The graph that an address names, else the first. */
export const chosenGraph = (session, route) => session.graphs.find((g) => g.id === route.path[0]) ?? session.graphs[0];

/** A button that copies a text; where the browser refuses, the text is shown to be copied by hand. */
export function Copy({ text, title }) {
  const [state, set] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      set("copied");
    } catch {
      set("by hand");
    }
  };
  return html`<span class="copy"><button type="button" onClick=${copy}>${title}</button>
    <span role="status">${state === "copied" ? " copied" : ""}</span>
    ${state === "by hand" && html`<textarea readonly rows="6" aria-label=${`${title}: text`} value=${text}
      onFocus=${(e) => e.target.select()} />`}</span>`;
}

/**
 * A list of equal rows of which only the visible ones are in the document.
 * `row(n)` draws one, `behind(first, last)` what lies under them. `show` is a row to scroll to.
 */
export function Window({ rows, height, row, behind, show, label, role, onKeyDown, active, columns, head, className = "" }) {
  const box = useRef(null);
  const [at, setAt] = useState({ top: 0, size: 600 });
  const measure = () => {
    const e = box.current;
    if (e) setAt((old) => (old.top === e.scrollTop && old.size === e.clientHeight ? old : { top: e.scrollTop, size: e.clientHeight }));
  };
  useLayoutEffect(measure);
  useEffect(() => {
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  useLayoutEffect(() => {
    const e = box.current;
    if (show == null || show < 0 || !e) return;
    const y = show * height;
    if (y < e.scrollTop || y + height > e.scrollTop + e.clientHeight - height) e.scrollTop = Math.max(0, y - e.clientHeight / 3);
    measure();
  }, [show, rows]);
  const first = Math.max(0, Math.floor(at.top / height) - 3);
  const last = Math.min(rows, Math.ceil((at.top + at.size) / height) + 3);
  const drawn = [];
  for (let n = first; n < last; n += 1) drawn.push(row(n));
  return html`
    <div class=${`window ${className}`} ref=${box} onScroll=${measure} onKeyDown=${onKeyDown} tabindex="0" role=${role} aria-label=${label}
      aria-rowcount=${role === "grid" ? rows + 1 : null} aria-colcount=${columns} aria-activedescendant=${active}>
      ${head}
      <div class="sheet" role=${role === "grid" ? "rowgroup" : null} style=${{ height: `${rows * height}px` }}>
        ${behind?.(first, last)}
        <div class="drawn" role="presentation" style=${{ transform: `translateY(${first * height}px)` }}>${drawn}</div>
      </div>
    </div>`;
}
