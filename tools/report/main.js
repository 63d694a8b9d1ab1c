// Puts the page together: unpacks the data, makes the views, and passes keys and pointers to them.
import { byId, bytesText, countText, element, percentText, plural, timeText } from "./format.js";
import { Plan, unpack } from "./data.js";
import { CATEGORIES, palette } from "./palette.js";
import { Selection } from "./selection.js";
import { GUTTER, TimeAxis } from "./tracks.js";
import { Timeline } from "./timeline.js";
import { Memory } from "./memory.js";
import { Buckets } from "./buckets.js";
import { Links } from "./links.js";
import { Stages } from "./stages.js";
import { GraphModel } from "./graphmodel.js";
import { GraphView } from "./graph.js";
import { Notes } from "./notes.js";
import { Measured } from "./measured.js";
import { Inspector } from "./inspector.js";
import { Search } from "./search.js";

const KEYS = [
  ["/", "search"], ["1 to 7", "views, in their order"], ["W S, + −", "zoom in and out"], ["A D", "pan"], ["0", "the whole step"],
  ["F", "zoom to what is selected"], ["← →", "previous and next instruction of the stream"], ["↑ ↓", "stream above and below"],
  ["Enter", "what the selected instruction waits for"], ["Esc", "select nothing"], ["M", "memory: places in the arena, or sums by kind"], ["T", "light or dark"], ["?", "these keys"],
];

// A strip of figures below the title.
function figures(plan) {
  const { prediction, memory } = plan.raw;
  const { bound, floor } = prediction;
  const facts = [
    ["Step", timeText(prediction.step * 1e9), `predicted on ${prediction.machine}`],
    ["Bound", timeText(bound.seconds * 1e9), `by ${bound.by}; step +${percentText(prediction.gap)}`],
    ["Communication not hidden", timeText(prediction.exposed * 1e9), `${percentText(prediction.exposed / prediction.step)} of the step`],
    ["Memory of a rank", bytesText(memory.arena), `${percentText(memory.arena / memory.limit)} of ${bytesText(memory.limit)}`],
    ["Parameters", countText(plan.raw.plan.parameters), `in ${plural(plan.raw.buckets.length, "bucket")}`],
  ];
  if (floor) facts.splice(2, 0, ["Floor", timeText(floor.seconds * 1e9), `by ${floor.by}, of any plan`]);
  if (plan.raw.measured) facts.splice(1, 0, ["Measured", timeText(plan.raw.measured.step * 1e9), `rank ${plan.raw.measured.rank}, ${plural(plan.raw.measured.steps, "step")}`]);
  return facts.map(([name, value, note]) => element("li", {}, element("span", { class: "name" }, name), element("strong", {}, value), element("span", {}, note)));
}

// Tabs with panels; a view may have show(), called whenever it becomes visible.
class Tabs {
  constructor(bar, host) {
    this.bar = bar;
    this.host = host;
    this.tabs = [];
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      this.open((this.current + step + this.tabs.length) % this.tabs.length, true);
    });
  }

  add(id, title, note = null) {
    const i = this.tabs.length;
    const tab = element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `view-${id}`, "aria-selected": "false", tabindex: "-1", onclick: () => this.open(i) }, title, note ? element("span", { class: "badge" }, note) : null);
    const panel = element("section", { class: `view view-${id}`, role: "tabpanel", id: `view-${id}`, "aria-labelledby": `tab-${id}`, hidden: true });
    this.bar.append(tab);
    this.host.append(panel);
    this.tabs.push({ id, tab, panel, view: null });
    return this.tabs[i];
  }

  open(i, focus = false) {
    if (i >= this.tabs.length) return;
    this.current = i;
    this.tabs.forEach(({ tab, panel }, k) => {
      tab.setAttribute("aria-selected", String(k === i));
      tab.tabIndex = k === i ? 0 : -1;
      panel.hidden = k !== i;
    });
    if (focus) this.tabs[i].tab.focus();
    this.tabs[i].view?.show?.();
  }
}

const SPACES = { device: "Device", host: "Host memory", file: "Files" };

