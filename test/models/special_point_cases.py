"""The cases of special-points.xz: functions of PyTorch at points where gradients of compositions go wrong.

Zeros of both signs, bounds, ties, denormal and infinite numbers, ends of the range of exp, rows of zeros. Each function is called
with an incoming gradient that is 0 in one half of its results and not in the other. special_points.py makes the file.
"""
import dataclasses
import math
from typing import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

INF, TINY, LEAST = math.inf, 1.17549435e-38, 1e-45  # the smallest normal number of f32, the smallest at all


@dataclasses.dataclass
class Case:
    """fn(*inputs) is one tensor. Inputs of floats have gradients but for those in `data`; `grad` is that of the result.

    noise: what a result may differ from PyTorch's by, in parts of the largest finite magnitude of its row (the last dimension);
    for functions whose exported form cancels. squares: a root of a sum of squares, whose gradient at 0 is 0 by Sheaf's rule.
    form: why the gradient may be that of the exported graph although the values are the function's.
    onnx: makes the model itself, for operators that no exporter writes.
    """
    name: str
    fn: Callable
    inputs: list
    grad: np.ndarray
    data: tuple = ()
    noise: float = 0
    squares: bool = False
    form: str = ""
    onnx: Callable | None = None


CASES = []


def add(name, fn, inputs, grad=None, **more):
    with torch.no_grad():
        shape = fn(*map(torch.from_numpy, inputs)).shape
    if grad is None:
        grad = half(shape)
    CASES.append(Case(name, fn, inputs, grad.astype(np.float32), **more))


def f32(*values):
    return np.array(values, np.float32)


def half(shape):
    """1.5, -0.75, 2, ... in the first half of the leading dimension, 0 in the second."""
    grad = np.resize(f32(1.5, -0.75, 2, 1, -3), shape)
    grad[(shape[0] + 1) // 2:] = 0
    return grad


def twice(values):
    return np.concatenate([values, values])


def signed(*values):
    return sorted({s * v for v in values for s in (1, -1)})


POINTS = f32(0, -0.0, *signed(LEAST, 1e-40, TINY, 1e-30, 1e-20, 1e-12, 1e-8, 1e-4, 0.25, 0.5, 1, 1 + 2**-23, 1 - 2**-24, 1.5, 2, 3, 4, 5, 6, 8,
                              9, 10, 14, 15, 17, 20, 21, 30, 50, 87, 88, 89, 95, 100, 103, 104, 110, 1e3, 1e4, 1e6, 1e10, 1e15, 1e18, 1e19, 1e20,
                              1e30, 3e38, INF))
POSITIVE = POINTS[POINTS >= 0]
UNIT = f32(0, -0.0, *signed(LEAST, 1e-40, 1e-20, 1e-8, 1e-4, 0.25, 0.5, 0.75, 1 - 2**-24, 1, 1 + 2**-23, 2, INF))
PROBABILITIES = f32(0, LEAST, 1e-40, TINY, 1e-20, 1e-12, 1e-8, 1e-4, 0.25, 0.5, 0.75, 1 - 2**-24, 1)
PAIRS = f32(0, -0.0, 1, -1, 0.5, 2, -2, 3, 1e-40, 1e-20, -1e-8, 1e20, -1e20, INF, -INF)
SMALL_PAIRS = f32(0, -0.0, 1, -1, 2, -0.5, 1e-20, 1e20, INF)


def unary(name, fn, *extra, points=POINTS, **more):
    add(name, fn, [twice(np.concatenate([points, f32(*extra)]))], **more)


def binary(name, fn, xs=PAIRS, ys=None, **more):
    ys = xs if ys is None else ys
    add(name, fn, [twice(np.repeat(xs, len(ys))), twice(np.tile(ys, len(xs)))], **more)


# --- Elementwise functions of one operand ---
for name in ("abs sign neg reciprocal sqrt rsqrt exp log log1p log2 log10 exp2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
             "erf erfc square floor ceil round trunc frac sigmoid relu logit").split():
    fn = getattr(torch, name)
    # Arguments of sin, cos and tan are reduced in two parts: 1e15 loses 2e-5, by which tan changes 90 times as much.
    noise = {"tanh": 2e-7, "sigmoid": 2e-7, "erf": 2e-7, "sin": 2e-5, "cos": 2e-5, "tan": 4e-4}.get(name, 0)
    unary(name, fn, noise=noise, form="exporters write log(x / (1 - x))" if name == "logit" else "",
          points=UNIT if name in ("asin", "acos", "atanh", "logit") else POINTS)
unary("sinc", torch.sinc, points=POINTS[(POINTS == 0) | (np.abs(POINTS) >= 0.25) & (np.abs(POINTS) < 1e12)], noise=1e-6)
unary("expm1", torch.expm1, points=POINTS[POINTS > -15])  # below, PyTorch's gradient is rounded to 0
for name in "relu6 hardtanh hardsigmoid hardswish elu celu selu silu mish softsign logsigmoid tanhshrink hardshrink softshrink leaky_relu softplus".split():
    unary(name, getattr(F, name), noise=2e-7 if name in ("mish", "silu", "tanhshrink", "logsigmoid", "softsign") else 0)
unary("gelu", F.gelu, noise=2e-7)
unary("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), noise=2e-7)
unary("quick-gelu", lambda x: x * torch.sigmoid(1.702 * x), noise=2e-7)
unary("rrelu-eval", lambda x: F.rrelu(x, training=False))
unary("elu-alpha", lambda x: F.elu(x, 0.25))
unary("celu-alpha", lambda x: F.celu(x, 0.25))
unary("leaky_relu-negative", lambda x: F.leaky_relu(x, -0.5))
unary("hardtanh-bounds", lambda x: F.hardtanh(x, -0.5, 3))
unary("softplus-beta", lambda x: F.softplus(x, beta=2, threshold=10))
unary("softplus-threshold", lambda x: F.softplus(x, beta=0.5, threshold=1))
unary("threshold", lambda x: F.threshold(x, 0.5, 20))
unary("hardshrink-lambda", lambda x: F.hardshrink(x, 1))
unary("softshrink-lambda", lambda x: F.softshrink(x, 2))
unary("squared-relu", lambda x: F.relu(x) ** 2)
unary("clamp-min", lambda x: x.clamp(min=0))
unary("clamp-max", lambda x: x.clamp(max=1))
unary("clamp", lambda x: x.clamp(-0.5, 2.0))
unary("clamp-equal", lambda x: x.clamp(1, 1))
unary("clamp-crossed", lambda x: x.clamp(2, 1))
unary("clip-of-scaled", lambda x: (3 * x).clip(-3, 6))
unary("clamp_min", lambda x: torch.clamp_min(x, 0.5))
unary("clamp_max", lambda x: torch.clamp_max(x, 0.5))
CLAMPS = "TorchScript exports maximum with a number as it does clamp"
unary("maximum-constant", lambda x: torch.maximum(x, torch.zeros(())), form=CLAMPS)
unary("maximum-constants", lambda x: torch.maximum(x, torch.zeros_like(x)))
unary("minimum-constant", lambda x: torch.minimum(x, torch.ones(())), form=CLAMPS)
unary("heaviside-where", lambda x: torch.where(x > 0, x, 0.0))
unary("where-log", lambda x: torch.where(x > 0, torch.log(x), 0.0))
unary("where-sqrt", lambda x: torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)))
unary("where-inverse", lambda x: torch.where(x == 0, torch.zeros_like(x), 1 / x))
unary("nan_to_num", lambda x: torch.nan_to_num(x, 0.0, 1.0, -1.0))
for exponent in (-2, -1.5, -1, -0.5, 0, 0.25, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5):
    unary(f"pow {exponent}", lambda x, e=exponent: x ** e)
