"""How batches make an evaluation: the weights of their losses, a last one with few rows, a head that only it reads, files that it
may not replace, and its end by a signal."""
import array
import math
import os
import re
import signal
import time

from cases.evaluation import EVAL, OPTIMIZER, evaluate, read_npy
from cases.processes import Job
from formats import write_npy
from harness import Case, digest, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model as written, node, value, weight


def cases(session):
    for ranks in (1, 2):
        yield Case(f"evaluation-batches/forms/ranks-{ranks}", lambda r=ranks: forms(session, r))
        yield Case(f"evaluation-batches/rows/ranks-{ranks}", lambda r=ranks: rows_of_outputs(session, r))
        yield Case(f"evaluation-batches/one-row/ranks-{ranks}", lambda r=ranks: one_row(session, r))
    yield Case("evaluation-batches/full-batches", lambda: full_batches(session))
    yield Case("evaluation-batches/own-head", lambda: own_head(session))
    yield Case("evaluation-batches/overwriting", lambda: overwriting(session))
    yield Case("evaluation-batches/locked", lambda: locked(session))
    yield Case("evaluation-batches/interrupted", lambda: interrupted(session))


LABELS = [0, -100, 2, 1, -100, -100, -100, -100, 1, -100, 0]  # of a batch of four none counts
WEIGHTS = [((7 * i) % 12 - 5) / 6 for i in range(12)]
INPUTS = [[math.sin(4 * r + c) for c in range(4)] for r in range(len(LABELS))]


def logits_of(row):
    return [sum(row[k] * WEIGHTS[3 * k + c] for k in range(4)) for c in range(3)]


def small(session, nodes, outputs=("loss",), weights=(), labels=True, more=(), batch="N"):
    """(graph, options with its data) of `y` = x w and the nodes; x and labels are INPUTS and LABELS."""
    folder = session.folder()
    inputs = [value("x", FLOAT, [batch, 4])] + [value("labels", INT64, [batch])] * labels
    (folder / "m.onnx").write_bytes(written([node("MatMul", ["x", "w"], ["y"], "product"), *nodes], inputs,
                                            [value(name, FLOAT, []) for name in outputs] + list(more),
                                            [weight("w", [4, 3], WEIGHTS), *weights]))
    write_npy(folder / "x.npy", "<f4", (len(INPUTS), 4), array.array("f", [v for row in INPUTS for v in row]).tobytes())
    write_npy(folder / "labels.npy", "<i8", (len(LABELS),), array.array("q", LABELS).tobytes())
    return folder / "m.onnx", [f"x={folder / 'x.npy'}", *([f"labels={folder / 'labels.npy'}"] * labels)]


def given(option, files):
    return [a for file in files for a in (option, file)]


