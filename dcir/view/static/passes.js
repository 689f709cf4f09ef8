import { html } from "./lib.js";
export function Passes() { return html`<p>soon</p>`; }