for base in (0.0, 0.5, 1.0, 2.0, 10.0):
    unary(f"pow-of {base}", lambda x, b=base: torch.pow(b, x))
unary("divide", lambda x: 2 / x)
MIDDLE = POINTS[(POINTS == 0) | (np.abs(POINTS) >= 1e-8) & (np.abs(POINTS) < 1e12)]
unary("x/x", lambda x: x / x, points=MIDDLE, noise=1e-6)
unary("square-root-of-square", lambda x: torch.sqrt(x * x), squares=True)
unary("root-of-power", lambda x: torch.sqrt(x ** 2), squares=True)
unary("sqrt-of-clamp", lambda x: torch.sqrt(x.clamp(min=0)))
unary("sqrt-of-clamp-eps", lambda x: torch.sqrt(x.clamp(min=1e-12)))
unary("sqrt-of-relu", lambda x: torch.sqrt(F.relu(x)))
unary("sqrt-of-abs", lambda x: torch.sqrt(x.abs()))
unary("sqrt-plus-eps", lambda x: torch.sqrt(x * x + 1e-6))
unary("rsqrt-of-clamp", lambda x: torch.rsqrt(x.clamp(min=1e-12)))
unary("rsqrt-of-relu", lambda x: torch.rsqrt(F.relu(x)), points=POINTS[~np.signbit(POINTS)])
unary("log-of-clamp", lambda x: torch.log(x.clamp(min=1e-7)))
unary("log-of-clamp-0", lambda x: torch.log(x.clamp(min=0)))
unary("log-then-clamp", lambda x: torch.log(x).clamp(min=-100))
unary("log-of-relu", lambda x: torch.log(F.relu(x)))
unary("log-of-softplus", lambda x: torch.log(F.softplus(x)), points=POINTS[POINTS > -87], noise=1e-6)
unary("log-of-sigmoid", lambda x: torch.log(torch.sigmoid(x)), points=POINTS[np.abs(POINTS) <= 50], noise=1e-6)
unary("log-cosh", lambda x: x + F.softplus(-2 * x) - math.log(2), noise=1e-6)
unary("log1p-of-exp", lambda x: torch.log1p(torch.exp(x)))
unary("x/max(|x|,eps)", lambda x: x / x.abs().clamp(min=1e-12), noise=1e-9)
unary("x/(|x|+eps)", lambda x: x / (x.abs() + 1e-8), points=MIDDLE, noise=1e-6)
unary("x-log-x", lambda x: x * torch.log(x))
unary("entropy", lambda x: -x * torch.log(x.clamp(min=1e-10)))
unary("sin-over-x", lambda x: torch.sin(x) / x, points=MIDDLE, noise=1e-6)
unary("sqrt-of-sigmoid", lambda x: torch.sqrt(torch.sigmoid(x)), noise=2e-7)
unary("acos-of-clamp", lambda x: torch.acos(x.clamp(-1, 1)), points=UNIT)
unary("atanh-of-clamp", lambda x: torch.atanh(x.clamp(-1 + 1e-6, 1 - 1e-6)), points=UNIT)
unary("acosh-of-clamp", lambda x: torch.acosh(x.clamp(min=1)))
unary("inverse-softplus", lambda x: torch.log(torch.expm1(x)))
unary("exp-of-neg-square", lambda x: torch.exp(-x * x))
unary("tanh-exp", lambda x: x * torch.tanh(torch.exp(x)), noise=1e-6)
unary("signed-root", lambda x: torch.sign(x) * torch.sqrt(x.abs()))
unary("signed-log", lambda x: torch.sign(x) * torch.log1p(x.abs()))
unary("smooth-abs", lambda x: torch.sqrt(x * x + 1) - 1, noise=2e-7)
unary("relu-difference", lambda x: F.relu(x) - F.relu(-x))
unary("abs-by-relu", lambda x: F.relu(x) + F.relu(-x))
unary("abs-by-maximum", lambda x: torch.maximum(x, -x))
unary("swish-beta", lambda x: x * torch.sigmoid(0.5 * x), noise=2e-7)
unary("cube-root", lambda x: torch.sign(x) * x.abs() ** (1 / 3))
unary("silu-by-hand", lambda x: x / (1 + torch.exp(-x)))
unary("sigmoid-by-hand", lambda x: 1 / (1 + torch.exp(-x)))
unary("softplus-by-hand", lambda x: F.relu(x) + torch.log1p(torch.exp(-x.abs())))
unary("positional", lambda x: torch.sin(x * 0.001) + torch.cos(x), points=POINTS[np.abs(POINTS) < 1e7])

unary("logit-eps", lambda x: torch.logit(x, 1e-6), points=UNIT, noise=1e-6)
unary("entr", torch.special.entr, points=MIDDLE, form="the dynamo exporter writes where(x > 0, -x * log(x), 0)")
unary("erfcx-like", lambda x: torch.exp(-x * x) * torch.erf(x), noise=2e-7)
unary("float_power", lambda x: torch.float_power(x, 2).float())
unary("clamp-then-pow", lambda x: x.clamp(min=0) ** 1.5)
unary("clamp-then-root", lambda x: x.clamp(min=0) ** 0.5)
unary("relu-of-relu", lambda x: F.relu(F.relu(x) - 1))
unary("abs-of-sin", lambda x: torch.sin(x).abs(), points=POINTS[np.abs(POINTS) < 1e7], noise=2e-7)
unary("min-max", lambda x: torch.minimum(torch.maximum(x, torch.tensor(-1.0)), torch.tensor(1.0)), form="TorchScript exports maximum with a number as it does clamp")

