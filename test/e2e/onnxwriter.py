"""Writes small ONNX models, and rewrites others, without the onnx package: just enough protobuf for that."""
import struct

FLOAT, INT64, BOOL, BFLOAT16 = 1, 7, 9, 16


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """(number, wire type, value or bytes) of a message's fields."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(tag & 7) or read_varint(data, at)
            value, at = data[at:at + size], at + size
        yield tag >> 3, tag & 7, value


def encode(number, wire, value):
    head = varint(number << 3 | wire)
    if wire == 0:
        return head + varint(value)
    return head + (varint(len(value)) if wire == 2 else b"") + value


def rewritten(data, change):
    return b"".join(encode(*f) for f in (change(*field) for field in fields(data)) if f)


def with_initializers(model, change):
    """A model's bytes with change(bytes of a TensorProto) in the place of each of the graph's initializers."""
    def initializers(number, wire, value):
        return number, wire, change(value) if number == 5 else value

    return rewritten(model, lambda n, w, v: (n, w, rewritten(v, initializers)) if n == 7 else (n, w, v))


def externalized(tensor, location, offset):
    """A TensorProto whose raw data lie in a file."""
    parts = [(n, encode(n, w, v)) for n, w, v in fields(tensor) if n != 9]
    length = next(len(v) for n, _, v in fields(tensor) if n == 9)
    reference = b"".join(_bytes(13, _bytes(1, key) + _bytes(2, str(v)))
                         for key, v in (("location", location), ("offset", offset), ("length", length))) + _number(14, 1)
    return b"".join(b for n, b in parts if n < 13) + reference + b"".join(b for n, b in parts if n > 14)


def inlined(tensor, folder):
    """A TensorProto with its raw data, which may lie in a file of the folder."""
    parts = list(fields(tensor))
    where = {}
    for number, _, entry in parts:
        if number == 13:
            key, text = (v.decode() for _, _, v in fields(entry))
            where[key] = text
    if not where:
        return tensor
    with open(folder / where["location"], "rb") as f:
        f.seek(int(where["offset"]))
        data = f.read(int(where["length"]))
    kept = [(n, encode(n, w, v)) for n, w, v in parts if n not in (13, 14)]
    return b"".join(b for n, b in kept if n < 9) + _bytes(9, data) + b"".join(b for n, b in kept if n > 9)


def _number(field, value):
    return varint(field << 3) + varint(value)


def _bytes(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def value(name, dtype, shape):
    """A ValueInfoProto; a dimension that is a string is symbolic."""
    dims = b"".join(_bytes(1, _bytes(2, d) if isinstance(d, str) else _number(1, d)) for d in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, dtype) + _bytes(2, dims)))


def weight(name, shape, values=None, dtype=FLOAT, location=None):
    """A TensorProto with raw data (bf16 is cut off, not rounded), or a reference to an external file."""
    head = b"".join(_number(1, d) for d in shape) + _number(2, dtype) + _bytes(8, name)
    if location is not None:
        return head + _bytes(13, _bytes(1, "location") + _bytes(2, location)) + _number(14, 1)
    if dtype == BFLOAT16:
        return head + _bytes(9, b"".join(struct.pack("<f", v)[2:] for v in values))
    return head + _bytes(9, struct.pack(f"<{len(values)}{'f' if dtype == FLOAT else 'q'}", *values))


def node(op, inputs, outputs, name="", domain="", **attributes):
    """A NodeProto; attributes are numbers, strings, bytes of a graph, or lists of integers."""
    out = b"".join(_bytes(1, i) for i in inputs) + b"".join(_bytes(2, o) for o in outputs) + _bytes(3, name) + _bytes(4, op)
    for key, v in attributes.items():
        if isinstance(v, int):
            out += _bytes(5, _bytes(1, key) + _number(3, v) + _number(20, 2))
        elif isinstance(v, float):
            out += _bytes(5, _bytes(1, key) + varint(2 << 3 | 5) + struct.pack("<f", v) + _number(20, 1))
        elif isinstance(v, str):
            out += _bytes(5, _bytes(1, key) + _bytes(4, v) + _number(20, 3))
        elif isinstance(v, bytes):
            out += _bytes(5, _bytes(1, key) + _bytes(6, v) + _number(20, 5))
        else:
            out += _bytes(5, _bytes(1, key) + b"".join(_number(8, i) for i in v) + _number(20, 7))
    return out + (_bytes(7, domain) if domain else b"")


def constant(tensor, output):
    """A Constant node with the bytes of a TensorProto."""
    return _bytes(2, output) + _bytes(4, "Constant") + _bytes(5, _bytes(1, "value") + _bytes(5, tensor) + _number(20, 4))


def graph(nodes, inputs, outputs, weights=()):
    """A GraphProto's bytes."""
    out = b"".join(_bytes(1, n) for n in nodes) + _bytes(2, "graph") + b"".join(_bytes(5, w) for w in weights)
    return out + b"".join(_bytes(11, i) for i in inputs) + b"".join(_bytes(12, o) for o in outputs)


