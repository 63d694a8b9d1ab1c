// What is selected, in all views at once. An item is {type, id}: an op, buffer, bucket, parameter, label (everything that
// has it), module or node of the graph. From it follow the ops, buffers, buckets, parameters and labels that belong to it.

export class Selection {
  constructor(plan) {
    this.plan = plan;
    this.graph = null;  // once it is unpacked
    this.listeners = [];
    this.clear(true);
  }

  onChange(listener) { this.listeners.push(listener); }

  get empty() { return this.item === null; }

  clear(silent = false) {
    this.item = null;
    this.ops = new Set();
    this.buffers = new Set();
    this.buckets = new Set();
    this.parameters = new Set();
    this.labels = new Set();
    if (!silent) this.#announce(null);
  }

  // `from`: the view in which it was selected; that one does not scroll.
  select(item, from = null) {
    this.clear(true);
    this.item = item;
    this[`_${item.type}`](item.id);
    this.#announce(from);
  }

  is(type, id) {
    return this.item !== null && this.item.type === type && this.item.id === id;
  }

  #announce(from) {
    for (const listener of this.listeners) listener(this, from);
  }

  _op(op) {
    const { plan } = this;
    this.ops.add(op);
    this.labels.add(plan.label(op));
    for (const [buffer] of plan.uses(op)) this.buffers.add(buffer);
    const collective = plan.communicationOfOp.get(op);
    if (collective !== undefined) this.#addBucketOnly(plan.raw.texts[plan.raw.communication.bucket[collective]]);
    for (const buffer of this.buffers) if (plan.bucketOfBuffer[buffer] >= 0) this.buckets.add(plan.bucketOfBuffer[buffer]);
  }

  _buffer(buffer) {
    const { plan } = this;
    this.buffers.add(buffer);
    for (const op of plan.opsOfBuffer[buffer]) this.ops.add(op), this.labels.add(plan.label(op));
    if (plan.bucketOfBuffer[buffer] >= 0) this.buckets.add(plan.bucketOfBuffer[buffer]);
  }

  _bucket(bucket) {
    const { plan } = this;
    this.buckets.add(bucket);
    this.labels.add(plan.raw.buckets[bucket].name);
    for (const buffer of plan.buffersOfBucket[bucket]) this.buffers.add(buffer);
    for (const op of plan.opsOfBucket[bucket]) this.ops.add(op);
    for (const parameter of plan.parametersOfBucket[bucket]) {
      this.parameters.add(parameter);
      this.labels.add(plan.parameterName(parameter));
    }
  }

  _parameter(parameter) {
    const { plan } = this;
    const bucket = plan.raw.parameters.bucket[parameter];
    const name = plan.parameterName(parameter);
    this.parameters.add(parameter);
    this.labels.add(name);
    this.buckets.add(bucket);
    for (const buffer of plan.buffersOfBucket[bucket]) this.buffers.add(buffer);
    for (const op of plan.opsOfBucket[bucket]) this.ops.add(op);
    for (const op of plan.opsOfLabel.get(name) || []) this.ops.add(op);
  }

  _label(label) {
    const { plan } = this;
    this.labels.add(label);
    for (const op of plan.opsOfLabel.get(label) || []) {
      this.ops.add(op);
      for (const [buffer] of plan.uses(op)) this.buffers.add(buffer);
    }
  }

  // A module of the graph: all that has the label of one of its nodes, and its parameters.
  _module(scope) {
    const { plan } = this;
    for (const label of this.graph.labelsIn(scope)) {
      this.labels.add(label);
      for (const op of plan.opsOfLabel.get(label) || []) this.ops.add(op);
    }
    plan.raw.parameters.name.forEach((_, parameter) => {
      const name = plan.parameterName(parameter);
      if (!this.graph.holds(scope, name)) return;
      this.parameters.add(parameter);
      this.buckets.add(plan.raw.parameters.bucket[parameter]);
    });
    for (const op of this.ops)
      for (const [buffer, access] of plan.uses(op)) if (access !== "reads") this.buffers.add(buffer);
  }

  #addBucketOnly(name) {
    const bucket = this.plan.bucketOfName.get(name);
    if (bucket !== undefined) this.buckets.add(bucket);
  }
}