# --- Of two operands ---
binary("add", torch.add)
binary("addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=0.5), SMALL_PAIRS)
binary("addcmul", lambda x, y: torch.addcmul(x, x, y, value=0.5), SMALL_PAIRS)
binary("xlog1py", lambda x, y: x * torch.log1p(y), SMALL_PAIRS)
binary("maximum-of-equal", lambda x, y: torch.maximum(x, x * 1.0) * y, SMALL_PAIRS)
binary("relu-of-sum", lambda x, y: F.relu(x + y))
binary("relu-of-difference", lambda x, y: F.relu(x - y))
binary("sub", torch.sub)
binary("mul", torch.mul)
binary("div", torch.div)
binary("maximum", torch.maximum)
binary("minimum", torch.minimum)
binary("fmax", torch.fmax)
binary("fmin", torch.fmin)
binary("atan2", torch.atan2)
binary("hypot", torch.hypot)
binary("xlogy", torch.xlogy, PAIRS, PAIRS[PAIRS >= 0], form="the dynamo exporter writes where(x == 0, x, x * log(y))")
binary("logaddexp", torch.logaddexp, f32(*PAIRS, 88, -88, 100, 1e10), form="the dynamo exporter writes log(exp(x) + exp(y))")
binary("logaddexp2", torch.logaddexp2, f32(*SMALL_PAIRS, 88), form="the dynamo exporter writes log2(2^x + 2^y)")
binary("pow-of-two", torch.pow)
binary("fmod", torch.fmod, f32(0, -0.0, 1, -1, 1.5, -2.5, 6, 1e-20), f32(1, -1, 0.5, 2, 3), data=(1,))
binary("remainder", torch.remainder, f32(0, -0.0, 1, -1, 1.5, -2.5, 6), f32(1, -1, 0.5, 2, 3), data=(1,))
binary("lerp", lambda x, y: torch.lerp(x, y, 0.25))
binary("prelu", lambda x, w: torch.where(x > 0, x, w * x))
binary("clamp-by-tensor", lambda x, y: torch.clamp(x, min=y))
binary("where-less", lambda x, y: torch.where(x < y, x, y))
binary("smooth-maximum", lambda x, y: torch.logsumexp(torch.stack([x, y]), 0), f32(*SMALL_PAIRS[SMALL_PAIRS != 1e20], 88, -88, 1e10))
binary("distance-2d", lambda x, y: torch.sqrt(x * x + y * y), squares=True)
binary("distance-2d-powers", lambda x, y: (x ** 2 + y ** 2).sqrt(), squares=True)
binary("distance-2d-half-power", lambda x, y: (x ** 2 + y ** 2) ** 0.5, squares=True)
binary("ratio-of-sum", lambda x, y: x / (x + y))
binary("x*log(y)", lambda x, y: x * torch.log(y), SMALL_PAIRS)
binary("sqrt-of-product", lambda x, y: torch.sqrt(x * y), SMALL_PAIRS)
binary("abs-difference", lambda x, y: (x - y).abs())
binary("norm-of-difference", lambda x, y: torch.stack([x, y], -1).norm(dim=-1))
binary("swiglu", lambda x, y: F.silu(x) * y, SMALL_PAIRS[:-2], noise=2e-7)
binary("max-of-three", lambda x, y: torch.maximum(torch.maximum(x, y), x * y), SMALL_PAIRS)
add("prelu-channels", lambda x, w: F.prelu(x, w), [twice(np.resize(POINTS, (34, 3))), f32(0.25, 0, -0.5)])
add("prelu-one", lambda x, w: F.prelu(x, w), [twice(POINTS[:, None]), f32(0.25)])
add("glu", lambda x: F.glu(x, -1), [twice(np.stack([np.repeat(PAIRS, len(PAIRS)), np.tile(PAIRS, len(PAIRS))], -1))], noise=2e-7)

# --- Functions of rows ---
ROWS = f32([0, 0, 0, 0], [-0.0, 0, -0.0, -0.0], [1, 1, 1, 1], [-2, -2, -2, -2], [3, 0, 0, 0], [0, -4, 0, 0], [1, 2, 2, -1], [2, -2, 2, -2],
           [-1, -1, -3, -3], [1e-40, 0, 0, 0], [1e-40] * 4, [LEAST, 0, 0, -LEAST], [1e-20] * 4, [1e-20, -1e-20, 0, 1], [1e-12] * 4, [1e-8, 1, 0, 1],
           [1e10] * 4, [-1e10] * 4, [1e10, -1e10, 0, 0], [88] * 4, [-88] * 4, [88, -88, 0, 0], [100, 89, -89, -100], [-104] * 4, [104, 104, 0, 0],
           [1e19] * 4, [1e20, 0, 0, 0], [3e38] * 4, [1e30, -1e30, 0, 0], [5, 4, 3, 2], [0.5, 0.25, 0.125, 0.125], [1, 0, 1, 0], [17, 0, -17, 1])
INFINITE = f32([INF, 0, 0, 0], [INF, INF, 1, 0], [-INF, 0, 1, 2], [-INF] * 4, [INF, -INF, 0, 0])
ALL_ROWS = np.concatenate([ROWS, INFINITE])
MODERATE = ROWS[np.abs(ROWS).max(1) < 1e9]
DISTINCT = np.array([r for r in ALL_ROWS if len(set(r)) == 4])  # PyTorch's sort and topk have no rule for ties
SUMS = np.array([r for r in ALL_ROWS if not 1e12 < np.abs(r).max() < INF])  # PyTorch's logsumexp loses the number of rows above


NO_INDEX = "TorchScript exports max(dim) without its index as amax"


def rows(name, fn, of=ALL_ROWS, **more):
    add(name, fn, [twice(of)], **more)


rows("sum", lambda x: x.sum(-1))
rows("mean", lambda x: x.mean(-1))
rows("prod", lambda x: x.prod(-1))
rows("cumsum", lambda x: x.cumsum(-1))
rows("cumprod", lambda x: x.cumprod(-1), ROWS)
rows("logcumsumexp", lambda x: x.logcumsumexp(-1), SUMS[np.isfinite(SUMS).all(1)])
rows("logsumexp", lambda x: x.logsumexp(-1), SUMS)
rows("logsumexp-keepdim", lambda x: x - x.logsumexp(-1, keepdim=True), SUMS, noise=1e-6)
rows("logmeanexp", lambda x: torch.logsumexp(x, -1) - math.log(4), SUMS, noise=2e-7)
rows("log-of-mean-of-exp", lambda x: torch.log(torch.exp(x).mean(-1)))
rows("log-of-sum-of-exp", lambda x: torch.log(torch.exp(x).sum(-1)))
rows("amax", lambda x: x.amax(-1))
rows("amin", lambda x: x.amin(-1))
rows("max-dim", lambda x: x.max(-1).values, form=NO_INDEX)
rows("min-dim", lambda x: x.min(-1).values, form=NO_INDEX)
rows("max-dim-0", lambda x: x.max(0).values, f32([0, 1, -1, 2], [0, 1, -1, 0], [-0.0, 1, -2, 2], [0, -1, -1, 2]), form=NO_INDEX)
rows("max-dim-keepdim", lambda x: x - x.max(-1, keepdim=True).values, form=NO_INDEX)
rows("amax-keepdim", lambda x: x - x.amax(-1, keepdim=True))
rows("amax-two", lambda x: x.reshape(-1, 2, 2).amax((1, 2)))
rows("max-and-index", lambda x: (lambda r: r.values * (r.indices + 1))(x.max(-1)))
rows("argmax-gather", lambda x: x.gather(-1, x.argmax(-1, keepdim=True)).squeeze(-1))
rows("median-by-sort", lambda x: x.sort(-1).values[:, 1], DISTINCT)
rows("sort", lambda x: x.sort(-1).values, DISTINCT)
rows("topk", lambda x: x.topk(2, -1).values, DISTINCT)
rows("kthvalue-by-topk", lambda x: x.topk(3, -1).values[:, 2], DISTINCT)
for p in (0.5, 1, 1.5, 2, 3, 4, INF, -INF, 0):
    rows(f"norm {p}", lambda x, p=p: x.norm(p, dim=-1))
    rows(f"vector_norm {p}", lambda x, p=p: torch.linalg.vector_norm(x, p, dim=-1))
rows("norm-keepdim", lambda x: x.norm(dim=-1, keepdim=True))
rows("norm-of-two-dims", lambda x: x.reshape(-1, 2, 2).norm(dim=(1, 2)))
rows("frobenius", lambda x: torch.linalg.matrix_norm(x.reshape(-1, 2, 2)))
rows("matrix_norm 1", lambda x: torch.linalg.matrix_norm(x.reshape(-1, 2, 2), 1))
rows("matrix_norm inf", lambda x: torch.linalg.matrix_norm(x.reshape(-1, 2, 2), INF))
rows("root-of-sum-of-squares", lambda x: torch.sqrt((x * x).sum(-1)), squares=True)
rows("root-of-sum-of-powers", lambda x: torch.sqrt((x ** 2).sum(-1)), squares=True)
rows("root-of-mean-of-squares", lambda x: x.pow(2).mean(-1).sqrt(), squares=True)
rows("half-power-of-sum-of-squares", lambda x: (x * x).sum(-1) ** 0.5, squares=True)
rows("sum-of-squares", lambda x: (x * x).sum(-1))
rows("root-of-sum", lambda x: torch.sqrt(x.sum(-1)))
rows("log-of-sum", lambda x: torch.log(x.sum(-1)))
rows("log-of-sum-of-abs", lambda x: torch.log(x.abs().sum(-1)))
for p in (1, 1.5, 2, 3, INF):
    rows(f"normalize {p}", lambda x, p=p: F.normalize(x, p=p, dim=-1), noise=2e-7)
rows("normalize-eps", lambda x: F.normalize(x, dim=-1, eps=0.5))
rows("x/norm", lambda x: x / x.norm(dim=-1, keepdim=True))
rows("x/(norm+eps)", lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-8))
rows("x/norm-of-clamp", lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6))
rows("x/sum", lambda x: x / x.sum(-1, keepdim=True))
rows("x/sum-of-clamp", lambda x: x / x.sum(-1, keepdim=True).clamp(min=1e-8))
rows("x/max-of-abs", lambda x: x / x.abs().amax(-1, keepdim=True).clamp(min=1e-8))
rows("squash", lambda x: (lambda n: n / (1 + n) * x / torch.sqrt(n + 1e-8))((x * x).sum(-1, keepdim=True)), noise=1e-12)
rows("var", lambda x: x.var(-1), noise=1e-6)
rows("var-population", lambda x: x.var(-1, unbiased=False), noise=1e-6)
rows("std", lambda x: x.std(-1), MODERATE, squares=True, noise=1e-6)
rows("std-population", lambda x: x.std(-1, unbiased=False), MODERATE, squares=True, noise=1e-6)
rows("std-by-hand", lambda x: torch.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)), MODERATE, squares=True, noise=1e-6)
rows("root-of-var-plus-eps", lambda x: torch.sqrt(x.var(-1) + 1e-5), MODERATE, noise=1e-6)
rows("standardized", lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6), MODERATE, noise=1e-5)
rows("softmax", lambda x: x.softmax(-1), noise=2e-7)
rows("softmin", lambda x: F.softmin(x, -1), noise=2e-7)
rows("log_softmax", lambda x: x.log_softmax(-1), noise=2e-7)
rows("softmax-0", lambda x: x.softmax(0), MODERATE, noise=2e-7)
rows("log-of-softmax", lambda x: torch.log(x.softmax(-1)), noise=2e-7)
rows("log-of-softmax-eps", lambda x: torch.log(x.softmax(-1) + 1e-8), noise=1e-6)
rows("log-of-softmax-clamp", lambda x: torch.log(x.softmax(-1).clamp(min=1e-7)), noise=1e-6)
rows("entropy-of-softmax", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), noise=1e-6)
rows("entropy-of-probabilities", lambda x: -(x * torch.log(x)).sum(-1))
rows("softmax-temperature", lambda x: (x / 0.1).softmax(-1), noise=1e-6)
rows("masked-softmax", lambda x: x.masked_fill(x < 0, -INF).softmax(-1), noise=2e-7)
rows("masked-log-softmax", lambda x: x.masked_fill(x < 0, -1e9).log_softmax(-1), noise=2e-7)
rows("gumbel-straight-through", lambda x: F.one_hot(x.argmax(-1), 4) + x.softmax(-1), noise=2e-7)
rows("layer_norm", lambda x: F.layer_norm(x, (4,)), MODERATE, noise=1e-5)
rows("layer_norm-eps", lambda x: F.layer_norm(x, (4,), eps=1e-12), MODERATE, noise=1e-5)
rows("rms_norm", lambda x: F.rms_norm(x, (4,), eps=1e-6), MODERATE, noise=1e-6)
rows("rms_norm-by-hand", lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), MODERATE, noise=1e-6)
rows("group_norm", lambda x: F.group_norm(x, 2), MODERATE, noise=1e-5)
rows("instance_norm", lambda x: F.instance_norm(x.reshape(-1, 2, 2)), MODERATE, noise=1e-5)
rows("local_response_norm", lambda x: F.local_response_norm(x.reshape(-1, 4, 1), 3), noise=1e-6)
rows("maxout", lambda x: x.reshape(-1, 2, 2).amax(-1))
rows("mean-of-abs", lambda x: x.abs().mean(-1))
rows("dice-like", lambda x: 1 - (2 * x[:, 0] * x[:, 1] + 1e-6) / (x[:, 0] + x[:, 1] + 1e-6), MODERATE, noise=1e-6)
rows("determinant-2x2-log", lambda x: torch.log((x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]).abs()), MODERATE)
rows("angle", lambda x: torch.atan2(x[:, 0], x[:, 1]))
rows("polar", lambda x: torch.stack([x[:, :2].norm(dim=-1), torch.atan2(x[:, 1], x[:, 0])], -1))
rows("quaternion", lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12))

