/** Addresses inside the page: `#/graph/0?op=v12`; each view can be linked to, and Back works. */
import { useEffect, useState } from "./lib.js";

/** {page, path, query} of an address. */
export function parsed(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { page: parts[0] || "summary", path: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a page; what is null or "" is left out of the query. */
export function link(page, path = [], query = {}) {
  const given = Object.entries(query).filter(([, v]) => v != null && v !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${[page, ...path].map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** Goes to an address; `replace` leaves no step for Back. */
export function go(hash, replace = false) {
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

/** Where we are, now and after every change. */
export function useRoute() {
  const [route, set] = useState(() => parsed(location.hash));
  useEffect(() => {
    const changed = () => set(parsed(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
