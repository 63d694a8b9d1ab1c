"""Losses, gradient norms and first gradients equal PyTorch's f64 runs, for every model, number of ranks and stage."""
import array
import dataclasses
import math

from formats import read_log, read_safetensors, write_npy
from harness import Case, expect
from onnxwriter import FLOAT, INT64, model as written, node, value, weight
from training import CONFIGS, expect_gradients, expect_reference, short, train

RANKS = (1, 2, 4)
STAGES = (0, 1, 2, 3)


def cases(session):
    ranks, stages = ((4,), (0, 3)) if session.quick else (RANKS, STAGES)
    for config in CONFIGS.values():
        for n in ranks:
            for zero in stages:
                yield case(session, config, n, zero)
    # A row a rank: a dimension of size 1 is the batch.
    for name in ("mlp-momentum", "gpt2-tiny"):
        yield case(session, CONFIGS[name], 8, 3)
    for what in ("variance", "square"):
        yield Case(f"numerics/batch-second/{what}", lambda w=what: batch_second(session, w))
    yield Case("numerics/lion", lambda: lion(session))
    for name, run_zeros in (("softplus", softplus_of_zero), ("norm", norm_of_zeros), ("cross-entropy", saturated_cross_entropy)):
        yield Case(f"numerics/zeros/{name}", lambda f=run_zeros: f(session))


def case(session, config, ranks, zero):
    return Case(f"numerics/{config.name}/ranks-{ranks}/zero-{zero}", lambda: run(session, config, ranks, zero))


def run(session, config, ranks, zero):
    """All steps at stage 0. Other stages have its bits (bits.py), or fail in their first steps; state.py takes stage 3 to the end."""
    trained = train(session, config, ranks, zero, steps=session.steps if zero == 0 else short(session), gradients=True)
    expect_reference(config, trained.steps)
    expect_gradients(config, trained.gradients)


def batch_second(session, what):
    """The batch becomes the second dimension, and the loss is not a mean over rows: one, two and four ranks have one loss, also
    where each has a single row of the batch."""
    rows, length, weights = 4, 5, [math.cos(3 * i) for i in range(12)]
    nodes = [node("MatMul", ["x", "w"], ["y"], "product"), node("Transpose", ["y"], ["t"], "transpose", perm=[1, 0, 2])]
    if what == "variance":
        nodes += [node("ReduceMean", ["t", "axis"], ["mean"], "mean", keepdims=1), node("Sub", ["t", "mean"], ["s"], "centre")]
    else:
        nodes += [node("ReduceSum", ["t", "axis"], ["s"], "sum", keepdims=0)]
    nodes += [node("Mul", ["s", "s"], ["q"], "square"), node("ReduceMean", ["q"], ["loss"], "loss", keepdims=0)]
    graph, data = session.folder() / "model.onnx", session.folder() / "x.npy"
    graph.write_bytes(written(nodes, [value("x", FLOAT, ["N", length, 4])], [value("loss", FLOAT, [])],
                              [weight("w", [4, 3], weights), weight("axis", [1], [1], INT64)]))
    x = [math.sin(i * i) for i in range(rows * length * 4)]
    write_npy(data, "<f4", (rows, length, 4), array.array("f", x).tobytes())
    y = [[[sum(x[(n * length + t) * 4 + k] * weights[3 * k + c] for k in range(4)) for n in range(rows)] for c in range(3)]
         for t in range(length)]
    lines = [line for step in y for line in step]
    squares = [(v - sum(line) / rows) ** 2 for line in lines for v in line] if what == "variance" else [sum(line) ** 2 for line in lines]
    first, second = sum(squares) / len(squares), None
    for ranks in (1, 2, 4):
        plan, log = session.folder() / "model.plan", session.folder() / "run.jsonl"
        session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", rows, "--ranks", ranks, "--zero", 0, "--loss", "loss",
                        "--optimizer", "sgd:lr=0.01")
        session.succeed("sheaf-run", plan, "--data", f"x={data}", "--steps", 2, "--log", log)
        losses = [step["loss"] for step in read_log(log)[0]]
        expect(abs(losses[0] - first) < 1e-5 * first, f"{ranks} ranks: loss {losses[0]}, expected {first}")
        second = second or losses[1]
        expect(abs(losses[1] - second) < 1e-5 * abs(second), f"{ranks} ranks: second loss {losses[1]}, on one rank {second}")


