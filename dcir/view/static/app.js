/** The page: header, the way to each view, and the view that the address names. */
import { count, ms, plural } from "./format.js";
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib.js";
import { Missing } from "./parts.js";
import { link, useRoute } from "./route.js";
import { sessionOf } from "./session.js";
import { FORMATS, save, served, sessions, takeToken } from "./source.js";
import { Summary } from "./summary.js";
import { GraphPage } from "./graph.js";
import { Passes } from "./passes.js";
import { Kernel } from "./kernel.js";
import { RooflinePage } from "./roofline.js";
import { WhatIf } from "./whatif.js";
import { Memory } from "./memory.js";
import { Compare } from "./compare.js";

const PAGES = [
  ["summary", "Summary", Summary],
  ["graph", "Graph", GraphPage],
  ["passes", "Passes", Passes],
  ["kernel", "Kernels", Kernel],
  ["roofline", "Roofline", RooflinePage],
  ["whatif", "What if", WhatIf],
  ["memory", "Memory", Memory],
  ["compare", "Compare", Compare],
];

function Head({ all, page }) {
  const session = all[0];
  const { made } = session;
  const facts = [
    made.processor,
    made.isa,
    made.threads && plural(made.threads, "thread"),
    made.dcir && `dcir ${made.dcir}`,
    made.torch && `torch ${made.torch}`,
    made.when?.replace("T", " ").slice(0, 16),
  ];
  return html`
    <header>
      <a class="skip" href="#main" onClick=${(e) => {
        e.preventDefault();
        document.getElementById("main").focus();
      }}>to the content</a>
      <h1><span class="dcir">dcir</span> ${session.name}${all.length > 1 && html` <span class="versus">and ${all[1].name === session.name ? "another session of it" : all[1].name}</span>`}</h1>
      <p class="facts">${[...session.inputs, ...facts].filter(Boolean).join(" · ")}</p>
      <nav aria-label="views"><ul>
        ${PAGES.filter(([key]) => key !== "compare" || all.length > 1).map(
          ([key, title]) => html`
          <li><a href=${link(key)} aria-current=${key === page ? "page" : null}>${title}</a></li>`,
        )}
      </ul></nav>
    </header>`;
}

function App({ all }) {
  const route = useRoute();
  const main = useRef(null);
  const [, title, View] = PAGES.find(([key]) => key === route.page) ?? PAGES[0];
  useEffect(() => {
    document.title = `${title} – ${all[0].name} – dcir view`;
  }, [title, all]);
  const first = useRef(true);
  useEffect(() => {
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [route.page]);
  return html`
    <${Head} all=${all} page=${route.page} />
    <main id="main" tabindex="-1" ref=${main}
      aria-label=${title}><${Guarded} key=${route.page}><${View} session=${all[0]} all=${all} route=${route} /></${Guarded}></main>
    <footer>${footText(all[0])}${served && html` <${Saving} session=${all[0]} />`}</footer>`;
}

/** A view that fails says so, and leaves the others as they are. */
function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((e) => console.error(e));
  if (!error) return children;
  return html`<${Missing} what=${`This view failed: ${error.message}.`}
    cure="The record holds something that it does not expect; the other views are not touched." />
    <button type="button" onClick=${reset}>try again</button>`;
}

/** Buttons that save the session for other viewers. */
function Saving({ session }) {
  const [said, say] = useState("");
  const write = (format) => () =>
    save(format, session.name).then(
      () => say(""),
      (error) => say(error.message),
    );
  return html`<span class="saving">· save as ${FORMATS.map((format) => html`<button type="button"
    onClick=${write(format)}>${format}</button> `)}<span role="status">${said}</span></span>`;
}

function footText(session) {
  const rows = session.graphs.reduce((n, g) => n + g.rows.length, 0);
  const time = session.measured ? ms(session.graphs.reduce((t, g) => t + g.totalMs, 0)) : "not measured";
  return `${plural(session.graphs.length, "graph")}, ${count(rows)} operators, ${time} · ${served ? "served from this machine" : "a report; nothing is loaded from anywhere"}`;
}

/** Nothing can be shown; says why. */
function Failed({ error }) {
  const cure = served
    ? "Start it again with `dcir view`, and open the address that it prints: it holds the token."
    : "Write the report again with `dcir view -o`.";
  return html`<main id="main"><${Missing} what=${`The session cannot be read: ${error.message}.`} cure=${cure} /></main>`;
}

async function start() {
  const root = document.getElementById("app");
  takeToken();
  let shown;
  try {
    const records = await sessions();
    if (!records.length) throw new Error("there is none");
    shown = html`<${App} all=${records.map(sessionOf)} />`;
  } catch (error) {
    shown = html`<${Failed} error=${error} />`;
  }
  root.replaceChildren();
  render(shown, root);
}

start();
