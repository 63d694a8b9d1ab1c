"""Makes special-points.xz: gradients of PyTorch at zeros, bounds, ties and ends of ranges, for test/e2e/cases/special_points.py.

The cases are those of special_point_cases.py. Each is exported by both of PyTorch's exporters with their default settings; the
cases that write their graph themselves, for operators that no exporter writes, are exported as "onnx". To make the file again:

    python -m venv venv && venv/bin/pip install torch==2.15.0 onnx==1.23.2 onnxscript==0.7.2
    venv/bin/python test/models/special_points.py

A graph's float inputs become parameters, and so does the incoming gradient g of its result y: the loss is the sum of g * y, so that
the gradient of g is the value of y, and those of the other parameters are PyTorch's. All names begin with the case's number, so that
the bytes of several graphs one after the other are a graph of all of them, by the rules of protobuf.

PyTorch computes in f32 and in f64, because the difference is the rounding of f32, and twice: as it is, and with Sheaf's rule for factors
that are not finite: in the backward pass 0 * infinity and 0 / 0 are 0 where the incoming gradient is the 0, and the gradient of a root of
squares is 0 where that is 0. An export can be another function than the one that was exported (log(sigmoid(x)) for logsigmoid is -infinity
below -88); onnx_in_torch.py computes what PyTorch has for the graph, and where its values are not the function's, they and their gradients
are stored as the graph's form. Gradients where the value is NaN are not compared.

The file, compressed with xz, holds the length of a JSON text (8 bytes, little-endian), the text, and the data that it refers to by
[begin, end]: {"cases": [{"name", "noise", "shape", "grad", "inputs": [[kind, shape, data]], "results": {"y" or the input's number: [f32,
f64, f32 without the rule]}, "lost": {the input's number: [leading index where it is not compared]}}], "graphs": [{"case", "exporter",
"opset", "graph", "data": [inputs that are data], "form": {"y" or the input's number: [f32, f64]}}], "refused": {exporter: {case: why}}}. What
is equal to f32 is null.
"""
import contextlib
import io
import json
import logging
import lzma
import pathlib
import struct
import warnings

import numpy as np
import onnx
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from torch.utils._python_dispatch import TorchDispatchMode

import onnx_in_torch
from onnx_node_tests import rename
import special_point_operators  # noqa: F401 (adds its cases)
import special_point_infinities  # noqa: F401 (the same)
from special_point_cases import CASES

KEPT_METADATA = ("pkg.torch.onnx.fx_node",)
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
EXPORTERS = ("torchscript", "dynamo")


class Function(torch.nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *operands):
        return self.fn(*operands)