def forms(session, ranks):
    """However a mean over labels is written and scaled, the mean over batches is that over all rows. Any other loss needs
    full batches, and says so."""
    rows = []
    for row, label in zip(INPUTS, LABELS):
        logits = logits_of(row)
        rows.append(math.log(sum(map(math.exp, logits))) - logits[label] if label >= 0 else 0)
    count, total = sum(label >= 0 for label in LABELS), math.fsum(rows)
    mean, squares = total / count, math.fsum(w * w for w in WEIGHTS)
    numbers = {"four": 4.0, "one": 1.0, "zero": 0.0, "tiny": 1e-8, "minus": -1.0}
    constants = [weight(name, [], [number]) for name, number in numbers.items()]
    constants += [weight("row", [1, 1], [4.0]), weight("ignored", [], [-100], INT64)]
    loss = node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["ce"], "loss", ignore_index=-100)
    parts = [node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["each"], "each", ignore_index=-100, reduction="none"),
             node("Equal", ["labels", "ignored"], ["out"]), node("Not", ["out"], ["in"]), node("Cast", ["in"], ["counts"], to=1),
             node("ReduceSum", ["each"], ["sum"], keepdims=0), node("ReduceSum", ["counts"], ["n"], keepdims=0)]
    last = lambda op, *inputs: node(op, inputs, ["loss"], "last")
    cases = {
        "quarter": ([loss, last("Div", "ce", "four")], mean / 4),
        "vector": ([loss, node("Mul", ["ce", "row"], ["v"]), last("Squeeze", "v")], 4 * mean),
        "difference": ([loss, last("Sub", "zero", "ce")], -mean),
        "penalty": ([loss, node("Mul", ["w", "w"], ["w2"]), node("ReduceSum", ["w2"], ["p"], keepdims=0), last("Add", "ce", "p")],
                    mean + squares),
        "reciprocal": ([*parts, node("Reciprocal", ["n"], ["r"]), last("Mul", "sum", "r")], mean),
        "rows-divided": ([*parts, node("Div", ["each", "n"], ["q"]), node("ReduceSum", ["q"], ["loss"], keepdims=0)], mean),
        "clamped": ([*parts, node("Max", ["n", "one"], ["m"]), last("Div", "sum", "m")], mean),
        "tiny": ([*parts, node("Add", ["n", "tiny"], ["m"]), last("Div", "sum", "m")], mean),
        "negative": ([*parts, node("Mul", ["n", "minus"], ["m"]), last("Div", "sum", "m")], -mean),
        # A batch of four, on average.
        "sum": ([*parts, last("Identity", "sum")], 4 * total / len(LABELS)),
    }
    for name, (nodes, wanted) in cases.items():
        graph, files = small(session, nodes, weights=constants)
        plan = graph.with_suffix(".plan")
        session.succeed("sheaf", "compile", graph, "-o", plan, "--loss", "loss", "--batch", 4, "--ranks", ranks,
                        *OPTIMIZER, *EVAL)
        found = evaluate(session, plan, *given("--eval-data", files))["loss"]
        expect(abs(found - wanted) <= 1e-5 * max(1, abs(wanted)), f"{name}: {found}, of all rows it is {wanted}")
    graph, files = small(session, [loss, last("Sqrt", "ce")])
    session.succeed("sheaf", "compile", graph, "-o", graph.with_suffix(".plan"), "--loss", "loss", "--batch", 4, "--ranks", ranks,
                    *OPTIMIZER, *EVAL)
    refused = session.call("sheaf-run", graph.with_suffix(".plan"), "--eval", *given("--eval-data", files))
    expect_short_error(refused, ["11 rows", "not a mean over rows", "full", "multiple of 4"])


