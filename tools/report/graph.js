// The training graph: a row for each module or node, columns for forward pass, backward pass and update, and edges between them. The
// forward pass runs down, the backward pass up. Only the rows that are seen are in the page.
import { element, plural } from "./format.js";
import { PASSES } from "./graphmodel.js";

const ROW = 26, NAMES = 250, OVERSCAN = 12, FAR = 24;  // FAR: rows; longer edges are faint, since many modules may have them
const SIGNS = { gather: "⇣", reduce: "Σ", release: "×" };

export class GraphView {
  constructor(panel, plan, selection) {
    this.panel = panel;
    this.plan = plan;
    this.selection = selection;
    this.model = null;
    this.open = new Set([""]);
    this.focus = 0;
    this.chosenPlaces = new Set();
  }

  // Called when the graph is unpacked.
  setModel(model) {
    this.model = model;
    this.which = model.graphs.length - 1;
    const choices = model.graphs.map((graph, i) => element("button", { type: "button", "aria-pressed": String(i === this.which), onclick: () => this.#choose(i) }, graph.title));
    this.choices = choices;
    this.rowsBox = element("div", { class: "rows" });
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.svg.setAttribute("aria-hidden", "true");
    this.space = element("div", { class: "space" }, this.svg, this.rowsBox);
    this.scroller = element("div", { class: "graph-scroller", onscroll: () => this.#schedule() }, this.space);
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "treegrid");
    this.scroller.setAttribute("aria-label", "Training graph by module");
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    this.count = element("span", { class: "muted" });
    this.panel.replaceChildren(
      element("div", { class: "bar-row" },
        element("div", { class: "segmented", role: "group", "aria-label": "Which graph" }, choices),
        element("button", { type: "button", class: "quiet", onclick: () => this.#expand(1) }, "Expand"),
        element("button", { type: "button", class: "quiet", onclick: () => this.#expand(-1) }, "Collapse"),
        this.count,
        element("span", { class: "legend" }, Object.entries(SIGNS).map(([mark, sign]) => element("span", {}, element("i", { class: `chip ${mark}` }, sign), mark)))),
      element("div", { class: "graph-head", "aria-hidden": "true" }, element("span", {}, "module"), PASSES.map((pass) => element("span", {}, pass))),
      this.scroller);
    new ResizeObserver(() => this.#schedule()).observe(this.scroller);
    this.selection.onChange((_, from) => this.#select(from));
    this.#choose(this.which);
  }

  get graph() { return this.model.graphs[this.which]; }

  #choose(i) {
    this.which = i;
    this.choices.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
    if (this.open.size === 1) this.#openToFill();
    this.#layOut();
    this.#select(null);
  }

  // Opens levels as long as the rows fit some screens.
  #openToFill() {
    for (let depth = 0; depth < 6; ++depth) {
      const next = new Set(this.open);
      for (const module of this.graph.modules()) if (this.open.has(module.path)) for (const child of module.sorted) if (child.children.size) next.add(child.path);
      const before = this.open;
      this.open = next;
      this.#rowsOf();
      if (this.rows.length > 60) {
        this.open = before;
        return;
      }
    }
  }

  #expand(way) {
    const depthOf = (path) => (path ? path.split(/\.(?!\d+(?:\.|$))/).length : 0);
    const deepest = d3.max([...this.open], depthOf) || 0;
    if (way > 0) for (const module of this.graph.modules()) if (depthOf(module.path) <= deepest + 1) this.open.add(module.path);
    if (way < 0) for (const path of [...this.open]) if (path && depthOf(path) >= deepest) this.open.delete(path);
    this.#layOut();
  }

  // The visible rows: {module, depth, cells} where cells have nodes, for a row of nodes of an open module.
  #rowsOf() {
    const rows = [];
    const add = (module, depth) => {
      const isOpen = this.open.has(module.path);
      const row = { module, depth, open: isOpen, nodes: null };
      if (module !== this.graph.root) rows.push(row);
      if (!isOpen) return;
      const own = { forward: [], backward: [], update: [] };
      for (const node of module.own) own[this.graph.pass(node)].push(node);
      own.backward.reverse();  // the backward pass runs up
      const most = Math.max(...PASSES.map((pass) => own[pass].length));
      // The root's own nodes, which are in no module, come last.
      if (module !== this.graph.root) for (let i = 0; i < most; ++i) rows.push({ module, depth: depth + 1, nodes: PASSES.map((pass) => own[pass][i] ?? null) });
      for (const child of module.sorted) add(child, module === this.graph.root ? depth : depth + 1);
      if (module === this.graph.root) for (let i = 0; i < most; ++i) rows.push({ module, depth, nodes: PASSES.map((pass) => own[pass][i] ?? null) });
    };
    add(this.graph.root, 0);
    this.rows = rows;
  }

  #layOut() {
    this.#rowsOf();
    this.space.style.height = `${this.rows.length * ROW + 8}px`;
    this.scroller.setAttribute("aria-rowcount", String(this.rows.length));
    this.count.textContent = `${plural(this.graph.size, "node")}, ${plural(this.rows.length, "row")}`;
    this.#place();
    this.focus = Math.min(this.focus, this.rows.length - 1);
    this.drawn = null;
    this.#draw();
  }

  // Where each node is: its own cell, or that of the closest module that is seen. A place is row * 3 + column.
  #place() {
    const { graph } = this;
    const rowOfModule = new Map();
    this.placeOf = new Int32Array(graph.size).fill(-1);
    this.rows.forEach((row, i) => {
      if (!row.nodes) rowOfModule.set(row.module.path, i);
      else row.nodes.forEach((node, column) => { if (node !== null) this.placeOf[node] = i * 3 + column; });
    });
    const rowOf = (module) => {
      for (let at = module; at; at = at.parent) if (rowOfModule.has(at.path)) return rowOfModule.get(at.path);
      return -1;
    };
    for (let node = 0; node < graph.size; ++node) {
      if (this.placeOf[node] >= 0) continue;
      const row = rowOf(graph.moduleOf[node]);
      if (row >= 0) this.placeOf[node] = row * 3 + graph.graph.pass[node];
    }
    const edges = new Map();
    for (let node = 0; node < graph.size; ++node)
      for (const input of graph.inputs(node)) {
        const from = this.placeOf[input], to = this.placeOf[node];
        if (from < 0 || to < 0 || from === to) continue;
        const key = from * this.rows.length * 3 + to;
        const edge = edges.get(key);
        if (edge) edge.count += 1;
        else edges.set(key, { from, to, count: 1, node: input });
      }
    this.edges = [...edges.values()];
  }

  #schedule() {
    if (this.requested) return;
    this.requested = requestAnimationFrame(() => {
      this.requested = 0;
      this.#draw();
    });
  }

  #draw() {
    if (!this.model || !this.scroller.clientHeight) return;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - OVERSCAN);
    const last = Math.min(this.rows.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / ROW) + OVERSCAN);
    const width = this.space.clientWidth;
    const key = `${first} ${last} ${width} ${this.which}`;
    if (this.drawn === key) return;
    this.drawn = key;
    const hadFocus = this.rowsBox.contains(document.activeElement);
    this.rowsBox.replaceChildren(...d3.range(first, last).map((i) => this.#row(i)));
    if (hadFocus) this.scroller.focus({ preventScroll: true });
    if (this.focus >= first && this.focus < last) this.scroller.setAttribute("aria-activedescendant", `row-${this.focus}`);
    else this.scroller.removeAttribute("aria-activedescendant");
    this.#drawEdges(first, last, width);
  }

  #row(i) {
    const { selection } = this;
    const row = this.rows[i];
    const made = element("div", { class: `row${row.nodes ? "" : " module"}${i === this.focus ? " focus" : ""}`, role: "row", "aria-level": String(row.depth + 1), "aria-rowindex": String(i + 1) });
    if (!row.nodes) made.setAttribute("aria-expanded", String(row.open));
    made.style.top = `${i * ROW}px`;
    made.id = `row-${i}`;
    const name = element("div", { class: "name", role: "gridcell" });
    name.style.paddingLeft = `${8 + row.depth * 14}px`;
    if (!row.nodes) {
      if (selection.is("module", row.module.path)) made.classList.add("chosen");
      name.append(element("span", { class: "twist", "aria-hidden": "true", onclick: (event) => { event.stopPropagation(); this.#toggle(i); } }, row.open ? "▾" : "▸"),
        element("span", { class: "text", title: row.module.path }, row.module.name));
      made.addEventListener("click", () => this.#selectRow(i));
      made.addEventListener("dblclick", () => this.#toggle(i));
    }
    made.append(name, ...PASSES.map((pass, column) => element("div", { class: "cell", role: "gridcell" }, row.nodes ? this.#nodeBox(row.nodes[column]) : this.#moduleBox(row, pass, this.chosenPlaces.has(i * 3 + column)))));
    return made;
  }

  #nodeBox(node) {
    if (node === null) return null;
    const { graph, selection } = this;
    const name = graph.name(node);
    const mark = graph.mark(node);
    const box = element("div", { class: `box${mark ? ` ${mark}` : ""}`, title: `${graph.op(node)} ${name}\n${graph.type(node)}` },
      element("span", { class: "op" }, graph.shortOp(node)), element("span", { class: "of" }, mark ? name : graph.type(node) || name));
    if (selection.labels.has(name)) box.classList.add("chosen");
    box.addEventListener("click", (event) => {
      event.stopPropagation();
      const bucket = this.plan.bucketOfName.get(name);
      selection.select(bucket !== undefined ? { type: "bucket", id: bucket } : { type: "label", id: name }, "graph");
    });
    return box;
  }

  // `holds`: whether something selected is in it.
  #moduleBox(row, pass, holds) {
    const { module } = row;
    const marks = Object.keys(SIGNS).map((mark) => [mark, module.marks.get(`${pass} ${mark}`) || 0]).filter(([, count]) => count > 0);
    const count = module.counts[pass];
    if (!count && !marks.length) return null;
    const chips = marks.map(([mark, number]) => element("i", { class: `chip ${mark}`, title: `${plural(number, mark)} in the ${pass} pass` }, `${SIGNS[mark]} ${number}`));
    return element("div", { class: `box whole${row.open ? " opened" : ""}${holds ? " chosen" : ""}` }, element("span", { class: "op" }, count ? plural(count, "op") : ""), chips);
  }

  #boxOf(place, width) {
    const column = place % 3, row = Math.floor(place / 3);
    const cell = (width - NAMES) / 3;
    const left = NAMES + column * cell + 26;
    return { left, right: NAMES + (column + 1) * cell - 26, top: row * ROW + 3, bottom: (row + 1) * ROW - 3, column, row };
  }

  #drawEdges(first, last, width) {
    const { svg, graph, selection } = this;
    svg.setAttribute("width", width);
    svg.setAttribute("height", this.rows.length * ROW + 8);
    const seen = this.edges.filter(({ from, to }) => {
      const a = Math.floor(from / 3), b = Math.floor(to / 3);
      return (a >= first && a < last) || (b >= first && b < last);
    });
    const chosen = (edge) => selection.labels.size > 0 && selection.item.type !== "module" && selection.labels.has(graph.name(edge.node));
    // Short edges tell most; where there are too many, the long ones are left out unless they are selected.
    seen.sort((a, b) => Math.abs(a.from - a.to) - Math.abs(b.from - b.to));
    const shown = seen.filter((edge, i) => i < 500 || chosen(edge));
    svg.replaceChildren(...shown.map((edge) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", this.#route(this.#boxOf(edge.from, width), this.#boxOf(edge.to, width)));
      const far = Math.abs(edge.from - edge.to) > 3 * FAR;
      path.setAttribute("class", `edge${chosen(edge) ? " chosen" : far ? " far" : ""}`);
      return path;
    }));
  }

  #route(a, b) {
    if (a.column !== b.column) {
      const x0 = a.column < b.column ? a.right : a.left, x1 = a.column < b.column ? b.left : b.right;
      const y0 = (a.top + a.bottom) / 2, y1 = (b.top + b.bottom) / 2, bend = (x1 - x0) / 2;
      return `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
    }
    const down = a.row < b.row, distance = Math.abs(a.row - b.row);
    if (distance === 1) {
      const x = a.left + 14;
      return down ? `M${x} ${a.bottom}V${b.top}` : `M${x} ${a.top}V${b.bottom}`;
    }
    const y0 = (a.top + a.bottom) / 2, y1 = (b.top + b.bottom) / 2;
    const bulge = Math.min(22, 6 + 2 * Math.sqrt(distance));
    // Data that skips rows passes on the outer side.
    const side = a.column === 0 ? a.left : a.right, way = a.column === 0 ? -1 : 1;
    return `M${side} ${y0}C${side + way * bulge} ${y0} ${side + way * bulge} ${y1} ${side} ${y1}`;
  }

  #toggle(i) {
    const { path } = this.rows[i].module;
    if (this.open.has(path)) this.open.delete(path);
    else this.open.add(path);
    this.#layOut();
  }

  #selectRow(i) {
    this.focus = i;
    const row = this.rows[i];
    if (!row.nodes) this.selection.select({ type: "module", id: row.module.path }, "graph");
    else {
      const node = row.nodes.find((one) => one !== null);
      this.selection.select({ type: "label", id: this.graph.name(node) }, "graph");
    }
  }

  #key(event) {
    const row = this.rows[this.focus];
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.#moveTo(Math.max(0, Math.min(this.rows.length - 1, this.focus + steps[event.key])));
    else if (event.key === "ArrowRight" && !row.nodes && !row.open) this.#toggle(this.focus);
    else if (event.key === "ArrowLeft" && !row.nodes && row.open) this.#toggle(this.focus);
    else if (event.key === "ArrowLeft") this.#moveTo(Math.max(0, this.rows.findIndex((r) => !r.nodes && r.module === (row.nodes ? row.module : row.module.parent))));
    else if (event.key === "Enter" || event.key === " ") this.#selectRow(this.focus);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #moveTo(i) {
    this.focus = i;
    this.#reveal(i);
    this.drawn = null;
    this.#draw();
  }

  #reveal(i) {
    const top = i * ROW, { scroller } = this;
    if (top < scroller.scrollTop) scroller.scrollTop = top - ROW;
    else if (top + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + 2 * ROW - scroller.clientHeight;
  }

  #select(from) {
    this.revealing = from !== "graph" && !this.selection.empty;
    // A module that is not seen, because one around it is closed, is opened to.
    const { item } = this.selection;
    if (this.revealing && item.type === "module" && !this.rows.some((row) => !row.nodes && row.module.path === item.id)) {
      for (const module of this.graph.modules()) if (this.model.within(module.path, item.id) && module.path !== item.id) this.open.add(module.path);
      this.#layOut();
    }
    this.chosenPlaces = new Set();
    if (item && item.type !== "module")
      for (let node = 0; node < this.graph.size; ++node) if (this.selection.labels.has(this.graph.name(node))) this.chosenPlaces.add(this.placeOf[node]);
    this.drawn = null;
    this.show();
  }

  // When the view is seen: draws, and scrolls to what was selected elsewhere.
  show() {
    if (!this.model || !this.scroller.clientHeight) return;
    if (this.revealing) {
      this.revealing = false;
      const { labels, item } = this.selection;
      let row = item.type === "module" ? this.rows.findIndex((r) => !r.nodes && r.module.path === item.id) : -1;
      for (let node = 0; row < 0 && node < this.graph.size; ++node)
        if (labels.has(this.graph.name(node)) && this.placeOf[node] >= 0) row = Math.floor(this.placeOf[node] / 3);
      if (row >= 0) this.focus = row, this.#reveal(row);
    }
    this.#draw();
  }
}
