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
    yield Case("leaves/rows-second", lambda: rows_second(session))
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
    """A graph that takes one row only trains with any batch: each row is a leaf. Moments of the batch it does not have."""
    squeezed = (node("Reshape", ["x", "shape"], ["h"]),)
    shape = (weight("shape", [2], [-1, 4], INT64),)
    for nodes, weights in ((MOVES, MOVES_WEIGHTS), (squeezed, shape)):
        whole = losses(session, written(session, nodes, "batch", (1, 4), weights), 1, (1, 4))
        ours = [losses(session, written(session, nodes, 1, (1, 4), weights), ranks, (1, 4)) for ranks in (8, 2, 1)]
        expect(all(one == ours[0] for one in ours), f"losses of equal leaves differ: {ours}")
        expect(all(abs(a - b) <= 1e-6 for a, b in zip(ours[0], whole)), f"losses {ours[0]}, as one batch they are {whole}")
    path = written(session, MOVES, 1, (1, 4), MOVES_WEIGHTS)
    for options, words in ((("--batch", 12, "--ranks", 8), "is not 8 times a power of two: give --batch 8"),
                           (("--batch", 8, "--leaves", 4), "is not --leaves 4")):
        expect_short_error(session.call("sheaf", "compile", path, "-o", path.with_suffix(".plan"), *options), [words, "fixed to one row"], 1)
    normalized = (node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["h", "m", "v"], "norm", training_mode=1),)
    statistics = [weight(name, [1], [1]) for name in ("scale", "bias", "mean", "variance")]
    path = written(session, normalized, 1, (1, 4), statistics)
    expect_short_error(session.call(*compiling(session, path, 8)), ["norm", "moments of the batch", "--batch-norm eval"], 1)


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


def rows_second(session):
    """Inputs that have the rows in their second dimension, which a shared symbol or --rows says: the losses of the same model with the
    rows first, of the same data."""
    def losses_of(name, inputs, turned, options, ranks):
        # The mean over steps of x + state, of which the latter is repeated for each step.
        nodes = [node("Transpose", ["x"], ["first"], perm=[1, 0, 2])] if turned else [node("Identity", ["x"], ["first"])]
        nodes += [node("Transpose", ["state"], ["state1"], perm=[1, 0, 2])] if turned else [node("Identity", ["state"], ["state1"])]
        nodes += [node("Add", ["first", "state1"], ["sum"]), node("MatMul", ["sum", "w"], ["z"]), node("Tanh", ["z"], ["t"]),
                  node("ReduceMean", ["t"], ["loss"], keepdims=0)]
        path = session.folder() / f"{name}.onnx"
        path.write_bytes(model(nodes, [value(*i) for i in inputs], [value("loss", FLOAT, [])], [WEIGHT]))
        data = []
        for which, steps in (("x", 3), ("state", 1)):
            write_npy(path.with_name(f"{which}.npy"), "<f4", (16, steps, 4), struct.pack(f"<{64 * steps}f", *(((5 * i) % 17 - 8) / 8 for i in range(64 * steps))))
            data += ["--data", f"{which}={path.with_name(f'{which}.npy')}"]
        plan, log = path.with_suffix(".plan"), path.with_suffix(".log")
        session.succeed("sheaf", "compile", path, "-o", plan, "--batch", 8, "--ranks", ranks, "--optimizer", "sgd:lr=0.5", *options)
        session.succeed("sheaf-run", plan, *data, "--steps", 3, "--log", log)
        return [step["loss"] for step in read_log(log)[0]]

    first = (("x", FLOAT, ["N", 3, 4]), ("state", FLOAT, ["N", 1, 4]))
    shared = (("x", FLOAT, [3, "N", 4]), ("state", FLOAT, [1, "N", 4]))
    named = (("x", FLOAT, ["T", "N", 4]), ("state", FLOAT, [1, "M", 4]))
    for ranks in (1, 2, 4):
        wanted = losses_of("first", first, False, (), ranks)
        for name, inputs, options in (("shared", shared, ()), ("named", named, ("--rows", "x=1", "--rows", "state=1", "--bind", "T=3"))):
            found = losses_of(name, inputs, True, options, ranks)
            expect(found == wanted and len(set(found)) == 3, f"{name}, {ranks} ranks: {found}, with the rows first {wanted}")
    labels_second(session)
    path = session.folder() / "bad.onnx"
    path.write_bytes(model([node("ReduceMean", ["x"], ["loss"], keepdims=0)], [value("x", FLOAT, ["T", "N"])], [value("loss", FLOAT, [])], []))
    for given, words, code in (("y=1", "the model has no such input", 1), ("x=2", "the input has 2 dimensions", 1), ("x=-1", "expected INPUT=D", 2),
                               ("x", "expected INPUT=D", 2)):
        expect_short_error(session.call("sheaf", "compile", path, "-o", path.with_suffix(".plan"), "--batch", 8, "--rows", given), [words], code)


