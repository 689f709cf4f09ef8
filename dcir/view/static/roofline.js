/** Roofline: kernels under the roofs of the machine, those without operations beside them, and how points move between settings or sessions. */
import { bytes, flops, ms, percent, plural, rate, ratio, shortened } from "./format.js";
import { html, useState } from "./lib.js";
import { Plot } from "./roofline_plot.js";
import { measuredPoints, pointsOf, roofsOf } from "./roofline_scale.js";
import { BOUND, Choice, Mark, METRICS, Missing, Share, Table } from "./parts.js";
import { link } from "./route.js";

const settingText = (run) =>
  [`-O${run.level}`, `${run.threads} thread${run.threads === 1 ? "" : "s"}`, run.batch != null && `batch ${run.batch}`]
    .filter(Boolean)
    .join(", ");

const HELP =
  "Each dot is a kernel: its area is its part of the time, and how far it lies below the roof over it is what could be gained. " +
  "Both axes are logarithmic. The strip at the left holds kernels without operations, by GB/s.";
const NO_ROOFS = html`The machine was not measured (<code>dcir machine</code> does it), so there are no roofs.`;
const GUESSES = html`The roofs are guesses, since this machine was not measured: <code>dcir machine</code> does it.`;

/** All figures of a point. */
function pointText(p) {
  const rates = [p.flops ? rate(p.gflops, "GFLOP/s") : "", rate(p.gbytes, "GB/s")].filter(Boolean).join(", ");
  const work = `${flops(p.flops)} on ${bytes(p.bytes)}, ${plural(p.calls, "call")}`;
  return `${p.title}: ${ms(p.ms)} (${percent(p.share)}), ${rates}; ${work}; bound by ${p.bound ?? "?"} ${p.where}`;
}

/** What a trajectory is of, and what does not change along it. */
function pathTitle({ parameter, what, origin, at }) {
  const rest = { level: `-O${at.level}`, threads: `${at.threads} threads`, batch: at.batch != null ? `batch ${at.batch}` : "" };
  return [
    origin ? `${what} (${origin})` : what,
    ...Object.entries(rest)
      .filter(([key, text]) => key !== parameter && text)
      .map(([, text]) => text),
  ].join(", ");
}

export function RooflinePage({ session, all, route }) {
  const runs = session.roofline?.runs ?? [];
  const own = pointsOf(session);
  const choices = [...(own.length ? [["own", "this session"]] : []), ...runs.map((run, n) => [String(n), settingText(run)])];
  const [chosen, setChosen] = useState(choices[0]?.[0]);
  const [picked, setPicked] = useState(route.query.kernel ? `${route.path[0] ?? session.graphs[0]?.id}/${route.query.kernel}` : null);
  const [trajectory, setTrajectory] = useState("");
  const other = all[1] ?? null;
  const [against, setAgainst] = useState(other ? "1" : "0");
  const machine =
    session.machine ?? (session.roofline ? { ceilings: session.roofline.ceilings, measured: session.roofline.measured } : null);
  if (!choices.length) {
    return html`<h2>Roofline</h2><${Missing} what="No times were measured in this session, so there are no points."
      cure=${html`<code>dcir view</code> measures every kernel, unless it is told <code>--seconds 0</code>.`} />`;
  }
  const run = chosen === "own" ? null : runs[Number(chosen)];
  const threads = run?.threads ?? session.profile?.threads ?? session.made.threads;
  const points = run ? measuredPoints(run) : own;
  const roofs = roofsOf(machine, threads);
  const moved = against === "1" && other && !run ? pointsOf(other) : [];
  const paths = session.roofline?.paths ?? [];
  const path = paths[Number(trajectory)] ?? null;
  const places = (path?.places ?? [])
    .map((p) => ({ ...p, title: `${path.parameter} ${p.value}: ${ms(p.ms)}` }))
    .filter((p) => p.intensity > 0 && p.gflops > 0);
  const columns = [
    {
      title: "kernel",
      wide: true,
      cell: (
        p,
      ) => html`<button type="button" class="plain" aria-pressed=${String(p.key === picked)}
        onClick=${() => setPicked(p.key === picked ? null : p.key)}>${p.number}</button>
        ${p.known ? html`<a href=${link("kernel", [p.graph.id, p.kernel])}>${shortened(p.title, 70)}</a>` : shortened(p.title, 70)}`,
    },
    { title: "time", numeric: true, cell: (p) => ms(p.ms) },
    { title: "share", numeric: true, cell: (p) => html`<${Share} part=${p.share} />` },
    { title: "FLOP/byte", numeric: true, cell: (p) => (p.intensity == null ? "none" : p.intensity.toPrecision(3)) },
    { title: "GFLOP/s", numeric: true, cell: (p) => (p.flops ? p.gflops.toPrecision(3) : "–") },
    { title: "GB/s", numeric: true, cell: (p) => p.gbytes.toPrecision(3) },
    { title: "bound by", hint: BOUND, cell: (p) => p.bound ?? "–" },
    {
      title: "over floor",
      numeric: true,
      hint: METRICS.distance.means,
      cell: (p) => (p.distance ? html`<${Mark} level=${METRICS.distance.level(p.distance)} /> ${ratio(p.distance)}` : "–"),
    },
  ];
  const rows = points.sort((a, b) => b.ms - a.ms).map((p, n) => ({ ...p, number: n + 1, highlight: p.key === picked }));
  const point = rows.find((p) => p.key === picked);
  return html`
    <h2>Roofline</h2>
    <div class="bar controls">
      ${choices.length > 1 && html`<${Choice} label="measured with" options=${choices} value=${chosen} onChange=${setChosen} />`}
      ${
        other &&
        html`<${Choice} label="compare" options=${[
          ["0", "alone"],
          ["1", other.name === session.name ? "with the other session" : `with ${other.name}`],
        ]} value=${against} onChange=${setAgainst} />`
      }
      ${
        paths.length > 0 &&
        html`<label class="choice"><span class="label">trajectory</span><select value=${trajectory} onChange=${(e) => setTrajectory(e.target.value)}>
        <option value="">none</option>${paths.map((p, n) => html`<option value=${String(n)}>over ${p.parameter}: ${shortened(pathTitle(p), 70)}</option>`)}</select></label>`
      }
    </div>
    <p class="help">${HELP} ${roofs.length === 0 ? NO_ROOFS : machine?.measured === false ? GUESSES : ""}</p>
    <${Plot} rows=${rows} roofs=${roofs} picked=${picked} onPick=${setPicked} moved=${moved} path=${places} />
    ${path && html`<p>Over ${path.parameter}, ${pathTitle(path)}: <strong>${path.shows}</strong></p>`}
    <p role="status" class="picked">${point ? html`<strong>${point.number}</strong> ${pointText(point)}` : "Choose a dot or a number to read its figures."}</p>
    <${Table} caption=${`${rows.length} kernels, the longest first; numbers are those of the dots`} columns=${columns} rows=${rows}
      keyOf=${(p) => p.key} piece=${15} />`;
}
