"""Writes losses.json: PyTorch's values and gradients, in f64, of the losses that `--loss` adds. Run: python3 losses.py"""
import json
import os

import torch
import torch.nn.functional as F

ROWS = 8
torch.manual_seed(1)


def numbers(*shape, low=-2.0, high=2.0):
    """Multiples of 1/64: exact in f32."""
    return torch.round((torch.rand(*shape, dtype=torch.float64) * (high - low) + low) * 64) / 64


def labels(classes, *shape, ignored=None):
    target = torch.randint(0, classes, shape)
    if ignored is not None:  # all of the first rows, and a few of the others
        flat = target.view(-1)
        flat[: flat.numel() // 4] = ignored
        flat[flat.numel() // 2] = ignored
    return target


CASES = []


def case(loss, shape, compute, target, merge=False, vector=None):
    """The model's output is x * p, or that with the two first dimensions merged."""
    x, p = numbers(ROWS, *shape), numbers(*shape).requires_grad_()
    y = x * p
    if merge:
        y = y.reshape(-1, *shape[1:])
    value = compute(y, target)
    value.backward()
    entry = {"loss": loss, "shape": list(shape), "merge": merge, "x": x.flatten().tolist(), "p": p.flatten().tolist(),
             "target": target.flatten().tolist(), "value": value.item(), "gradient": p.grad.flatten().tolist()}
    if vector is not None:
        entry["vector"] = vector.tolist()
    CASES.append(entry)


def cross_entropy():
    def channels_last(**settings):
        return lambda y, t: F.cross_entropy(y.reshape(-1, y.shape[-1]), t.reshape(-1), **settings)

    weight = numbers(5, low=0.25, high=2)
    case("cross_entropy(y)", (5,), channels_last(), labels(5, ROWS))
    case("cross_entropy(y)", (3, 5), channels_last(), labels(5, ROWS, 3, ignored=-100))
    case("cross_entropy(y)", (3, 5), channels_last(), labels(5, ROWS, 3), merge=True)
    case("cross_entropy(y, axis=1)", (5, 2, 3), F.cross_entropy, labels(5, ROWS, 2, 3))
    case("cross_entropy(y, ignore_index=2)", (5,), channels_last(ignore_index=2), labels(5, ROWS, ignored=2))
    case("cross_entropy(y, weight=v)", (5,), channels_last(weight=weight), labels(5, ROWS), vector=weight)
    case("cross_entropy(y, weight=FILE, ignore_index=-1)", (5,), channels_last(weight=weight, ignore_index=-1),
         labels(5, ROWS, ignored=-1), vector=weight)
    case("cross_entropy(y, label_smoothing=0.125)", (5,), channels_last(label_smoothing=0.125), labels(5, ROWS))
    case("cross_entropy(y, label_smoothing=0.125, ignore_index=-1)", (3, 5),
         channels_last(label_smoothing=0.125, ignore_index=-1), labels(5, ROWS, 3, ignored=-1))
    case("cross_entropy(y, label_smoothing=0.25, weight=v)", (5,), channels_last(label_smoothing=0.25, weight=weight),
         labels(5, ROWS), vector=weight)
    case("cross_entropy(y, label_smoothing=0.25, weight=v, ignore_index=0)", (2, 5),
         channels_last(label_smoothing=0.25, weight=weight, ignore_index=0), labels(5, ROWS, 2, ignored=0),
         vector=weight)


def regression():
    for shape in (4,), (2, 3):
        case("mse(y)", shape, F.mse_loss, numbers(ROWS, *shape))
    case("mse(y)", (1,), F.mse_loss, numbers(ROWS), merge=True)
    case("mse(y)", (2, 3), F.mse_loss, numbers(ROWS * 2, 3), merge=True)
    case("l1(y)", (4,), F.l1_loss, numbers(ROWS, 4))
    for setting, beta in (("", 1.0), (", beta=0.25", 0.25), (", beta=0", 0.0), (", beta=4", 4.0)):
        case(f"smooth_l1(y{setting})", (4,), lambda y, t, beta=beta: F.smooth_l1_loss(y, t, beta=beta),
             numbers(ROWS, 4))


def probabilities():
    positive = numbers(4, low=0.25, high=4)
    bce = F.binary_cross_entropy_with_logits
    case("bce_with_logits(y)", (4,), bce, numbers(ROWS, 4, low=0, high=1))
    case("bce_with_logits(y)", (1,), bce, torch.randint(0, 2, (ROWS,)).double(), merge=True)
    case("bce_with_logits(y, pos_weight=v)", (3, 4), lambda y, t: bce(y, t, pos_weight=positive),
         numbers(ROWS, 3, 4, low=0, high=1), vector=positive)
    case("bce_with_logits(y, pos_weight=FILE)", (4,), lambda y, t: bce(y, t, pos_weight=positive),
         numbers(ROWS, 4, low=0, high=1), vector=positive)
    target = numbers(ROWS, 5, low=0, high=1)
    target[0, 2] = 0
    case("kl_div(y)", (5,), lambda y, t: F.kl_div(y, t, reduction="batchmean"), target)
    case("kl_div(y)", (2, 3), lambda y, t: F.kl_div(y, t, reduction="batchmean"), numbers(ROWS, 2, 3, low=0, high=1))
    case("kl_div(y, log_target=true)", (5,), lambda y, t: F.kl_div(y, t, reduction="batchmean", log_target=True),
         numbers(ROWS, 5, low=-3, high=0))


cross_entropy()
regression()
probabilities()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "losses.json"), "w") as file:
    lines = ",\n".join(json.dumps(one) for one in CASES)
    file.write('{"rows": %d, "torch": "%s", "cases": [\n%s\n]}\n' % (ROWS, torch.__version__, lines))
