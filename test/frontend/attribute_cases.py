#!/usr/bin/env python3
"""The cases of attribute_gradients_test: operators of ONNX with combinations of their attributes' values.

    python3 test/frontend/attribute_cases.py > cases.json               # when the test is built
    venv/bin/python test/frontend/attribute_cases.py --schemas > test/frontend/attributes.json

A case is {"op", "opset", "in", "attrs", "outs"}. An input is null (absent), {"f": shape} (floats that a gradient is checked for unless they are
`fixed`, from `low` to `high`), {"c": numbers, "d": shape} or {"i": numbers, "d": shape} (known), {"b": ...} (known booleans). An attribute is
{"int": ...}, {"floats": ...} and so on, or {"graph": {"in", "out", "nodes"}}. `outs` are the outputs that the loss is made of.

The second form, which needs PyPI's `onnx` (frontend/onnx/schema/README.md says which), lists the attributes of every operator by ONNX's own
schemas, of all versions from opset 7 on: the test holds the cases against this list.
"""
import itertools
import json
import sys

CASES = []


def attribute(value):
    """JSON does not tell 1.0 from 1."""
    if isinstance(value, dict):
        return {"graph": value | {"nodes": [n | {"attrs": {k: attribute(v) for k, v in n.get("attrs", {}).items()}} for n in value["nodes"]]}}
    kind = {int: "int", float: "float", str: "string"}
    if isinstance(value, list):
        return {kind[type(value[0])] + "s": value}
    return {kind[type(value)]: value}


def case(op, inputs, opset=22, outs=(0,), **attrs):
    """Attributes that are None are absent."""
    CASES.append({"op": op, "opset": opset, "in": inputs, "attrs": {k: attribute(v) for k, v in attrs.items() if v is not None}, "outs": list(outs)})


def f(*shape, low=-1.0, high=1.0, fixed=False):
    return {"f": list(shape), "low": low, "high": high, "fixed": fixed}


def c(values, *shape):
    return {"c": [float(v) for v in values], "d": list(shape)}


def i(values, *shape):
    values = values if isinstance(values, (list, tuple)) else [values]
    return {"i": list(values), "d": list(shape)}


def vec(*values):
    return i(list(values), len(values))


def b(values, *shape):
    return {"b": [int(v) for v in values], "d": list(shape)}


