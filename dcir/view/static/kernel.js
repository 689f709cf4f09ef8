import { html } from "./lib.js";
export function Kernel() { return html`<p>soon</p>`; }
