/** Where sessions come from: the page itself (one file), or the server, to which the token goes as a header. */

const KEY = "dcir-token";

const embedded = document.getElementById("session");

/** Whether there is a server that predicts and measures. */
export const served = embedded === null;

/** Takes the token out of the address, so that no copy of the address has it, and keeps it for this tab. */
export function takeToken() {
  const found = /^#token=([\w-]+)/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", `${location.pathname}#/summary`);
}

/** Asks the server; `body` makes it a POST. */
async function asked(path, body) {
  const headers = { "X-Dcir-Token": sessionStorage.getItem(KEY) ?? "" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body), cache: "no-store" });
}

/** What the server answers, as data; an Error with its words where it refuses. */
export async function request(path, body) {
  const answer = await asked(path, body);
  const text = await answer.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    // Words of a proxy or of a stack are shown as they are.
  }
  if (!answer.ok)
    throw Object.assign(new Error(data?.error ?? (text || `the server answers ${answer.status}`)), { details: data?.details });
  return data;
}

/** The text that Python has packed with gzip and written in base64. */
async function unpacked(letters) {
  const bytes = Uint8Array.from(atob(letters.trim()), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** All sessions: one, or two to be compared. */
export async function sessions() {
  const data = served ? await request("api/session") : JSON.parse(await unpacked(embedded.textContent));
  return Array.isArray(data) ? data : [data];
}

/** The text of a kernel, or of the driver ("driver-0"): from the record, or from the server, which leaves texts out of it. */
export async function textOf(session, name, sha) {
  if (session.texts[sha] != null) return session.texts[sha];
  return served ? (await request(`api/kernels/${encodeURIComponent(name)}`)).text : null;
}

/** Formats that the server writes a session in. */
export const FORMATS = ["json", "model-explorer", "chrome-trace", "sdfg"];

/** Has the browser save the session in a format. */
export async function save(format, name) {
  const answer = await asked(`api/export/${encodeURIComponent(format)}`);
  if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error ?? `the server answers ${answer.status}`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${name.replace(/[^\w.-]+/g, "_")}.${{ json: "json", sdfg: "sdfg" }[format] ?? `${format}.json`}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Calls `tell` with every event until `signal` says stop. EventSource would do the same, but sends no headers. */
export async function events(tell, signal) {
  const headers = { "X-Dcir-Token": sessionStorage.getItem(KEY) ?? "", Accept: "text/event-stream" };
  const answer = await fetch("api/events", { headers, signal, cache: "no-store" });
  if (!answer.ok) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) tell(JSON.parse(lines.map((line) => line.slice(5)).join("\n")));
    }
  }
}
