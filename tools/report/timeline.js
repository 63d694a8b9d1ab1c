// The timeline: a lane for each stream of the loop, the steps before and after it faintly before and after it.
import { GUTTER, Surface, drawTimeAxis, hatch } from "./tracks.js";
import { fitted, percentText, timeText } from "./format.js";
import { palette } from "./palette.js";

const AXIS = 20, BOUND = 20, TURNS = 16, LANE = 30, MEASURED = 16, SPACE = 7;

// The units of the machine that a bound counts, and those whose use takes from them.
const TAKING = { compute: ["links", "node link", "network"], memory: ["links", "node link", "network"] };
const UNITS_OF_BOUND = { compute: ["compute"], communication: ["links", "node link", "network"], "node link": ["links", "node link"],
  network: ["links", "network"], memory: ["compute"], cycle: [], to_device: ["to_device"], to_host: ["to_host"], file_in: ["file_in"],
  file_out: ["file_out"], "host compute": ["host compute"],
  "host memory": ["to_device", "to_host", "file_in", "file_out", "host compute"] };

export class Timeline {
  constructor(canvas, plan, selection, axis) {
    this.plan = plan;
    this.selection = selection;
    this.axis = axis;
    this.canvas = canvas;
    this.streams = plan.raw.streams.map((name, i) => ({ name, i, ops: plan.opsOfStream[i] })).filter((s) => s.ops.length > 0);
    this.measured = plan.raw.measured;
    this.#measureLanes();
    this.busy = this.#busyOfBound();
    const taking = TAKING[plan.raw.prediction.bound.by] || [];
    this.taken = this.#spans(d3.range(plan.size).filter((op) => taking.includes(plan.raw.units[plan.raw.ops.unit[op]])));
    canvas.style.height = `${this.height}px`;
    this.surface = new Surface(canvas, (context, width) => this.draw(context, width));
    this.hovered = null;
  }

