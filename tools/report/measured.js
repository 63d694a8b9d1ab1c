// A measured step next to the predicted one: the largest differences, and both by kind of instruction.
import { element, percentText, plural, timeText } from "./format.js";

function pair(predicted, measured, most) {
  const bars = element("div", { class: "pair", "aria-hidden": "true" });
  for (const [name, time] of [["predicted", predicted], ["measured", measured]]) {
    const fill = element("div", { class: `fill ${name}` });
    fill.style.width = `${Math.max(0.5, (100 * time) / most)}%`;
    bars.append(fill);
  }
  return bars;
}

function cells(predicted, measured, most) {
  const change = predicted > 0 ? measured / predicted - 1 : 0;
  return [element("td", { class: "figure" }, timeText(predicted)), element("td", { class: "figure" }, timeText(measured)),
    element("td", { class: "figure" }, `${measured >= predicted ? "+" : "−"}${timeText(Math.abs(measured - predicted))}`),
    element("td", { class: "figure" }, predicted > 0 ? `${change > 0 ? "+" : "−"}${percentText(Math.abs(change))}` : ""),
    element("td", { class: "barcell wide" }, pair(predicted, measured, most))];
}

const HEAD = ["predicted", "measured", "difference", "", ""];

export class Measured {
  constructor(panel, plan, selection) {
    this.selection = selection;
    const { measured, prediction } = plan.raw;
    const most = d3.max(measured.differences, (d) => Math.max(d.predicted, d.measured) * 1e9) || 1;
    this.rows = new Map();
    const head = (name) => element("thead", {}, element("tr", {}, element("th", { scope: "col" }, name), HEAD.map((h) => (h ? element("th", { scope: "col", class: "figure" }, h) : element("td")))));
    const table = element("table", {}, head("instruction"), element("tbody", {}, measured.differences.map((difference) => {
      const row = element("tr", {}, element("th", { scope: "row" }, element("button", { type: "button", class: "name", onclick: () => selection.select({ type: "op", id: difference.op }, "measured") },
        `${plan.kind(difference.op)} ${plan.label(difference.op)}`)), cells(difference.predicted * 1e9, difference.measured * 1e9, most));
      this.rows.set(difference.op, row);
      return row;
    })));
    panel.append(element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Measured and predicted" },
      element("p", { class: "lead" }, `Measured: a step of ${timeText(measured.step * 1e9)} on rank ${measured.rank}, medians of ${plural(measured.steps, "step")}. Predicted on ${prediction.machine}: ${timeText(prediction.step * 1e9)}.`),
      element("h3", {}, "The largest differences"), table, element("h3", {}, "By kind"), this.#kinds(plan, head)));
    selection.onChange(() => this.rows.forEach((row, op) => row.classList.toggle("chosen", selection.ops.has(op))));
  }

  #kinds(plan, head) {
    const { ops, measured } = plan.raw;
    const sums = new Map();
    for (let op = 0; op < plan.size; ++op) {
      if (measured.begin[op] < 0) continue;
      const sum = sums.get(plan.kind(op)) || [0, 0];
      sum[0] += ops.time[op], sum[1] += measured.time[op];
      sums.set(plan.kind(op), sum);
    }
    const rows = [...sums].sort((a, b) => Math.abs(b[1][1] - b[1][0]) - Math.abs(a[1][1] - a[1][0]));
    const most = d3.max(rows, ([, [a, b]]) => Math.max(a, b)) || 1;
    return element("table", {}, head("kind"), element("tbody", {}, rows.map(([kind, [predicted, time]]) => element("tr", {}, element("th", { scope: "row" }, kind), cells(predicted, time, most)))));
  }
}
