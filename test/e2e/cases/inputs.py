"""Data for inputs: what the loss does not need is taken with a note, and ids are checked with their file and row, as labels are."""
import array
import math

from formats import read_log, write_npy
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight

ROWS, CLASSES = 8, 4


def cases(session):
    yield Case("inputs/unneeded", lambda: unneeded(session))
    yield Case("inputs/unneeded-by-the-evaluation", lambda: unneeded_by_evaluation(session))
    for name in SHIFTS:
        yield Case("inputs/" + name, lambda n=name: shifted(session, n))
    for name in IDS:
        yield Case(f"inputs/ids/{name}", lambda n=name: ids(session, n))


def written(where, name, kind, values, shape):
    write_npy(where / f"{name}.npy", {"f": "<f4", "q": "<i8"}[kind], shape, array.array(kind, values).tobytes())
    return "--data", f"{name}={where / name}.npy"


def lookup(where, nodes=(), source="ids"):
    """The mean cross entropy of rows of a table, whose ids may pass through nodes; another input that only another output needs."""
    graph = [*nodes, node("Gather", ["table", source], ["h"], "lookup"), node("MatMul", ["h", "w"], ["y"]),
             node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"]), node("Relu", ["extra"], ["other"])]
    (where / "model.onnx").write_bytes(model(
        graph, [value("ids", INT64, ["N"]), value("labels", INT64, ["N"]), value("extra", FLOAT, ["N", 2])],
        [value("loss", FLOAT, []), value("other", FLOAT, ["N", 2])],
        [weight("table", [CLASSES, 6], [math.sin(i) for i in range(6 * CLASSES)]), weight("w", [6, 3], [math.cos(i) for i in range(18)]),
         weight("zero", [], [0], INT64), weight("one", [], [1], INT64)]))


def unneeded(session):
    """A note says that the data are not read, whatever is in them; a name that the model does not have is still an error."""
    where = session.folder()
    lookup(where)
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4, "--loss", "loss")
    needed = (*written(where, "ids", "q", [i % CLASSES for i in range(ROWS)], (ROWS,)), *written(where, "labels", "q", [i % 3 for i in range(ROWS)], (ROWS,)))
    run = ("sheaf-run", where / "model.plan", "--steps", 3)
    session.succeed(*run, *needed, "--log", where / "plain")
    losses = [s["loss"] for s in read_log(where / "plain")[0]]
    for extra in (written(where, "extra", "f", [1] * 2 * ROWS, (ROWS, 2)), written(where, "extra", "q", [1], (1,))):
        done = session.succeed(*run, *needed, *extra, "--log", where / "log")
        expect("the loss does not need the input 'extra'; its data are not read" in done.err, done.err)
        expect([s["loss"] for s in read_log(where / "log")[0]] == losses, "other losses")
    expect("does not need" not in session.succeed(*run, *needed).err, "a note about nothing")
    expect_short_error(session.call(*run, *needed, "--data", f"extar={where / 'extra.npy'}"), ["has no input 'extar'"])
    expect_short_error(session.call(*run, *needed, "--data", "extra=none.npy"), ["none.npy"])


def unneeded_by_evaluation(session):
    """Labels are given to an evaluation of outputs alone."""
    where = session.folder()
    lookup(where)
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4, "--eval-only")
    data = [*written(where, "ids", "q", [1] * ROWS, (ROWS,)), *written(where, "labels", "q", [0] * ROWS, (ROWS,)),
            *written(where, "extra", "f", [0] * 2 * ROWS, (ROWS, 2))]
    data = ["--eval-data" if a == "--data" else a for a in data]
    whole = session.succeed("sheaf-run", where / "model.plan", "--eval", *data)
    expect("does not need" not in whole.err, whole.err)
    (where / "logits.onnx").write_bytes(model([node("MatMul", ["x", "w"], ["y"]), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"])],
                                              [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])],
                                              [value("y", FLOAT, ["N", 3])], [weight("w", [4, 3], [0.5] * 12)]))
    session.succeed("sheaf", "compile", where / "logits.onnx", "-o", where / "logits.plan", "--batch", 4, "--eval-only")
    x, labels = (a[1] for a in (written(where, "x", "f", [0.5] * 4 * ROWS, (ROWS, 4)), written(where, "labels", "q", [0] * ROWS, (ROWS,))))
    done = session.succeed("sheaf-run", where / "logits.plan", "--eval", "--eval-data", x, "--eval-data", labels)
    expect("--eval-data: the evaluation does not need the input 'labels'" in done.err, done.err)