class ZeroStaysZero(TorchDispatchMode):
    """Sheaf's rule, in PyTorch's backward pass."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.rstrip("_")
        before = args[0].clone() if args and isinstance(args[0], torch.Tensor) else None
        out = func(*args, **(kwargs or {}))
        if before is None or not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return out
        factor = args[1] if len(args) > 1 else None
        if name in ("mul", "div"):
            other = factor if isinstance(factor, torch.Tensor) else torch.tensor(float(factor))
            lost = (before == 0) & (torch.isinf(other) if name == "mul" else other == 0)
        elif "backward" in name and before.shape == out.shape:
            lost = (before == 0) & ~torch.isnan(sum(a for a in args if isinstance(a, torch.Tensor) and a.shape == out.shape))
        else:
            return out
        wrong = lost & torch.isnan(out)
        return out.masked_fill_(wrong, 0) if func._schema.is_mutable else out.masked_fill(wrong, 0)


def differentiable(case):
    return [i for i, x in enumerate(case.inputs) if x.dtype == np.float32 and i not in case.data]


def computed(case, fn, dtype, rule):
    """The result of a function and its gradients, as f32 arrays."""
    operands = [torch.from_numpy(x).to(dtype) if x.dtype == np.float32 else torch.from_numpy(x) for x in case.inputs]
    wanted = [operands[i].requires_grad_() for i in differentiable(case)]
    y = fn(*operands)
    grad = torch.from_numpy(case.grad).to(y.dtype)
    with ZeroStaysZero() if rule else contextlib.nullcontext():
        found = torch.autograd.grad(y, wanted, grad, allow_unused=True) if y.requires_grad else [None] * len(wanted)
    found = [torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted)]
    with np.errstate(all="ignore"):
        results = [v.detach().numpy().astype(np.float32) for v in [y, *found]]
    return at_roots(case, results) if rule and case.squares else results


def at_roots(case, results):
    """Sets gradients to 0 where a root of squares is 0."""
    y, *found = results
    for k, g in enumerate(found):
        root = y == 0 if y.shape == g.shape else np.broadcast_to((y == 0).reshape(y.shape + (1,) * (g.ndim - y.ndim)), g.shape)
        found[k] = np.where(root, np.float32(0), g)
    return [y, *found]


def both_precisions(case, fn):
    """(f32, f64) by the rule; f64 is f32 where that differs by the rounding of an operation or two, or has constants of f32."""
    single = computed(case, fn, torch.float32, True)
    try:
        double = computed(case, fn, torch.float64, True)
    except RuntimeError:
        double = single
    return single, [np.where(equal(a, b), a, b) for a, b in zip(single, double)]


def without_value(case, y, shape):
    """The leading places of a gradient that depends on results that are not numbers, whose incoming gradient is not 0."""
    kept = in_leading(~np.isnan(y) | (case.grad == 0), shape)
    return [int(i) for i in np.flatnonzero(~kept.reshape(shape[0], -1).all(1))] if shape else []


def as_function(case, model):
    """The function of a graph, by PyTorch."""
    names = {v.name for v in model.graph.input}

    def fn(*operands):
        dtype = next(x.dtype for x in operands if x.is_floating_point())
        return onnx_in_torch.evaluated(model, {f"x{i}": x for i, x in enumerate(operands) if f"x{i}" in names}, dtype)

    return fn


def form_of(case, keys, single, double, model):
    """{key: (f32, f64)} of a graph where its values are not the function's."""
    graph = both_precisions(case, as_function(case, model))
    same = [equal(a, c) | equal(b, c) for a, b, c in zip(single, double, graph[0])]
    form = {}
    for key, a, c, d, alike in zip(keys, single, *graph, same):
        if key != "y" and not case.form:
            alike = alike | in_leading(same[0], a.shape)
        if not alike.all():
            form[key] = np.where(alike, a, c), np.where(alike, a, d)
    return form


def in_leading(elements, shape):
    """Marks the elements of a gradient whose results are all among these."""
    every = elements.reshape(len(elements), -1).all(1) if elements.ndim else np.array([elements])
    if shape and shape[0] == len(every):
        return np.broadcast_to(every.reshape(-1, *[1] * (len(shape) - 1)), shape)
    return np.full(shape, every.all())


def exported(case, exporter):
    operands = tuple(map(torch.from_numpy, case.inputs))
    names = [f"x{i}" for i in range(len(operands))]
    if exporter == "torchscript":
        buffer = io.BytesIO()
        torch.onnx.export(Function(case.fn), operands, buffer, dynamo=False, input_names=names, output_names=["y"])
        return onnx.load_from_string(buffer.getvalue())
    return torch.onnx.export(Function(case.fn), operands, dynamo=True, input_names=names, output_names=["y"], verbose=False).model_proto


class Graph:
    """The training step of one export."""

    def __init__(self, case, number, model, exporter):
        if model.functions or {n.domain for n in model.graph.node} - {""}:
            raise ValueError("it has functions")
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        prefix = f"c{number}."
        rename(model.graph, prefix)
        for node in model.graph.node:
            kept = [m for m in node.metadata_props if m.key in KEPT_METADATA]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        given = {v.name for v in model.graph.input}
        before, values, inputs, weights = [], [], [], list(model.graph.initializer)
        self.data = []

        def parameter(name, value):
            weights.append(numpy_helper.from_array(value, name))
            if exporter == "dynamo":
                values.append(helper.make_tensor_value_info(name, T.FLOAT, value.shape))
                values[-1].metadata_props.add(key=KIND, value="PARAMETER")

        for i, x in enumerate(case.inputs):
            name = f"{prefix}x{i}"
            if name not in given:
                continue  # an operand that only another exporter keeps
            if i in differentiable(case):
                parameter(name, x)
                continue
            row, shape = f"{name}.row", f"{name}.shape"
            self.data.append(i)
            inputs.append(helper.make_tensor_value_info(row, helper.np_dtype_to_tensor_dtype(x.dtype), [1, *x.shape]))
            before.append(helper.make_node("Constant", [], [shape], value=numpy_helper.from_array(np.array(x.shape, np.int64))))
            before.append(helper.make_node("Reshape", [row, shape], [name]))
        parameter(f"{prefix}g", case.grad)
        y, axes = f"{prefix}y", f"{prefix}axes"
        after = [helper.make_node("Mul", [y, f"{prefix}g"], [f"{prefix}gy"]),
                 helper.make_node("Constant", [], [axes], value=numpy_helper.from_array(np.array([-1], np.int64))),
                 helper.make_node("Reshape", [f"{prefix}gy", axes], [f"{prefix}flat"]),
                 helper.make_node("ReduceSum", [f"{prefix}flat"], [f"{prefix}total"], keepdims=0)]
        self.bytes = onnx.GraphProto(node=[*before, *model.graph.node, *after], input=inputs, initializer=weights,
                                     value_info=values).SerializeToString()


