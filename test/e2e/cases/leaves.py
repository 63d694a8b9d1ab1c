"""Leaves: training with them reaches PyTorch's losses. That weights do not depend on the number of ranks is in divisions.py."""
import json
import struct

from cases.bits import same_bits
from formats import read_log, write_npy
from harness import MODELS as FOLDER
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight
from training import CONFIGS, expect_reference, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
LEAVES = 4  # of two rows


def cases(session):
    for name in MODELS:
        yield Case(f"leaves/{name}/reference", lambda c=CONFIGS[name]: reference(session, c))
    for precision, within in (("f32", 2e-5), ("bf16", 3e-3)):
        yield Case(f"leaves/sixty-four/{precision}", lambda p=precision, w=within: sixty_four(session, p, w))
    yield Case("leaves/one-row/moved-batch", lambda: moved_batch(session))
    yield Case("leaves/one-row/fixed-graph", lambda: fixed_graph(session))
    for precision in ("f32", "bf16"):
        yield Case(f"leaves/one-row/normalized-parameter/{precision}", lambda p=precision: normalized_parameter(session, p))
    yield Case("leaves/range-of-rows", lambda: range_of_rows(session))
    yield Case("leaves/refused", lambda: refused(session))


def reference(session, config):
    options = ("--leaves", LEAVES, "--bucket-size", 64 << 10)
    expect_reference(config, train(session, config, 1, 0, compile_options=options, gradients=True).steps)


def sixty_four(session, precision, within):
    """Rounding at every addition of the tree of 64 leaves leaves the losses where PyTorch's are."""
    expected = json.loads((FOLDER / "micro-batches.json").read_text())["runs"]["adamw-lm.f64.128-rows"]
    options = ("--leaves", 64, "--bucket-size", 64 << 10, "--precision", precision)
    runs = [train(session, CONFIGS["gpt2-tiny"], ranks, 3, len(expected["loss"]), options, batch=128) for ranks in (2, 8)]
    for step, entry in enumerate(runs[0].steps):
        for key in ("loss", "grad_norm"):
            difference = abs(entry[key] - expected[key][step]) / max(1, expected[key][step] if key == "grad_norm" else 1)
            expect(difference <= within, f"step {step}: {key} {entry[key]}, PyTorch's is {expected[key][step]}")
    same_bits(runs[0], [("eight ranks", runs[1])])


WEIGHT = weight("w", [4, 4], [0.3 * ((7 * i) % 5 - 2) for i in range(16)])


def written(session, nodes, batch, width, weights):
    """A model of an input x [batch, *width], whose loss is the mean of tanh(h w), where the nodes make h of x."""
    path = session.folder() / "model.onnx"
    nodes = [*nodes, node("MatMul", ["h", "w"], ["z"]), node("Tanh", ["z"], ["t"]), node("ReduceMean", ["t"], ["loss"], keepdims=0)]
    path.write_bytes(model(nodes, [value("x", FLOAT, [batch, *width])], [value("loss", FLOAT, [])], [WEIGHT, *weights]))
    return path


def compiling(session, path, ranks):
    return ("sheaf", "compile", path, "-o", path.with_suffix(".plan"), "--batch", 8, "--ranks", ranks, "--optimizer", "sgd:lr=0.5")


def losses(session, path, ranks, width):
    session.succeed(*compiling(session, path, ranks))
    data = session.folder() / "x.npy"
    count = 16 * 4
    write_npy(data, "<f4", (16, *width), struct.pack(f"<{count}f", *(((5 * i) % 17 - 8) / 8 for i in range(count))))
    session.succeed("sheaf-run", path.with_suffix(".plan"), "--data", f"x={data}", "--steps", 3, "--log", path.with_suffix(".log"))
    return [step["loss"] for step in read_log(path.with_suffix(".log"))[0]]


# The batch moves from the first dimension to the second, and the sum is over the first: over nothing but one element.
MOVES = (node("Reshape", ["x", "shape"], ["y"]), node("ReduceSum", ["y", "first"], ["h"], keepdims=0))
MOVES_WEIGHTS = (weight("shape", [3], [1, -1, 4], INT64), weight("first", [1], [0], INT64))


