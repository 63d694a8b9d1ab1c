"""Makes onnx-node-tests.xz, the ONNX project's node tests as training steps, for test/e2e/cases/operators.py.

The cases come from `onnx.backend.test.case.node` of the PyPI package named in frontend/onnx/schema/README.md, which computes
them anew; its random numbers have fixed seeds. To make the file again:

    python -m venv venv && venv/bin/pip install onnx==1.23.2 && venv/bin/python test/models/onnx_node_tests.py

A step has no outputs but gradients, so each case becomes a graph whose gradients are the case's outputs: for an output y there
is a parameter p of its shape, and the loss is the sum of p * y. An input x is data [1, ...] of one row, as f32 or i64, cast to
its own type in the graph; those that decide shapes (SHAPES) are constants of the graph, which `sheaf compile --const` could give
as well. All names begin with the case's own, so that the bytes of several graphs one after the other are a graph of all of
them, by the rules of protobuf.

Cases that cannot be such a graph are named with the reason. The file, compressed with xz, holds the length of a JSON text (8
bytes, little-endian), the text, and the data that it refers to: {name: {"ops", "opset", "types", "reason"} or {"ops", "opset", "types", "graph":
[begin, end], "inputs": {name: ["f4" or "i8", shape, begin, end]}, "results": {parameter: [begin, end] of f32}}}.
"""

import collections
import json
import lzma
import pathlib
import re
import struct
import warnings

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

LARGEST = 32 << 10  # bytes of a case; operators with larger ones have smaller ones, too, but for Mish. Losses share their data, so all are kept
KINDS = {T.FLOAT: "f4", T.DOUBLE: "f4", T.FLOAT16: "f4", T.BFLOAT16: "f4", T.BOOL: "i8", T.INT8: "i8", T.INT16: "i8", T.INT32: "i8",
         T.INT64: "i8", T.UINT8: "i8", T.UINT16: "i8", T.UINT32: "i8", T.UINT64: "i8"}
# Inputs that decide shapes, or which operation it is: by operator, their positions.
SHAPES = {
    "AffineGrid": [1], "BlackmanWindow": [0], "CenterCropPad": [1], "Col2Im": [1, 2], "Compress": [1], "ConstantOfShape": [0],
    "CumProd": [1], "CumSum": [1], "DFT": [1, 2], "Dropout": [1, 2], "Expand": [1], "HammingWindow": [0], "HannWindow": [0], "If": [0],
    "Loop": [0, 1], "MelWeightMatrix": [0, 1, 2, 3, 4], "NonZero": [0], "OneHot": [1], "Pad": [1, 2, 3], "Range": [0, 1, 2],
    "ReduceL1": [1], "ReduceL2": [1], "ReduceLogSum": [1], "ReduceLogSumExp": [1], "ReduceMax": [1], "ReduceMean": [1],
    "ReduceMin": [1], "ReduceProd": [1], "ReduceSum": [1], "ReduceSumSquare": [1], "Reshape": [1], "Resize": [1, 2, 3],
    "STFT": [1, 3], "SequenceAt": [1], "SequenceErase": [1], "SequenceInsert": [2], "Slice": [1, 2, 3, 4], "Split": [1],
    "SplitToSequence": [1], "Squeeze": [1], "Tile": [1], "TopK": [1], "Trilu": [1], "Unique": [0], "Unsqueeze": [1], "Upsample": [1],
    "ConvTranspose": [], "MaxUnpool": [2],
}
ROUND = 1 << 20  # integers of more than 24 bits are compared in parts of 20


class LeftOut(Exception):
    pass


def opset_of(case):
    """The oldest that is supported is 7; what is older has the same meaning there."""
    return max({o.domain: o.version for o in case.model.opset_import}.get("", 0), 7)


def element_types(type_proto):
    kind = type_proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return element_types(getattr(type_proto, kind).elem_type)
    return T.DataType.Name(getattr(type_proto, kind).elem_type).lower() if kind else "undefined"


def rename(graph, prefix):
    """Prefixes every name of a graph and of the graphs in it."""
    def of(name):
        return prefix + name if name else name

    for node in graph.node:
        node.name = prefix + (node.name or node.op_type)
        node.input[:] = [of(i) for i in node.input]
        node.output[:] = [of(o) for o in node.output]
        for a in node.attribute:
            if a.HasField("g"):
                rename(a.g, prefix)
    for tensor in graph.initializer:
        tensor.name = of(tensor.name)
    for value in [*graph.input, *graph.output]:
        value.name = of(value.name)
    graph.ClearField("value_info")