COLUMNS = f32([0, 1, -2, 3], [0, 1, -2, 0], [0, 1, -2, 0], [-0.0, 1, -2, 3])
for name, fn in (("std", lambda x: x.std(0)), ("norm", lambda x: x.norm(dim=0)), ("normalize", lambda x: F.normalize(x, dim=0)), ("amax", lambda x: x.amax(0)),
                 ("logsumexp", lambda x: x.logsumexp(0)), ("prod", lambda x: x.prod(0))):
    rows(f"columns {name}", fn, COLUMNS, noise=1e-6)

# Two operands, a row each.
LEFT = f32([0, 0, 0], [0, 0, 0], [1, 2, 3], [1, 2, 3], [1, 0, 0], [1, 0, 0], [1e-20, 0, 0], [1e-30, 1e-30, 0], [1e10, 1e10, 0], [1, 1, 1], [2, -1, 0],
           [3e-8, 0, 0], [0, 0, 1], [1, 2, 3])
RIGHT = f32([0, 0, 0], [1, 2, 3], [1, 2, 3], [0, 0, 0], [0, 1, 0], [-1, 0, 0], [1, 0, 0], [1e-30, 1e-30, 0], [1e10, 1e10, 0], [1, 1, 2], [2, -1, 4],
            [0, 3e-8, 0], [0, 0, 1], [-1, -2, -3])