def rows_of_outputs(session, ranks):
    """Outputs whose rows are in the second dimension, or in blocks of the first, and one without rows, of a last batch that is not
    full."""
    nodes = [node("Transpose", ["y"], ["second"], perm=[1, 0]), node("Unsqueeze", ["second", "axis"], ["high"]),
             node("Concat", ["high", "high"], ["pair"], axis=0), node("Reshape", ["pair", "flat"], ["blocks"]),
             node("Mul", ["w", "w"], ["square"])]
    weights = [weight("axis", [1], [0], INT64), weight("flat", [1], [-1], INT64)]
    more = [value("second", FLOAT, [3, "N"]), value("blocks", FLOAT, ["M"]), value("square", FLOAT, [4, 3])]
    graph, files = small(session, nodes, (), weights, labels=False, more=more)
    plan, folder = graph.with_suffix(".plan"), session.folder() / "o"
    session.succeed("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 4, "--ranks", ranks)
    evaluate(session, plan, *given("--eval-data", files), "--outputs", folder)
    columns = [[logits_of(row)[c] for row in INPUTS] for c in range(3)]
    for name, shape, wanted in (("second", (3, 11), columns), ("blocks", (66,), columns + columns),
                                ("square", (3, 4, 3), [[w * w for w in WEIGHTS]] * 3)):
        found_shape, found = read_npy(folder / f"{name}.npy")
        flat = [v for row in wanted for v in row]
        expect(tuple(found_shape) == shape, f"{name}: shape {found_shape}")
        expect(all(abs(a - b) <= 1e-5 for a, b in zip(found, flat)), f"{name}: {list(found)} instead of {flat}")


def one_row(session, ranks):
    """A graph that is fixed to one row evaluates any number of them: the loss is their mean, and outputs have a row for each."""
    square = node("Mul", ["y", "y"], ["y2"])
    mean = [square, node("ReduceMean", ["y2"], ["loss"], keepdims=0)]
    graph, files = small(session, mean, labels=False, more=[value("y", FLOAT, [1, 3])], batch=1)
    plan, folder = graph.with_suffix(".plan"), session.folder() / "o"
    session.succeed("sheaf", "compile", graph, "-o", plan, "--loss", "loss", "--batch", 4, "--ranks", ranks, *OPTIMIZER, *EVAL)
    found = evaluate(session, plan, *given("--eval-data", files), "--outputs", folder)["loss"]
    rows = [logits_of(row) for row in INPUTS]
    wanted = math.fsum(v * v for row in rows for v in row) / (3 * len(rows))
    expect(abs(found - wanted) <= 1e-5 * wanted, f"loss {found}, of all rows it is {wanted}")
    shape, values = read_npy(folder / "y.npy")
    expect(tuple(shape) == (11, 3) and all(abs(a - b) <= 1e-5 for a, b in zip(values, sum(rows, []))), f"{shape}: {list(values)}")
    graph, files = small(session, [square, node("ReduceSum", ["y2"], ["sum"], keepdims=0)], (), labels=False, more=[value("sum", FLOAT, [])], batch=1)
    refused = session.call("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 4, "--ranks", ranks)
    expect_short_error(refused, ["has no dimension for the rows", "dynamic batch"])


def full_batches(session):
    """Rows that depend on each other are evaluated in full batches alone. Accuracy is that of the loss."""
    graph, files = small(session, [node("Softmax", ["y"], ["p"], axis=0)], (), labels=False, more=[value("p", FLOAT, ["N", 3])])
    plan = graph.with_suffix(".plan")
    session.succeed("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 4)
    refused = session.call("sheaf-run", plan, "--eval", *given("--eval-data", files), "--outputs", session.folder() / "o")
    expect_short_error(refused, ["11 rows leave 3", "depend on each other", "multiple of 4"])
    session.succeed("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 11)
    folder = session.folder() / "o"
    session.succeed("sheaf-run", plan, "--eval", *given("--eval-data", files), "--outputs", folder)
    _, found = read_npy(folder / "p.npy")
    expect(abs(sum(found) - 3) <= 1e-5, f"columns of {list(found)} do not sum to 1")

    nodes = [node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["ce"], "ce", ignore_index=-100), node("Mul", ["y", "y"], ["y2"]),
             node("ReduceMean", ["y2"], ["loss"], keepdims=0)]
    graph, files = small(session, nodes, ("loss", "ce"))
    session.succeed("sheaf", "compile", graph, "-o", graph.with_suffix(".plan"), "--loss", "loss", "--batch", 4, *OPTIMIZER, *EVAL)
    event = evaluate(session, graph.with_suffix(".plan"), *given("--eval-data", files))
    expect(event["accuracy"] is None, f"accuracy {event['accuracy']} of a cross entropy that is not the loss")


def own_head(session):
    """What only the evaluation reads: plans with and without an evaluation take each other's states, and `sheaf export` the
    state of its own plan."""
    nodes = [node("MatMul", ["x", "head"], ["aux"]), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], ignore_index=-100)]
    graph, files = small(session, nodes, weights=[weight("head", [4, 2], WEIGHTS[:8])], more=[value("aux", FLOAT, ["N", 2])])
    folder, data, tests = graph.parent, given("--data", files), given("--eval-data", files)
    write_npy(folder / "labels.npy", "<i8", (len(LABELS),), array.array("q", [r % 3 for r in range(len(LABELS))]).tobytes())
    for name, more in (("with", EVAL), ("without", ())):
        session.succeed("sheaf", "compile", graph, "-o", folder / name, "--loss", "loss", "--batch", 4, "--ranks", 2, "--zero", 2,
                        "--optimizer", "adam:lr=0.1", *more)
        session.succeed("sheaf-run", folder / name, *data, "--steps", 2, "--save-state", folder / f"{name}.state")
        session.succeed("sheaf-run", folder / name, *data, "--steps", 4, "--save", folder / f"{name}.whole")
    for first, then in (("with", "without"), ("without", "with")):
        session.succeed("sheaf-run", folder / then, *data, "--steps", 4, "--resume", folder / f"{first}.state", "--save",
                        folder / "half")
        expect(digest(folder / "half") == digest(folder / f"{then}.whole"), f"{then} an evaluation goes on differently {first} a state")
    shown = folder / "o"
    evaluate(session, folder / "with", *tests, "--resume", folder / "without.state", "--outputs", shown)
    _, aux = read_npy(shown / "aux.npy")
    wanted = [sum(row[k] * WEIGHTS[2 * k + c] for k in range(4)) for row in INPUTS for c in range(2)]
    expect(all(abs(a - b) <= 1e-5 for a, b in zip(aux, wanted)), "the head is not at its initial value")
    refused = session.call("sheaf", "export", folder / "with", "--model", graph, "--state", folder / "without.state", "-o",
                           folder / "t.onnx")
    expect_short_error(refused, ["no parameter", "head"])


def overwriting(session):
    """--outputs replaces nothing that the run reads, and what is in its way is found before anything runs."""
    graph, files = small(session, [node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], ignore_index=-100)],
                         more=[value("y", FLOAT, ["N", 3])])
    folder, plan = graph.parent, graph.with_suffix(".plan")
    session.succeed("sheaf", "compile", graph, "-o", plan, "--loss", "loss", "--batch", 4, *OPTIMIZER, *EVAL)
    (folder / "labels.npy").rename(folder / "y.npy")
    files[1] = f"labels={folder / 'y.npy'}"
    tests, before = given("--eval-data", files), (folder / "y.npy").read_bytes()
    expect_short_error(session.call("sheaf-run", plan, "--eval", *tests, "--outputs", folder), ["--outputs", "y.npy", "--eval-data", "which is read"])
    expect((folder / "y.npy").read_bytes() == before, "the labels are gone")
    step = session.folder() / "step-00000002"
    step.mkdir()
    (step / "y.npy").write_bytes(before)
    train = given("--data", [files[0], f"labels={step / 'y.npy'}"])
    refused = session.call("sheaf-run", plan, *train, *tests, "--steps", 2, "--eval-every", 2, "--outputs", step.parent)
    expect_short_error(refused, ["which is read", "step-00000002"])
    expect_short_error(session.call("sheaf-run", plan, "--eval", *tests, "--outputs", graph), ["m.onnx is not a folder"])
    blocked = session.folder()
    (blocked / "y.npy").mkdir()
    expect_short_error(session.call("sheaf-run", plan, "--eval", *tests, "--outputs", blocked), ["y.npy is a folder"])
    expect(sorted(p.name for p in blocked.iterdir()) == ["y.npy"], f"{list(blocked.iterdir())}")


