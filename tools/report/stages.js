// What each ZeRO stage would keep on a rank, and what this plan's memory is at its largest.
import { bytesText, element, percentText } from "./format.js";

const KINDS = ["parameters", "gradients", "optimizer"];

function meter(parts, most) {
  const bar = element("div", { class: "meter stacked", "aria-hidden": "true" });
  for (const [kind, bytes] of parts) {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * bytes) / most}%`;
    fill.style.background = `var(--mem-${kind})`;
    bar.append(fill);
  }
  return bar;
}

export class Stages {
  constructor(panel, plan) {
    const { stages, memory } = plan.raw;
    const most = d3.max(stages, (stage) => stage.total) || 1;
    const table = element("table", { class: "stages" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "stage"),
        KINDS.map((kind) => element("th", { scope: "col", class: "figure" }, element("i", { class: `dot mem-${kind}` }), kind)),
        element("th", { scope: "col", class: "figure" }, "total"), element("td"))),
      element("tbody", {}, stages.map((stage) => element("tr", { class: stage.own ? "own" : null },
        element("th", { scope: "row" }, stage.name, stage.own ? element("span", { class: "tag" }, "this plan") : null),
        KINDS.map((kind) => element("td", { class: "figure" }, bytesText(stage[kind]))),
        element("td", { class: "figure" }, bytesText(stage.total)),
        element("td", { class: "barcell wide" }, meter(KINDS.map((kind) => [kind, stage[kind]]), most))))));
    const largest = memory.largest.map(({ kind, bytes }) => [memory.kinds[kind], bytes]).filter(([, bytes]) => bytes > 0);
    const top = Math.max(d3.max(largest, ([, bytes]) => bytes) || 1, memory.libraries);
    const held = element("table", {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "kind"), element("th", { scope: "col", class: "figure" }, "most at a time"), element("td"))),
      element("tbody", {}, largest.map(([kind, bytes]) => element("tr", {}, element("th", { scope: "row" }, element("i", { class: `dot mem-${kind}` }), kind),
        element("td", { class: "figure" }, bytesText(bytes)), element("td", { class: "barcell wide" }, meter([[kind, bytes]], top)))),
      element("tr", {}, element("th", { scope: "row" }, "libraries, besides the arena"), element("td", { class: "figure" }, bytesText(memory.libraries)),
        element("td", { class: "barcell wide" }, meter([["constants", memory.libraries]], top)))));
    panel.append(element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Stages and memory by kind" },
      element("h3", {}, "What a rank keeps from step to step"),
      element("p", { class: "lead" }, "By the ZeRO arithmetic on this plan's buckets, padding included; activations and gathered parameters are on top."), table,
      element("h3", {}, "Memory of this plan by kind"),
      element("p", { class: "lead" }, `The arena of a rank has ${bytesText(memory.arena)}, ${percentText(memory.arena / memory.limit)} of the limit of ${bytesText(memory.limit)}. `
        + "Kinds are at their largest at different times, and share bytes."), held));
  }
}