def both(name, fn, left=LEFT, right=RIGHT, **more):
    add(name, fn, [twice(left), twice(right)], **more)


PRODUCT = "TorchScript clamps the product of the norms"
both("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, dim=-1), noise=1e-6, form=PRODUCT)
both("cosine_similarity-eps", lambda a, b: F.cosine_similarity(a, b, dim=-1, eps=0.1), noise=1e-6, form=PRODUCT)
both("cosine-by-hand", lambda a, b: (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)), noise=1e-6)
both("cosine-of-normalized", lambda a, b: (F.normalize(a, dim=-1) * F.normalize(b, dim=-1)).sum(-1), noise=1e-6)
for p in (1, 2, 3):
    both(f"pairwise_distance {p}", lambda a, b, p=p: F.pairwise_distance(a, b, p), squares=p == 2, noise=1e-5)  # TorchScript drops its epsilon
both("pairwise_distance-eps-0", lambda a, b: F.pairwise_distance(a, b, eps=0))
both("distance-by-norm", lambda a, b: (a - b).norm(dim=-1))
both("distance-by-root", lambda a, b: ((a - b) ** 2).sum(-1).sqrt(), squares=True)
both("distance-by-root-of-clamp", lambda a, b: ((a - b) ** 2).sum(-1).clamp(min=1e-12).sqrt())
for p in (1.0, 2.0, 3.0, 0.5):
    both(f"cdist {p:g}", lambda a, b, p=p: torch.cdist(a.reshape(-1, 2, 3), b.reshape(-1, 2, 3), p=p), noise=1e-4)
both("cdist-exact", lambda a, b: torch.cdist(a.reshape(-1, 2, 3), b.reshape(-1, 2, 3), compute_mode="donot_use_mm_for_euclid_dist"), noise=1e-4)
both("pairwise-by-broadcast", lambda a, b: (a[:, None] - b[None, :4]).norm(dim=-1))
both("rbf", lambda a, b: torch.exp(-((a - b) ** 2).sum(-1)))
both("mahalanobis", lambda a, b: torch.sqrt(((a - b) ** 2 / 4).sum(-1)), squares=True)
both("projection", lambda a, b: (a * b).sum(-1, keepdim=True) / (b * b).sum(-1, keepdim=True) * b, noise=1e-6)
both("angle-between", lambda a, b: torch.acos(F.cosine_similarity(a, b, dim=-1).clamp(-1, 1)), left=LEFT[:2], right=RIGHT[:2], form=PRODUCT)
both("angle-by-cross", lambda a, b: torch.atan2((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]), (a * b).sum(-1)))

# --- Pooling ---
IMAGE = f32([[0, 0, 1, 1], [0, 0, 1, 1], [2, -1, -0.0, 0], [-1, 2, 0, -0.0]], [[-1, -1, 1e10, 0], [-1, -1, 0, 1e10], [1e-40, 0, 3, 3], [0, 0, 3, 1]],
            [[-INF, -INF, INF, 0], [-INF, -INF, 0, 0], [1e-20, -1e-20, 88, 88], [0, 0, -88, 88]])[:, None]
IMAGES, FINITE_IMAGES = twice(IMAGE), twice(IMAGE[:2])
for name, fn in (("max_pool2d", lambda x: F.max_pool2d(x, 2)), ("max_pool2d-stride-1", lambda x: F.max_pool2d(x, 2, 1)),
                 ("max_pool2d-padded", lambda x: F.max_pool2d(x, 3, 2, 1)), ("avg_pool2d", lambda x: F.avg_pool2d(x, 2)),
                 ("avg_pool2d-padded", lambda x: F.avg_pool2d(x, 3, 2, 1)), ("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 1)),
                 ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 1)), ("max_pool1d", lambda x: F.max_pool1d(x.flatten(2), 4)),
                 ("global-max", lambda x: x.amax((2, 3))), ("global-max-by-dims", lambda x: x.flatten(2).max(-1).values),
                 ("max_pool2d-of-relu", lambda x: F.max_pool2d(F.relu(x), 2)), ("relu-of-max_pool2d", lambda x: F.relu(F.max_pool2d(x, 2)))):
    add(name, fn, [IMAGES], form={"global-max-by-dims": NO_INDEX, "adaptive_max_pool2d": "the dynamo exporter writes amax"}.get(name, ""))
for p in (1, 1.5, 2, 3, 4):
    add(f"lp_pool1d {p}", lambda x, p=p: F.lp_pool1d(x.flatten(2), p, 2), [np.abs(FINITE_IMAGES) if p == 1.5 else FINITE_IMAGES])
    add(f"lp_pool2d {p}", lambda x, p=p: F.lp_pool2d(x, p, 2), [np.abs(FINITE_IMAGES) if p == 1.5 else FINITE_IMAGES])
add("generalized-mean", lambda x: x.clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3), [IMAGES])

# --- Losses: each element or row, and their mean ---
LOGITS = f32(0, -0.0, *signed(LEAST, 1e-20, 1e-8, 0.5, 1, 2, 8, 14, 17, 20, 50, 88, 89, 100, 104, 1e4, 1e10))


def against(name, fn, xs, ts, diff_target=True, **more):
    """Elementwise, of a prediction and a target."""
    add(name, fn, [twice(np.repeat(xs, len(ts))), twice(np.tile(ts, len(xs)))], data=() if diff_target else (1,), **more)


def averaged(name, fn, *inputs, data=(), **more):
    """fn of each of several sets, then with incoming gradients of 0 again. Inputs: [sets, ...]."""
    count = len(inputs[0])
    add(name, lambda *a: torch.stack([fn(*(t[k] for t in a)) for k in range(2 * count)]), [twice(i) for i in inputs], data=data, **more)


