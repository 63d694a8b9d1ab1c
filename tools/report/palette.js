// The colours of the theme, read from the style sheet, so that they are written once.

export const CATEGORIES = [
  ["product", "matrix product"], ["attention", "attention"], ["convolution", "convolution"], ["kernel", "fused kernel"],
  ["call", "other call"], ["gather", "gather"], ["reduce", "reduction"], ["transfer", "host memory or file"], ["host", "host"],
];

class Palette {
  constructor() {
    this.listeners = [];
    this.read();
  }

  read() {
    const style = getComputedStyle(document.documentElement);
    this.colours = new Map();
    for (const name of ["ink", "muted", "faint", "line", "panel", "ground", "accent", "wait", "on-colour",
      ...CATEGORIES.map(([name]) => `op-${name}`),
      ...["parameters", "gradients", "optimizer", "gathered", "activations", "workspace", "constants"].map((k) => `mem-${k}`)])
      this.colours.set(name, style.getPropertyValue(`--${name}`).trim());
    this.font = `11px ${style.getPropertyValue("--sans").trim()}`;
    this.fontSmall = `10px ${style.getPropertyValue("--sans").trim()}`;
  }

  get(name) { return this.colours.get(name) || "#888"; }
  op(category) { return this.get(`op-${category}`); }
  memory(kind) { return this.get(`mem-${kind}`); }

  onChange(listener) { this.listeners.push(listener); }

  // "light" or "dark"; remembered only while the page is open, since a file has no place of its own to store it.
  set(theme) {
    document.documentElement.dataset.theme = theme;
    this.read();
    for (const listener of this.listeners) listener();
  }

  get theme() {
    return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }
}

export const palette = new Palette();
