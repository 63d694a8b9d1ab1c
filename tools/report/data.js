// The plan's data: unpacked from the page, with the indices by which views find what belongs together.
import { timeText } from "./format.js";

// JSON of a block of the page: zlib's format in base64. Null where the page has no such block.
export async function unpack(id) {
  const block = document.getElementById(id);
  if (!block) return null;
  const text = atob(block.textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  block.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Lists by key, in order: the entries of `keys` with one value are together.
function grouped(keys, size) {
  const lists = Array.from({ length: size }, () => []);
  for (let i = 0; i < keys.length; ++i) if (keys[i] >= 0) lists[keys[i]].push(i);
  return lists;
}

// What an op does, in the words of the colours.
const CATEGORY_OF_KIND = {
  kernel: "kernel", gemm: "product", attention: "attention", attention_gradient: "attention",
  all_gather: "gather", reduce_scatter: "reduce", all_reduce: "reduce",
  to_device: "transfer", to_host: "transfer", read_file: "transfer", write_file: "transfer",
  input: "host", read_input: "host", scalars: "host", read_scalars: "host", output: "host", write_output: "host",
};

export function categoryOfKind(kind) {
  return CATEGORY_OF_KIND[kind] || (kind.startsWith("attention") ? "attention" : kind.startsWith("conv") ? "convolution" : "call");
}

export class Plan {
  constructor(raw) {
    this.raw = raw;
    const { ops, buffers, lives, texts, communication, parameters } = raw;
    this.size = ops.label.length;
    this.period = raw.prediction.step * 1e9;
    this.end = 0;
    this.opEnd = new Float64Array(this.size);
    for (let op = 0; op < this.size; ++op) {
      this.opEnd[op] = ops.begin[op] + ops.time[op];
      this.end = Math.max(this.end, this.opEnd[op]);
    }
    // The end of all that is on the axis of time.
    this.last = Math.max(this.end, this.period, ...(raw.measured ? [d3.max(raw.measured.begin, (begin, op) => begin + raw.measured.time[op])] : []));
    this.category = ops.kind.map((kind) => categoryOfKind(texts[kind]));
    this.opsOfStream = grouped(ops.stream, raw.streams.length);
    this.opsOfLabel = new Map();
    for (let op = 0; op < this.size; ++op) {
      const label = texts[ops.label[op]];
      if (!this.opsOfLabel.has(label)) this.opsOfLabel.set(label, []);
      this.opsOfLabel.get(label).push(op);
    }
    this.opsOfBuffer = Array.from({ length: buffers.name.length }, () => []);
    for (let op = 0; op < this.size; ++op)
      for (let use = ops.usesStart[op]; use < ops.usesStart[op + 1]; ++use) this.opsOfBuffer[ops.usesBuffer[use]].push(op);
    this.livesOfBuffer = grouped(lives.buffer, buffers.name.length);
    this.communicationOfOp = new Map(communication.op.map((op, i) => [op, i]));
    this.#indexBuckets();
    this.parametersOfBucket = grouped(parameters.bucket, raw.buckets.length);
    this.parameterOfName = new Map(parameters.name.map((name, i) => [texts[name], i]));
  }

  // A bucket's buffers are those that it names, and those that are called after it: "bucket3.gathered".
  #indexBuckets() {
    const { buckets, buffers, communication, texts } = this.raw;
    this.bucketOfName = new Map(buckets.map((bucket, i) => [bucket.name, i]));
    this.bucketOfBuffer = buffers.name.map((name) => this.bucketOfName.get(name.split(".")[0]) ?? -1);
    buckets.forEach((bucket, i) => {
      for (const buffer of [bucket.buffer, ...bucket.states.map((state) => state.buffer)]) this.bucketOfBuffer[buffer] = i;
    });
    this.buffersOfBucket = grouped(this.bucketOfBuffer, buckets.length);
    this.opsOfBucket = Array.from({ length: buckets.length }, () => new Set());
    communication.op.forEach((op, i) => {
      const bucket = this.bucketOfName.get(texts[communication.bucket[i]]);
      if (bucket !== undefined) this.opsOfBucket[bucket].add(op);
    });
    buckets.forEach((bucket, i) => {
      for (const op of this.opsOfLabel.get(bucket.name) || []) this.opsOfBucket[i].add(op);
      for (const buffer of this.buffersOfBucket[i]) for (const op of this.opsOfBuffer[buffer]) this.opsOfBucket[i].add(op);
    });
  }

  label(op) { return this.raw.texts[this.raw.ops.label[op]]; }
  // What an op is called where there is room for one name only.
  name(op) { return this.label(op) || this.kind(op); }
  kind(op) { return this.raw.texts[this.raw.ops.kind[op]]; }
  detail(op) { return this.raw.texts[this.raw.ops.detail[op]]; }
  bufferKind(buffer) { return this.raw.memory.kinds[this.raw.buffers.kind[buffer]]; }
  parameterName(parameter) { return this.raw.texts[this.raw.parameters.name[parameter]]; }

  // [buffer, "reads" | "writes" | "reads and writes"] of an op.
  uses(op) {
    const { ops } = this.raw;
    const uses = [];
    for (let i = ops.usesStart[op]; i < ops.usesStart[op + 1]; ++i)
      uses.push([ops.usesBuffer[i], ["", "reads", "writes", "updates"][ops.usesAccess[i]]]);
    return uses;
  }

  // [op, rounds before] that an op waits for.
  waits(op) {
    const { ops } = this.raw;
    const waits = [];
    for (let i = ops.waitsStart[op]; i < ops.waitsStart[op + 1]; ++i) waits.push([ops.waitsFrom[i], ops.waitsDistance[i]]);
    return waits;
  }

  // The op before it on its stream: [op, rounds before].
  before(op) {
    const list = this.opsOfStream[this.raw.ops.stream[op]];
    const at = this.placeOnStream(op);
    return at > 0 ? [list[at - 1], 0] : [list[list.length - 1], 1];
  }

  placeOnStream(op) {
    const list = this.opsOfStream[this.raw.ops.stream[op]];
    return d3.bisector((other) => other).left(list, op);
  }

  // The time for which an op's stream stands still before it, and what the op waits for meanwhile: {begin, time, from,
  // distance}; null where it starts as soon as the one before has ended.
  waitBefore(op) {
    const { ops } = this.raw;
    const [previous, rounds] = this.before(op);
    const begin = this.opEnd[previous] - rounds * this.period;
    const time = ops.begin[op] - begin;
    if (time <= this.period * 1e-7 || ops.blocker[op] < 0) return null;
    return { begin, time, from: ops.blocker[op], distance: ops.blockerDistance[op] };
  }

  waitText(wait) {
    const round = wait.distance ? (wait.distance === 1 ? " of the step before" : ` of ${wait.distance} steps before`) : "";
    return `waits ${timeText(wait.time)} for ${this.kind(wait.from)} ${this.label(wait.from)}${round}`;
  }
}
