// The training graph as a tree of modules, before and after sharding. A module is a dotted path ("transformer.h.3.attn"); a number
// belongs to the name before it, so that a block is one level.

export const PASSES = ["forward", "backward", "update"];
const MARKS = { "zero.all_gather": "gather", "zero.gather_updated": "gather", "zero.reduce_scatter": "reduce", "zero.all_reduce": "reduce", "zero.release": "release" };

// "a.h.3.attn" as ["a", "h.3", "attn"].
function levels(path) {
  const found = [];
  for (const word of path ? path.split(".") : []) {
    if (/^\d+$/.test(word) && found.length) found[found.length - 1] += `.${word}`;
    else found.push(word);
  }
  return found;
}

class Module {
  constructor(path, name, parent) {
    this.path = path;
    this.name = name;
    this.parent = parent;
    this.children = new Map();
    this.own = [];       // nodes
    this.first = Infinity;
    this.counts = { forward: 0, backward: 0, update: 0 };
    this.marks = new Map();  // "forward gather" -> how many
  }
}

// One of the graphs.
export class Graph {
  constructor(raw, graph) {
    this.raw = raw;
    this.graph = graph;
    this.title = graph.name;
    this.size = graph.op.length;
    this.root = new Module("", "", null);
    this.moduleOf = new Array(this.size);
    for (let node = 0; node < this.size; ++node) this.#place(node);
    this.root = this.#shortened(this.root);
    this.#sum(this.root);
  }

  #place(node) {
    let module = this.root, path = "";
    for (const name of levels(this.raw.scopes[this.graph.scope[node]])) {
      path = path ? `${path}.${name}` : name;
      if (!module.children.has(name)) module.children.set(name, new Module(path, name, module));
      module = module.children.get(name);
    }
    module.own.push(node);
    this.moduleOf[node] = module;
  }

  // A module that has one module and nothing else is one with it.
  #shortened(module) {
    for (const [key, child] of module.children) module.children.set(key, this.#shortened(child));
    if (module.own.length || module.children.size !== 1 || !module.parent) return module;
    const [child] = module.children.values();
    child.name = module.name ? `${module.name}.${child.name}` : child.name;
    child.parent = module.parent;
    return child;
  }

  #sum(module) {
    const count = (pass, mark, number) => {
      const key = `${PASSES[pass]} ${mark}`;
      module.marks.set(key, (module.marks.get(key) || 0) + number);
    };
    for (const node of module.own) {
      // Where a module stands is decided by its own work, not by when its parameters are gathered and read.
      const prepares = this.mark(node) || /\.(read|view|parameters)$/.test(this.op(node));
      module.first = Math.min(module.first, prepares ? node + this.size : node);
      const mark = this.mark(node);
      if (mark) count(this.graph.pass[node], mark, 1);
      else module.counts[this.pass(node)] += 1;
    }
    for (const child of module.children.values()) {
      this.#sum(child);
      module.first = Math.min(module.first, child.first);
      for (const pass of PASSES) module.counts[pass] += child.counts[pass];
      for (const [key, number] of child.marks) module.marks.set(key, (module.marks.get(key) || 0) + number);
    }
    module.sorted = [...module.children.values()].sort((a, b) => a.first - b.first);
  }

  op(node) { return this.raw.texts[this.graph.op[node]]; }
  shortOp(node) { return this.op(node).replace(/^train\./, "").replace(/^zero\./, ""); }
  name(node) { return this.raw.texts[this.graph.label[node]]; }
  type(node) { return this.raw.texts[this.graph.type[node]]; }
  pass(node) { return PASSES[this.graph.pass[node]]; }
  mark(node) { return MARKS[this.op(node)] || null; }

  *inputs(node) {
    for (let i = this.graph.inStart[node]; i < this.graph.inStart[node + 1]; ++i) yield this.graph.in[i];
  }

  // All modules from a path down.
  *modules(module = this.root) {
    yield module;
    for (const child of module.sorted) yield* this.modules(child);
  }
}

// What the other views ask about both graphs.
export class GraphModel {
  constructor(raw) {
    this.raw = raw;
    this.graphs = raw.graphs.map((graph) => new Graph(raw, graph));
    const last = this.graphs[this.graphs.length - 1];
    this.byLabel = new Map();
    for (let node = 0; node < last.size; ++node) {
      const name = last.name(node);
      if (!this.byLabel.has(name)) this.byLabel.set(name, []);
      this.byLabel.get(name).push(node);
    }
    this.last = last;
  }

  nodesOf(label) {
    return (this.byLabel.get(label) || []).map((node) => ({ node, name: label, op: this.last.shortOp(node), pass: this.last.pass(node) }));
  }

  scopeOfLabel(label) {
    const nodes = this.byLabel.get(label);
    return nodes ? this.last.moduleOf[nodes[0]].path : null;
  }

  labels() { return [...this.byLabel.keys()].filter(Boolean); }
  scopes() { return [...this.last.modules()].map((module) => module.path).filter(Boolean); }

  labelsIn(scope) {
    const found = new Set();
    for (const graph of this.graphs)
      for (let node = 0; node < graph.size; ++node)
        if (this.within(scope, graph.moduleOf[node].path)) found.add(graph.name(node));
    found.delete("");
    return found;
  }

  within(scope, path) { return scope === "" || path === scope || path.startsWith(`${scope}.`); }

  // Whether a parameter is the module's.
  holds(scope, name) { return scope === "" || name.startsWith(`${scope}.`); }
}
