import { html } from "./lib.js";
export function RooflinePage() { return html`<p>soon</p>`; }
