"""Rows of the batch in another dimension than the first: labels meet the logits of their rows, and a sequence is not taken for the batch."""
import array
import math

from formats import read_log, write_npy
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight


def cases(session):
    yield Case("rows-elsewhere/labels", lambda: labels(session))
    yield Case("rows-elsewhere/sequence-not-bound", lambda: sequence_not_bound(session))


def labels(session):
    """Labels [rows, time] meet logits that a model of [time, rows] has flattened, as PyTorch's word_language_model does."""
    time, rows = 6, 4  # 24 logits divide into rows of 6 either way
    x = [math.cos(i * 1.7) for i in range(rows * time * 4)]
    w = [math.sin(i) for i in range(12)]
    classes = [(i * i + i // 5) % 3 for i in range(rows * time)]
    wanted = 0
    for i, label in enumerate(classes):
        logits = [sum(x[4 * i + k] * w[3 * k + c] for k in range(4)) for c in range(3)]
        wanted += (math.log(sum(map(math.exp, logits))) - logits[label]) / (rows * time)
    where = session.folder()
    write_npy(where / "x.npy", "<f4", (rows, time, 4), array.array("f", x).tobytes())
    write_npy(where / "labels.npy", "<i8", (rows, time), array.array("q", classes).tobytes())
    merge, swap = node("Reshape", ["h", "flat"], ["y"]), node("Transpose", ["h"], ["y"], perm=[1, 0, 2])
    for name, shape, last, output, options in (
            ("flattened", [time, "N", 4], merge, ["M", 3], ()),
            ("static", [time, rows, 4], merge, [rows * time, 3], ("--rows", "x=1")),
            ("swapped", ["N", time, 4], swap, [time, "rows", 3], ())):
        path = where / f"{name}.onnx"
        path.write_bytes(model([node("MatMul", ["x", "w"], ["h"]), last], [value("x", FLOAT, shape)], [value("y", FLOAT, output)],
                               [weight("w", [4, 3], w), weight("flat", [2], [-1, 3], INT64)]))
        for ranks, zero in ((1, 0), (2, 3), (4, 1)):
            plan, log = where / f"{name}-{ranks}.plan", where / f"{name}-{ranks}.log"
            session.succeed("sheaf", "compile", path, "-o", plan, "--batch", rows, "--ranks", ranks, "--zero", zero, "--loss", "cross_entropy(y)",
                            "--optimizer", "sgd:lr=0.5", *options)
            session.succeed("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", "--data", f"labels={where / 'labels.npy'}", "--steps", 1, "--log", log)
            found = read_log(log)[0][0]["loss"]
            expect(abs(found - wanted) <= 1e-5, f"{name}, {ranks} ranks: the first loss is {found}, by hand {wanted}")


def sequence_not_bound(session):
    """[8, s1] with --batch 8 has its rows first, and so has [1, s1]: s1 is not bound. A --bind that contradicts --batch is refused."""
    where = session.folder()
    nodes = [node("Gather", ["table", "ids"], ["h"]), node("MatMul", ["h", "w"], ["y"]), node("Transpose", ["y"], ["z"], perm=[0, 2, 1]),
             node("SoftmaxCrossEntropyLoss", ["z", "labels"], ["loss"])]
    compiled = ("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 8, "--ranks", 4)
    for batch, options, words in ((8, (), ["dimension 's1' is not bound", "--bind 's1=SIZE'", "--rows 'ids=1'"]),
                                  (1, (), ["dimension 's1' is not bound"]),
                                  ("N", ("--bind", "s1=16", "--bind", "N=16"), ["--bind N=16 is not the batch of 8"])):
        inputs = [value(name, INT64, [batch, "s1"]) for name in ("ids", "labels")]
        (where / "model.onnx").write_bytes(model(nodes, inputs, [value("loss", FLOAT, [])],
                                                 [weight("table", [5, 4], [math.sin(i) for i in range(20)]),
                                                  weight("w", [4, 5], [math.cos(i) for i in range(20)])]))
        expect_short_error(session.call(*compiled, *options), words)
    session.succeed(*compiled, "--bind", "s1=16", "--bind", "N=8")
