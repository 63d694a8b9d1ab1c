// Finds nodes, parameters, buffers, buckets and modules by parts of their names.
import { element } from "./format.js";

const MOST = 60;

export class Search {
  constructor(input, list, plan, selection) {
    this.input = input;
    this.list = list;
    this.plan = plan;
    this.selection = selection;
    this.entries = this.#entries();
    this.active = -1;
    input.addEventListener("input", () => this.find());
    input.addEventListener("focus", () => input.value && this.find());
    input.addEventListener("blur", () => setTimeout(() => this.close(), 150));
    input.addEventListener("keydown", (event) => this.#key(event));
  }

  #entries() {
    const { plan } = this;
    const { buckets, buffers, parameters } = plan.raw;
    const labels = [...plan.opsOfLabel.keys()].filter((label) => label && !plan.bucketOfName.has(label));
    return [
      ...parameters.name.map((_, i) => ["parameter", plan.parameterName(i), { type: "parameter", id: i }]),
      ...buckets.map((bucket, i) => ["bucket", bucket.name, { type: "bucket", id: i }]),
      ...labels.map((label) => ["node", label, { type: "label", id: label }]),
      ...buffers.name.map((name, i) => ["buffer", name, { type: "buffer", id: i }]),
    ];
  }

  addGraph(graph) {
    const known = new Set(this.entries.map(([, name]) => name));
    this.entries.push(...graph.scopes().map((scope) => ["module", scope, { type: "module", id: scope }]),
      ...graph.labels().filter((label) => !known.has(label)).map((label) => ["node", label, { type: "label", id: label }]));
  }

  // Words in any order; names that begin with the first word come first.
  find() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this.close();
    const found = [];
    for (const entry of this.entries) {
      const name = entry[1].toLowerCase();
      if (words.every((word) => name.includes(word))) found.push([name.startsWith(words[0]) ? 0 : 1, name.length, entry]);
    }
    found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    this.shown = found.slice(0, MOST).map(([, , entry]) => entry);
    this.list.replaceChildren(...this.shown.map(([type, name], i) => element("div", { role: "option", id: `result-${i}`, "aria-selected": "false", onmousedown: () => this.choose(i) },
      element("span", { class: "type" }, type), element("span", { class: "text" }, name))));
    if (!found.length) this.list.append(element("div", { role: "option", class: "none", "aria-disabled": "true", "aria-selected": "false" }, "Nothing has such a name."));
    else if (found.length > MOST) this.list.append(element("div", { role: "option", class: "none", "aria-disabled": "true", "aria-selected": "false" }, `and ${found.length - MOST} more`));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.#activate(found.length ? 0 : -1);
  }

  #activate(i) {
    this.list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.active = i;
    const option = i < 0 ? null : document.getElementById(`result-${i}`);
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
    if (option) this.input.setAttribute("aria-activedescendant", option.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    const count = this.list.hidden ? 0 : this.shown.length;
    if (event.key === "ArrowDown" && count) this.#activate((this.active + 1) % count);
    else if (event.key === "ArrowUp" && count) this.#activate((this.active + count - 1) % count);
    else if (event.key === "Enter" && this.active >= 0) this.choose(this.active);
    else if (event.key === "Escape") {
      this.close();
      this.input.blur();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  choose(i) {
    this.selection.select(this.shown[i][2], "search");
    this.close();
  }

  close() {
    this.list.hidden = true;
    this.active = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