  #measureLanes() {
    let y = AXIS;
    this.boundY = y;
    y += BOUND + 4;
    this.turnsY = y;
    if (this.plan.raw.turns.length > 1) y += TURNS + 4;
    for (const stream of this.streams) {
      stream.y = y;
      y += LANE + (this.measured ? MEASURED + 1 : 0) + SPACE;
      // Measured ops of a stream in their own order.
      if (this.measured)
        stream.measured = stream.ops.filter((op) => this.measured.begin[op] >= 0).sort((a, b) => this.measured.begin[a] - this.measured.begin[b]);
    }
    this.height = y + 2;
  }

  // The times at which what bounds the step is in use: the step is longer than its bound by what lies between them.
  #busyOfBound() {
    const { ops, units, prediction } = this.plan.raw;
    const { by, onCycle } = prediction.bound;
    return this.#spans(by === "cycle" ? onCycle : d3.range(this.plan.size).filter((op) => UNITS_OF_BOUND[by].includes(units[ops.unit[op]])));
  }

  // When any of these ops runs, as [begin, end] in order.
  #spans(list) {
    const { ops } = this.plan.raw;
    const spans = list.map((op) => [ops.begin[op], this.plan.opEnd[op]]).sort((a, b) => a[0] - b[0]);
    const busy = [];
    for (const [begin, end] of spans) {
      const last = busy[busy.length - 1];
      if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
      else busy.push([begin, end]);
    }
    return busy;
  }

  draw(context, width) {
    const { axis, plan } = this;
    drawTimeAxis(context, axis, palette, this.height, timeText);
    this.hatching = hatch(context, palette.get("wait"));
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, axis.pixels + 12, this.height);
    context.clip();
    this.#drawBound(context);
    this.#drawTurns(context);
    for (const stream of this.streams) this.#drawStream(context, stream);
    this.#drawStepEnd(context);
    this.#drawBlocker(context);
    context.restore();
    this.#drawNames(context, width);
  }

  #drawNames(context) {
    context.font = palette.font;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = palette.get("muted");
    const { by } = this.plan.raw.prediction.bound;
    context.font = palette.fontSmall;
    context.fillText(fitted(context, `bound: ${by}`, GUTTER - 16), 12, this.boundY + BOUND / 2);
    context.font = palette.font;
    if (this.plan.raw.turns.length > 1) context.fillText("micro-batches", 12, this.turnsY + TURNS / 2);
    for (const stream of this.streams) {
      context.fillStyle = palette.get("ink");
      context.fillText(fitted(context, stream.name, GUTTER - 18), 12, stream.y + LANE / 2);
      if (!this.measured) continue;
      context.font = palette.fontSmall;
      context.fillStyle = palette.get("muted");
      context.fillText("measured", 12, stream.y + LANE + 1 + MEASURED / 2);
      context.font = palette.font;
    }
  }

  // What bounds the step, where it is in use; hatched where it is not, which is what a better order could win.
  #drawBound(context) {
    const { scale } = this.axis;
    const from = scale(0), to = scale(this.plan.period), y = this.boundY + 5, height = BOUND - 10;
    context.fillStyle = this.hatching;
    context.fillRect(from, y, to - from, height);
    context.strokeStyle = palette.get("line");
    context.strokeRect(from + 0.5, y + 0.5, to - from - 1, height - 1);
    context.fillStyle = palette.get("accent");
    context.globalAlpha = 0.35;
    this.#drawSpans(context, this.taken, y, height);
    context.globalAlpha = 1;
    this.#drawSpans(context, this.busy, y, height);
  }

  #drawSpans(context, spans, y, height) {
    const { scale } = this.axis;
    const right = GUTTER + this.axis.pixels + 12;
    let filled = -Infinity;
    for (const [begin, end] of spans) {
      const x = scale(begin), w = Math.max(scale(end) - x, 1);
      if (x > right) break;
      if (x + w < filled + 0.5 || x + w < GUTTER) continue;
      context.fillRect(x, y, w, height);
      filled = x + w;
    }
  }

  #drawTurns(context) {
    const { turns, ops } = this.plan.raw;
    if (turns.length < 2) return;
    const { scale } = this.axis;
    context.font = palette.fontSmall;
    context.textBaseline = "middle";
    turns.forEach((turn, i) => {
      if (!turn.ops) return;
      let begin = Infinity, end = 0;
      for (let op = turn.first; op < turn.first + turn.ops; ++op)
        if (ops.stream[op] === 0) begin = Math.min(begin, ops.begin[op]), end = Math.max(end, this.plan.opEnd[op]);
      if (begin > end) return;
      const x = scale(begin), w = scale(end) - x;
      context.fillStyle = palette.get(i % 2 ? "line" : "faint");
      context.fillRect(x, this.turnsY, Math.max(w - 1, 1), TURNS);
      context.fillStyle = palette.get("muted");
      const visible = Math.max(x, GUTTER);
      context.fillText(fitted(context, `${turn.microBatch}: ${turn.name}`, x + w - visible - 8), visible + 4, this.turnsY + TURNS / 2);
    });
  }

  #drawStream(context, stream) {
    const { plan, axis } = this;
    const { ops } = plan.raw;
    context.fillStyle = palette.get("faint");
    context.fillRect(GUTTER, stream.y, axis.pixels + 12, LANE);
    for (const round of [-1, 0, 1])
      this.#drawOps(context, stream.ops, ops.begin, ops.time, round * plan.period, stream.y, LANE, round === 0);
    this.#drawWaits(context, stream);
    if (this.measured)
      this.#drawOps(context, stream.measured, this.measured.begin, this.measured.time, 0, stream.y + LANE + 1, MEASURED, true);
  }

  // Ops narrower than a pixel become one line a pixel, so that the work does not depend on how many there are.
  #drawOps(context, list, begins, times, shift, y, height, own) {
    const { plan, axis, selection } = this;
    const { scale } = axis;
    const [from, to] = axis.span;
    const k = (axis.pixels) / (to - from);
    const first = Math.max(0, d3.bisector((op) => begins[op] + shift).left(list, from) - 1);
    const dim = !selection.empty;
    let drawn = -Infinity;
    context.font = palette.font;
    context.textBaseline = "middle";
    const labels = [];
    for (let i = first; i < list.length; ++i) {
      const op = list[i];
      const begin = begins[op] + shift;
      if (begin > to) break;
      const x = GUTTER + (begin - from) * k;
      const w = times[op] * k;
      const chosen = own && selection.ops.has(op);
      if (x + w < drawn + 1 && !chosen) continue;
      drawn = Math.floor(x + Math.max(w, 1));
      context.globalAlpha = !own ? 0.16 : dim && !chosen ? 0.28 : 1;
      context.fillStyle = palette.op(plan.category[op]);
      const gap = w > 3 ? 0.6 : 0;
      context.fillRect(x, y, Math.max(w - gap, 1), height);
      if (chosen && selection.is("op", op)) {
        context.strokeStyle = palette.get("ink");
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(w - gap - 2, 1), height - 2);
        context.lineWidth = 1;
      }
      if (own && w > 34 && height > 12) labels.push([op, x, w, !dim || chosen]);
    }
    for (const [op, x, w, bright] of labels) {
      const left = Math.max(x, GUTTER);
      const text = fitted(context, plan.name(op), Math.min(x + w, GUTTER + axis.pixels) - left - 10);
      if (!text) continue;
      context.globalAlpha = bright ? 1 : 0.45;
      context.fillStyle = palette.get("on-colour");
      context.fillText(text, left + 5, y + height / 2 + 0.5);
    }
    context.globalAlpha = 1;
    context.textAlign = "left";
    return scale;
  }

  // Where a stream stands still.
  #drawWaits(context, stream) {
    const { plan, axis } = this;
    const { ops } = plan.raw;
    const { scale } = axis;
    const [from, to] = axis.span;
    const first = Math.max(0, d3.bisector((op) => plan.opEnd[op]).left(stream.ops, from) - 1);
    context.font = palette.fontSmall;
    context.textBaseline = "middle";
    for (let i = first; i < stream.ops.length; ++i) {
      const op = stream.ops[i];
      const wait = plan.waitBefore(op);
      if (!wait) continue;
      if (wait.begin > to) break;
      const x = Math.max(scale(wait.begin), GUTTER), w = scale(ops.begin[op]) - x;
      if (w < 3) continue;
      context.fillStyle = this.hatching;
      context.fillRect(x, stream.y, w, LANE);
      const text = fitted(context, `waits for ${plan.name(wait.from)}`, w - 12);
      if (!text || w < 60) continue;
      const width = context.measureText(text).width;
      context.fillStyle = palette.get("faint");
      context.fillRect(x + 4, stream.y + LANE / 2 - 7, width + 6, 14);
      context.fillStyle = palette.get("muted");
      context.fillText(text, x + 7, stream.y + LANE / 2);
    }
  }

  #drawStepEnd(context) {
    const { scale } = this.axis;
    context.strokeStyle = palette.get("muted");
    context.setLineDash([3, 3]);
    for (const time of [0, this.plan.period]) {
      const x = Math.round(scale(time)) + 0.5;
      context.beginPath();
      context.moveTo(x, AXIS - 4);
      context.lineTo(x, this.height);
      context.stroke();
    }
    context.setLineDash([]);
  }

  // From the op that another one waits for to that one.
  #drawBlocker(context) {
    const op = this.hovered ?? (this.selection.item?.type === "op" ? this.selection.item.id : null);
    if (op === null) return;
    const { plan, axis } = this;
    const { ops } = plan.raw;
    for (const [from, distance] of plan.waits(op)) {
      const source = this.streams.find((s) => s.i === ops.stream[from]);
      const target = this.streams.find((s) => s.i === ops.stream[op]);
      const x0 = axis.scale(plan.opEnd[from] - distance * plan.period), x1 = axis.scale(ops.begin[op]);
      const y0 = source.y + LANE / 2, y1 = target.y + LANE / 2;
      context.strokeStyle = palette.get("ink");
      context.lineWidth = 1.4;
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + 20, y0, x1 - 20, y1, x1, y1);
      context.stroke();
      context.beginPath();
      context.moveTo(x1 + 1, y1);
      context.lineTo(x1 - 6, y1 - 4);
      context.lineTo(x1 - 6, y1 + 4);
      context.closePath();
      context.fillStyle = palette.get("ink");
      context.fill();
      context.lineWidth = 1;
    }
  }

  // What is at a place: {op, wait} of which one is null; null where nothing is.
  at(x, y) {
    if (x < GUTTER) return null;
    const stream = this.streams.find((s) => y >= s.y && y < s.y + LANE + (this.measured ? MEASURED + 1 : 0));
    if (!stream) return null;
    const lower = y >= stream.y + LANE;
    const list = lower ? stream.measured : stream.ops;
    const begins = lower ? this.measured.begin : this.plan.raw.ops.begin;
    const times = lower ? this.measured.time : this.plan.raw.ops.time;
    const time = this.axis.scale.invert(x);
    const slack = this.axis.scale.invert(x + 1.5) - time;
    const after = d3.bisector((op) => begins[op]).right(list, time + slack);
    if (after > 0) {
      const op = list[after - 1];
      if (begins[op] + times[op] + slack >= time) return { op, wait: null, measured: lower };
    }
    if (lower || after >= list.length) return null;
    const wait = this.plan.waitBefore(list[after]);
    return wait && time >= wait.begin ? { op: list[after], wait, measured: false } : null;
  }

  boundText() {
    const { bound, gap } = this.plan.raw.prediction;
    const taken = this.taken.length ? " Light: collectives take from it." : "";
    return `The step takes ${percentText(gap)} more than its bound by ${bound.by}.${taken} Hatched: it is not in use.`;
  }
}
