// The selected thing in words, with links to what belongs to it.
import { bytesText, countText, element, percentText, plural, timeText } from "./format.js";

const SHOWN = 8;

export class Inspector {
  constructor(panel, plan, selection) {
    this.panel = panel;
    this.plan = plan;
    this.selection = selection;
    selection.onChange(() => this.show());
    this.show();
  }

  show() {
    const { selection, panel } = this;
    panel.replaceChildren();
    if (selection.empty) {
      panel.append(element("p", { class: "hint" }, "Select an instruction, a buffer, a bucket or a module: it is shown here, and marked in all views."));
      return;
    }
    const { type, id } = selection.item;
    panel.append(...this[`_${type}`](id));
    panel.append(element("button", { type: "button", class: "quiet clear", onclick: () => selection.clear() }, "Clear selection"));
  }

  // A heading, and the facts: pairs of name and value, those without a value left out.
  #head(kind, name, facts, swatch = null) {
    const dot = swatch ? element("i", { class: `dot ${swatch}` }) : null;
    return [element("h2", {}, element("span", { class: "kind" }, dot, kind), element("span", { class: "title" }, name)),
      element("dl", {}, facts.filter(([, value]) => value !== null && value !== "" && value !== undefined)
        .map(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]))];
  }

  // A list of things to select; long ones are cut until all are asked for.
  #list(title, items) {
    if (!items.length) return null;
    const section = element("section", {}, element("h3", {}, `${title} (${items.length.toLocaleString("en")})`));
    const list = element("ul", {});
    const add = (part) => list.append(...part.map(({ text, note, item, swatch }) => element("li", {},
      element("button", { type: "button", class: "entry", onclick: () => this.selection.select(item, "inspector") },
        swatch ? element("i", { class: `dot ${swatch}` }) : null, element("span", { class: "text" }, text), note ? element("span", { class: "note" }, note) : null))));
    add(items.slice(0, SHOWN));
    section.append(list);
    if (items.length > SHOWN) {
      const most = 400;
      const more = element("button", { type: "button", class: "quiet", onclick: () => { add(items.slice(SHOWN, most)); more.remove(); } },
        items.length > most ? `Show the first ${most}` : `Show all ${items.length}`);
      section.append(more);
    }
    return section;
  }

  #ops(title, ops, note = (op) => timeText(this.plan.raw.ops.begin[op])) {
    return this.#list(title, ops.map((op) => ({ text: `${this.plan.kind(op)} ${this.plan.label(op)}`, note: note(op), item: { type: "op", id: op }, swatch: `op-${this.plan.category[op]}` })));
  }

  #buffers(title, buffers, note = (buffer) => bytesText(this.plan.raw.buffers.bytes[buffer])) {
    return this.#list(title, buffers.map((buffer) => ({ text: this.plan.raw.buffers.name[buffer], note: note(buffer), item: { type: "buffer", id: buffer }, swatch: `mem-${this.plan.bufferKind(buffer)}` })));
  }

  #buckets(buckets) {
    return this.#list("Buckets", [...buckets].map((bucket) => ({ text: this.plan.raw.buckets[bucket].name, note: bytesText(this.plan.raw.buckets[bucket].bytes), item: { type: "bucket", id: bucket } })));
  }

  #nodes(label) {
    const nodes = this.selection.graph?.nodesOf(label) || [];
    return this.#list("In the graph", nodes.map((node) => ({ text: `${node.op} ${node.name}`, note: node.pass, item: { type: "label", id: node.name } })));
  }

  _op(op) {
    const { plan, selection } = this;
    const { ops, measured, communication, texts } = plan.raw;
    const wait = plan.waitBefore(op);
    const collective = plan.communicationOfOp.get(op);
    const rate = ops.flops[op] && ops.time[op] ? `${countText(ops.flops[op] / (ops.time[op] / 1e9))}flop/s` : null;
    const label = plan.label(op);
    return [
      ...this.#head(plan.kind(op), plan.name(op), [
        ["stream", plan.raw.streams[ops.stream[op]]],
        ["begins", timeText(ops.begin[op])],
        ["takes", `${timeText(ops.time[op])}, ${percentText(ops.time[op] / plan.period)} of the step`],
        ["alone", ops.alone[op] < ops.time[op] * 0.999 ? timeText(ops.alone[op]) : null],
        ["measured", measured && measured.begin[op] >= 0 ? `${timeText(measured.time[op])} at ${timeText(measured.begin[op])}` : null],
        ["work", ops.flops[op] ? `${countText(ops.flops[op])}flop` : null],
        ["rate", rate],
        ["moves", ops.bytes[op] ? bytesText(ops.bytes[op]) : null],
        ["sends", collective !== undefined ? bytesText(communication.sent[collective]) : null],
        ["among", collective !== undefined ? texts[communication.axis[collective]] : null],
        ["what", plan.detail(op)],
        ["place", `instruction ${ops.instruction[op]}`],
        ["before it", wait ? plan.waitText(wait) : null],
      ], `op-${plan.category[op]}`),
      this.#ops("Waits for", plan.waits(op).map(([from]) => from), (from) => `ends ${timeText(plan.opEnd[from])}`),
      this.#buffers("Buffers", plan.uses(op).map(([buffer]) => buffer), (buffer) => `${plan.uses(op).find(([b]) => b === buffer)[1]} ${bytesText(plan.raw.buffers.bytes[buffer])}`),
      this.#buckets(selection.buckets), this.#nodes(label),
      (plan.opsOfLabel.get(label) || []).length > 1 ? this.#ops("Same node", plan.opsOfLabel.get(label).filter((other) => other !== op)) : null,
    ].filter(Boolean);
  }

  _buffer(buffer) {
    const { plan } = this;
    const { buffers, lives } = plan.raw;
    const spans = plan.livesOfBuffer[buffer];
    const text = (life) => `${timeText(lives.begin[life])} to ${timeText(lives.end[life])}`;
    return [
      ...this.#head("buffer", buffers.name[buffer], [
        ["kind", plan.bufferKind(buffer)],
        ["bytes", `${bytesText(buffers.bytes[buffer])} (${buffers.bytes[buffer].toLocaleString("en")})`],
        ["place", `from byte ${buffers.offset[buffer].toLocaleString("en")}`],
        ["lives", buffers.persistent[buffer] ? "from step to step" : spans.length ? spans.slice(0, 3).map(text).join("; ") + (spans.length > 3 ? `; and ${spans.length - 3} more` : "") : "not in the loop"],
      ], `mem-${plan.bufferKind(buffer)}`),
      this.#buckets(this.selection.buckets),
      this.#ops("Used by", plan.opsOfBuffer[buffer], (op) => plan.uses(op).find(([b]) => b === buffer)[1]),
    ].filter(Boolean);
  }

  _bucket(bucket) {
    const { plan } = this;
    const one = plan.raw.buckets[bucket];
    const collectives = [...plan.opsOfBucket[bucket]].filter((op) => plan.communicationOfOp.has(op));
    return [
      ...this.#head("bucket", one.name, [
        ["elements", `${countText(one.elements)} ${one.type}, ${bytesText(one.bytes)}`],
        ["gradients", one.trainable ? one.gradientType : "none: frozen"],
        ["parameters", one.parameterParts > 1 ? `in ${one.parameterParts} shards` : "whole on every rank"],
        ["states", one.states.length ? `${one.states.map((state) => state.name).join(", ")}${one.stateParts > 1 ? `, in ${one.stateParts} shards` : ""}` : "none"],
        ["group", one.group],
      ]),
      this.#ops("Collectives", collectives),
      this.#buffers("Buffers", plan.buffersOfBucket[bucket]),
      this.#list("Parameters", plan.parametersOfBucket[bucket].map((parameter) => ({ text: plan.parameterName(parameter), note: bytesText(plan.raw.parameters.bytes[parameter]), item: { type: "parameter", id: parameter } }))),
    ].filter(Boolean);
  }

  _parameter(parameter) {
    const { plan } = this;
    const { parameters, texts } = plan.raw;
    const name = plan.parameterName(parameter);
    const bucket = parameters.bucket[parameter];
    return [
      ...this.#head("parameter", name, [
        ["shape", `${texts[parameters.shape[parameter]]} of ${texts[parameters.type[parameter]]}`],
        ["bytes", bytesText(parameters.bytes[parameter])],
        ["place", `from byte ${parameters.offset[parameter].toLocaleString("en")} of ${plan.raw.buckets[bucket].name}`],
      ]),
      this.#buckets([bucket]), this.#nodes(name),
      this.#ops("Collectives", [...plan.opsOfBucket[bucket]].filter((op) => plan.communicationOfOp.has(op))),
      this.#buffers("Buffers of the bucket", plan.buffersOfBucket[bucket]),
    ].filter(Boolean);
  }

  _label(label) {
    const { plan } = this;
    const ops = plan.opsOfLabel.get(label) || [];
    const parameter = plan.parameterOfName.get(label);
    return [
      ...this.#head("node", label, [
        ["instructions", ops.length ? `${ops.length}, ${timeText(d3.sum(ops, (op) => plan.raw.ops.time[op]))} together` : "none of its own"],
        ["module", this.selection.graph?.scopeOfLabel(label)],
      ]),
      this.#nodes(label), this.#ops("Instructions", ops),
      parameter !== undefined ? this.#list("Parameter", [{ text: label, item: { type: "parameter", id: parameter } }]) : null,
      this.#buffers("Buffers", [...this.selection.buffers]),
    ].filter(Boolean);
  }

  _module(scope) {
    const { plan, selection } = this;
    const ops = [...selection.ops].sort((a, b) => a - b);
    const time = d3.sum(ops, (op) => plan.raw.ops.time[op]);
    return [
      ...this.#head("module", scope || "the model", [
        ["instructions", plural(ops.length, "instruction")],
        ["time", `${timeText(time)}, ${percentText(time / plan.period)} of the step`],
        ["parameters", `${selection.parameters.size}, ${bytesText(d3.sum([...selection.parameters], (p) => plan.raw.parameters.bytes[p]))}`],
      ]),
      this.#buckets(selection.buckets),
      this.#list("Parameters", [...selection.parameters].map((parameter) => ({ text: plan.parameterName(parameter), note: bytesText(plan.raw.parameters.bytes[parameter]), item: { type: "parameter", id: parameter } }))),
      this.#ops("Instructions", ops),
    ].filter(Boolean);
  }
}