WIDTH = 4
# Nodes of labels before their loss, nodes of logits, and true if the graph takes a token's label from the next token.
SHIFTS = {
    "shifted": ([node("Slice", ["labels", "one1", "last", "one1"], ["l"])], [node("Slice", ["y", "zero1", "minus1", "one1"], ["z"])], True),
    "shifted-and-padded": ([node("Pad", ["labels", "pads", "ignored"], ["p"]), node("Slice", ["p", "one1", "last", "one1"], ["l"])],
                           [node("Identity", ["y"], ["z"])], True),
    "not-shifted": ([node("Identity", ["labels"], ["l"])], [node("Identity", ["y"], ["z"])], False),
    "shifted-the-other-way": ([node("Slice", ["labels", "zero1", "minus1", "one1"], ["l"])], [node("Slice", ["y", "one1", "last", "one1"], ["z"])], False),
}


def shifted(session, name):
    """Tokens and labels of one file are shifted by the graph or by the data, not by both; the other form is refused and named."""
    of_labels, of_logits, shifts = SHIFTS[name]
    where = session.folder()
    integers = {"one1": [1], "zero1": [0], "minus1": [-1], "last": [1 << 40], "pads": [0, 0, 0, 1]}
    (where / "model.onnx").write_bytes(model(
        [node("Gather", ["table", "ids"], ["h"]), node("MatMul", ["h", "w"], ["y"]), *of_labels, *of_logits,
         node("Transpose", ["z"], ["t"], perm=[0, 2, 1]), node("SoftmaxCrossEntropyLoss", ["t", "l"], ["loss"], ignore_index=-100)],
        [value("ids", INT64, ["N", WIDTH]), value("labels", INT64, ["N", WIDTH])], [value("loss", FLOAT, [])],
        [weight("table", [CLASSES, 6], [math.sin(i) for i in range(6 * CLASSES)]),
         weight("w", [6, CLASSES], [math.cos(i) for i in range(6 * CLASSES)]), weight("ignored", [], [-100], INT64),
         *(weight(n, [len(v)], v, INT64) for n, v in integers.items())]))
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 2)
    tokens = [i * i % CLASSES for i in range(WIDTH * ROWS + 1)]
    (where / "tokens.u8").write_bytes(bytes(tokens))
    run = ("sheaf-run", "model.plan", "--steps", 2, "--log", "log")
    twice, once = ("--data", "ids=tokens.u8", "--data", "labels=tokens.u8"), ("--data", "ids,labels=tokens.u8")
    good, bad = (twice, once) if shifts else (once, twice)
    expect_short_error(session.call(*run, *bad, cwd=where), ["--data ids=tokens.u8 --data labels=tokens.u8" if shifts else "--data ids,labels=tokens.u8"])
    session.succeed(*run, *good, cwd=where)
    losses = [s["loss"] for s in read_log(where / "log")[0]]
    first = 0 if shifts else 1
    arrays = (*written(where, "ids", "q", tokens[:-1], (ROWS, WIDTH)), *written(where, "labels", "q", tokens[first:first + WIDTH * ROWS], (ROWS, WIDTH)))
    session.succeed(*run, *arrays, cwd=where)
    expect([s["loss"] for s in read_log(where / "log")[0]] == losses, "other rows than those of arrays")


# Nodes between ids and look-up, and true if every id must select a row of the table.
IDS = {
    "plain": ((), "ids", True),
    "cast": ((node("Cast", ["ids"], ["i"], to=6),), "i", False),  # to a narrower type: not followed
    "reshaped": ((node("Identity", ["ids"], ["i"]),), "i", True),
    "masked": ((node("Less", ["ids", "zero"], ["m"]), node("Where", ["m", "zero", "ids"], ["i"])), "i", False),
    "moved": ((node("Add", ["ids", "one"], ["i"]),), "i", False),
}


def ids(session, name):
    """An id of -1, or one beyond the table, names file and row. Ids that the graph changes first are its own business."""
    nodes, source, checked = IDS[name]
    where = session.folder()
    lookup(where, nodes, source)
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4, "--loss", "loss")
    labels = written(where, "labels", "q", [i % 3 for i in range(ROWS)], (ROWS,))
    run = ("sheaf-run", where / "model.plan", "--steps", 2, *labels)
    good = [i % (CLASSES - 1) for i in range(ROWS)]
    session.succeed(*run, *written(where, "ids", "q", good, (ROWS,)))
    for bad in (-1, CLASSES) if checked else (-1,):
        done = session.call(*run, *written(where, "ids", "q", [*good[:5], bad, *good[6:]], (ROWS,)))
        if checked:
            expect_short_error(done, ["input 'ids'", "ids.npy", "row 5", f"id {bad} is not in [0, {CLASSES})"])
        else:
            expect("is not in [0" not in done.err, done.err)
