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
