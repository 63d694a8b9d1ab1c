// Quantities as people read them, and small helpers for elements.

// "412 ns", "3.21 ms"; of nanoseconds.
export function timeText(nanoseconds) {
  const size = Math.abs(nanoseconds);
  if (size === 0) return "0";
  if (size < 1e3) return `${Math.round(nanoseconds)} ns`;
  const [unit, name] = size < 1e6 ? [1e3, "µs"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  const value = nanoseconds / unit;
  return `${value.toFixed(Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0)} ${name}`;
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytesText(bytes) {
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < BINARY.length - 1) value /= 1024, ++unit;
  return `${unit === 0 || Math.abs(value) >= 100 ? Math.round(value) : value.toFixed(1)} ${BINARY[unit]}`;
}

// Of a tick, which is a multiple of a power of two: "1.25 GiB".
export function tickText(bytes) {
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < BINARY.length - 1) value /= 1024, ++unit;
  return `${Number(value.toFixed(2))} ${BINARY[unit]}`;
}

// "10.8 M": of elements, flops.
export function countText(count) {
  const names = ["", " k", " M", " G", " T", " P"];
  let unit = 0;
  let value = count;
  while (Math.abs(value) >= 1000 && unit < names.length - 1) value /= 1000, ++unit;
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)}${names[unit]}`;
}

export function percentText(part) {
  return `${(100 * part).toFixed(Math.abs(part) < 0.1 ? 1 : 0)} %`;
}

// "1 buffer", "12 buffers".
export function plural(count, noun) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : /(s|x|ch)$/.test(noun) ? `${noun}es` : `${noun}s`}`;
}

// An element with attributes and children; texts become text nodes, so that no name of a plan is read as HTML.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

// The text, cut so that it takes at most so many pixels in the context's font; empty where not even a letter fits.
// Widths of texts are kept: measuring is slow.
const widths = new Map();
export function fitted(context, text, pixels) {
  const key = `${context.font}\n${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    width = context.measureText(text).width;
    widths.set(key, width);
  }
  if (width <= pixels) return text;
  const letters = Math.floor((pixels / width) * text.length) - 1;
  return letters < 2 ? "" : `${text.slice(0, letters)}…`;
}