def function(name, domain, inputs, outputs, attributes, nodes, opset=18, domains=()):
    """A FunctionProto's bytes; attributes are names."""
    out = _bytes(1, name) + b"".join(_bytes(4, i) for i in inputs) + b"".join(_bytes(5, o) for o in outputs)
    out += b"".join(_bytes(6, a) for a in attributes) + b"".join(_bytes(7, n) for n in nodes) + _bytes(9, _number(2, opset))
    return out + b"".join(_bytes(9, _bytes(1, d) + _number(2, 1)) for d in domains) + _bytes(10, domain)


def model(nodes, inputs, outputs, weights, opset=18, domains=(), functions=()):
    """A ModelProto's bytes."""
    opsets = _bytes(8, _number(2, opset)) + b"".join(_bytes(8, _bytes(1, d) + _number(2, 1)) for d in domains)
    whole = _number(1, 9) + _bytes(2, "sheaf-tests") + opsets + _bytes(7, graph(nodes, inputs, outputs, weights))
    return whole + b"".join(_bytes(25, f) for f in functions)


def appended(nodes, inputs):
    """The bytes that add nodes and inputs to a GraphProto's bytes."""
    return b"".join(_bytes(1, n) for n in nodes) + b"".join(_bytes(11, i) for i in inputs)


def summed(graph, losses, opset, producer=""):
    """A model of a GraphProto's bytes whose output `loss` is the sum of some scalars of the graph."""
    graph += _bytes(1, node("Sum", losses, ["loss"])) + _bytes(2, "graph") + _bytes(12, value("loss", FLOAT, []))
    return _number(1, 9) + (_bytes(2, producer) if producer else b"") + _bytes(8, _number(2, opset)) + _bytes(7, graph)


def nested(depth):
    """A model whose graph attributes nest `depth` times, which no exporter writes."""
    graph = _bytes(2, "leaf")
    for _ in range(depth):
        graph = _bytes(1, _bytes(4, "If") + _bytes(5, _bytes(1, "then_branch") + _bytes(6, graph) + _number(20, 5)))
    return _number(1, 9) + _bytes(8, _number(2, 18)) + _bytes(7, graph)


def linear(op="Relu", batch="N", width=4, weight_tensor=None, domain="", extra_output=None):
    """x[batch, width] @ w, then `op`, then cross entropy: one trainable weight, outputs `loss`."""
    w = weight_tensor if weight_tensor is not None else weight("w", [4, 3], [0.1 * i for i in range(12)])
    nodes = [node("MatMul", ["x", "w"], ["h"], "first"), node(op, ["h"], ["y"], "second", domain),
             node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "third")]
    outputs = [value("loss", FLOAT, [])] + ([extra_output] if extra_output else [])
    return model(nodes, [value("x", FLOAT, [batch, width]), value("labels", INT64, [batch])], outputs, [w],
                 domains=(domain,) if domain else ())