def locked(session):
    """Files of --outputs get their names under a lock; where it cannot be had, they get names of their own, and the error has these."""
    graph, files = small(session, [node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], ignore_index=-100)],
                         more=[value("y", FLOAT, ["N", 3])])
    plan, tests, folder = graph.with_suffix(".plan"), given("--eval-data", files), session.folder()
    session.succeed("sheaf", "compile", graph, "-o", plan, "--loss", "loss", "--batch", 4, *OPTIMIZER, *EVAL)
    session.succeed("sheaf-run", plan, "--eval", *tests, "--outputs", folder)
    before = (folder / "y.npy").read_bytes()
    (folder / ".outputs.lock").symlink_to(graph)
    done = session.call("sheaf-run", plan, "--eval", *tests, "--outputs", folder)
    expect_short_error(done, ["--outputs", "cannot create the lock file", "these tensors are in"])
    (named,) = [p for p in folder.iterdir() if re.fullmatch(r"y\.\w+\.npy", p.name)]
    expect(str(named) in done.err and named.read_bytes() == before, f"{named} is not the tensor of {done.err}")
    expect((folder / "y.npy").read_bytes() == before, "y.npy was replaced without the lock")


def interrupted(session):
    """A signal ends an evaluation after the batches under way: there is no result, and no file is left."""
    graph, _ = small(session, [], (), labels=False, more=[value("y", FLOAT, ["N", 3])])
    plan, folder, rows = graph.with_suffix(".plan"), session.folder(), 1 << 21
    session.succeed("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 2, "--ranks", 2)
    write_npy(folder / "x.npy", "<f4", (rows, 4), bytes(16 * rows))
    sent = []

    def interrupt(process):
        if not sent and list(folder.glob("o/.*")):
            sent.append(os.kill(process.pid, signal.SIGINT))

    done = session.call("sheaf-run", plan, "--eval", "--eval-data", f"x={folder / 'x.npy'}", "--outputs", folder / "o", watch=interrupt)
    expect_short_error(done, ["interrupted", "evaluation is not finished"])
    expect(not list((folder / "o").iterdir()), f"left: {list((folder / 'o').iterdir())}")
    # One process of a job is enough, and both end.
    with Job(session, 2, plan, "--eval", "--eval-data", f"x={folder / 'x.npy'}", "--outputs", folder / "shared") as job:
        while not list(folder.glob("shared/.*")) and all(p.popen.poll() is None for p in job.processes):
            time.sleep(0.01)
        job.processes[1].popen.send_signal(signal.SIGINT)
        codes = job.wait()
        expect(codes == [1, 1] and "evaluation is not finished" in job.processes[0].error_text(),
               f"{codes}: {[p.error_text() for p in job.processes]}")
    expect(not list((folder / "shared").iterdir()), f"left: {list((folder / 'shared').iterdir())}")