# Functions of all elements.
WHOLE = np.stack([ROWS[:3], ROWS[4:7], ROWS[12:15], ROWS[[2, 2, 2]], ROWS[29:32]])
for name, fn in (("max", torch.max), ("min", torch.min), ("amax", torch.amax), ("norm", torch.norm), ("prod", torch.prod), ("std", torch.std), ("var", torch.var),
                 ("logsumexp", lambda x: x.flatten().logsumexp(0)), ("dist", lambda x: torch.dist(x[0], x[1])), ("dist 1", lambda x: torch.dist(x[0], x[1], 1)),
                 ("clipped", lambda x: (x * (1 / (x.norm() + 1e-6)).clamp(max=1)).sum()), ("log-of-mean", lambda x: torch.log(x.abs().mean()))):
    averaged(f"whole {name}", fn, WHOLE, squares=name == "std", noise=1e-6)
TARGETS = f32(0, 0.25, 1)
LIMITED = "PyTorch's kernel divides by at least 1e-12, what exporters write in its place does not"
SPREAD = f32(0, -0.0, *signed(LEAST, 1e-20, 1e-8, 0.5, 1, 1.5, 2, 10, 1e10, 1e20, INF))
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
    fn = getattr(F, name)
    against(name, lambda x, t, f=fn: f(x, t, reduction="none"), SPREAD, f32(0, 1, 1e-20))
    averaged(f"{name} mean", fn, f32([0, 0, 0, 0], [1, 1, 0, 2], [-1, 0, 1e-20, 3]), f32([0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1e10]))
against("smooth_l1-beta", lambda x, t: F.smooth_l1_loss(x, t, reduction="none", beta=0.5), SPREAD, f32(0, 1))
against("smooth_l1-beta-0", lambda x, t: F.smooth_l1_loss(x, t, reduction="none", beta=0.0), SPREAD, f32(0, 1))
against("huber-delta", lambda x, t: F.huber_loss(x, t, reduction="none", delta=0.5), SPREAD, f32(0, 1))
averaged("root-of-mse", lambda x, t: torch.sqrt(F.mse_loss(x, t)), f32([0, 0, 0, 0], [1, 1, 0, 2], [1e-20, 0, 0, 0]), f32([0] * 4, [1, 0, 1, 1], [0] * 4), squares=True)
against("charbonnier", lambda x, t: torch.sqrt((x - t) ** 2 + 1e-6), SPREAD, f32(0, 1))
against("log-cosh-loss", lambda x, t: torch.log(torch.cosh(x - t)), SPREAD, f32(0, 1), noise=2e-7)
against("mape", lambda x, t: ((x - t) / t.clamp(min=1e-8)).abs(), SPREAD, f32(0, 1), diff_target=False)
against("msle", lambda x, t: (torch.log1p(x) - torch.log1p(t)) ** 2, SPREAD, f32(0, 1), noise=1e-6)
against("quantile", lambda x, t: torch.maximum(0.25 * (t - x), -0.75 * (t - x)), SPREAD, f32(0, 1))
against("bce", lambda x, t: F.binary_cross_entropy(x, t, reduction="none"), PROBABILITIES, TARGETS, diff_target=False, form=LIMITED)
averaged("bce mean", lambda x, t: F.binary_cross_entropy(x, t), f32([0.5, 0.25, 0.75], [0, 1, 0.5], [1, 0, 1], [1e-40, 0, 1]),
         f32([1, 0, 1], [0, 1, 0.25], [0, 1, 1], [1, 0.25, 0]), data=(1,), form=LIMITED)
averaged("bce weight", lambda x, t: F.binary_cross_entropy(x, t, weight=torch.tensor([2.0, 0.0, 1.0])), f32([0.5, 0.25, 0.75], [0, 1, 0.5], [1, 0, 1]),
         f32([1, 0, 1], [0, 1, 0.25], [0, 1, 1]), data=(1,), form=LIMITED)
against("bce-of-sigmoid", lambda x, t: F.binary_cross_entropy(torch.sigmoid(x), t, reduction="none"), LOGITS, TARGETS, diff_target=False, form=LIMITED, noise=1e-6)
averaged("bce-of-sigmoid mean", lambda x, t: F.binary_cross_entropy(torch.sigmoid(x), t), f32([0, 1, -1], [20, -20, 0], [104, -104, 17]),
         f32([1, 0, 1], [1, 0, 0.25], [0, 1, 1]), data=(1,), form=LIMITED, noise=1e-6)
against("bce-by-hand", lambda x, t: -(t * torch.log(x) + (1 - t) * torch.log(1 - x)), PROBABILITIES, TARGETS, diff_target=False)
against("bce-by-hand-clamp", lambda x, t: -(t * torch.log(x.clamp(1e-7, 1 - 1e-7)) + (1 - t) * torch.log1p(-x.clamp(1e-7, 1 - 1e-7))), PROBABILITIES, TARGETS,
        diff_target=False)
against("bce-by-hand-eps", lambda x, t: -(t * torch.log(x + 1e-8) + (1 - t) * torch.log(1 - x + 1e-8)), PROBABILITIES, TARGETS, diff_target=False)
against("bce_with_logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"), LOGITS, TARGETS, diff_target=False, noise=2e-7)
against("bce_with_logits-pos-weight", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none", pos_weight=torch.tensor(3.0)), LOGITS, TARGETS,
        diff_target=False, noise=2e-7)
averaged("bce_with_logits mean", lambda x, t: F.binary_cross_entropy_with_logits(x, t), f32([0, 1, -1], [20, -20, 0], [104, -104, 17]),
         f32([1, 0, 1], [1, 0, 0.25], [0, 1, 1]), data=(1,), noise=2e-7)
against("focal", lambda x, t: (lambda b: (1 - torch.exp(-b)) ** 2 * b)(F.binary_cross_entropy_with_logits(x, t, reduction="none")), LOGITS, f32(0, 1),
        diff_target=False, noise=1e-6)
against("focal-of-probability", lambda x, t: (lambda p: -((1 - p) ** 2) * torch.log(p.clamp(min=1e-8)))(torch.where(t > 0, x, 1 - x)), PROBABILITIES, f32(0, 1),
        diff_target=False, noise=1e-6)
against("focal-1.5", lambda x, t: (lambda p: -((1 - p) ** 1.5) * torch.log(p + 1e-8))(torch.where(t > 0, x, 1 - x)), PROBABILITIES, f32(0, 1),
        diff_target=False, noise=1e-6)