def losses_of(session, nodes, weights, x, y, rate, steps):
    """The losses of SGD on a graph with inputs x and y, lists of rows."""
    graph, plan, log, data = (session.folder() / name for name in ("model.onnx", "model.plan", "run.jsonl", "."))
    inputs = [value("x", FLOAT, ["N", len(x[0])]), value("y", FLOAT, ["N", len(y[0])])]
    graph.write_bytes(written(nodes, inputs, [value("loss", FLOAT, [])], weights))
    arguments = []
    for name, rows in (("x", x), ("y", y)):
        write_npy(data / f"{name}.npy", "<f4", (len(rows), len(rows[0])), array.array("f", [v for row in rows for v in row]).tobytes())
        arguments += ["--data", f"{name}={data / name}.npy"]
    session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", len(x), "--loss", "loss", "--optimizer", f"sgd:lr={rate}")
    session.succeed("sheaf-run", plan, *arguments, "--steps", steps, "--log", log)
    return [step["loss"] for step in read_log(log)[0]]


def expect_losses(found, expected):
    for step, (ours, exact) in enumerate(zip(found, expected, strict=True)):
        expect(abs(ours - exact) < 2e-5 * max(1, abs(exact)), f"step {step}: loss {ours}, expected {exact}")


def softplus_of_zero(session):
    """A scale softplus(p) learns from p = 0: the loss is a Gaussian's negative log-likelihood."""
    rows, rate, steps = 8, 0.1, 60
    x, p, expected = [[0.0]] * rows, 0.0, []
    y = [[2 * math.sin(i)] for i in range(rows)]
    square = sum(v * v for v, in y) / rows
    for _ in range(steps):
        scale, slope = math.log1p(math.exp(p)), 1 / (1 + math.exp(-p))
        expected.append(square / scale ** 2 / 2 + math.log(scale))
        p -= rate * slope * (1 / scale - square / scale ** 3)
    nodes = [node("Softplus", ["p"], ["s"]), node("Sub", ["y", "x"], ["d"]), node("Div", ["d", "s"], ["z"]), node("Mul", ["z", "z"], ["q"]),
             node("Mul", ["q", "half"], ["h"]), node("Log", ["s"], ["l"]), node("Add", ["h", "l"], ["t"]),
             node("ReduceMean", ["t"], ["loss"], keepdims=0)]
    weights = [weight("p", [1], [0]), weight("half", [], [0.5])]
    expect_losses(losses_of(session, nodes, weights, x, y, rate, steps), expected)


def norm_of_zeros(session):
    """Rows are divided by their norms, at least 1e-12: rows of zeros have no gradient through the norm."""
    rate, steps, w, expected = 0.1, 20, [1.0, 0.5], []
    x = [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1.0, -1.0]]
    y = [[0.5], [0.0], [-0.25], [1.0]]
    for _ in range(steps):
        loss, change = 0, [0.0, 0.0]
        for row, (target,) in zip(x, y):
            z = [a * b for a, b in zip(row, w)]
            r = math.hypot(*z)
            n = max(r, 1e-12)
            out = sum(z) / n
            loss += (out - target) ** 2 / len(x)
            for k in range(2):
                direct = 1 / n - (sum(z) * z[k] / r ** 3 if r > 1e-12 else 0)
                change[k] += 2 * (out - target) * direct * row[k] / len(x)
        expected.append(loss)
        w = [a - rate * g for a, g in zip(w, change)]
    nodes = [node("Mul", ["x", "w"], ["z"]), node("ReduceL2", ["z", "axis"], ["r"], keepdims=1), node("Clip", ["r", "least"], ["n"]),
             node("Div", ["z", "n"], ["u"]), node("ReduceSum", ["u", "axis"], ["o"], keepdims=1), node("Sub", ["o", "y"], ["d"]),
             node("Mul", ["d", "d"], ["q"]), node("ReduceMean", ["q"], ["loss"], keepdims=0)]
    weights = [weight("w", [2], [1, 0.5]), weight("least", [], [1e-12]), weight("axis", [1], [1], INT64)]
    expect_losses(losses_of(session, nodes, weights, x, y, rate, steps), expected)