def labels_second(session):
    """--loss of an output [time, rows, classes]: its labels, too, come with the rows first."""
    x, labels = session.folder() / "x.npy", session.folder() / "labels.npy"
    write_npy(x, "<f4", (8, 3, 4), struct.pack("<96f", *(((5 * i) % 17 - 8) / 8 for i in range(96))))
    write_npy(labels, "<i8", (8, 3), struct.pack("<24q", *((7 * i) % 4 for i in range(24))))
    found = []
    for shape, perm, out, loss in (([8, 3, 4], [0, 1, 2], [8, 3, 4], "cross_entropy(z)"), ([3, "N", 4], [0, 1, 2], [3, "N", 4], "cross_entropy(z)"),
                                   ([3, "N", 4], [2, 0, 1], [4, 3, "N"], "cross_entropy(z, axis=0)")):
        nodes = [node("MatMul", ["x", "w"], ["y"]), node("Transpose", ["y"], ["z"], perm=perm)]
        path = session.folder() / "model.onnx"
        path.write_bytes(model(nodes, [value("x", FLOAT, shape)], [value("z", FLOAT, out)], [WEIGHT]))
        for ranks in (1, 4):
            plan, log = path.with_suffix(".plan"), path.with_suffix(".log")
            session.succeed("sheaf", "compile", path, "-o", plan, "--batch", 8, "--ranks", ranks, "--leaves", 4, "--loss", loss, "--optimizer", "sgd:lr=0.5")
            session.succeed("sheaf-run", plan, "--data", f"x={x}", "--data", f"labels={labels}", "--steps", 3, "--log", log)
            found.append([step["loss"] for step in read_log(log)[0]])
    expect(len(set(map(tuple, found))) == 1 and len(set(found[0])) == 3, f"losses of rows first, second and last, on 1 and 4 ranks: {found}")


def range_of_rows(session):
    """A range over the batch numbers the rows of all ranks: rank 1 of 4 adds 2 and 3 to its rows, not 0 and 1."""
    numbers = (node("Shape", ["x"], ["rows"], start=0, end=1), node("Squeeze", ["rows"], ["count"]),
               node("Range", ["zero", "count", "one"], ["range"]), node("Cast", ["range"], ["floats"], to=FLOAT),
               node("Unsqueeze", ["floats", "last"], ["column"]), node("Add", ["x", "column"], ["h"]))
    weights = (weight("zero", [], [0], INT64), weight("one", [], [1], INT64), weight("last", [1], [-1], INT64))
    path = written(session, numbers, "batch", (4,), weights)
    whole = losses(session, path, 1, (4,))
    expect(len(set(whole)) == 3, f"losses {whole} do not change")
    for ranks in (2, 4, 8):
        ours = losses(session, path, ranks, (4,))
        expect(all(abs(a - b) <= 1e-6 for a, b in zip(ours, whole)), f"{ranks} ranks: losses {ours}, on one they are {whole}")


def refused(session):
    graph = session.graph("mlp")
    for leaves, ranks, words in ((6, 4, "is not --ranks 4 times a power of two: give 4, 8, 16"),
                                 (12, 4, "is not --ranks 4 times a power of two"), (16, 4, "--batch 8 does not divide into 16 leaves")):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", ranks,
                           "--leaves", leaves, "--optimizer", "sgd:lr=0.1")
        expect_short_error(out, words.split(), 1)
