"""Cases of special-points.xz for ONNX's operators as themselves: those that no exporter of PyTorch writes, or writes in one form only.

Without PyTorch's metadata Clip and Max or Min with a constant of no dimensions are clamps, and every other Max or Min is torch.maximum.
"""
import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from special_point_cases import ALL_ROWS, CLASSES, DISTINCT, FINITE_IMAGES, IMAGES, SUMS, MODERATE, PAIRS, POINTS, UNIT, add, f32, twice


def operator(name, op, fn, inputs, constants=(), opset=20, outputs=("y",), squeezed=(), **more):
    """One node: x0, x1, ... are its operands, then constants; {attribute: value} are among `more` with a leading underscore."""
    attributes = {k[1:]: v for k, v in more.items() if k.startswith("_")}
    more = {k: v for k, v in more.items() if not k.startswith("_")}

    def build():
        names = [f"x{i}" for i in range(len(inputs))]
        nodes, known = [], []
        for k, c in enumerate(constants):
            known.append("" if c is None else f"k{k}")
            if c is not None:
                nodes.append(helper.make_node("Constant", [], [known[-1]], value=numpy_helper.from_array(np.asarray(c))))
        made = "wide" if squeezed else "y"
        nodes.append(helper.make_node(op, names + known, [made if o == "y" else o for o in outputs], **attributes))
        if squeezed:
            nodes.append(helper.make_node("Constant", [], ["squeezed"], value=numpy_helper.from_array(np.array(squeezed, np.int64))))
            nodes.append(helper.make_node("Reshape", ["wide", "squeezed"], ["y"]))
        given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs)]
        graph = helper.make_graph(nodes, "g", given, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()

    add(f"{op} {name}".strip(), fn, inputs, onnx=build, **more)


X = twice(POINTS)
FIRST, SECOND = twice(np.repeat(PAIRS, len(PAIRS))), twice(np.tile(PAIRS, len(PAIRS)))
ZERO, AXES = np.float32(0), np.array([-1], np.int64)

for op, fn in (("Abs", torch.abs), ("Exp", torch.exp), ("Log", torch.log), ("Sqrt", torch.sqrt), ("Reciprocal", torch.reciprocal),
               ("Sinh", torch.sinh), ("Cosh", torch.cosh), ("Atan", torch.atan), ("Asinh", torch.asinh),
               ("Acosh", torch.acosh), ("Relu", torch.relu), ("Elu", F.elu), ("Selu", F.selu), ("Celu", F.celu),
               ("LeakyRelu", F.leaky_relu), ("HardSwish", F.hardswish), ("Sign", torch.sign), ("Neg", torch.neg), ("Floor", torch.floor), ("Ceil", torch.ceil),
               ("Round", torch.round)):
    operator("", op, fn, [X])
for op, fn, noise in (("Sin", torch.sin, 2e-5), ("Cos", torch.cos, 2e-5), ("Tan", torch.tan, 4e-4)):
    operator("", op, fn, [X], noise=noise)
for op, fn in (("Softsign", F.softsign), ("Tanh", torch.tanh), ("Sigmoid", torch.sigmoid), ("Erf", torch.erf), ("Softplus", lambda x: torch.logaddexp(x, torch.zeros(()))), ("Mish", F.mish),
               ("Gelu", F.gelu)):
    operator("", op, fn, [X], noise=2e-7)
for op, fn in (("Asin", torch.asin), ("Acos", torch.acos), ("Atanh", torch.atanh)):
    operator("", op, fn, [twice(UNIT)])
operator("tanh", "Gelu", lambda x: F.gelu(x, approximate="tanh"), [X], _approximate="tanh", noise=2e-7)
operator("", "Swish", F.silu, [X], opset=24, noise=2e-7)
operator("alpha", "Swish", lambda x: x * torch.sigmoid(0.5 * x), [X], opset=24, _alpha=0.5, noise=2e-7)
operator("alpha", "Elu", lambda x: F.elu(x, 0.25), [X], _alpha=0.25)
operator("alpha", "Celu", lambda x: F.celu(x, 2), [X], _alpha=2.0)
operator("of its own", "Selu", lambda x: torch.where(x > 0, 2 * x, torch.expm1(x)), [twice(POINTS[np.abs(POINTS) < 15])], _alpha=0.5, _gamma=2.0)
operator("alpha", "ThresholdedRelu", lambda x: F.threshold(x, 1, 0), [X], _alpha=1.0)
operator("", "Shrink", F.softshrink, [X], _lambd=0.5, _bias=0.5)
operator("hard", "Shrink", F.hardshrink, [X], _lambd=0.5)
operator("", "HardSigmoid", lambda x: (0.25 * x + 0.5).clamp(0, 1), [X], _alpha=0.25, _beta=0.5)
operator("negative", "LeakyRelu", lambda x: F.leaky_relu(x, -0.5), [X], _alpha=-0.5)
operator("", "Clip", lambda x: x.clamp(0, 6), [X], [ZERO, np.float32(6)])
operator("min", "Clip", lambda x: x.clamp(min=1), [X], [np.float32(1)])
operator("max", "Clip", lambda x: x.clamp(max=-1), [X], [None, np.float32(-1)])
operator("attributes", "Clip", lambda x: x.clamp(-1, 1), [X], opset=10, _min=-1.0, _max=1.0)
operator("scalar constant", "Max", lambda x: x.clamp(min=0), [X], [ZERO])
operator("scalar constant", "Min", lambda x: x.clamp(max=1), [X], [np.float32(1)])
operator("constant of a dimension", "Max", lambda x: torch.maximum(x, torch.zeros(1)), [X], [f32(0)])
operator("constant of a dimension", "Min", lambda x: torch.minimum(x, torch.ones(1)), [X], [f32(1)])
operator("two", "Max", torch.maximum, [FIRST, SECOND])
operator("two", "Min", torch.minimum, [FIRST, SECOND])
operator("two", "Mean", lambda x, y: (x + y) / 2, [FIRST, SECOND])
operator("two", "Sum", lambda x, y: x + y, [FIRST, SECOND])
operator("", "Div", torch.div, [FIRST, SECOND])
operator("", "Pow", torch.pow, [FIRST, SECOND])
for exponent in (-1, -0.5, 0, 0.5, 1, 1.5, 2, 3):
    operator(f"{exponent}", "Pow", lambda x, e=exponent: x ** e, [X], [np.float32(exponent)])
operator("integer 2", "Pow", lambda x: x ** 2, [X], [np.int64(2)])
operator("", "PRelu", lambda x, w: torch.where(x > 0, x, w * x), [FIRST, SECOND])
operator("fmod", "Mod", torch.fmod, [twice(f32(0, -0.0, 1, -1, 1.5, -2.5, 6)), twice(f32(1, 1, 1, -1, 0.5, 2, 3))], _fmod=1, data=(1,))
R = twice(ALL_ROWS)
for name, op, fn in (("", "ReduceL1", lambda x: x.norm(1, dim=-1)), ("", "ReduceL2", lambda x: x.norm(dim=-1)), ("", "ReduceSum", lambda x: x.sum(-1)),
                     ("", "ReduceSumSquare", lambda x: (x * x).sum(-1)), ("", "ReduceMean", lambda x: x.mean(-1)), ("", "ReduceMax", lambda x: x.amax(-1)),
                     ("", "ReduceMin", lambda x: x.amin(-1)), ("", "ReduceProd", lambda x: x.prod(-1)), ("", "ReduceLogSum", lambda x: torch.log(x.sum(-1))),
                     ("", "ReduceLogSumExp", lambda x: x.logsumexp(-1))):
    of = [twice(SUMS)] if op == "ReduceLogSumExp" else [R]
    operator(name, op, fn, of, [AXES], _keepdims=0)
    if op != "ReduceSum":  # whose axes are an operand since opset 13
        operator("opset 13", op, fn, of, opset=13, _axes=[-1], _keepdims=0)
operator("keepdims", "ReduceL2", lambda x: x.norm(dim=-1, keepdim=True), [R], [AXES])
operator("1", "LpNormalization", lambda x: (lambda n: x / torch.where(n == 0, 1, n))(x.norm(1, dim=-1, keepdim=True)), [R], _p=1)
operator("2", "LpNormalization", lambda x: (lambda n: x / torch.where(n == 0, 1, n))(x.norm(dim=-1, keepdim=True)), [R], _p=2)
operator("", "Softmax", lambda x: x.softmax(-1), [R], noise=2e-7)
operator("", "LogSoftmax", lambda x: x.log_softmax(-1), [R], noise=2e-7)
operator("", "CumSum", lambda x: x.cumsum(1), [R], [np.int64(1)])
operator("", "TopK", lambda x: x.topk(2, -1).values, [twice(DISTINCT)], [np.array([2], np.int64)], outputs=("y", "places"))
operator("", "LayerNormalization", lambda x, w: F.layer_norm(x, (4,), w, eps=1e-5), [twice(MODERATE), f32(1, 2, -1, 0)], noise=1e-5)
operator("", "RMSNormalization", lambda x, w: F.rms_norm(x, (4,), w, 1e-5), [twice(MODERATE), f32(1, 2, -1, 0)], opset=23, noise=1e-6)
operator("", "LRN", lambda x: F.local_response_norm(x, 3, 1e-4, 0.75, 1), [twice(MODERATE)[..., None]], _size=3, noise=1e-6)
for p in (1, 2, 3, 4):
    operator(f"{p}", "LpPool", lambda x, p=p: x.abs().pow(p).unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).norm(1, dim=-1).pow(1 / p) if p not in (1, 2)
             else x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).norm(p, dim=-1), [FINITE_IMAGES], _p=p, _kernel_shape=[2, 2], _strides=[2, 2])
    operator(f"{p}", "GlobalLpPool", lambda x, p=p: x.flatten(2).norm(p, dim=-1)[..., None, None], [FINITE_IMAGES], _p=p)