class Step:
    """The training step of one case."""

    def __init__(self, case, shapes):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        self.opset = opset_of(case)
        self.prefix = case.name.removeprefix("test_") + "/"
        rename(model.graph, self.prefix)
        self.graph, self.model = model.graph, model
        self.before, self.after, self.inputs, self.results, self.losses = [], [], {}, {}, []
        self.data_inputs, self.initializers = [], []
        self.fresh = 0
        shapes = {self.prefix + name for name in shapes}
        if not case.data_sets:
            raise LeftOut("no data")
        given, expected = case.data_sets[0]
        for info, data in zip(self.graph.input, given, strict=True):
            self.feed(info.name, info.type, data, info.name in shapes)
        for info, data in zip(self.graph.output, expected, strict=True):
            self.take(info.name, info.type, data)
        if not self.results:
            raise LeftOut("its results have no elements")

    def name(self, what):
        self.fresh += 1
        return f"{self.prefix}{what}.{self.fresh}"

    def put(self, nodes, op, inputs, output=None, **attributes):
        output = output or self.name(op.lower())
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def known(self, nodes, value, output=None):
        return self.put(nodes, "Constant", [], output, value=numpy_helper.from_array(value))

    def reshaped(self, nodes, value, shape, output=None):
        return self.put(nodes, "Reshape", [value, self.known(nodes, np.array(shape, np.int64))], output)

    def feed(self, name, type_proto, data, is_known):
        kind = type_proto.WhichOneof("value")
        if kind == "optional_type":
            if data is None:
                self.put(self.before, "Optional", [], name, type=type_proto.optional_type.elem_type)
                return
            return self.feed(name, type_proto.optional_type.elem_type, data, is_known)
        if kind == "sequence_type":
            parts = [self.name("element") for _ in data]
            for part, value in zip(parts, data):
                self.feed(part, type_proto.sequence_type.elem_type, value, is_known)
            if not parts:
                dtype = type_proto.sequence_type.elem_type.tensor_type.elem_type
                return self.put(self.before, "SequenceEmpty", [], name, dtype=dtype)
            return self.put(self.before, "SequenceConstruct", parts, name)
        dtype = type_proto.tensor_type.elem_type
        if kind != "tensor_type" or dtype not in KINDS:
            raise LeftOut("type " + T.DataType.Name(dtype).lower())
        value = numpy_helper.to_array(data) if isinstance(data, T) else np.asarray(data)
        if is_known or value.size == 0:
            self.known(self.before, value, name)
            return
        row, target = self.name("row"), T.FLOAT if KINDS[dtype] == "f4" else T.INT64
        with np.errstate(all="ignore"):
            stored = value.astype(np.float32 if target == T.FLOAT else np.int64)
        self.inputs[row] = (KINDS[dtype], [1, *value.shape], stored.tobytes())
        self.data_inputs.append(helper.make_tensor_value_info(row, target, [1, *value.shape]))
        same = dtype == target
        plain = self.reshaped(self.before, row, value.shape, name if same else None)
        if not same:
            self.put(self.before, "Cast", [plain], name, to=dtype)

    def take(self, name, type_proto, data):
        kind = type_proto.WhichOneof("value")
        if kind == "optional_type":
            if data is None:
                raise LeftOut("an optional result that is empty")
            inner = self.put(self.after, "OptionalGetElement", [name])
            return self.take(inner, type_proto.optional_type.elem_type, data)
        if kind == "sequence_type":
            for i, value in enumerate(data):
                at = self.put(self.after, "SequenceAt", [name, self.known(self.after, np.array(i))])
                self.take(at, type_proto.sequence_type.elem_type, value)
            return
        dtype = type_proto.tensor_type.elem_type
        if kind != "tensor_type" or dtype not in KINDS:
            raise LeftOut("type " + T.DataType.Name(dtype).lower())
        value = numpy_helper.to_array(data) if isinstance(data, T) else np.asarray(data)
        if value.size == 0:
            return
        if KINDS[dtype] == "f4" or np.abs(value.astype(np.float64)).max() < 1 << 24:
            with np.errstate(all="ignore"):
                self.compare(self.put(self.after, "Cast", [name], to=T.FLOAT), value.astype(np.float32))
            return
        # The lowest 20 bits, the next 20, and the rest, with its sign.
        whole, rest = self.put(self.after, "Cast", [name], to=T.INT64), value.astype(np.int64)
        size = self.known(self.after, np.array(ROUND, np.int64))
        for part in range(3):
            low = self.put(self.after, "Mod", [whole, size]) if part < 2 else whole
            self.compare(self.put(self.after, "Cast", [low], to=T.FLOAT), (rest % ROUND if part < 2 else rest).astype(np.float32))
            whole = self.put(self.after, "Div", [self.put(self.after, "Sub", [whole, low]), size])
            rest = (rest - rest % ROUND) // ROUND

    def compare(self, value, expected):
        parameter = self.name("p")
        shape = list(expected.shape) or [1]
        self.initializers.append(numpy_helper.from_array(np.zeros(shape, np.float32), parameter))
        # Flat: a product of all elements and a sum over one dimension.
        flat = self.reshaped(self.after, value, [expected.size])
        weights = self.reshaped(self.after, parameter, [expected.size])
        self.losses.append(self.total(flat, weights))
        self.results[parameter] = expected.tobytes()

    def total(self, flat, weights):
        product = self.put(self.after, "Mul", [flat, weights])
        if self.opset >= 13:
            axes = self.known(self.after, np.array([0], np.int64))
            return self.put(self.after, "ReduceSum", [product, axes], keepdims=0)
        return self.put(self.after, "ReduceSum", [product], axes=[0], keepdims=0)

    def bytes(self):
        """The graph without outputs: the sum of the losses has the prefix and ".total" as its name."""
        nodes = [*self.before, *self.graph.node, *self.after]
        nodes.append(helper.make_node("Sum", self.losses, [self.prefix + ".total"]))
        return onnx.GraphProto(node=nodes, input=self.data_inputs,
                               initializer=[*self.graph.initializer, *self.initializers]).SerializeToString()


