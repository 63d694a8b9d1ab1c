"""Runs an ONNX graph by PyTorch's functions, for special_points.py: gradients of an exported graph by PyTorch's own rules.

Each operator is the function of PyTorch that it is exported from. Attributes, opsets and types are those that special_point_cases.py needs;
anything else raises an error.
"""

import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto as T
from onnx import helper, numpy_helper

TYPES = {T.FLOAT: None, T.DOUBLE: torch.float64, T.INT64: torch.int64, T.INT32: torch.int32, T.BOOL: torch.bool}  # None: the run's own


def integers(x):
    return [int(v) for v in x.reshape(-1)]


class Run:
    """Values of a graph: dtype is that of its floats."""

    def __init__(self, model, feeds, dtype):
        self.dtype, self.values = dtype, {"": None}
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.values.update(feeds)
        self.run(model.graph)

    def known(self, tensor):
        x = torch.from_numpy(np.array(numpy_helper.to_array(tensor)))
        return x.to(self.dtype) if x.is_floating_point() else x

    def run(self, graph):
        for tensor in graph.initializer:
            self.values[tensor.name] = self.known(tensor)
        self.scalars = {t.name for t in graph.initializer if not t.dims}
        for node in graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            operands = [self.values[name] for name in node.input]
            if node.op_type == "Constant" and not attributes["value"].dims:
                self.scalars.add(node.output[0])
            found = self.compute(node, attributes, operands)
            for name, value in zip(node.output, found if isinstance(found, (tuple, list)) else [found]):
                self.values[name] = value

    def compute(self, node, a, x):
        op = node.op_type
        if hasattr(self, f"op_{op}"):
            return getattr(self, f"op_{op}")(node, a, *x)
        if op.startswith("Reduce"):
            return self.reduced(op, a, *x)
        if op in PLAIN:
            return PLAIN[op](*x)
        raise NotImplementedError(op)

    # Constants, types and shapes.
    def op_Constant(self, node, a):
        return self.known(a["value"])

    def op_Cast(self, node, a, x):
        return x.to(TYPES[a["to"]] or self.dtype)

    def op_ConstantOfShape(self, node, a, shape):
        value = self.known(a["value"]) if "value" in a else torch.zeros(1, dtype=self.dtype)
        return torch.full(integers(shape), value.item(), dtype=value.dtype)

    def op_Shape(self, node, a, x):
        return torch.tensor(x.shape[a.get("start", 0):a.get("end", x.ndim)], dtype=torch.int64)

    def op_Reshape(self, node, a, x, shape):
        return x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(integers(shape))])

    def op_Unsqueeze(self, node, a, x, axes):
        for axis in sorted(d % (x.ndim + axes.numel()) for d in integers(axes)):
            x = x.unsqueeze(axis)
        return x

    def op_Squeeze(self, node, a, x, axes=None):
        return x.squeeze() if axes is None else x.squeeze(tuple(integers(axes)))

    def op_Expand(self, node, a, x, shape):
        return x.expand(torch.broadcast_shapes(x.shape, integers(shape)))

    def op_Flatten(self, node, a, x):
        return x.flatten(a.get("axis", 1))

    def op_Transpose(self, node, a, x):
        return x.permute(a.get("perm", list(range(x.ndim))[::-1]))

    def op_Concat(self, node, a, *x):
        return torch.cat(x, a["axis"])

    def op_Split(self, node, a, x, sizes=None):
        axis = a.get("axis", 0)
        return x.split(integers(sizes) if sizes is not None else x.shape[axis] // len(node.output), axis)

    def op_Slice(self, node, a, x, begins, ends, axes=None, steps=None):
        axes = range(x.ndim) if axes is None else integers(axes)
        for begin, end, axis, step in zip(integers(begins), integers(ends), axes, [1] * len(axes) if steps is None else integers(steps)):
            picked = list(range(x.shape[axis]))[begin:None if step < 0 and end < -x.shape[axis] else end:step]
            x = x.index_select(axis, torch.tensor(picked, dtype=torch.int64))
        return x

    def op_Gather(self, node, a, x, places):
        axis = a.get("axis", 0) % x.ndim
        picked = x.index_select(axis, places.reshape(-1) % x.shape[axis])
        return picked.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1:])

    def op_GatherElements(self, node, a, x, places):
        axis = a.get("axis", 0)
        return x.gather(axis, places % x.shape[axis])

    def op_ScatterElements(self, node, a, x, places, updates):
        how = a.get("reduction", b"none").decode()
        assert how == "add", how
        return x.scatter_add(a.get("axis", 0), places, updates)

    def op_Pad(self, node, a, x, pads, value=None, axes=None):
        pads, axes = integers(pads), list(range(x.ndim)) if axes is None else integers(axes)
        assert a.get("mode", b"constant") == b"constant"
        around = [(0, 0)] * x.ndim
        for i, axis in enumerate(axes):
            around[axis] = pads[i], pads[i + len(axes)]
        flat = [p for pair in reversed(around) for p in pair]
        return F.pad(x, flat, value=0 if value is None else value.item())

    def op_OneHot(self, node, a, x, depth, values):
        return torch.where(F.one_hot(x, integers(depth)[0]) > 0, values[1], values[0])

    def op_Trilu(self, node, a, x, k=None):
        return (torch.triu if a.get("upper", 1) else torch.tril)(x, 0 if k is None else integers(k)[0])

    def op_If(self, node, a, condition):
        branch = a["then_branch"] if condition else a["else_branch"]
        self.run(branch)
        return [self.values[o.name] for o in branch.output]

    def op_Where(self, node, a, condition, x, y):
        return torch.where(condition, x, y)

    def op_Mod(self, node, a, x, y):
        return torch.fmod(x, y) if a.get("fmod", 0) else torch.remainder(x, y)

    # Clamps and ties: a bound without dimensions makes a clamp of Max and Min, unless the metadata name maximum or minimum.
    def extremum(self, node, a, clamp, pair, x):
        call = next((m.value for m in node.metadata_props if m.key == "pkg.torch.onnx.fx_node"), "")
        result = x[0]
        for k, other in enumerate(x[1:], 1):
            plain = f"aten.{pair.__name__}" in call
            if node.input[k] in self.scalars and not plain:
                result = clamp(result, other.item())
            elif k == 1 and node.input[0] in self.scalars and not plain:
                result = clamp(other, result.item())
            elif "aten.clamp" in call:
                result = torch.clamp(result, **{"min" if pair is torch.maximum else "max": other})
            else:
                result = pair(result, other)
        return result

    def op_Max(self, node, a, *x):
        return self.extremum(node, a, torch.clamp_min, torch.maximum, x)

    def op_Min(self, node, a, *x):
        return self.extremum(node, a, torch.clamp_max, torch.minimum, x)

    def op_Clip(self, node, a, x, low=None, high=None):
        low, high = a.get("min") if low is None else low.item(), a.get("max") if high is None else high.item()
        return x if low is None and high is None else x.clamp(low, high)

    # Activations.
    def op_Elu(self, node, a, x):
        return F.elu(x, a.get("alpha", 1.0))

    def op_Celu(self, node, a, x):
        return F.celu(x, a.get("alpha", 1.0))

    def op_Selu(self, node, a, x):
        assert abs(a.get("alpha", 1.6732632) - 1.6732632) + abs(a.get("gamma", 1.050701) - 1.050701) < 1e-6
        return F.selu(x)

    def op_Gelu(self, node, a, x):
        return F.gelu(x, approximate=a.get("approximate", b"none").decode())

    def op_HardSigmoid(self, node, a, x):
        return (a.get("alpha", 0.2) * x + a.get("beta", 0.5)).clamp(0, 1) if abs(a.get("alpha", 0.2) - 1 / 6) > 1e-6 else F.hardsigmoid(x)

    def op_LeakyRelu(self, node, a, x):
        return F.leaky_relu(x, a.get("alpha", 0.01))

    def op_PRelu(self, node, a, x, w):
        return torch.where(x > 0, x, w * x)

    # Along a dimension.
    def reduced(self, op, a, x, axes=None):
        axes = a.get("axes") if axes is None else integers(axes)
        if axes is None or not len(axes):
            if axes is not None and a.get("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        keep = bool(a.get("keepdims", 1))
        if op == "ReduceProd":
            if len(axes) == x.ndim and not keep:
                return x.prod()
            assert len(axes) == 1
            return x.prod(axes[0], keepdim=keep)
        along = {"dim": tuple(axes), "keepdim": keep}
        return {"Sum": lambda: x.sum(**along), "Mean": lambda: x.mean(**along), "Max": lambda: x.amax(**along), "Min": lambda: x.amin(**along),
                "L1": lambda: torch.linalg.vector_norm(x, 1, **along), "L2": lambda: torch.linalg.vector_norm(x, 2, **along),
                "SumSquare": lambda: (x * x).sum(**along), "LogSum": lambda: x.sum(**along).log(), "LogSumExp": lambda: x.logsumexp(**along)}[op[6:]]()

    def op_ArgMax(self, node, a, x):
        return x.argmax(a.get("axis", 0), keepdim=bool(a.get("keepdims", 1)))

    def op_ReduceMax(self, node, a, x, axes=None):
        call = next((m.value for m in node.metadata_props if m.key == "pkg.torch.onnx.fx_node"), "")
        axes = a.get("axes") if axes is None else integers(axes)
        if axes is not None and len(axes) == 1 and ("aten.max.dim" in call or self.has_index.get(node.input[0])):
            return x.max(axes[0], keepdim=bool(a.get("keepdims", 1))).values
        return self.reduced("ReduceMax", a, x, None if axes is None else torch.tensor(axes))

    has_index = {}

    def op_TopK(self, node, a, x, k):
        return tuple(x.topk(integers(k)[0], a.get("axis", -1), bool(a.get("largest", 1)), bool(a.get("sorted", 1))))

    def op_CumSum(self, node, a, x, axis):
        assert not a.get("exclusive", 0) and not a.get("reverse", 0)
        return x.cumsum(integers(axis)[0])

    def op_Softmax(self, node, a, x):
        return x.softmax(a.get("axis", -1))

    def op_LogSoftmax(self, node, a, x):
        return x.log_softmax(a.get("axis", -1))

    def op_LayerNormalization(self, node, a, x, w=None, b=None):
        shape = x.shape[a.get("axis", -1):]
        y = F.layer_norm(x, shape, None, None, a.get("epsilon", 1e-5))
        return (y if w is None else y * w) if b is None else y * w + b

    def op_InstanceNormalization(self, node, a, x, w, b):
        return F.instance_norm(x, weight=w, bias=b, eps=a.get("epsilon", 1e-5))

    def op_BatchNormalization(self, node, a, x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, eps=a.get("epsilon", 1e-5))

    # Windows.
    def window(self, a, x):
        rank = x.ndim - 2
        pads = a.get("pads", [0] * (2 * rank))
        assert pads[:rank] == pads[rank:] and set(a.get("dilations", [1])) == {1} and a.get("auto_pad", b"NOTSET") == b"NOTSET"
        return a["kernel_shape"], a.get("strides", [1] * rank), pads[:rank]

    def op_MaxPool(self, node, a, x):
        return {1: F.max_pool1d, 2: F.max_pool2d}[x.ndim - 2](x, *self.window(a, x), ceil_mode=bool(a.get("ceil_mode", 0)))

    def op_AveragePool(self, node, a, x):
        return {1: F.avg_pool1d, 2: F.avg_pool2d}[x.ndim - 2](x, *self.window(a, x), ceil_mode=bool(a.get("ceil_mode", 0)),
                                                               count_include_pad=bool(a.get("count_include_pad", 0)))

    def op_GlobalAveragePool(self, node, a, x):
        return x.mean(tuple(range(2, x.ndim)), keepdim=True)

    def op_GlobalMaxPool(self, node, a, x):
        return x.amax(tuple(range(2, x.ndim)), keepdim=True)

    # Losses.
    def op_SoftmaxCrossEntropyLoss(self, node, a, x, labels, weights=None):
        return F.cross_entropy(x, labels, weights, reduction=a.get("reduction", b"mean").decode(), ignore_index=a.get("ignore_index", -100))

    def op_NegativeLogLikelihoodLoss(self, node, a, x, labels, weights=None):
        return F.nll_loss(x, labels, weights, reduction=a.get("reduction", b"mean").decode(), ignore_index=a.get("ignore_index", -100))


PLAIN = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": lambda x, y: x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc"),
    "Pow": lambda x, y: torch.pow(x, y.item()) if y.numel() == 1 and not y.requires_grad and x.is_floating_point() else torch.pow(x, y),
    "Sum": lambda *x: sum(x), "Identity": lambda x: x, "Neg": torch.neg, "Abs": torch.abs, "Sign": torch.sign, "Exp": torch.exp, "Log": torch.log, "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan,
    "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh, "Acosh": torch.acosh,
    "Atanh": torch.atanh, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Erf": torch.erf, "Relu": torch.relu, "Softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "Softsign": F.softsign, "HardSwish": F.hardswish, "Mish": F.mish, "MatMul": torch.matmul, "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
    "Less": torch.lt, "LessOrEqual": torch.le, "Not": torch.logical_not, "And": torch.logical_and, "Or": torch.logical_or, "IsNaN": torch.isnan,
    "IsInf": torch.isinf,
}


def evaluated(model, feeds, dtype):
    """The graph's output `y`."""
    indexed = {(n.input[0],) for n in model.graph.node if n.op_type == "ArgMax"}
    Run.has_index = {name: True for name, in indexed}
    return Run(model, feeds, dtype).values[model.graph.output[0].name]