def attempt(case, exporter):
    """The model's bytes, or why there is none."""
    try:
        return exported(case, exporter).SerializeToString()
    except Exception as e:  # whatever an exporter raises
        return (str(e).strip().splitlines() or [type(e).__name__])[0][:200]


def equal(a, b):
    """Equal up to the rounding of a product, so that only what matters is stored."""
    with np.errstate(all="ignore"):
        near = np.abs(a.astype(np.float64) - b) <= 2e-6 * np.abs(a)
    return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(a) & np.isfinite(b) & near)


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    data, places = bytearray(), {}

    def stored(content):
        if content not in places:
            places[content] = [len(data), len(data) + len(content)]
            data.extend(content)
        return places[content]

    def other(a, b):
        """Nothing if it is the same."""
        return None if a.tobytes() == b.tobytes() else stored(b.tobytes())

    header = {"cases": [], "graphs": [], "refused": {e: {} for e in EXPORTERS}}
    for number, case in enumerate(CASES):
        plain = computed(case, case.fn, torch.float32, False)
        single, double = both_precisions(case, case.fn)
        keys = ["y", *map(str, differentiable(case))]
        results = {key: [stored(a.tobytes()), other(a, b), other(a, c)] for key, a, b, c in zip(keys, single, double, plain)}
        lost = {key: rows for key, a in zip(keys[1:], single[1:]) if (rows := without_value(case, single[0], a.shape))}
        kinds = {np.dtype(np.float32): "f4", np.dtype(np.int64): "i8"}
        header["cases"].append({"name": case.name, "noise": case.noise, "results": results, "lost": lost, "grad": stored(case.grad.tobytes()), "shape": list(case.grad.shape),
                                "inputs": [[kinds[x.dtype], list(x.shape), stored(x.tobytes())] for x in case.inputs]})
        for exporter in EXPORTERS if case.onnx is None else ("onnx",):
            model = case.onnx() if case.onnx else attempt(case, exporter)
            try:
                model = onnx.load_from_string(model) if isinstance(model, bytes) else fail(model)
                form = form_of(case, keys, single, double, model) if case.onnx is None else {}
                form = {key: [stored(a.tobytes()), other(a, b)] for key, (a, b) in form.items()}
                graph = Graph(case, number, model, exporter)
            except ValueError as e:
                header["refused"].setdefault(exporter, {})[case.name] = str(e)
                continue
            header["graphs"].append({"case": number, "exporter": exporter, "opset": graph.opset, "data": graph.data, "graph": stored(graph.bytes), "form": form})
    text = json.dumps(header, separators=(",", ":")).encode()
    target = pathlib.Path(__file__).with_name("special-points.xz")
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    target.write_bytes(lzma.compress(struct.pack("<Q", len(text)) + text + bytes(data), filters=filters))
    points = sum(case.grad.size for case in CASES)
    print(f"{len(CASES)} functions, {len(header['graphs'])} graphs, {points} results; {len(text) + len(data)} bytes, packed {target.stat().st_size}")
    for exporter, refused in header["refused"].items():
        for name, why in refused.items():
            print(f"{exporter} refuses {name}: {why}")


def fail(why):
    raise ValueError(why)


if __name__ == "__main__":
    main()