// The view of streams and memory over the same time.
class TimeView {
  constructor(panel, plan, selection) {
    this.plan = plan;
    this.selection = selection;
    const top = element("canvas", { class: "streams" }), bottom = element("canvas", { class: "arena" });
    this.cross = element("div", { class: "cross", "aria-hidden": "true", hidden: true });
    this.host = element("div", { class: "tracks", tabindex: "0", role: "application", "aria-label": "Timeline of the step's streams, and memory over the same time. Arrow keys select instructions, W and S zoom, A and D pan." }, top, element("div", { class: "memory-box" }, bottom), this.cross);
    this.modes = ["arena", "kind"].map((mode) => element("button", { type: "button", "aria-pressed": String(mode === "arena"), onclick: () => this.setMode(mode) }, mode === "arena" ? "Places in the arena" : "Sums by kind"));
    this.now = element("span", { class: "now muted" });
    const dots = (names) => element("span", { class: "legend" }, names.map(([name, text]) => element("span", {}, element("i", { class: `dot ${name}` }), text)));
    const used = new Set(plan.category);
    const { kinds: names, spaces } = plan.raw.memory;
    const kinds = names.filter((kind, k) => d3.max(spaces, (space) => d3.max(space.byKind[k])) > 0);
    // Where everything lies on the device there is nothing to choose.
    this.spaces = spaces.length < 2 ? [] : spaces.map((space, i) => element("button", { type: "button", "aria-pressed": String(i === 0), onclick: () => this.setSpace(i) }, `${SPACES[space.name] || space.name}, ${bytesText(space.arena)}`));
    panel.append(
      element("div", { class: "bar-row" }, dots(CATEGORIES.filter(([name]) => used.has(name)).map(([name, text]) => [`op-${name}`, text])),
        element("button", { type: "button", class: "quiet push", onclick: () => this.axis.reset() }, "Whole step")),
      this.host,
      element("div", { class: "bar-row below" }, element("div", { class: "segmented", role: "group", "aria-label": "Memory shown as" }, this.modes),
        this.spaces.length ? element("div", { class: "segmented", role: "group", "aria-label": "Memory of" }, this.spaces) : "", dots(kinds.map((kind) => [`mem-${kind}`, kind])), this.now));
    this.axis = new TimeAxis(this.host, 0, plan.last);
    this.timeline = new Timeline(top, plan, selection, this.axis);
    this.memory = new Memory(bottom, plan, selection, this.axis);
    this.axis.onChange(() => this.redraw());
    selection.onChange((_, from) => this.#reveal(from));
    palette.onChange(() => this.redraw());
    this.#listen(top, bottom);
  }

  redraw() {
    this.timeline.surface.redraw();
    this.memory.surface.redraw();
  }

  show() { this.redraw(); }

  setMode(mode) {
    this.modes[0].setAttribute("aria-pressed", String(mode === "arena"));
    this.modes[1].setAttribute("aria-pressed", String(mode === "kind"));
    this.memory.setMode(mode);
  }

  setSpace(i) {
    this.spaces.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
    this.memory.setSpace(this.plan.raw.memory.spaces[i]);
  }

  // A buffer that is selected elsewhere is shown in its own space.
  #showSpaceOf(item) {
    if (item?.type !== "buffer") return;
    const { memory, buffers } = this.plan.raw;
    const i = memory.spaces.findIndex((space) => space.space === buffers.space[item.id]);
    if (i >= 0 && memory.spaces[i] !== this.memory.space) this.setSpace(i);
  }

