import { html } from "./lib.js";
export function Memory() { return html`<p>soon</p>`; }