def saturated_cross_entropy(session):
    """Binary cross entropy of a probability that is 1 in f32, as PyTorch's exporters write it: logarithms are at least -100."""
    rate, steps, w, expected = 0.1, 20, 1.0, []
    x, y = [[-1.0], [0.5], [40.0], [2.0]], [[0.0], [1.0], [1.0], [0.0]]
    for _ in range(steps):
        loss = change = 0
        for (a,), (target,) in zip(x, y):
            p = 1 / (1 + math.exp(-a * w))
            loss -= (target * math.log(p) + (1 - target) * max(math.log(1 - p) if p < 1 else -100, -100)) / len(x)
            change += (p - target) * a / len(x)
        expected.append(loss)
        w -= rate * change
    nodes = [node("Mul", ["x", "w"], ["a"]), node("Sigmoid", ["a"], ["p"]), node("Neg", ["p"], ["n"]), node("Add", ["n", "one"], ["c"]),
             node("Log", ["c"], ["lc"]), node("Max", ["lc", "least"], ["mc"]), node("Log", ["p"], ["lp"]), node("Max", ["lp", "least"], ["mp"]),
             node("Sub", ["y", "one"], ["t"]), node("Mul", ["t", "mc"], ["b"]), node("Mul", ["y", "mp"], ["g"]), node("Sub", ["b", "g"], ["d"]),
             node("ReduceMean", ["d"], ["loss"], keepdims=0)]
    weights = [weight("w", [1, 1], [1]), weight("one", [], [1]), weight("least", [], [-100])]
    expect_losses(losses_of(session, nodes, weights, x, y, rate, steps), expected)


def lion(session):
    """Lion, which PyTorch does not have: every step's weights follow from the gradients by the formula in double precision."""
    rate, beta1, beta2, decay = 1e-2, 0.9, 0.95, 0.1
    config = dataclasses.replace(CONFIGS["mlp-adamw"], name="mlp-lion",
                                 options=("--optimizer", f"lion:lr={rate},beta1={beta1},beta2={beta2},weight_decay={decay}"))
    state, momentum, sizes, before = session.folder() / "state", {}, {}, {}
    for step in range(4):
        resume = ("--resume", state) if step else ()
        trained = train(session, config, 4, 3, steps=step + 1, run_options=(*resume, "--save-state", state), gradients=True, repeat=step)
        weights, gradients = read_safetensors(trained.weights), read_safetensors(trained.gradients)
        moved = 0
        for name, gradient in gradients.items():
            m = momentum.get(name, [0.0] * len(gradient.values))
            size = sizes.get(name, m)  # the same sum of absolute values: what m may differ by is a part of that
            for i, (w, g) in enumerate(zip(weights[name].values, gradient.values)):
                average = beta1 * m[i] + (1 - beta1) * g
                sign = (average > 0) - (average < 0)
                # Rounding decides the sign if terms cancel.
                if before and abs(average) > 1e-6 * (beta1 * size[i] + (1 - beta1) * abs(g)):
                    expected = before[name].values[i] * (1 - rate * decay) - rate * sign
                    expect(abs(w - expected) < 1e-6, f"step {step}, {name}[{i}]: {w}, expected {expected}")
                    moved += 1
            momentum[name] = [beta2 * a + (1 - beta2) * g for a, g in zip(m, gradient.values)]
            sizes[name] = [beta2 * a + (1 - beta2) * abs(g) for a, g in zip(size, gradient.values)]
        expect(not before or moved > 10000, f"step {step}: only {moved} elements have a gradient")
        before = weights
    one, four = (train(session, config, ranks, zero, steps=4) for ranks, zero in ((4, 0), (4, 3)))
    other = read_safetensors(four.weights)
    for name, tensor in read_safetensors(one.weights).items():
        expect(tensor.values == other[name].values, f"{name} depends on the stage")
        expect(tensor.values == before[name].values, f"{name} depends on whether the run was resumed")
