/** The switches of What if: level, threads, batch, passes with their options, and places that are left alone. */
import { plural, shortened } from "./format.js";
import { html, useMemo, useState } from "./lib.js";
import { TIERS } from "./parts.js";
import { valueLike } from "./whatif_tree.js";

const MOST_SITES = 30;

export function Switches({ session, delta, setDelta, disabled }) {
  const { options, pipeline, levels } = session;
  const names = useMemo(() => [...new Map(pipeline.map((p) => [p.name, p])).values()], [pipeline]);
  const number = (key, title, usual) => html`
    <label class="choice"><span class="label">${title}</span><input type="number" min="1" step="1" disabled=${disabled}
      placeholder=${usual ?? "as it is"} value=${delta[key] ?? ""}
      onInput=${(e) => setDelta({ ...delta, [key]: e.target.value === "" ? null : Math.max(1, Math.round(Number(e.target.value))) })} /></label>`;
  return html`
    <div class="bar">
      <label class="choice"><span class="label">level</span><select disabled=${disabled} value=${delta.level ?? ""}
        onChange=${(e) => setDelta({ ...delta, level: e.target.value === "" ? null : Number(e.target.value) })}>
        <option value="">as it is (${options.level ?? "?"})</option>${levels.map((l) => html`<option value=${l}>${l}</option>`)}</select></label>
      ${number("threads", "threads", options.threads)}${number("batch", "batch", session.model.batch)}
    </div>
    ${names.length === 0 && html`<p>This session does not name its passes.</p>`}
    ${[...new Set(names.map((p) => p.tier))].sort().map(
      (tier) => html`
      <fieldset disabled=${disabled}><legend>tier ${tier}: ${TIERS[tier] ?? ""}</legend>
        ${names.filter((p) => p.tier === tier).map((p) => html`<${PassSwitch} key=${p.name} pass=${p} delta=${delta} setDelta=${setDelta} />`)}</fieldset>`,
    )}
    <${Sites} session=${session} delta=${delta} setDelta=${setDelta} disabled=${disabled} />`;
}

function PassSwitch({ pass, delta, setDelta }) {
  const on = !delta.disable.includes(pass.name);
  const toggle = () =>
    setDelta({ ...delta, disable: on ? [...delta.disable, pass.name] : delta.disable.filter((name) => name !== pass.name) });
  const fields = Object.entries(pass.fields ?? {});
  const given = delta.fields[pass.name] ?? {};
  const set = (field, value) => {
    const next = { ...given };
    if (value === undefined || value === pass.fields[field]) delete next[field];
    else next[field] = value;
    const all = { ...delta.fields, [pass.name]: next };
    if (!Object.keys(next).length) delete all[pass.name];
    setDelta({ ...delta, fields: all });
  };
  return html`
    <div class=${`switch ${on ? "" : "off"}`}>
      <label title=${pass.summary}><input type="checkbox" checked=${on}
        onChange=${toggle} /> ${pass.name}${!on && html` <span class="badge">off</span>`}${Object.keys(given).length > 0 && html` <span class="badge">changed</span>`}</label>
      ${
        fields.length > 0 &&
        html`<details><summary>${plural(fields.length, "option")}<span class="unseen"> of ${pass.name}</span></summary>
        ${pass.summary && html`<p class="facts">${pass.summary}</p>`}
        ${fields.map(([field, usual]) => html`<${Field} key=${field} name=${field} usual=${usual} value=${given[field] ?? usual}
          onChange=${(v) => set(field, v)} />`)}</details>`
      }
    </div>`;
}

function Field({ name, usual, value, onChange }) {
  if (typeof usual === "boolean")
    return html`<label class="field"><input type="checkbox" checked=${value} onChange=${(e) => onChange(e.target.checked)} /> ${name}</label>`;
  if (typeof usual === "number" || typeof usual === "string") {
    return html`<label class="field"><span>${name}</span><input type=${typeof usual === "number" ? "number" : "text"} step="any"
      value=${value} onChange=${(e) => onChange(valueLike(e.target.value, usual))} />
      ${value !== usual && html`<span class="facts">instead of ${String(usual)}</span>`}</label>`;
  }
  return html`<p class="field facts">${name} = ${JSON.stringify(usual)}</p>`;
}

/** Places where something was rewritten: each may be left alone. */
function Sites({ session, delta, setDelta, disabled }) {
  const [text, setText] = useState("");
  const sites = useMemo(() => {
    const found = new Map();
    for (const g of session.graphs)
      for (const r of g.remarks) if (r.site && r.kind === "passed" && !found.has(r.site)) found.set(r.site, r);
    for (const site of delta.skip) if (!found.has(site)) found.set(site, { site, pass: "", ops: [] });
    return [...found.values()];
  }, [session, delta.skip]);
  if (!sites.length) return null;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const what = (r) => (r.ops ?? []).map((o) => `${o.what || o.label} ${o.origin ?? ""}`).join(" + ");
  const rows = sites.filter((r) => words.every((w) => `${r.site} ${what(r)}`.toLowerCase().includes(w)));
  // In their order, so that nothing moves under the hand; those that are left alone stay in sight.
  const shown = rows.filter((r, n) => n < MOST_SITES || delta.skip.includes(r.site)).slice(0, 3 * MOST_SITES);
  const toggle = (site) =>
    setDelta({ ...delta, skip: delta.skip.includes(site) ? delta.skip.filter((s) => s !== site) : [...delta.skip, site] });
  return html`
    <fieldset disabled=${disabled}><legend>places (${delta.skip.length} of ${sites.length} left alone)</legend>
      <label class="field"><span>words</span><input type="search" value=${text} placeholder="pass, operator, module"
        onInput=${(e) => setText(e.target.value)} /></label>
      ${shown.map((r) => html`<label class="field site" title=${r.site}><input type="checkbox" checked=${!delta.skip.includes(r.site)}
        onChange=${() => toggle(r.site)} /> ${shortened(r.site, 60)} <span class="facts">${shortened(what(r), 80)}</span></label>`)}
      ${rows.length > shown.length && html`<p class="facts">and ${rows.length - shown.length} more; words find them</p>`}
    </fieldset>`;
}
