// Buckets as bars, divided into the parameters that live in them.
import { bytesText, countText, element, plural } from "./format.js";

export class Buckets {
  constructor(panel, plan, selection) {
    this.plan = plan;
    this.selection = selection;
    const { buckets } = plan.raw;
    this.largest = d3.max(buckets, (bucket) => bucket.bytes) || 1;
    this.rows = buckets.map((bucket, i) => this.#row(bucket, i));
    const total = d3.sum(buckets, (bucket) => bucket.bytes);
    panel.append(
      element("p", { class: "lead" },
        `${plural(buckets.length, "bucket")} of ${bytesText(total)}: parameters that travel together. A bar is as long as its bucket, a piece of it is a parameter.`),
      element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Buckets" }, element("div", { class: "bucket-list" }, this.rows)));
    selection.onChange((_, from) => this.#mark(from));
  }

  #row(bucket, i) {
    const { plan, selection } = this;
    const { parameters } = plan.raw;
    const members = plan.parametersOfBucket[i];
    const bar = element("div", { class: "bar" });
    bar.style.width = `${Math.max(2, (100 * bucket.bytes) / this.largest)}%`;
    this.members = this.members || new Map();
    for (const parameter of members) {
      const name = plan.parameterName(parameter);
      const piece = element("button", {
        type: "button", class: "piece", tabindex: "-1", title: `${name}, ${bytesText(parameters.bytes[parameter])}`,
        "aria-label": name, onclick: () => selection.select({ type: "parameter", id: parameter }, "buckets"),
      }, element("span", {}, name));
      piece.style.flexGrow = String(Math.max(parameters.bytes[parameter], bucket.bytes / 2000));
      this.members.set(parameter, piece);
      bar.append(piece);
    }
    const division = [
      bucket.trainable ? "trained" : "frozen",
      bucket.parameterParts > 1 ? `parameters in ${bucket.parameterParts} shards` : "parameters whole",
      bucket.states.length ? `${plural(bucket.states.length, "state")} ${bucket.stateParts > 1 ? `in ${bucket.stateParts} shards` : "whole"}` : null,
      bucket.group ? `group ${bucket.group}` : null,
    ].filter(Boolean).join(" · ");
    return element("section", { class: "bucket", "aria-label": bucket.name },
      element("div", { class: "bucket-head" },
        element("button", { type: "button", class: "name", onclick: () => selection.select({ type: "bucket", id: i }, "buckets") }, bucket.name),
        element("span", { class: "figure" }, bytesText(bucket.bytes)),
        element("span", { class: "muted" }, `${countText(bucket.elements)} ${bucket.type} · ${plural(members.length, "parameter")} · ${division}`)),
      bar);
  }

  #mark(from) {
    const { selection } = this;
    this.rows.forEach((row, i) => row.classList.toggle("chosen", selection.buckets.has(i)));
    this.members?.forEach((piece, parameter) => piece.classList.toggle("chosen", selection.parameters.has(parameter) && selection.item.type !== "bucket"));
    if (from !== "buckets" && selection.buckets.size) this.revealing = true;
    this.show();
  }

  // When the view is seen: scrolls to what was selected elsewhere.
  show() {
    if (!this.revealing || !this.rows[0]?.offsetParent) return;
    this.revealing = false;
    this.rows[d3.min(this.selection.buckets)]?.scrollIntoView({ block: "nearest" });
  }
}
