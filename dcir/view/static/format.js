/** Figures as text, always with their unit, and how hot one is: a level with a mark, so that colour is never alone. */

const MINUS = "−";

function digits(x) {
  const size = Math.abs(x);
  return x.toFixed(size >= 100 || Number.isInteger(x) ? 0 : size >= 10 ? 1 : 2);
}

/** Milliseconds. */
export function ms(x) {
  if (x == null || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1000) return `${digits(x / 1000)} s`;
  return size >= 1 || x === 0 ? `${digits(x)} ms` : `${digits(x * 1000)} µs`;
}

function scaled(x, units, base) {
  if (x == null || !Number.isFinite(x)) return "–";
  let n = 0;
  let size = Math.abs(x);
  while (size >= base && n < units.length - 1) {
    size /= base;
    n += 1;
  }
  return `${x < 0 ? MINUS : ""}${digits(size)} ${units[n]}`;
}

export const bytes = (x) => scaled(x, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
export const flops = (x) => scaled(x, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000);
export const count = (x) => (x == null ? "–" : x.toLocaleString("en"));
export const percent = (x) => (x == null || !Number.isFinite(x) ? "–" : `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`);
export const ratio = (x) => (x == null || !Number.isFinite(x) ? "–" : `${x >= 100 ? x.toFixed(0) : x.toPrecision(2)}×`);
export const rate = (x, unit) => (x == null || !Number.isFinite(x) ? "–" : `${digits(x)} ${unit}`);

/** A difference with its sign. */
export function signed(x, format) {
  if (x == null || !Number.isFinite(x)) return "–";
  return x > 0 ? `+${format(x)}` : x < 0 ? `${MINUS}${format(-x)}` : "±0";
}

/** "1 kernel", "2 kernels". */
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export const MARKS = ["▁", "▂", "▄", "▆", "█"];

/** 0 to 4: a figure as a part of the largest one. */
export function levelOfShare(x, largest) {
  if (!x || !largest) return 0;
  const part = x / largest;
  return part > 0.5 ? 4 : part > 0.2 ? 3 : part > 0.07 ? 2 : part > 0.01 ? 1 : 0;
}

/** 0 to 4: how many times its floor something takes. */
export function levelOfDistance(x) {
  if (x == null) return 0;
  return x > 4 ? 4 : x > 2.5 ? 3 : x > 1.6 ? 2 : x > 1.2 ? 1 : 0;
}

/** Text with its middle left out. */
export function shortened(text, length) {
  if (text.length <= length) return text;
  const tail = Math.floor((length - 1) / 2);
  return `${text.slice(0, length - 1 - tail)}…${text.slice(text.length - tail)}`;
}
