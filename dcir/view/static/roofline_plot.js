/** The picture of a roofline: roofs, dots, their numbers, and arrows between two sessions. */
import { percent, rate, shortened } from "./format.js";
import { html } from "./lib.js";
import { axis, roofAt } from "./roofline_scale.js";

const [WIDTH, HEIGHT] = [980, 480];
const [LEFT, RIGHT, TOP, BOTTOM] = [190, WIDTH - 20, 16, HEIGHT - 46];
const STRIP = [62, 128]; // where kernels without operations are
const MOST_DOTS = 120;
const NUMBERED = 12;
const NAMED = 5; // arrows whose gain is written beside them

const radius = (share) => 4 + 26 * Math.sqrt(Math.max(0, Math.min(1, share)));

export function Plot({ rows, roofs, picked, onPick, moved, path }) {
  const dots = rows.slice(0, MOST_DOTS);
  const memory = roofs.filter((r) => r.kind === "memory");
  const compute = roofs.filter((r) => r.kind === "compute");
  const highest = compute.reduce((best, r) => (!best || r.value > best.value ? r : best), null);
  const working = [...dots, ...moved, ...path].filter((p) => p.intensity != null);
  const x = axis([...working.map((p) => p.intensity), ...memory.filter(() => highest).map((m) => highest.value / m.value)], LEFT, RIGHT);
  const y = axis([...working.map((p) => p.gflops), ...compute.map((c) => c.value)], BOTTOM, TOP);
  const idle = dots.filter((p) => p.intensity == null);
  const strip = axis([...idle.map((p) => p.gbytes), ...memory.map((m) => m.value)], BOTTOM, TOP);
  const place = (p) => (p.intensity == null ? [(STRIP[0] + STRIP[1]) / 2, strip.at(p.gbytes)] : [x.at(p.intensity), y.at(p.gflops)]);
  const key = (e, p) => {
    if (e.key !== "Enter" && e.key !== " ") return;
    e.preventDefault();
    onPick(p.key === picked ? null : p.key);
  };
  const before = new Map(moved.map((p) => [p.key, p]));
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="roofline">
    <svg class="plot" width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="group"
      aria-label="roofline: operations per byte against GFLOP/s; the table below has the same figures">
      <defs><marker id="gain" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="arrow" d="M0 0L8 4L0 8z" /></marker>
        <clipPath id="field"><rect x=${LEFT} y=${TOP} width=${RIGHT - LEFT} height=${BOTTOM - TOP} /></clipPath></defs>
      <rect class="frame" x=${LEFT} y=${TOP} width=${RIGHT - LEFT} height=${BOTTOM - TOP} />
      <rect class="frame" x=${STRIP[0]} y=${TOP} width=${STRIP[1] - STRIP[0]} height=${BOTTOM - TOP} />
      ${x.ticks.map((t) => html`<line class="grid" x1=${x.at(t)} x2=${x.at(t)} y1=${TOP}
        y2=${BOTTOM} /><text class="tick" x=${x.at(t)} y=${BOTTOM + 16} text-anchor="middle">${tickText(t)}</text>`)}
      ${y.ticks.map((t) => html`<line class="grid" x1=${LEFT} x2=${RIGHT} y1=${y.at(t)}
        y2=${y.at(t)} /><text class="tick" x=${LEFT - 6} y=${y.at(t) + 4} text-anchor="end">${tickText(t)}</text>`)}
      ${strip.ticks.map((t) => html`<line class="grid" x1=${STRIP[0]} x2=${STRIP[1]} y1=${strip.at(t)}
        y2=${strip.at(t)} /><text class="tick" x=${STRIP[0] - 6} y=${strip.at(t) + 4} text-anchor="end">${tickText(t)}</text>`)}
      <text class="title" x=${(LEFT + RIGHT) / 2} y=${HEIGHT - 8} text-anchor="middle">operations per byte (FLOP/B)</text>
      <text class="title" transform=${`translate(${LEFT - 44} ${(TOP + BOTTOM) / 2}) rotate(-90)`} text-anchor="middle">GFLOP/s</text>
      <text class="title" transform=${`translate(14 ${(TOP + BOTTOM) / 2}) rotate(-90)`} text-anchor="middle">no operations: GB/s</text>
      <g clip-path="url(#field)">
        ${memory.map((m) => html`<path class="roof" d=${roofPath(m, highest, x, y)} />`)}
        ${compute.map((c) => html`<line class="roof" x1=${LEFT} x2=${RIGHT} y1=${y.at(c.value)} y2=${y.at(c.value)} />`)}
        ${
          path.length > 1 &&
          html`<path class="way" d=${`M${path
            .map((p) =>
              place(p)
                .map((v) => v.toFixed(1))
                .join(" "),
            )
            .join("L")}`} />`
        }
      </g>
      ${memory.map(
        (m) => html`<line class="roof" x1=${STRIP[0]} x2=${STRIP[1]} y1=${strip.at(m.value)} y2=${strip.at(m.value)} />
        <text class="roofname" x=${STRIP[1] - 3} y=${strip.at(m.value) - 3} text-anchor="end">${m.name}</text>`,
      )}
      ${memory.map((m) => roofLabel(m, x, y))}
      ${compute.map((c) => html`<text class="roofname" x=${RIGHT - 6} y=${y.at(c.value) - 5}
        text-anchor="end">${c.name} ${rate(c.value, "GFLOP/s")}</text>`)}
      ${path.map((p) => html`<g><rect class="stop" x=${place(p)[0] - 4} y=${place(p)[1] - 4} width="8" height="8" /><text class="tick" x=${place(p)[0] + 8} y=${place(p)[1] + 14}>${p.title}</text></g>`)}
      ${[...dots].reverse().map((p) => {
        const [px, py] = place(p);
        const from = before.get(p.key);
        const size = radius(p.share);
        return html`
          ${from && arrow(place(from), [px, py], from.ms / p.ms, p.number <= NAMED)}
          <g class=${`spot ${p.key === picked ? "chosen" : ""}`} role="button" tabindex="0" aria-pressed=${String(p.key === picked)}
            onClick=${() => onPick(p.key === picked ? null : p.key)} onKeyDown=${(e) => key(e, p)}
            aria-label=${`${p.number}: ${shortened(p.title, 80)}, ${percent(p.share)} of the time, ${p.flops ? rate(p.gflops, "GFLOP/s") : rate(p.gbytes, "GB/s")}`}>
            <title>${p.number}: ${p.title}, ${percent(p.share)}</title><circle cx=${px} cy=${py} r=${size} />
            ${(p.number <= NUMBERED || p.key === picked) && html`<text x=${px} y=${py + 4} text-anchor="middle">${p.number}</text>`}</g>`;
      })}
    </svg></div>
    ${rows.length > MOST_DOTS && html`<p class="facts">The ${MOST_DOTS} longest are drawn, of ${rows.length}.</p>`}`;
}

function tickText(t) {
  return t >= 1000 ? `${t / 1000}k` : t < 1e-3 ? t.toExponential(0) : String(Number(t.toPrecision(1)));
}

/** A memory's roof until it meets the highest compute roof. */
function roofPath(memory, highest, x, y) {
  const end = highest ? Math.min(x.high, highest.value / memory.value) : x.high;
  return `M${x.at(x.low)} ${y.at(roofAt(x.low, memory, null))}L${x.at(end)} ${y.at(roofAt(end, memory, highest))}`;
}

/** The name of a memory where its roof comes into the picture. */
function roofLabel(memory, x, y) {
  const at = Math.max(x.low * 1.15, (y.low * 1.3) / memory.value);
  const value = at * memory.value;
  if (at >= x.high || value >= y.high) return null;
  return html`<text class="roofname" x=${x.at(at) + 10} y=${y.at(value) + 4}>${memory.name} ${rate(memory.value, "GB/s")}</text>`;
}

/** From where a kernel was in the other session to where it is now, with what was gained. */
function arrow([x0, y0], [x1, y1], gain, named) {
  const words = gain >= 1 ? `+${((gain - 1) * 100).toFixed(0)} %` : `−${((1 - gain) * 100).toFixed(0)} %`;
  return html`<path class="gain" d=${`M${x0} ${y0}L${x1} ${y1}`} marker-end="url(#gain)"><title>${words}</title></path>
    ${named && html`<text class="tick" x=${(x0 + x1) / 2 + 6} y=${(y0 + y1) / 2}>${words}</text>`}`;
}