against("kl_div", lambda x, t: F.kl_div(x, t, reduction="none"), f32(0, -0.0, -1, -20, -104, -1e10), f32(0, 1e-40, 0.25, 1), diff_target=False)
against("kl_div-log-target", lambda x, t: F.kl_div(x, t, reduction="none", log_target=True), f32(0, -0.0, -1, -20, -104), f32(0, -1, -20, -104))
averaged("kl_div batchmean", lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), f32([[0, 0, 0], [1, 2, 3]], [[88, 0, 0], [-88, 0, 0]]),
         f32([[0, 0, 0], [3, 2, 1]], [[0, 0, 0], [0, 0, 1]]), noise=1e-6)
averaged("js-divergence", lambda x, t: (lambda p, q: (lambda m: 0.5 * ((p * (torch.log(p + 1e-8) - torch.log(m + 1e-8))).sum() + (q * (torch.log(q + 1e-8) - torch.log(m + 1e-8))).sum()))((p + q) / 2))
         (x.softmax(-1), t.softmax(-1)), f32([0, 0, 0], [88, 0, 0]), f32([0, 0, 0], [0, 104, 0]), noise=1e-6)
against("poisson_nll", lambda x, t: F.poisson_nll_loss(x, t, reduction="none"), LOGITS, f32(0, 1, 3), diff_target=False)
against("poisson_nll-log-input-off", lambda x, t: F.poisson_nll_loss(x, t, log_input=False, reduction="none"), POSITIVE, f32(0, 1, 3), diff_target=False)
against("poisson_nll-full", lambda x, t: F.poisson_nll_loss(x, t, full=True, reduction="none"), f32(0, 1, -1, 88), f32(0, 1, 2, 3), diff_target=False)
VARIANCES = f32(0, 1e-40, 1e-8, 1e-6, 1e-4, 1, 2, 1e10)
add("gaussian_nll", lambda x, t, v: F.gaussian_nll_loss(x, t, v, reduction="none"),
    [twice(np.resize(f32(0, 1, -1, 1e-20, 3, 1e5), 48)), twice(np.resize(f32(0, 1, 1, 0), 48)), twice(np.repeat(VARIANCES, 6))], noise=1e-6,
    form="the clamp of the variance is in a no_grad, which exports leave out")
add("gaussian_nll-log-variance", lambda x, t, v: 0.5 * (v + (x - t) ** 2 * torch.exp(-v)),
    [twice(f32(0, 1, 0, 1, 1e-20)), twice(f32(0, 0, 0, 0, 0)), twice(f32(0, -88, -104, 88, 0))])
add("vae-kl", lambda m, v: -0.5 * (1 + v - m ** 2 - torch.exp(v)), [twice(f32(0, 0, 1, -1, 0)), twice(f32(0, -104, 88, -88, -0.0))])
add("normal-log-prob", lambda x, s: -(x ** 2) / (2 * s ** 2) - torch.log(s), [twice(f32(0, 0, 1, 1, 1e-20)), twice(f32(0, 1, 0, 1e-10, 1e-20))])
against("hinge", lambda x, t: F.relu(1 - x * (2 * t - 1)), SPREAD, f32(0, 1), diff_target=False)
against("squared-hinge", lambda x, t: (1 - x * (2 * t - 1)).clamp(min=0) ** 2, SPREAD, f32(0, 1), diff_target=False)
against("hinge_embedding", lambda x, t: F.hinge_embedding_loss(x, t, reduction="none"), SPREAD[np.isfinite(SPREAD)], f32(-1, 1), diff_target=False)
against("soft_margin", lambda x, t: F.soft_margin_loss(x, t, reduction="none"), LOGITS[np.abs(LOGITS) <= 88], f32(-1, 1), diff_target=False, noise=2e-7)
RANKED = f32(0, 1, -1, 0.5, 1e-20)
add("margin_ranking", lambda a, b, t: F.margin_ranking_loss(a, b, t, reduction="none"),
    [twice(np.repeat(RANKED, 10)), twice(np.tile(RANKED, 10)), twice(np.resize(f32(1, 1, 1, 1, 1, -1, -1, -1, -1, -1), 50))], data=(2,))
add("margin_ranking-margin", lambda a, b, t: F.margin_ranking_loss(a, b, t, margin=0.5, reduction="none"),
    [twice(np.repeat(RANKED, 10)), twice(np.tile(RANKED, 10)), twice(np.resize(f32(1, 1, 1, 1, 1, -1, -1, -1, -1, -1), 50))], data=(2,))
OTHER = np.roll(RIGHT, 3, 0)
for name, options in (("triplet", {}), ("triplet-margin-0.5", {"margin": 0.5}), ("triplet-p1", {"p": 1.0}), ("triplet-swap", {"swap": True})):
    add(name, lambda a, p, n, o=options: F.triplet_margin_loss(a, p, n, reduction="none", **o), [twice(LEFT), twice(RIGHT), twice(OTHER)])
add("triplet-equal", lambda a, p, n: F.relu((a - p).norm(dim=-1) - (a - n).norm(dim=-1) + 1), [twice(LEFT), twice(LEFT), twice(RIGHT)])
add("contrastive", lambda a, b, t: t * (a - b).norm(dim=-1) ** 2 + (1 - t) * (1 - (a - b).norm(dim=-1)).clamp(min=0) ** 2,
    [twice(LEFT), twice(RIGHT), twice(np.resize(f32(1, 0, 0), 14))], data=(2,), noise=1e-6)
add("cosine_embedding", lambda a, b, t: F.cosine_embedding_loss(a, b, t, reduction="none"), [twice(LEFT), twice(RIGHT), twice(np.resize(f32(1, -1, -1), 14))], data=(2,),
    noise=1e-6)
CLASSES = np.resize(np.array([0, 1, 2, 3, 3, 1], np.int64), len(ALL_ROWS))


def labelled(name, fn, of=ALL_ROWS, labels=None, **more):
    add(name, fn, [twice(of), twice(CLASSES[:len(of)] if labels is None else labels)], **more)