def main():
    warnings.simplefilter("ignore")
    header, data = {}, bytearray()

    def stored(content):
        begin = len(data)
        data.extend(content)
        return [begin, len(data)]

    cases = sorted(collect_testcases(None), key=lambda c: c.name)
    # A case that is written out as the operator's function has the inputs of the operator's own.
    shapes = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1:
            shapes[case.name] = {nodes[0].input[i] for i in SHAPES.get(nodes[0].op_type, []) if i < len(nodes[0].input)}
    for case in cases:
        domains = {node.domain for node in case.model.graph.node}
        entry = {"ops": sorted({node.op_type for node in case.model.graph.node}),
                 "opset": opset_of(case),
                 "types": sorted({element_types(v.type) for v in [*case.model.graph.input, *case.model.graph.output]})}
        header[case.name] = entry
        try:
            if domains != {""}:
                raise LeftOut("domain " + ", ".join(sorted(domains - {""})))
            step = Step(case, shapes.get(re.sub("_expanded.*", "", case.name), set()))
            graph = step.bytes()
            size = len(graph) + sum(len(v[2]) for v in step.inputs.values()) + sum(map(len, step.results.values()))
            if size > LARGEST and not re.match("test_(sce_|nllloss_|mish$)", case.name):
                raise LeftOut("size")
        except LeftOut as why:
            entry["reason"] = str(why)
            continue
        entry["graph"] = stored(graph)
        entry["inputs"] = {name: [kind, shape, *stored(content)] for name, (kind, shape, content) in step.inputs.items()}
        entry["results"] = {name: stored(content) for name, content in step.results.items()}
    text = json.dumps(header, separators=(",", ":")).encode()
    target = pathlib.Path(__file__).with_name("onnx-node-tests.xz")
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    target.write_bytes(lzma.compress(struct.pack("<Q", len(text)) + text + bytes(data), filters=filters))
    write_counts(header)
    left = sum("reason" in entry for entry in header.values())
    print(f"{len(header)} cases, {left} left out; {len(text) + len(data)} bytes, packed {target.stat().st_size}")


def write_counts(header):
    """In how many cases an operator stands, for the registry of operators; not in those that are other operators' functions."""
    counts = collections.Counter(op for name, entry in header.items() if "graph" in entry and "_expanded" not in name for op in entry["ops"])
    rows = "".join(f'{{"{name}", {count}}},\n' for name, count in sorted(counts.items()))
    target = pathlib.Path(__file__).parents[2] / "frontend" / "onnx" / "NodeTests.inc"
    target.write_text("// Written by test/models/onnx_node_tests.py.\n" + rows)


if __name__ == "__main__":
    main()
