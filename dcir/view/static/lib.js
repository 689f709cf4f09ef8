/** What the page is made with: preact, its hooks, and htm bound to it. */
import { Fragment, h, render } from "./vendor/preact.mjs";
import { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.mjs";

const html = globalThis.htm.bind(h);

export { Fragment, html, render, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };
