// Warnings, what the compiler decided, and the options that it was given.
import { element, plural } from "./format.js";

export class Notes {
  constructor(panel, plan) {
    const { warnings, decisions } = plan.raw;
    const { options, producer, targets, optimizer } = plan.raw.plan;
    const list = (texts, name) => (texts.length ? element("ul", { class: name }, texts.map((text) => element("li", {}, text))) : element("p", { class: "empty" }, "None."));
    panel.append(element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Decisions and warnings" },
      element("h3", {}, "Warnings"), list(warnings, "warnings"),
      element("h3", {}, "What the compiler decided"), list(decisions, "decisions"),
      element("h3", {}, "Options that were given"),
      options.length ? element("p", { class: "options" }, options.map((option) => element("code", {}, option))) : element("p", { class: "empty" }, "None."),
      element("p", { class: "muted" }, `Made by ${producer} for ${targets.join(", ")}; optimizer ${optimizer}.`)));
    this.count = warnings.length;
    this.summary = plural(warnings.length, "warning");
  }
}
