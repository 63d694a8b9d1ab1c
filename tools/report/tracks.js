// What the timeline and the memory view share: the axis of time, zooming and panning, the pointer.

export const GUTTER = 132;  // pixels left of the axis, for names

// A canvas that is as sharp as the screen. draw(context, width, height) is called at most once a frame.
export class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.drawing = draw;
    this.requested = 0;
    new ResizeObserver(() => this.redraw()).observe(canvas);
  }

  redraw() {
    if (this.requested) return;
    this.requested = requestAnimationFrame(() => {
      this.requested = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const { canvas } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.drawing(context, width, height);
  }
}

// The visible span of time, in nanoseconds, over so many pixels; d3's zoom moves it. One axis serves several canvases.
export class TimeAxis {
  constructor(host, begin, end) {
    this.host = host;
    this.whole = [begin, end];
    this.listeners = [];
    this.transform = d3.zoomIdentity;
    this.zoom = d3.zoom().scaleExtent([1, 1e6]).clickDistance(4).on("zoom", () => {
      this.transform = d3.event.transform;
      for (const listener of this.listeners) listener();
    });
    // Double clicks select; a wheel with shift pans.
    this.zoom.filter(() => !d3.event.button && d3.event.type !== "dblclick" && !(d3.event.type === "wheel" && d3.event.shiftKey));
    this.zoom.wheelDelta(() => -d3.event.deltaY * (d3.event.deltaMode === 1 ? 0.05 : d3.event.deltaMode ? 1 : 0.002) * (d3.event.ctrlKey ? 5 : 1));
    d3.select(host).call(this.zoom);
    host.addEventListener("wheel", (event) => {
      if (!event.shiftKey) return;
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.pixels);
    }, { passive: false });
    new ResizeObserver(() => this.#measure()).observe(host);
    this.#measure();
  }

  onChange(listener) { this.listeners.push(listener); }

  // While its view is hidden the axis stays as it was.
  #measure() {
    if (!this.host.clientWidth) return;
    this.pixels = Math.max(50, this.host.clientWidth - GUTTER - 12);
    this.base = d3.scaleLinear().domain(this.whole).range([GUTTER, GUTTER + this.pixels]);
    this.zoom.extent([[GUTTER, 0], [GUTTER + this.pixels, 1]]).translateExtent([[GUTTER, -Infinity], [GUTTER + this.pixels, Infinity]]);
    for (const listener of this.listeners) listener();
  }

  get scale() { return this.transform.rescaleX(this.base); }
  get span() { return this.scale.domain(); }

  // By a factor around the middle, or around a time.
  scaleBy(factor, time = null) {
    const scale = this.scale;
    const at = time === null ? GUTTER + this.pixels / 2 : scale(time);
    d3.select(this.host).call(this.zoom.scaleBy, factor, [at, 0]);
  }

  // By a part of what is visible.
  pan(part) {
    d3.select(this.host).call(this.zoom.translateBy, (-part * this.pixels) / this.transform.k, 0);
  }

  reset() { d3.select(this.host).call(this.zoom.transform, d3.zoomIdentity); }

  // Shows a span; with some room around it.
  show(begin, end, room = 0.15) {
    const least = (this.whole[1] - this.whole[0]) / 1e5;
    const length = Math.max(end - begin, least) * (1 + 2 * room);
    const middle = (begin + end) / 2;
    const k = Math.max(1, Math.min(1e6, (this.whole[1] - this.whole[0]) / length));
    const x = GUTTER + this.pixels / 2 - k * this.base(middle);
    d3.select(this.host).call(this.zoom.transform, d3.zoomIdentity.translate(x, 0).scale(k));
  }

  // Scrolls, and zooms out where it must, so that a span is visible.
  reveal(begin, end) {
    const [from, to] = this.span;
    if (begin >= from && end <= to) return;
    if (end - begin > to - from) this.show(begin, end);
    else {
      const shift = (begin + end) / 2 - (from + to) / 2;
      this.pan(shift / (to - from));
    }
  }
}

// Times to label on an axis of so many pixels, and the lines for them.
export function drawTimeAxis(context, axis, palette, height, timeText) {
  const { scale } = axis;
  const ticks = scale.ticks(Math.max(2, Math.floor(axis.pixels / 110)));
  context.font = palette.fontSmall;
  context.textBaseline = "middle";
  context.textAlign = "center";
  let free = GUTTER;
  for (const tick of ticks) {
    const x = Math.round(scale(tick)) + 0.5;
    if (x < GUTTER) continue;
    context.strokeStyle = palette.get("line");
    context.beginPath();
    context.moveTo(x, 16);
    context.lineTo(x, height);
    context.stroke();
    const text = timeText(tick);
    const half = context.measureText(text).width / 2;
    if (x - half < free || x + half > GUTTER + axis.pixels + 10) continue;
    context.fillStyle = palette.get("muted");
    context.fillText(text, x, 8);
    free = x + half + 10;
  }
  context.textAlign = "left";
}

// A pattern of diagonal lines, for time and memory in which nothing happens.
export function hatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = tile.getContext("2d");
  lines.strokeStyle = colour;
  lines.lineWidth = 1;
  lines.beginPath();
  for (const shift of [-6, 0, 6]) {
    lines.moveTo(shift - 1, 7);
    lines.lineTo(shift + 7, -1);
  }
  lines.stroke();
  return context.createPattern(tile, "repeat");
}
