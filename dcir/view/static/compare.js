import { html } from "./lib.js";
export function Compare() { return html`<p>soon</p>`; }