  #reveal(from) {
    this.#showSpaceOf(this.selection.item);
    this.redraw();
    const { ops, item } = this.selection;
    if (from === "time" || !ops.size || !item) return;
    const { begin } = this.plan.raw.ops;
    const list = item.type === "op" ? [item.id] : [...ops];
    this.axis.reveal(d3.min(list, (op) => begin[op]), d3.max(list, (op) => this.plan.opEnd[op]));
  }

  #listen(top, bottom) {
    const tip = byId("tip");
    const place = (event, canvas) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top, box.height];
    };
    const showTip = (event, lines) => {
      if (!lines) {
        tip.hidden = true;
        return;
      }
      tip.replaceChildren(...lines.map((line, i) => element(i ? "div" : "strong", {}, line)));
      tip.hidden = false;
      const { offsetWidth, offsetHeight } = tip;
      tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - offsetWidth - 8))}px`;
      tip.style.top = `${event.clientY + 18 + offsetHeight > innerHeight ? event.clientY - offsetHeight - 10 : event.clientY + 18}px`;
    };
    const cross = (event) => {
      const x = event.clientX - this.host.getBoundingClientRect().left;
      this.cross.hidden = x < GUTTER;
      this.cross.style.left = `${x}px`;
      const time = this.axis.scale.invert(x);
      const live = this.memory.liveAt(time);
      this.now.textContent = x < GUTTER ? "" : `${timeText(time)}: ${bytesText(d3.sum(live, ([, bytes]) => bytes))} live`;
    };
    top.addEventListener("mousemove", (event) => {
      const [x, y] = place(event, top);
      const found = this.timeline.at(x, y);
      this.#hover(found?.op ?? null);
      const bound = y >= this.timeline.boundY && y < this.timeline.boundY + 20 ? [this.timeline.boundText()] : null;
      showTip(event, found ? this.#opLines(found) : bound);
      cross(event);
    });
    bottom.addEventListener("mousemove", (event) => {
      const [x, y, height] = place(event, bottom);
      const life = this.memory.at(x, y, height);
      showTip(event, life === null ? null : this.#bufferLines(life));
      cross(event);
    });
    for (const canvas of [top, bottom]) canvas.addEventListener("mouseleave", () => {
      tip.hidden = true;
      this.cross.hidden = true;
      this.now.textContent = "";
      this.#hover(null);
    });
    top.addEventListener("click", (event) => {
      const found = this.timeline.at(...place(event, top));
      if (found) this.selection.select({ type: "op", id: found.op }, "time");
      else this.selection.clear();
    });
    bottom.addEventListener("click", (event) => {
      const life = this.memory.at(...place(event, bottom));
      if (life === null) this.selection.clear();
      else this.selection.select({ type: "buffer", id: this.plan.raw.lives.buffer[life] }, "time");
    });
    bottom.addEventListener("wheel", (event) => {
      if (!event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      const [, y, height] = place(event, bottom);
      this.memory.zoomBytes(event.deltaY < 0 ? 1.25 : 0.8, y, height);
    }, { passive: false });
    this.host.addEventListener("keydown", (event) => this.#key(event));
  }

  #hover(op) {
    if (this.timeline.hovered === op) return;
    this.timeline.hovered = op;
    this.timeline.surface.redraw();
  }

  #opLines({ op, wait, measured }) {
    const { plan } = this;
    if (wait) return [plan.waitText(wait), `before ${plan.kind(op)} ${plan.label(op)}`];
    const { ops } = plan.raw;
    const lines = [`${plan.kind(op)} ${plan.label(op)}`, `${timeText(ops.time[op])} at ${timeText(ops.begin[op])}`];
    if (plan.raw.measured && plan.raw.measured.begin[op] >= 0) lines.push(`${measured ? "this is measured: " : "measured "}${timeText(plan.raw.measured.time[op])} at ${timeText(plan.raw.measured.begin[op])}`);
    if (plan.detail(op)) lines.push(plan.detail(op));
    const before = plan.waitBefore(op);
    if (before) lines.push(plan.waitText(before));
    return lines;
  }

  #bufferLines(life) {
    const { plan } = this;
    const { lives, buffers } = plan.raw;
    const buffer = lives.buffer[life];
    return [buffers.name[buffer], `${plan.bufferKind(buffer)}, ${bytesText(buffers.bytes[buffer])}`,
      buffers.persistent[buffer] ? "lives from step to step" : `lives ${timeText(lives.begin[life])} to ${timeText(lives.end[life])}`];
  }

  // Keys that move the selection.
  #key(event) {
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    const { plan, selection, timeline } = this;
    const op = selection.item?.type === "op" ? selection.item.id : null;
    let next = null;
    if (event.key in moves) {
      const [lane, step] = moves[event.key];
      if (op === null) [next] = timeline.streams[0].ops;
      else if (step) next = plan.opsOfStream[plan.raw.ops.stream[op]][plan.placeOnStream(op) + step];
      else {
        const i = timeline.streams.findIndex((s) => s.i === plan.raw.ops.stream[op]) + lane;
        const list = timeline.streams[i]?.ops;
        if (list) next = list[Math.max(0, d3.bisector((other) => plan.raw.ops.begin[other]).right(list, plan.raw.ops.begin[op]) - 1)];
      }
    } else if (event.key === "Enter" && op !== null) next = plan.raw.ops.blocker[op] >= 0 ? plan.raw.ops.blocker[op] : null;
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (next === null || next === undefined) return;
    selection.select({ type: "op", id: next }, "keys");
  }

  zoomToSelection() {
    const { ops } = this.selection;
    if (ops.size) this.axis.show(d3.min([...ops], (op) => this.plan.raw.ops.begin[op]), d3.max([...ops], (op) => this.plan.opEnd[op]));
  }
}

function keysDialog() {
  const dialog = byId("keys");
  dialog.append(element("h2", { id: "keys-title" }, "Keys"),
    element("dl", {}, KEYS.map(([key, what]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)])),
    element("p", { class: "muted" }, "The wheel zooms, with Shift it pans; over memory, with Alt it zooms bytes. Dragging pans."),
    element("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  byId("help").addEventListener("click", () => dialog.showModal());
  return dialog;
}

// The text for those who hear the page.
function announce(plan, selection) {
  const { item } = selection;
  if (!item) return "Nothing is selected";
  const names = { op: () => `${plan.kind(item.id)} ${plan.label(item.id)}`, buffer: () => `buffer ${plan.raw.buffers.name[item.id]}`, bucket: () => `bucket ${plan.raw.buckets[item.id].name}`,
    parameter: () => `parameter ${plan.parameterName(item.id)}`, label: () => `node ${item.id}`, module: () => `module ${item.id || "of all"}` };
  return `Selected: ${names[item.type]()}; ${plural(selection.ops.size, "instruction")}, ${plural(selection.buffers.size, "buffer")}`;
}

async function start() {
  performance.mark("start");
  const raw = await unpack("report-data");
  const plan = new Plan(raw);
  const selection = new Selection(plan);
  const name = raw.plan.model.split("/").pop();
  document.title = `${name} · Sheaf report`;
  byId("model").textContent = name;
  byId("model").title = raw.plan.model;
  byId("division").textContent = `${raw.plan.division} · batch ${raw.plan.batch}${raw.plan.microBatches > 1 ? ` in ${raw.plan.microBatches} micro-batches` : ""} · ${raw.plan.optimizer}`;
  byId("figures").replaceChildren(...figures(plan));
  byId("colophon").textContent = `${raw.plan.producer} · drawn with D3 ${d3.version}, © Mike Bostock, BSD-3-Clause`;
  byId("loading").remove();

  const tabs = new Tabs(byId("tabs"), byId("panels"));
  const add = (id, title, make, note) => {
    const tab = tabs.add(id, title, note);
    tab.view = make(tab.panel);
    return tab.view;
  };
  const timeTab = tabs.add("time", "Timeline and memory");
  tabs.open(0);
  const time = new TimeView(timeTab.panel, plan, selection);
  timeTab.view = time;
  const graph = add("graph", "Graph", (panel) => new GraphView(panel, plan, selection));
  add("buckets", "Buckets", (panel) => new Buckets(panel, plan, selection));
  add("links", "Links", (panel) => new Links(panel, plan, selection));
  add("stages", "Stages", (panel) => new Stages(panel, plan));
  add("notes", "Decisions", (panel) => new Notes(panel, plan), raw.warnings.length ? String(raw.warnings.length) : null);
  if (raw.measured) add("measured", "Measured", (panel) => new Measured(panel, plan, selection));
  new Inspector(byId("inspector"), plan, selection);
  const search = new Search(byId("search"), byId("results"), plan, selection);
  selection.onChange(() => { byId("status").textContent = announce(plan, selection); });
  selection.onChange((_, from) => from !== "graph" && tabs.tabs[tabs.current].view?.show?.());

  const dialog = keysDialog();
  const setTheme = (theme) => {
    palette.set(theme);
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  };
  setTheme(palette.theme);
  byId("theme").addEventListener("click", () => setTheme(palette.theme === "dark" ? "light" : "dark"));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input") || dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      "/": () => byId("search").focus(), "?": () => dialog.showModal(), Escape: () => selection.clear(), t: () => byId("theme").click(),
      w: () => time.axis.scaleBy(1.5), "+": () => time.axis.scaleBy(1.5), s: () => time.axis.scaleBy(1 / 1.5), "-": () => time.axis.scaleBy(1 / 1.5),
      a: () => time.axis.pan(-0.2), d: () => time.axis.pan(0.2), 0: () => time.axis.reset(), f: () => time.zoomToSelection(),
      m: () => time.setMode(time.memory.mode === "arena" ? "kind" : "arena"),
    };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (/^[1-9]$/.test(key)) tabs.open(Number(key) - 1);
    else if (actions[key]) actions[key]();
    else return;
    event.preventDefault();
  });
  // For the browser tests, and for curious people.
  window.sheaf = { plan, selection, tabs, time, graph };
  requestAnimationFrame(() => requestAnimationFrame(async () => {
    performance.mark("painted");
    document.documentElement.dataset.ready = "plan";
    // The graph is unpacked when the rest is seen.
    const unpacked = raw.hasGraph ? await unpack("report-graph") : null;
    if (unpacked) {
      const model = new GraphModel(unpacked);
      selection.graph = model;
      graph.setModel(model);
      search.addGraph(model);
    } else {
      tabs.tabs.find((tab) => tab.id === "graph").panel.append(element("p", { class: "empty" }, "The plan's file has no graph: it was compiled with --no-graph, or assembled from text."));
    }
    document.documentElement.dataset.ready = "all";
  }));
}

start().catch((error) => {
  byId("panels").replaceChildren(element("p", { class: "empty", role: "alert" }, `The report cannot be shown: ${error.message}. It needs a browser that has DecompressionStream (2023 or later).`));
  throw error;
});