operator("", "MaxPool", lambda x: F.max_pool2d(x, 2), [IMAGES], _kernel_shape=[2, 2], _strides=[2, 2])
operator("", "GlobalMaxPool", lambda x: F.max_pool2d(x, 4), [IMAGES])
operator("", "AveragePool", lambda x: F.avg_pool2d(x, 2), [IMAGES], _kernel_shape=[2, 2], _strides=[2, 2])
LABELS = twice(CLASSES)
operator("", "SoftmaxCrossEntropyLoss", lambda x, t: F.cross_entropy(x, t, reduction="none"), [R, LABELS], _reduction="none", noise=2e-7)
operator("ignored", "SoftmaxCrossEntropyLoss", lambda x, t: F.cross_entropy(x, t, reduction="none", ignore_index=1), [R, LABELS], _reduction="none", _ignore_index=1,
         noise=2e-7)
operator("", "NegativeLogLikelihoodLoss", lambda x, t: F.nll_loss(x, t, reduction="none"), [R, LABELS], _reduction="none")

# Activations of a recurrence: one step whose input is 1 and whose hidden elements are the points, so that they are the products.
# In a recurrence, ONNX defines ThresholdedRelu with >=; the operator of that name uses >.
HIDDEN = POINTS[np.isfinite(POINTS)]
for name, fn, alpha, beta in (("Relu", torch.relu, None, None), ("Tanh", torch.tanh, None, None), ("Sigmoid", torch.sigmoid, None, None),
                              ("LeakyRelu", F.leaky_relu, 0.01, None), ("ThresholdedRelu", lambda x: torch.where(x >= 1, x, 0), 1.0, None),
                              ("HardSigmoid", lambda x: (0.25 * x + 0.5).clamp(0, 1), 0.25, 0.5), ("Elu", F.elu, 1.0, None), ("Softsign", F.softsign, None, None),
                              ("Softplus", lambda x: torch.logaddexp(x, torch.zeros(())), None, None), ("ScaledTanh", lambda x: 2 * torch.tanh(0.5 * x), 2.0, 0.5)):
    def recurrence(name=name, alpha=alpha, beta=beta):
        n = len(HIDDEN)
        more = {k: [v] for k, v in (("activation_alpha", alpha), ("activation_beta", beta)) if v is not None}
        constants = {"one": np.ones((1, 1, 1), np.float32), "zeros": np.zeros((1, n, n), np.float32), "w": np.array([1, n, 1], np.int64), "out": np.array([n], np.int64)}
        nodes = [helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v)) for k, v in constants.items()]
        nodes += [helper.make_node("Reshape", ["x0", "w"], ["weights"]),
                  helper.make_node("RNN", ["one", "weights", "zeros"], ["sequence"], hidden_size=n, activations=[name], **more),
                  helper.make_node("Reshape", ["sequence", "out"], ["y"])]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [n])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()

    add(f"RNN {name}", fn, [HIDDEN], grad=np.resize(f32(1.5, 0, -0.75), len(HIDDEN)), onnx=recurrence, noise=2e-7)
