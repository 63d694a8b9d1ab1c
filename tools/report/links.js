// What a rank sends over each link, by collective.
import { bytesText, element, percentText, plural, timeText } from "./format.js";
import { categoryOfKind } from "./data.js";
import { palette } from "./palette.js";

export class Links {
  constructor(panel, plan, selection) {
    this.plan = plan;
    this.selection = selection;
    const { links, ranks } = plan.raw.prediction;
    if (!plan.raw.communication.op.length) {
      panel.append(element("p", { class: "empty" }, ranks > 1 ? "The step has no collectives." : "One rank exchanges nothing with others."));
      return;
    }
    this.table = this.#table();
    panel.append(element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Links and collectives" },
      element("div", { class: "cards" }, links.map((link) => this.#card(link))),
      element("h3", {}, "Collectives of a step"), this.#sums(),
      element("h3", {}, "Each collective"), this.table));
    selection.onChange((_, from) => this.#mark(from));
  }

  #card(link) {
    const step = this.plan.raw.prediction.step;
    const part = link.seconds / step;
    const fill = element("div", { class: "fill" });
    fill.style.width = `${Math.min(100, 100 * part)}%`;
    return element("section", { class: "card", "aria-label": link.name },
      element("h3", {}, link.name, link.binds ? element("span", { class: "tag" }, "bounds the step") : null),
      element("p", { class: "big" }, bytesText(link.bytes), element("small", {}, " sent by a rank in a step")),
      element("div", { class: "meter", "aria-hidden": "true" }, fill),
      element("p", { class: "muted" }, `in use for ${timeText(link.seconds * 1e9)}, ${percentText(part)} of the step; bound ${timeText(link.bound * 1e9)}`));
  }

  // By collective, phase and axis.
  #sums() {
    const { communication, texts, ops } = this.plan.raw;
    const sums = new Map();
    communication.op.forEach((op, i) => {
      const key = [communication.kind[i], communication.phase[i], communication.axis[i]].map((text) => texts[text]);
      const sum = sums.get(key.join()) || { key, count: 0, bytes: 0, sent: 0, network: 0, time: 0 };
      sum.count += 1, sum.bytes += communication.bytes[i], sum.sent += communication.sent[i], sum.time += ops.time[op];
      sum.network += communication.network[i];
      sums.set(key.join(), sum);
    });
    const rows = [...sums.values()].sort((a, b) => b.sent - a.sent);
    const most = d3.max(rows, (row) => row.sent) || 1;
    const nodes = rows.some((row) => row.network > 0);
    const head = ["collective", "phase", "ranks", "count", "arrays", "sent by a rank", "", nodes ? "to other nodes, all ranks" : null, "time"];
    return element("table", {},
      element("thead", {}, element("tr", {}, head.filter((h) => h !== null).map((h, i) => (h ? element("th", { scope: "col", class: i > 2 ? "figure" : null }, h) : element("td"))))),
      element("tbody", {}, rows.map((row) => {
        const bar = element("div", { class: "fill" });
        bar.style.width = `${(100 * row.sent) / most}%`;
        bar.style.background = `var(--op-${categoryOfKind(row.key[0])})`;
        return element("tr", {}, element("th", { scope: "row" }, row.key[0]), element("td", {}, row.key[1]), element("td", {}, row.key[2]),
          element("td", { class: "figure" }, String(row.count)), element("td", { class: "figure" }, bytesText(row.bytes)),
          element("td", { class: "figure" }, bytesText(row.sent)), element("td", { class: "barcell" }, element("div", { class: "meter thin" }, bar)),
          nodes ? element("td", { class: "figure" }, bytesText(row.network)) : null,
          element("td", { class: "figure" }, timeText(row.time)));
      })));
  }

  #table() {
    const { communication, texts, ops } = this.plan.raw;
    this.rowOfOp = new Map();
    const rows = communication.op.map((op, i) => {
      const row = element("tr", {},
        element("th", { scope: "row" }, element("button", { type: "button", class: "name", onclick: () => this.selection.select({ type: "op", id: op }, "links") }, this.plan.name(op))),
        element("td", {}, texts[communication.kind[i]]), element("td", {}, texts[communication.phase[i]]), element("td", {}, texts[communication.axis[i]]),
        element("td", { class: "figure" }, bytesText(communication.sent[i])), element("td", { class: "figure" }, timeText(ops.begin[op])),
        element("td", { class: "figure" }, timeText(ops.time[op])));
      this.rowOfOp.set(op, row);
      return row;
    });
    return element("table", {},
      element("caption", { class: "unseen" }, plural(rows.length, "collective")),
      element("thead", {}, element("tr", {}, ["of", "collective", "phase", "ranks", "sent by a rank", "begins at", "time"].map((h, i) => element("th", { scope: "col", class: i > 3 ? "figure" : null }, h)))),
      element("tbody", {}, rows));
  }

  #mark(from) {
    let first = null;
    this.rowOfOp.forEach((row, op) => {
      const chosen = this.selection.ops.has(op);
      row.classList.toggle("chosen", chosen);
      if (chosen && !first) first = row;
    });
    this.revealing = from === "links" ? null : first;
    this.show();
  }

  show() {
    if (!this.revealing?.offsetParent) return;
    this.revealing.scrollIntoView({ block: "nearest" });
    this.revealing = null;
  }
}
