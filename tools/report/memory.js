// Memory over time: every buffer as a box, its place in the arena by the time that it lives; or the sum by kind.
import { GUTTER, Surface, hatch } from "./tracks.js";
import { fitted, tickText } from "./format.js";
import { palette } from "./palette.js";

export class Memory {
  constructor(canvas, plan, selection, axis) {
    this.plan = plan;
    this.selection = selection;
    this.axis = axis;
    this.canvas = canvas;
    this.mode = "arena";
    this.surface = new Surface(canvas, (context, width, height) => this.draw(context, width, height));
    this.setSpace(plan.raw.memory.spaces[0]);
  }

  // Shows the arena of another space: the device's, host memory or files.
  setSpace(space) {
    this.space = space;
    this.bytes = [0, Math.max(space.arena, 1)];  // what is visible of the arena
    this.#sortLives();
    this.sums = this.#sums();
    this.surface.redraw();
  }

  // Lives by buffer kind, so that the colour rarely changes while drawing.
  #sortLives() {
    const { lives, buffers } = this.plan.raw;
    const here = d3.range(lives.buffer.length).filter((life) => buffers.space[lives.buffer[life]] === this.space.space);
    this.order = here.sort((a, b) => buffers.kind[lives.buffer[a]] - buffers.kind[lives.buffer[b]] || lives.begin[a] - lives.begin[b]);
  }

  // Stacked sums of the kinds that there are, the largest first.
  #sums() {
    const { space } = this, names = this.plan.raw.memory.kinds;
    const kinds = d3.range(names.length).filter((kind) => d3.max(space.byKind[kind]) > 0);
    kinds.sort((a, b) => d3.min(space.byKind[b]) - d3.min(space.byKind[a]));
    const below = new Float64Array(space.time.length);
    const layers = kinds.map((kind) => {
      const low = Float64Array.from(below);
      space.byKind[kind].forEach((bytes, i) => { below[i] += bytes; });
      return { kind: names[kind], low, high: Float64Array.from(below) };
    });
    return { layers, total: below };
  }

  setMode(mode) {
    this.mode = mode;
    this.surface.redraw();
  }

  get top() { return this.mode === "arena" ? this.bytes[1] : Math.max(d3.max(this.sums.total) || 1, 1) * 1.04; }
  get bottom() { return this.mode === "arena" ? this.bytes[0] : 0; }

  scaleY(height) {
    return d3.scaleLinear().domain([this.bottom, this.top]).range([height - 6, 8]);
  }

  // Zooms the arena around the pointer.
  zoomBytes(factor, y, height) {
    const whole = this.space.arena;
    const at = this.scaleY(height).invert(y);
    const span = Math.min(whole, Math.max(4096, (this.bytes[1] - this.bytes[0]) / factor));
    const part = (at - this.bytes[0]) / (this.bytes[1] - this.bytes[0]);
    const low = Math.max(0, Math.min(whole - span, at - part * span));
    this.bytes = [low, low + span];
    this.surface.redraw();
  }

  draw(context, width, height) {
    this.#drawAxis(context, width, height);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.axis.pixels + 12, height);
    context.clip();
    if (this.mode === "arena") this.#drawArena(context, height);
    else this.#drawSums(context, height);
    context.restore();
  }

  #drawAxis(context, width, height) {
    const y = this.scaleY(height);
    context.font = palette.fontSmall;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const step = 2 ** Math.max(0, Math.ceil(Math.log2((this.top - this.bottom) / Math.max(2, height / 42))));
    for (let tick = Math.ceil(this.bottom / step) * step; tick <= this.top; tick += step) {
      const at = Math.round(y(tick)) + 0.5;
      if (at < 7) break;
      context.strokeStyle = palette.get("line");
      context.beginPath();
      context.moveTo(GUTTER, at);
      context.lineTo(GUTTER + this.axis.pixels + 12, at);
      context.stroke();
      if (at > height - 3) continue;
      context.fillStyle = palette.get("muted");
      context.fillText(tickText(tick), GUTTER - 8, Math.min(at, height - 7));
    }
    context.textAlign = "left";
  }

  #drawArena(context, height) {
    const { plan, axis, selection } = this;
    const { lives, buffers } = plan.raw;
    const y = this.scaleY(height);
    const [from, to] = axis.span;
    const k = axis.pixels / (to - from);
    const ky = (height - 14) / (this.bytes[1] - this.bytes[0]);
    const bottom = y(this.bytes[0]);
    const dim = !selection.empty;
    context.font = palette.fontSmall;
    context.textBaseline = "middle";
    const labels = [], chosen = [];
    let kind = -1;
    context.globalAlpha = dim ? 0.25 : 0.9;
    for (const life of this.order) {
      if (lives.end[life] < from || lives.begin[life] > to) continue;
      const buffer = lives.buffer[life];
      if (dim && selection.buffers.has(buffer)) {
        chosen.push(life);
        continue;
      }
      const x = GUTTER + (lives.begin[life] - from) * k, w = (lives.end[life] - lives.begin[life]) * k;
      const h = buffers.bytes[buffer] * ky;
      const at = bottom - (buffers.offset[buffer] - this.bytes[0]) * ky - h;
      if (at + h < 0 || at > height || (w < 0.4 && h < 0.4)) continue;
      if (buffers.kind[buffer] !== kind) {
        kind = buffers.kind[buffer];
        context.fillStyle = palette.memory(plan.bufferKind(buffer));
      }
      context.fillRect(x, at, Math.max(w - (w > 2 ? 0.7 : 0), 0.7), Math.max(h - (h > 2 ? 0.7 : 0), 0.6));
      if (w > 44 && h > 12) labels.push([buffer, x, at, w, h]);
    }
    context.globalAlpha = 1;
    for (const life of chosen) {
      const buffer = lives.buffer[life];
      const x = GUTTER + (lives.begin[life] - from) * k, w = Math.max((lives.end[life] - lives.begin[life]) * k, 1.5);
      const h = Math.max(buffers.bytes[buffer] * ky, 1.5);
      const at = bottom - (buffers.offset[buffer] - this.bytes[0]) * ky - buffers.bytes[buffer] * ky;
      context.fillStyle = palette.memory(plan.bufferKind(buffer));
      context.fillRect(x, at, w, h);
      if (selection.is("buffer", buffer)) {
        context.strokeStyle = palette.get("ink");
        context.lineWidth = 2;
        context.strokeRect(x + 1, at + 1, Math.max(w - 2, 1), Math.max(h - 2, 1));
        context.lineWidth = 1;
      }
      if (w > 44 && h > 12) labels.push([buffer, x, at, w, h]);
    }
    for (const [buffer, x, at, w, h] of labels) {
      const left = Math.max(x, GUTTER);
      const text = fitted(context, buffers.name[buffer], Math.min(x + w, GUTTER + axis.pixels + 10) - left - 9);
      if (!text) continue;
      context.globalAlpha = dim && !selection.buffers.has(buffer) ? 0.4 : 1;
      context.fillStyle = palette.get("on-colour");
      context.fillText(text, left + 4, Math.max(Math.min(at + h / 2, height - 8), 8) + 0.5);
    }
    context.globalAlpha = 1;
    this.#drawUnused(context, height);
  }

  // Above the arena there is nothing.
  #drawUnused(context, height) {
    const y = this.scaleY(height)(this.space.arena);
    if (y < 10) return;
    context.fillStyle = hatch(context, palette.get("line"));
    context.fillRect(GUTTER, 0, this.axis.pixels + 12, y);
  }

  #drawSums(context, height) {
    const { time } = this.space;
    const { scale } = this.axis;
    const y = this.scaleY(height);
    const [from, to] = this.axis.span;
    const first = Math.max(0, d3.bisectRight(time, from) - 1);
    const last = Math.min(time.length - 1, d3.bisectLeft(time, to));
    for (const layer of this.sums.layers) {
      context.fillStyle = palette.memory(layer.kind);
      context.globalAlpha = 0.9;
      context.beginPath();
      const end = (i) => (i + 1 < time.length ? scale(time[i + 1]) : scale(this.plan.end));
      context.moveTo(scale(time[first]), y(layer.low[first]));
      for (let i = first; i <= last; ++i) {
        context.lineTo(scale(time[i]), y(layer.high[i]));
        context.lineTo(end(i), y(layer.high[i]));
      }
      for (let i = last; i >= first; --i) {
        context.lineTo(end(i), y(layer.low[i]));
        context.lineTo(scale(time[i]), y(layer.low[i]));
      }
      context.closePath();
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // The buffer at a place, the smallest of those that overlap; null where none lives.
  at(x, y, height) {
    if (x < GUTTER || this.mode !== "arena") return null;
    const { lives, buffers } = this.plan.raw;
    const time = this.axis.scale.invert(x), bytes = this.scaleY(height).invert(y);
    const slackTime = this.axis.scale.invert(x + 1) - time, slackBytes = (this.bytes[1] - this.bytes[0]) / height;
    let best = null;
    for (const life of this.order) {
      if (lives.begin[life] > time + slackTime || lives.end[life] < time - slackTime) continue;
      const buffer = lives.buffer[life];
      if (buffers.offset[buffer] > bytes + slackBytes || buffers.offset[buffer] + buffers.bytes[buffer] < bytes - slackBytes) continue;
      if (best === null || buffers.bytes[buffer] < buffers.bytes[lives.buffer[best]]) best = life;
    }
    return best;
  }

  // Bytes that live at a time, by kind: [kind, bytes].
  liveAt(time) {
    const { space } = this;
    const i = Math.max(0, d3.bisectRight(space.time, time) - 1);
    return this.plan.raw.memory.kinds.map((kind, k) => [kind, space.byKind[k][i]]).filter(([, bytes]) => bytes > 0);
  }
}
