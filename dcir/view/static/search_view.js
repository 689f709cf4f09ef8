/** The field to search operators with; `/` goes to it from everywhere on the page. */
import { plural, shortened } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { found, indexOf } from "./search.js";

const MOST = 20;

/** Calls `onHits` with the set of rows found, and `onChoose` with the operator that was chosen. */
export function Search({ graph, onHits, onChoose }) {
  const [query, setQuery] = useState("");
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(0);
  const field = useRef(null);
  const index = useMemo(() => ({ graph, texts: null }), [graph]);
  const rows = useMemo(() => {
    if (!query.trim()) return [];
    index.texts ??= indexOf(graph);
    return found(index.texts, query);
  }, [index, query]);
  useEffect(() => onHits(new Set(rows)), [rows]);
  useEffect(() => {
    const pressed = (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || /^(input|textarea|select)$/i.test(e.target.tagName)) return;
      e.preventDefault();
      field.current?.focus();
      field.current?.select();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  const shown = open ? rows.slice(0, MOST) : [];
  const choose = (n) => {
    if (rows[n] == null) return;
    setAt(n);
    onChoose(graph.rows[rows[n]].id);
  };
  const onKeyDown = (e) => {
    if (e.key === "Escape") setOpen(false);
    else if (e.key === "Enter") {
      choose(at);
      setOpen(false);
    } else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      setOpen(true);
      setAt(Math.max(0, Math.min(rows.length - 1, at + (e.key === "ArrowDown" ? 1 : -1))));
    }
  };
  return html`
    <div class="search">
      <label for="search">search <kbd>/</kbd></label>
      <input id="search" ref=${field} type="search" autocomplete="off" placeholder="operator, module, file:line, shape, kernel" value=${query}
        role="combobox" aria-expanded=${String(shown.length > 0)} aria-controls="found" aria-autocomplete="list"
        aria-activedescendant=${shown[at] == null ? null : `found-${at}`}
        onInput=${(e) => {
          setQuery(e.target.value);
          setAt(0);
          setOpen(true);
        }} onKeyDown=${onKeyDown} onBlur=${() => setTimeout(() => setOpen(false), 150)} />
      <span class="hits" role="status">${query.trim() ? plural(rows.length, "operator") : ""}</span>
      <ul id="found" role="listbox" aria-label="operators found" class=${shown.length ? "" : "unseen"}>
        ${shown.map(
          (n, m) => html`<li id=${`found-${m}`} role="option" aria-selected=${String(m === at)} class=${m === at ? "chosen" : ""}
          onMouseDown=${(e) => {
            e.preventDefault();
            choose(m);
            setOpen(false);
          }}><b>${n}</b> ${shortened(graph.rows[n].what, 60)} <span class="facts">${graph.rows[n].place}</span></li>`,
        )}
      </ul>
    </div>`;
}