labelled("cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction="none"), noise=2e-7)
labelled("cross_entropy-weight", lambda x, t: F.cross_entropy(x, t, reduction="none", weight=torch.tensor([1.0, 0.0, 2.0, 0.5])), noise=2e-7)
labelled("cross_entropy-ignored", lambda x, t: F.cross_entropy(x, t, reduction="none", ignore_index=1), noise=2e-7)
labelled("cross_entropy-by-log_softmax", lambda x, t: F.nll_loss(F.log_softmax(x, -1), t, reduction="none"), noise=2e-7)
labelled("cross_entropy-by-gather", lambda x, t: -x.log_softmax(-1).gather(1, t[:, None])[:, 0], noise=2e-7)
labelled("cross_entropy-by-log", lambda x, t: -torch.log(x.softmax(-1).gather(1, t[:, None])[:, 0]), noise=2e-7)
labelled("cross_entropy-by-log-clamp", lambda x, t: -torch.log(x.softmax(-1).gather(1, t[:, None])[:, 0].clamp(min=1e-7)), noise=1e-6)
labelled("nll", lambda x, t: F.nll_loss(x, t, reduction="none"))
labelled("multi_margin", lambda x, t: F.multi_margin_loss(x, t, reduction="none"), MODERATE)
labelled("multi_margin-2", lambda x, t: F.multi_margin_loss(x, t, p=2, margin=0.5, reduction="none"), MODERATE, noise=1e-6)
labelled("multi_margin-by-hand", lambda x, t: (1 - x.gather(1, t[:, None]) + x).clamp(min=0).sum(-1) / 4, MODERATE, noise=1e-6)
SETS, SET_LABELS = np.stack([ROWS[:3], ROWS[5:8], ROWS[16:19], ROWS[19:22]]), np.array([[0, 1, 2], [3, 2, 1], [0, 0, 0], [1, 1, 2]], np.int64)
averaged("cross_entropy mean", F.cross_entropy, SETS, SET_LABELS, noise=2e-7)
averaged("cross_entropy sum", lambda x, t: F.cross_entropy(x, t, reduction="sum"), SETS, SET_LABELS, noise=2e-7)
averaged("cross_entropy mean-ignored", lambda x, t: F.cross_entropy(x, t, ignore_index=0), SETS, SET_LABELS, noise=2e-7)
averaged("cross_entropy mean-weight", lambda x, t: F.cross_entropy(x, t, weight=torch.tensor([0.0, 1.0, 2.0, 0.5])), SETS, SET_LABELS, noise=2e-7)
averaged("nll mean", F.nll_loss, SETS, SET_LABELS)
MANY = np.resize(f32(0, 1, 0, 0, 1, 1), (len(MODERATE), 4))
add("multilabel_soft_margin", lambda x, t: F.multilabel_soft_margin_loss(x, t, reduction="none"), [twice(MODERATE), twice(MANY)], data=(1,), noise=2e-7)
add("multilabel_margin", lambda x, t: F.multilabel_margin_loss(x, t, reduction="none"), [twice(MODERATE), twice(np.resize(np.array([3, 0, -1, -1], np.int64), MODERATE.shape))])
BOXES = f32([0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 2, 2], [0, 0, 1, 1], [1, 1, 2, 2], [0, 0, 1, 1], [-1, -1, 1, 1])
OTHERS = f32([0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 3, 3], [1, 1, 2, 2], [0, 0, 1, 1], [2, 2, 3, 3], [-1, -1, 1, 2])


def intersection(a, b):
    size = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    return size[:, 0] * size[:, 1]


def area(a):
    return (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])


def iou(a, b):
    shared = intersection(a, b)
    return shared / (area(a) + area(b) - shared)


def giou(a, b):
    shared, hull = intersection(a, b), torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    union = area(a) + area(b) - shared + 1e-7
    return shared / union - (hull[:, 0] * hull[:, 1] - union) / (hull[:, 0] * hull[:, 1] + 1e-7)


both("iou", iou, BOXES, OTHERS)
both("iou-eps", lambda a, b: intersection(a, b) / (area(a) + area(b) - intersection(a, b) + 1e-7), BOXES, OTHERS, noise=1e-6)
both("iou-log", lambda a, b: -torch.log(iou(a, b).clamp(min=1e-6)), BOXES, OTHERS, noise=1e-6)
both("giou", giou, BOXES, OTHERS, noise=1e-6)
add("dice", lambda x, t: 1 - (2 * (x * t).sum(-1) + 1) / (x.sum(-1) + t.sum(-1) + 1), [twice(f32([0] * 4, [1] * 4, [1, 0, 0.5, 0])), twice(f32([0] * 4, [1] * 4, [0, 1, 1, 0]))], data=(1,),
    noise=1e-6)
add("dice-without-smoothing", lambda x, t: (2 * (x * t).sum(-1)) / (x.sum(-1) + t.sum(-1)), [twice(f32([0] * 4, [1] * 4, [1, 0, 0.5, 0])), twice(f32([0] * 4, [1] * 4, [0, 1, 1, 0]))],
    data=(1,), noise=1e-6)
add("soft-iou", lambda x, t: (lambda p: (p * t).sum(-1) / (p + t - p * t).sum(-1))(torch.sigmoid(x)), [twice(MODERATE[:8]), twice(MANY[:8])], data=(1,), noise=1e-6)
averaged("info-nce", lambda a, b: F.cross_entropy(F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.1, torch.arange(2)),
         f32([[1, 2, 3], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]]), f32([[1, 2, 3], [1, 1, 1]], [[0, 0, 0], [0, 0, 0]]), noise=1e-5)

# --- Attention, normalization and mixtures of rows of zeros ---
QUERIES = f32([[0, 0], [1, 2], [88, 0]], [[1e5, 0], [0, 0], [-1e5, 1]])
add("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [twice(QUERIES), twice(QUERIES[::-1].copy()), twice(QUERIES)], noise=1e-6)
add("attention-causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [twice(QUERIES), twice(QUERIES[::-1].copy()), twice(QUERIES)], noise=1e-6)
add("layer_norm-affine", lambda x, w, b: F.layer_norm(x, (4,), w, b), [twice(MODERATE), f32(1, 0, -1, 2), f32(0, 1, 0, 0)], noise=1e-5)
add("rms_norm-weight", lambda x, w: F.rms_norm(x, (4,), w, 1e-6), [twice(MODERATE), f32(1, 0, -1, 2)], noise=1e-6)
add("batch_norm-eval", lambda x, w, b: F.batch_norm(x, torch.zeros(4), torch.ones(4), w, b), [twice(MODERATE), f32(1, 0, -1, 2), f32(0, 6, 0, 0)], noise=1e-6)
add("weight-norm", lambda v, g: v * (g / v.norm(dim=1, keepdim=True)), [twice(MODERATE), np.resize(f32(1, 0, 2), (2 * len(MODERATE), 1))], noise=1e-6)
add("embedding-cosine", lambda t, i: F.normalize(F.embedding(i, t), dim=-1), [f32([0, 0], [1, 1], [0, 2]), np.array([0, 1, 0, 2, 0, 1], np.int64)], noise=1e-6)
add("matmul-relu", lambda x, w: F.relu(x @ w), [twice(f32([0, 0], [1, 1], [1, -1])), f32([1, 0, 2], [1, 0, -2])])
add("zero-head-softplus", lambda x, w: F.softplus(x @ w), [twice(f32([0, 0], [1, 1], [1, -1])), f32([0, 0, 0], [0, 0, 0])])
add("linear-elu", lambda x, w: F.elu(x @ w), [twice(f32([0, 0], [1, 1], [1, -1])), f32([0, 0, 0], [0, 0, 0])])
add("scatter-mean", lambda x, i: torch.zeros(4, 2).scatter_add(0, i[:, None].expand(-1, 2), x) / torch.zeros(4, 2).scatter_add(0, i[:, None].expand(-1, 2), torch.ones_like(x)).clamp(min=1),
    [f32([0, 0], [1, 1], [2, -1]), np.array([0, 3, 3], np.int64)])