def moved_batch(session):
    """With one row the reshape is one to the same type, and the sum could be over the batch."""
    path = written(session, MOVES, "batch", (1, 4), MOVES_WEIGHTS)
    whole = losses(session, path, 1, (1, 4))
    expect(len(set(whole)) == 3, f"losses {whole} do not change")
    for ranks in (2, 4, 8):
        ours = losses(session, path, ranks, (1, 4))
        expect(all(abs(a - b) <= 1e-6 for a, b in zip(ours, whole)), f"{ranks} ranks: losses {ours}, on one they are {whole}")


def fixed_graph(session):
    """A graph that takes one row only cannot be imported with two: where the batch is not known, that is an error; where it is, it trains."""
    path = written(session, MOVES, 1, (1, 4), MOVES_WEIGHTS)
    expect_short_error(session.call(*compiling(session, path, 8)), ["acts on one of several dimensions", "export the model with a dynamic batch"], 1)
    squeezed = (node("Reshape", ["x", "shape"], ["h"]),)
    shape = (weight("shape", [2], [-1, 4], INT64),)
    ours, whole = (losses(session, written(session, squeezed, batch, (1, 4), shape), ranks, (1, 4)) for batch, ranks in ((1, 8), ("batch", 1)))
    expect(all(abs(a - b) <= 1e-6 for a, b in zip(ours, whole)), f"losses {ours}, on one rank they are {whole}")


def normalized_parameter(session, precision):
    """A kernel that reduces rows of a parameter and multiplies the batch by them: the reduction has the rows of all leaves."""
    nodes = (node("Shape", ["x"], ["shape"]), node("Expand", ["p", "shape"], ["expanded"]),
             node("Softmax", ["expanded"], ["shares"], axis=-1), node("Mul", ["x", "shares"], ["h"]))
    path = written(session, nodes, "batch", (2, 4), [weight("p", [1, 2, 4], [0.1 * i for i in range(8)])])
    data, plans, logs = session.folder() / "x.npy", [], []
    write_npy(data, "<f4", (16, 2, 4), struct.pack("<128f", *(((5 * i) % 17 - 8) / 8 for i in range(128))))
    for ranks in (8, 4, 2, 1):
        plans.append(path.with_suffix(f".p{ranks}.plan"))
        session.succeed("sheaf", "compile", path, "-o", plans[-1], "--batch", 8, "--ranks", ranks, "--leaves", 8, "--bucket-size", "64KiB",
                        "--precision", precision, "--optimizer", "sgd:lr=0.5")
        session.succeed("sheaf", "same", plans[0], plans[-1])
        session.succeed("sheaf-run", plans[-1], "--data", f"x={data}", "--steps", 3, "--log", path.with_suffix(".log"))
        logs.append([(step["loss"], step["grad_norm"]) for step in read_log(path.with_suffix(".log"))[0]])
    expect(len(set(logs[0])) == 3, f"losses {logs[0]} do not change")
    expect(all(log == logs[0] for log in logs), f"losses and norms on 8, 4, 2 and 1 ranks differ: {logs}")


def range_of_rows(session):
    """What numbers the rows would number those of each rank alone: an error, on one rank it trains."""
    numbers = (node("Shape", ["x"], ["rows"], start=0, end=1), node("Squeeze", ["rows"], ["count"]),
               node("Range", ["zero", "count", "one"], ["range"]), node("Cast", ["range"], ["floats"], to=FLOAT),
               node("Unsqueeze", ["floats", "last"], ["column"]), node("Add", ["x", "column"], ["h"]))
    weights = (weight("zero", [], [0], INT64), weight("one", [], [1], INT64), weight("last", [1], [-1], INT64))
    path = written(session, numbers, "batch", (4,), weights)
    losses(session, path, 1, (4,))
    for ranks in (4, 8):
        expect_short_error(session.call(*compiling(session, path, ranks)), ["differs from row to row of the batch", "input of the model"], 1)


def refused(session):
    graph = session.graph("mlp")
    for leaves, ranks, words in ((6, 4, "is not --ranks 4 times a power of two: give 4, 8, 16"),
                                 (12, 4, "is not --ranks 4 times a power of two"), (16, 4, "--batch 8 does not divide into 16 leaves")):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", ranks,
                           "--leaves", leaves, "--optimizer", "sgd:lr=0.1")
        expect_short_error(out, words.split(), 1)
