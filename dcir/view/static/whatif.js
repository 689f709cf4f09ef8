import { html } from "./lib.js";
export function WhatIf() { return html`<p>soon</p>`; }