def product(**choices):
    """Dictionaries of all combinations."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values))


PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def convolutions():
    for spatial in (1, 2, 3):
        size, kernel = ([7, 6, 5], [3, 2, 2])
        size, kernel = size[:spatial], kernel[:spatial]
        for p in product(auto_pad=PADS, stride=(1, 2), dilation=(1, 2), group=(1, 2)):
            attrs = dict(auto_pad=p["auto_pad"], strides=[p["stride"]] * spatial, dilations=[p["dilation"]] * spatial, group=p["group"])
            given = dict(attrs, pads=[1] * spatial + [0] * spatial, kernel_shape=kernel) if p["auto_pad"] == "NOTSET" else attrs
            case("Conv", [f(2, 4, *size), f(2, 4 // p["group"], *kernel), f(2) if p["stride"] == 1 else None], **given)
            case("ConvTranspose", [f(2, 4, *[3] * spatial), f(4, 2, *kernel), f(2 * p["group"]) if p["stride"] == 1 else None], **given)
        for padding in (0, 1):
            case("ConvTranspose", [f(1, 2, *[3] * spatial), f(2, 2, *kernel)], strides=[2] * spatial, output_padding=[padding] * spatial)
        for pad in PADS[:3]:
            case("ConvTranspose", [f(1, 2, *[3] * spatial), f(2, 2, *kernel)], strides=[2] * spatial, output_shape=[6] * spatial, auto_pad=pad)
        windows = dict(auto_pad=PADS, stride=(1, 2), dilation=(1, 2), ceil_mode=(0, 1))
        for p in product(**windows):
            attrs = dict(kernel_shape=kernel, auto_pad=p["auto_pad"], strides=[p["stride"]] * spatial, dilations=[p["dilation"]] * spatial,
                         ceil_mode=p["ceil_mode"])
            if p["auto_pad"] == "NOTSET":
                attrs["pads"] = [1] * spatial + [0] * spatial
            case("MaxPool", [f(1, 2, *size)], storage_order=p["ceil_mode"], **attrs)
            for include in (0, 1):
                case("AveragePool", [f(1, 2, *size)], count_include_pad=include, **attrs)
            if p["dilation"] == 1:
                case("LpPool", [f(1, 2, *size)], p=1 + p["stride"], **attrs)
    for op in ("AveragePool", "MaxPool", "LpPool"):
        case(op, [f(1, 2, 3, 4)], kernel_shape=[5, 4], strides=[5, 4], ceil_mode=1)
    for p in (1, 2, 3):
        case("LpPool", [f(1, 2, 5, 4)], kernel_shape=[2, 2], p=p)
        case("GlobalLpPool", [f(2, 3, 4, 2)], p=p)
    case("CausalConvWithState", [f(2, 3, 5), f(3, 1, 3), f(3), f(2, 3, 2)], opset=28, outs=(0, 1), activation="none")
    for activation in ("silu", "swish"):
        case("CausalConvWithState", [f(2, 3, 5), f(3, 1, 3)], opset=28, activation=activation)
    for p in product(stride=(1, 2), dilation=(1, 2)):
        blocks = (6 - p["dilation"] - 1) // p["stride"] + 1
        case("Col2Im", [f(1, 8, blocks * blocks), vec(5, 5), vec(2, 2)], opset=18, strides=[p["stride"]] * 2, dilations=[p["dilation"]] * 2,
             pads=[1, 1, 0, 0])
    case("MaxUnpool", [f(1, 1, 2, 2), i([5, 7, 13, 15], 1, 1, 2, 2)], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0])
    case("MaxUnpool", [f(1, 1, 2, 2), i([5, 7, 13, 15], 1, 1, 2, 2), vec(1, 1, 5, 5)], kernel_shape=[2, 2], strides=[2, 2])


def images():
    coordinates = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
                   "tf_crop_and_resize")
    for way, scale in itertools.product(coordinates, (0.6, 1.7)):
        roi = c([0.1, 0.2, 0.9, 1.2], 4) if way == "tf_crop_and_resize" else None
        attrs = dict(opset=19, coordinate_transformation_mode=way, axes=[2, 3])
        if roi:
            attrs["extrapolation_value"] = 0.5
        inputs = [f(1, 2, 5, 4), roi, c([scale, 1.3], 2)]
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            case("Resize", inputs, mode="nearest", nearest_mode=nearest, **attrs)
        for mode, antialias, exclude in itertools.product(("linear", "cubic"), (0, 1), (0, 1)):
            case("Resize", inputs, mode=mode, antialias=antialias, exclude_outside=exclude, **attrs)
        case("Resize", inputs, mode="cubic", cubic_coeff_a=-0.5, **attrs)
    for mode, policy in itertools.product(("nearest", "linear", "cubic"), ("stretch", "not_larger", "not_smaller")):
        case("Resize", [f(1, 2, 5, 4), None, None, vec(7, 3)], opset=19, mode=mode, keep_aspect_ratio_policy=policy, axes=[2, 3])
    for mode in ("nearest", "linear"):
        case("Upsample", [f(1, 1, 2, 3), c([1, 1, 2, 3], 4)], opset=9, mode=mode)
        case("Upsample", [f(1, 1, 2, 3)], opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
        case("Resize", [f(1, 1, 2, 3), c([1, 1, 2, 3], 4)], opset=10, mode=mode)
    for mode, padding, corners in itertools.product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1)):
        case("GridSample", [f(1, 2, 4, 3), f(1, 3, 2, 2, low=-1.3, high=1.3)], mode=mode, padding_mode=padding, align_corners=corners)
        case("GridSample", [f(1, 1, 3, 2, 3), f(1, 2, 2, 1, 3, low=-1.3, high=1.3)], mode=mode, padding_mode=padding, align_corners=corners)
        case("GridSample", [f(1, 2, 4), f(1, 3, 1, low=-1.3, high=1.3)], mode=mode, padding_mode=padding, align_corners=corners)
    for mode in ("bilinear", "bicubic", "nearest"):
        case("GridSample", [f(1, 2, 4, 3), f(1, 3, 2, 2)], opset=16, mode=mode)
    for corners in (0, 1):
        case("AffineGrid", [f(2, 2, 3), vec(2, 1, 3, 2)], align_corners=corners)
        case("AffineGrid", [f(1, 3, 4), vec(1, 1, 2, 3, 2)], align_corners=corners)
    for mode in ("DCR", "CRD"):
        case("DepthToSpace", [f(1, 8, 2, 3)], blocksize=2, mode=mode)
        case("SpaceToDepth", [f(1, 2, 4, 6)], opset=28, blocksize=2, mode=mode)
    case("SpaceToDepth", [f(1, 2, 4, 6)], blocksize=2)
    for axes in (None, [1], [-1, 0]):
        case("CenterCropPad", [f(3, 5), vec(*([4, 4] if axes is None else [7, 2][:len(axes)]))], opset=18, axes=axes)


def recurrent():
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}
    functions = {"RNN": 1, "GRU": 2, "LSTM": 3}
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    steps, batch, size, hidden = 3, 2, 2, 3

    def cell(op, direction="forward", layout=0, lengths=False, states=True, outs=None, **attrs):
        d, g = (2 if direction == "bidirectional" else 1), gates[op]
        x = f(batch, steps, size) if layout else f(steps, batch, size)
        state = (batch, d, hidden) if layout else (d, batch, hidden)
        inputs = [x, f(d, g * hidden, size), f(d, g * hidden, hidden), f(d, 2 * g * hidden) if states else None, vec(3, 2) if lengths else None,
                  f(*state) if states else None]
        if op == "LSTM":
            inputs += [f(*state) if states else None, f(d, 3 * hidden) if states else None]
        case(op, inputs, outs=outs or ((0, 1, 2) if op == "LSTM" else (0, 1)), direction=direction, layout=layout, hidden_size=hidden, **attrs)

    for op in gates:
        for p in product(direction=("forward", "reverse", "bidirectional"), layout=(0, 1), clip=(None, 0.4), lengths=(False, True)):
            cell(op, **p)
        cell(op, states=False)
        cell(op, outs=(1,))
        for name in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus", "Relu", "Sigmoid", "Tanh"):
            for at in range(functions[op]):
                chosen = list(usual[op])
                chosen[at] = name
                cell(op, activations=chosen)
            cell(op, activations=[name] * functions[op], activation_alpha=[0.3] * functions[op], activation_beta=[0.6] * functions[op])
        cell(op, direction="bidirectional", activations=usual[op] + ["Softsign"] * functions[op])
    for p in product(direction=("forward", "reverse", "bidirectional"), layout=(0, 1), clip=(None, 0.4)):
        cell("GRU", linear_before_reset=1, **p)
        cell("LSTM", input_forget=1, **p)


def indexing():
    for axis, reduction in itertools.product((0, 1, -1), ("none", "add", "mul", "min", "max")):
        case("ScatterElements", [f(3, 3), i([2, 1, 0, 0, 2, 1], 2, 3), f(2, 3)], axis=axis, reduction=reduction)
        # An element that is named twice.
        case("ScatterElements", [f(3, 3), i([1, 1, -2, 0, 2, 1], 2, 3), f(2, 3)], axis=axis, reduction=reduction)
    for reduction in ("none", "add", "mul", "min", "max"):
        case("ScatterND", [f(3, 2, 2), i([2, 0], 2, 1), f(2, 2, 2)], reduction=reduction)
        case("ScatterND", [f(3, 3), i([2, 0, 1, -1, 2, 0], 3, 2), f(3)], reduction=reduction)
    case("Scatter", [f(3, 3), i([2, 1, 0], 1, 3), f(1, 3)], opset=9, axis=0)
    for axis in (0, 1, -1):
        case("Gather", [f(3, 4), i([2, 0, -1, 1], 2, 2)], axis=axis)
        case("GatherElements", [f(3, 3), i([2, -1, 0, 0, 1, 2], 2, 3)], axis=axis)
        case("OneHot", [i([0, 2, -1], 3), i(4), f(2)], axis=0 if axis == 0 else axis)
        case("Compress", [f(3, 4), b([1, 0, 1], 3)], axis=axis)
        for op, last, keep in itertools.product(("ArgMax", "ArgMin"), (0, 1), (0, 1)):
            case(op, [f(3, 4)], axis=axis, select_last_index=last, keepdims=keep)
    case("Compress", [f(3, 4), b([0, 1, 1, 0, 1], 5)])
    for batch in (0, 1):
        case("GatherND", [f(2, 3, 2), i([1, 0], 2, 1)], batch_dims=batch)
    for axis, largest, sorted_ in itertools.product((0, 1, -1), (0, 1), (0, 1)):
        case("TopK", [f(3, 4), vec(2)], opset=11, axis=axis, largest=largest, sorted=sorted_)
    case("TopK", [f(3, 4)], opset=7, axis=1, k=2)
    for batch in (0, 1):
        case("ReverseSequence", [f(3, 3, 2), vec(1, 3, 2)], batch_axis=batch, time_axis=1 - batch)
    for axis, mode in itertools.product((-2, 1), ("linear", "circular")):
        case("TensorScatter", [f(2, 4, 3), f(2, 2, 3), vec(1, 3 if mode == "circular" else 2)], opset=24, axis=axis, mode=mode)
    for exclusive, reverse, axis in itertools.product((0, 1), (0, 1), (0, -1)):
        case("CumSum", [f(3, 4), i(axis)], exclusive=exclusive, reverse=reverse)
        case("CumProd", [f(3, 4), i(axis)], opset=26, exclusive=exclusive, reverse=reverse)


def shapes():
    case("Reshape", [f(2, 6), vec(0, -1)], allowzero=0)
    case("Reshape", [f(2, 6), vec(3, 4)], allowzero=1)
    case("Reshape", [f(2, 6), vec(3, 4)], opset=7)
    for axis in (0, 1, 2, -1):
        case("Flatten", [f(2, 3, 2)], axis=axis)
        case("Concat", [f(2, 2, 3), f(2, 2, 3)], axis=axis)
        case("Softmax", [f(2, 3, 2)], opset=13, axis=axis)
        case("Softmax", [f(2, 3, 2)], opset=11, axis=axis)
        case("LogSoftmax", [f(2, 3, 2)], opset=13, axis=axis)
        case("LogSoftmax", [f(2, 3, 2)], opset=11, axis=axis)
        case("Hardmax", [f(2, 3, 2)], opset=13, axis=axis)
        case("Split", [f(4, 4, 4), vec(1, 3)], outs=(0, 1), axis=axis)
        case("Split", [f(4, 4, 4)], opset=18, outs=(0, 1), axis=axis, num_outputs=2)
        case("Split", [f(4, 4, 4)], opset=11, outs=(0, 1), axis=axis, split=[3, 1])
        case("Split", [f(4, 4, 4)], opset=11, outs=(0, 1), axis=axis)
    for perm in ([2, 0, 1], [0, 2, 1], None):
        case("Transpose", [f(2, 3, 4)], perm=perm)
    case("Squeeze", [f(1, 3, 1)], opset=11, axes=[0])
    case("Squeeze", [f(1, 3, 1), vec(-1)])
    case("Squeeze", [f(1, 3, 1)])
    case("Unsqueeze", [f(2, 3)], opset=11, axes=[0, 3])
    case("Unsqueeze", [f(2, 3), vec(1, -1)])
    case("Slice", [f(4, 5), vec(1, -1), vec(4, -6), vec(0, 1), vec(2, -2)])
    case("Slice", [f(4, 5)], opset=9, starts=[1, 0], ends=[3, -1], axes=[0, 1])
    case("Expand", [f(3, 1), vec(2, 1, 4)])
    case("Tile", [f(2, 3), vec(2, 3)])
    for upper, k in itertools.product((0, 1), (-1, 0, 2)):
        case("Trilu", [f(2, 3, 4), i(k)], upper=upper)
    for mode in ("constant", "edge", "reflect", "wrap"):
        for pads in ([1, 0, 0, 2], [0, 2, 1, 1], [-1, 1, 2, 0], [4, 0, 0, 3]):
            case("Pad", [f(3, 4), vec(*pads), c([0.5]) if mode == "constant" else None], opset=19, mode=mode)
        case("Pad", [f(3, 4), vec(1, 2), None, vec(-1)], opset=19, mode=mode)
        if mode != "wrap":
            case("Pad", [f(3, 4)], opset=10, mode=mode, pads=[1, 0, 1, 2], value=0.25)
    case("ConstantOfShape", [vec(2)])
    for op, attr in (("Shape", "start"), ("Shape", "end")):
        case(op, [f(2, 3)], **{attr: 1})


def products():
    for p in product(transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5), beta=(1.0, 0.5), bias=(None, (), (4,), (3, 1), (3, 4))):
        case("Gemm", [f(*((2, 3) if p["transA"] else (3, 2))), f(*((4, 2) if p["transB"] else (2, 4))), None if p["bias"] is None else f(*p["bias"])],
             transA=p["transA"], transB=p["transB"], alpha=p["alpha"], beta=p["beta"])
    for a, bb in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 2, 3), (3, 2)), ((2, 1, 2, 3), (4, 3, 2))):
        case("MatMul", [f(*a), f(*bb)])
    equations = {
        "ij,jk->ik": [(2, 3), (3, 4)], "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)], "bij,bjk": [(2, 2, 3), (2, 3, 4)], "i,i->": [(3,), (3,)],
        "i,j->ij": [(3,), (2,)], "ii->i": [(3, 3)], "ii": [(3, 3)], "ij->ji": [(2, 3)], "ij->": [(2, 3)], "ij->j": [(2, 3)],
        "...ij,...jk->...ik": [(2, 1, 2, 3), (4, 3, 2)], "...i->...": [(2, 3)], "bhqd,bhkd->bhqk": [(1, 2, 2, 3), (1, 2, 3, 3)],
        "bqhd,bkhd->bhqk": [(1, 2, 2, 3), (1, 3, 2, 3)], "ij,jk,kl->il": [(2, 3), (3, 2), (2, 4)], "iij->ij": [(2, 2, 3)], "ij,ij->ij": [(2, 3), (2, 3)],
        "abc,cb->a": [(2, 3, 4), (4, 3)], "a b , b c -> a c": [(2, 3), (3, 2)], "ij,kl->ijkl": [(2, 2), (2, 2)], "i...,...i->...": [(3, 2), (2, 3)],
    }
    for equation, operands in equations.items():
        case("Einsum", [f(*shape) for shape in operands], equation=equation)


def normalizations():
    for axis, stash, bias, epsilon in itertools.product((0, 1, -1), (1, 11), (True, False), (None, 0.1)):
        shape = (2, 3, 4)[axis:] if axis >= 0 else (4,)
        case("LayerNormalization", [f(2, 3, 4), f(*shape), f(*shape) if bias else None], outs=(0, 1, 2) if bias else (0,), axis=axis,
             stash_type=stash, epsilon=epsilon)
        if bias:
            case("RMSNormalization", [f(2, 3, 4), f(*shape)], opset=23, axis=axis, stash_type=stash, epsilon=epsilon)
    for training, rank, epsilon in itertools.product((0, 1), (2, 3, 4, 5), (None, 0.1)):
        shape = (3, 2, 2, 2, 2)[:rank]
        inputs = [f(*shape), f(2), f(2), f(2, fixed=True), f(2, fixed=True)]  # running statistics have no gradient, as in PyTorch
        case("BatchNormalization", inputs, opset=15, training_mode=training, epsilon=epsilon, momentum=0.8)
        if not training:
            case("BatchNormalization", inputs, opset=9, epsilon=epsilon, momentum=0.8)
            for spatial in (0, 1):
                case("BatchNormalization", inputs, opset=7, spatial=spatial)
    for rank, epsilon in itertools.product((3, 4), (None, 0.1)):
        case("InstanceNormalization", [f(*(2, 4, 3, 2)[:rank]), f(4), f(4)], epsilon=epsilon)
        for groups in (1, 2, 4):
            for stash in (1, 11):
                case("GroupNormalization", [f(*(2, 4, 3, 2)[:rank]), f(4), f(4)], opset=21, num_groups=groups, epsilon=epsilon, stash_type=stash)
            case("GroupNormalization", [f(*(2, 4, 3, 2)[:rank]), f(groups), f(groups)], opset=18, num_groups=groups, epsilon=epsilon)
    for p, axis in itertools.product((1, 2), (0, 1, -1)):
        case("LpNormalization", [f(3, 2, 2)], p=p, axis=axis)
    for axes in (None, [1], [0, 2]):
        case("MeanVarianceNormalization", [f(2, 3, 2, 2)], axes=axes)
    for size in (1, 2, 3):
        case("LRN", [f(2, 4, 2)], size=size)
        case("LRN", [f(2, 4, 2)], size=size, alpha=0.5, beta=0.4, bias=1.5)
    for opset, ratio, training in ((22, 0.4, 1), (22, 0.0, 1), (22, 0.4, 0)):
        case("Dropout", [f(3, 4), c([ratio]), b([training])], opset=opset, seed=7)
    case("Dropout", [f(3, 4)], opset=10, ratio=0.4)


def losses():
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        for p in product(reduction=("none", "sum", "mean"), ignore=(None, 1, -100), weights=(False, True), rank=(2, 3, 4)):
            tail = (2, 2)[:p["rank"] - 2]
            count = 3
            for d in tail:
                count *= d
            labels = [(k * 2 + k // 3) % 4 for k in range(count)]
            if p["ignore"] == -100:
                labels[0] = -100
            case(op, [f(3, 4, *tail), i(labels, 3, *tail), f(4, low=0.5, high=1.5) if p["weights"] else None],
                 outs=(0, 1) if op[0] == "S" and p["ignore"] is None else (0,), reduction=p["reduction"], ignore_index=p["ignore"])


def attentions():
    flat = dict(q_num_heads=4, kv_num_heads=2)
    four = [f(2, 4, 3, 2), f(2, 2, 5, 2), f(2, 2, 5, 3)]
    three = [f(2, 3, 8), f(2, 5, 4), f(2, 5, 6)]
    masks = {"none": None, "float": f(3, 5), "bool": b([1, 0, 1, 1, 0] * 3, 3, 5), "heads": f(1, 4, 3, 5)}
    for p in product(heads=(three, four), causal=(0, 1), mask=tuple(masks), cap=(0.0, 1.5), scale=(None, 0.3)):
        more = {} if p["heads"] is four else flat
        case("Attention", p["heads"] + [masks[p["mask"]]], opset=24, is_causal=p["causal"], softcap=p["cap"], scale=p["scale"], **more)
    for mode, cap in itertools.product((0, 1, 2, 3), (0.0, 1.5)):
        case("Attention", four + [masks["float"]], opset=24, outs=(0, 3), qk_matmul_output_mode=mode, softcap=cap, softmax_precision=1)
    for causal in (0, 1):
        past = [f(2, 2, 2, 2), f(2, 2, 2, 3)]
        case("Attention", [f(2, 4, 3, 2), f(2, 2, 3, 2), f(2, 2, 3, 3), None] + past, opset=24, outs=(0, 1, 2), is_causal=causal)
        case("Attention", four + [None, None, None, vec(5, 3)], opset=24, is_causal=causal)
        for left, right in ((-1, 1), (1, -1), (1, 1)):
            case("Attention", four, opset=28, is_causal=causal, left_window_size=left, right_window_size=right)
    for p in product(interleaved=(0, 1), rotary_embedding_dim=(0, 2), positions=(False, True)):
        half = (p["rotary_embedding_dim"] or 4) // 2
        cache = [c([0.1 * k for k in range(6 * half)], 6, half) if p["positions"] else c([0.1 * k for k in range(6 * half)], 2, 3, half)] * 2
        inputs = cache + [i([0, 1, 2, 3, 4, 5], 2, 3) if p["positions"] else None]
        attrs = dict(interleaved=p["interleaved"], rotary_embedding_dim=p["rotary_embedding_dim"])
        case("RotaryEmbedding", [f(2, 2, 3, 4)] + inputs, opset=23, **attrs)
        case("RotaryEmbedding", [f(2, 3, 8)] + inputs, opset=23, num_heads=2, **attrs)


def reductions():
    positive = dict(low=0.5, high=1.5)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):
        for keep, axes in itertools.product((0, 1), ([0], [-1, 1], [0, 1, 2], None)):
            case(op, [f(2, 3, 2, **positive)], opset=11, keepdims=keep, axes=axes)
            case(op, [f(2, 3, 2, **positive), vec(*axes) if axes else None], opset=18, keepdims=keep)
        for noop in (0, 1):
            case(op, [f(2, 3, **positive)], opset=18, noop_with_empty_axes=noop)


def elementwise():
    x = f(3, 4, low=-2.0, high=2.0)
    for op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"):
        for alpha in (None, 0.3, 1.7):
            case(op, [x], alpha=alpha)
    for alpha in (None, 0.5, 1.7):
        case("Swish", [x], opset=24, alpha=alpha)
        case("SwiGLU", [x, x], opset=28, alpha=alpha)
    for alpha, gamma in ((None, None), (0.5, 2.0)):
        case("Selu", [x], alpha=alpha, gamma=gamma)
    for alpha, beta in ((None, None), (0.4, 0.3)):
        case("HardSigmoid", [x], alpha=alpha, beta=beta)
    for bias, lambd in itertools.product((0.0, 0.2), (0.3, 0.7)):
        case("Shrink", [x], bias=bias, lambd=lambd)
    for approximate in ("none", "tanh"):
        case("Gelu", [x], approximate=approximate)
    case("Clip", [x], opset=10, min=-0.7, max=0.9)
    case("Clip", [x, c([-0.7]), c([0.9])])
    case("Clip", [x, f(low=-1.0, high=-0.5), None])
    case("Cast", [x], to=11)
    case("Cast", [x], opset=25, to=11, saturate=0, round_mode="up")
    case("Cast", [x], to=6)
    case("CastLike", [x, x], opset=25, saturate=0, round_mode="up")
    for fmod in (0, 1):
        case("Mod", [x, c([0.7])], opset=28, fmod=fmod)
    for shape in ((4,), (3, 1), (1,)):
        case("PRelu", [x, f(*shape)])
    for positive, negative in itertools.product((0, 1), (0, 1)):
        case("IsInf", [x], detect_positive=positive, detect_negative=negative)
    case("BitShift", [i([1, 2], 2), i([1, 1], 2)], direction="LEFT")
    for op in ("Add", "Sub", "Mul", "Div"):
        case(op, [f(2, 1, 3), f(4, 1, low=0.5, high=1.5)])


def signals():
    for inverse, onesided, axis, length in itertools.product((0, 1), (0, 1), (0, 1), (None, 3, 6)):
        parts = 2 if inverse else 1
        case("DFT", [f(4, 4, parts), i(length) if length else None, i(axis)], opset=20, inverse=inverse, onesided=onesided)
    for axis in (0, 1):
        case("DFT", [f(3, 4, 1)], opset=17, axis=axis)
    for onesided in (0, 1):
        case("STFT", [f(1, 8, 1), i(2), f(4), i(4)], opset=17, onesided=onesided)


def loops():
    # h' = h * x_t, y_t = h + x_t
    body = {"in": ["h", "x"], "out": ["h2", "y"],
            "nodes": [{"op": "Mul", "in": ["h", "x"], "out": ["h2"]}, {"op": "Add", "in": ["h", "x"], "out": ["y"]}]}
    for axis, out, reverse, back in itertools.product((0, 1), (0, 1), (0, 1), (0, 1)):
        shape = (3, 2) if axis == 0 else (2, 3)
        case("Scan", [f(2), f(*shape)], outs=(0, 1), body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[out],
             scan_input_directions=[reverse], scan_output_directions=[back])
    for reverse in (0, 1):
        case("Scan", [None, f(2, 2), f(2, 3, 2)], opset=8, outs=(0, 1), body=body, num_scan_inputs=1, directions=[reverse])
    counted = {"in": ["k", "go", "h"], "out": ["go", "h2", "h"], "nodes": [{"op": "Mul", "in": ["h", "h"], "out": ["h2"]}]}
    case("Loop", [i(2), None, f(3)], outs=(0, 1), body=counted)
    for yes in (0, 1):
        case("If", [b([yes]), f(3)], then_branch={"in": [], "out": ["t"], "nodes": [{"op": "Exp", "in": ["in1"], "out": ["t"]}]},
             else_branch={"in": [], "out": ["e"], "nodes": [{"op": "Neg", "in": ["in1"], "out": ["e"]}]})


def sequences():
    def through(nodes):
        yes = {"in": [], "out": ["t"], "nodes": nodes}
        case("If", [b([1]), f(2, 3)], then_branch=yes, else_branch={"in": [], "out": ["in1"], "nodes": []})

    def node(op, inputs, outputs, **attrs):
        return {"op": op, "in": inputs, "out": outputs, "attrs": attrs}

    for axis, keep, stack in itertools.product((0, 1), (0, 1), (0, 1)):
        through([node("SplitToSequence", ["in1"], ["s"], axis=axis, keepdims=keep), node("ConcatFromSequence", ["s"], ["t"], axis=0, new_axis=stack)])
    body = {"in": ["x"], "out": ["y"], "nodes": [node("Exp", ["x"], ["y"])]}
    through([node("SplitToSequence", ["in1"], ["s"]), node("SequenceMap", ["s"], ["m"], body=body), node("ConcatFromSequence", ["m"], ["t"], axis=1)])


def schemas():
    from onnx import defs
    found = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            entry = found.setdefault(schema.name, {"floats": False, "attributes": {}, "versions": []})
            entry["versions"].append(schema)
    out = {}
    for name, entry in sorted(found.items()):
        versions = sorted(entry["versions"], key=lambda s: s.since_version)
        current = [s for k, s in enumerate(versions) if k + 1 == len(versions) or versions[k + 1].since_version > 7]
        attributes = {a: str(v.type).split(".")[-1] for s in current for a, v in s.attributes.items()}
        if attributes:
            out[name] = attributes
    print("{\n" + ",\n".join(f'"{name}": {json.dumps(attributes)}' for name, attributes in out.items()) + "\n}")


def main():
    if "--schemas" in sys.argv:
        return schemas()
    for family in (convolutions, images, recurrent, indexing, shapes, products, normalizations, losses, attentions, reductions, elementwise, signals, loops,
                   sequences):
        family()
    json.dump(CASES, sys.stdout)


if __name__ == "__main__":
    main()
