/** C++ as lines of tokens: Prism finds them, the page makes text of them and never markup. */

/** Kinds of tokens that have a look of their own; the rest is plain. */
const KEPT = new Set(["comment", "keyword", "string", "number", "macro", "function", "directive"]);
const MOST = 400_000; // letters; beyond it highlighting takes longer than it is worth

/** Lines, each a list of [text, kind or ""]. */
export function linesOfCode(text) {
  const lines = [[]];
  const add = (piece, kind) => {
    piece.split("\n").forEach((part, n) => {
      if (n) lines.push([]);
      if (!part) return;
      const line = lines.at(-1);
      if (line.length && line.at(-1)[1] === kind) line.at(-1)[0] += part;
      else line.push([part, kind]);
    });
  };
  const walk = (token, kind) => {
    if (typeof token === "string") add(token, kind);
    else if (Array.isArray(token)) token.forEach((t) => walk(t, kind));
    else walk(token.content, KEPT.has(token.type) ? token.type : kind);
  };
  const grammar = globalThis.Prism?.languages.cpp;
  walk(grammar && text.length <= MOST ? globalThis.Prism.tokenize(text, grammar) : text, "");
  return lines;
}
