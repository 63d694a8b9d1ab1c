"""The evaluation in a plan: loss, accuracy and outputs of all rows against ONNX Runtime's, whatever the ranks and stages; and
that a run which evaluates trains as one that does not."""
import array
import json
import math
import struct

from cases import norms
from cases.processes import Job
from formats import read_log, write_npy
from harness import MODELS, Case, digest, expect, expect_short_error, plan_bytes
from onnxwriter import FLOAT, INT64, model as written, node, value, weight
from training import ADAMW_LM, IMAGES, TEXT, VECTORS

EVAL = ("--eval",)
ROWS = 45  # of test/models/evaluation.py
DATA = {"mlp": VECTORS, "cnn": IMAGES, "gpt2-tiny": TEXT}
OPTIMIZER = ("--optimizer", "sgd:lr=0.05")


def cases(session):
    for model in DATA:
        for ranks, zero in ((1, 0), (4, 0), (4, 1), (4, 2), (4, 3)):
            yield Case(f"evaluation/{model}/ranks-{ranks}/zero-{zero}", lambda m=model, r=ranks, z=zero: run(session, m, r, z))
    yield Case("evaluation/outputs", lambda: outputs(session))
    yield Case("evaluation/outputs-alone", lambda: outputs_alone(session))
    yield Case("evaluation/ignored-labels", lambda: ignored_labels(session))
    yield Case("evaluation/labels-out-of-range", lambda: labels_out_of_range(session))
    yield Case("evaluation/ties-and-no-labels", lambda: ties(session))
    yield Case("evaluation/outputs-of-every-evaluation", lambda: outputs_of_every(session))
    yield Case("evaluation/whole-inputs", lambda: whole_inputs(session))
    yield Case("evaluation/depending-rows", lambda: depending_rows(session))
    for ranks, zero, mode in ((1, 0, "auto"), (4, 1, "sync"), (4, 3, "sync"), (2, 2, "local")):
        yield Case(f"evaluation/batch-norm/{mode}/zero-{zero}", lambda r=ranks, z=zero, m=mode: batch_norm(session, r, z, m))
    for ranks, zero in ((1, 0), (2, 3)):
        yield Case(f"evaluation/dropout/ranks-{ranks}", lambda r=ranks, z=zero: dropout(session, r, z))
    for ranks, zero in ((1, 0), (4, 1), (4, 3)):
        yield Case(f"evaluation/every/ranks-{ranks}/zero-{zero}", lambda r=ranks, z=zero: every(session, r, z))
    yield Case("evaluation/resumed", lambda: resumed(session))
    for hosts in ("aa", "ab"):  # over shared memory and over sockets
        yield Case(f"evaluation/processes-{hosts}", lambda h=hosts: processes(session, h))
    yield Case("evaluation/text", lambda: text(session))
    yield Case("evaluation/refused", lambda: refused(session))


def reference():
    return json.loads((MODELS / "evaluation.json").read_text())


def read_npy(path):
    """(shape, flat values) of an array of f32 or i64."""
    data = path.read_bytes()
    expect(data[:8] == b"\x93NUMPY\x01\x00", f"{path} is not a .npy file")
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10:10 + length].decode())  # a literal of our own program
    expect(not header["fortran_order"] and (10 + length) % 64 == 0, f"{path}: {header}")
    values = array.array({"<f4": "f", "<i8": "q", "|b1": "B"}[header["descr"]])
    values.frombytes(data[10 + length:])
    expect(len(values) == math.prod(header["shape"]), f"{path}: {len(values)} values for {header['shape']}")
    return header["shape"], values


def first_rows(session, name, rows=ROWS, change=None):
    """A .npy file of the first rows of a stored one; change(values) edits them."""
    def make():
        data = (MODELS / f"{name}.npy").read_bytes()
        length = struct.unpack("<H", data[8:10])[0]
        header = eval(data[10:10 + length].decode())
        shape = (rows, *header["shape"][1:])
        values = array.array({"<f4": "f", "<i8": "q", "<i4": "i", "|u1": "B", "<u2": "H"}[header["descr"]])
        values.frombytes(data[10 + length:])
        values = values[:math.prod(shape)]
        if change:
            values = change(values)
        path = session.folder() / f"{name}.npy"
        write_npy(path, header["descr"], shape, values.tobytes())
        return path

    return make() if change else session.once(("first rows", name, rows), make)


def data_of(session, model, rows=ROWS):
    return [a for name, file in DATA[model].items() for a in ("--eval-data", f"{name}={first_rows(session, file, rows)}")]


def evaluate(session, plan, *options):
    """The event that `sheaf-run --eval` logs."""
    log = session.folder() / "run.jsonl"
    session.succeed("sheaf-run", plan, "--eval", "--log", log, *options)
    return next(e for e in read_log(log)[1] if e["event"] == "eval")


def expect_mean(found, expected, what):
    expect(abs(found - expected) <= 1e-5, f"{what}: {found}, ONNX Runtime's is {expected}")


def run(session, model, ranks, zero):
    wanted = reference()[model]
    event = evaluate(session, session.plan(model, ranks, zero, 8, OPTIMIZER + EVAL), *data_of(session, model))
    loss = math.fsum(wanted["losses"]) / ROWS
    expect_mean(event["loss"], loss, "loss")
    expect_mean(event["accuracy"], sum(wanted["correct"]) / (ROWS * wanted["labels_per_row"]), "accuracy")
    expect(event["rows"] == ROWS, f"{event['rows']} rows")
    if model == "gpt2-tiny":
        expect(abs(event["perplexity"] - math.exp(event["loss"])) <= 1e-9 * event["perplexity"], "the perplexity is not exp(loss)")
    else:
        expect(event["perplexity"] is None, "a perplexity of what is not text")


def expect_logits(path):
    shape, values = read_npy(path)
    expect(tuple(shape) == (ROWS, 64, 256), f"shape {shape}")
    for row, token, c, expected in reference()["gpt2-tiny"]["logits"]:
        found = values[(row * 64 + token) * 256 + c]
        expect(abs(found - expected) <= 1e-5, f"logits[{row}][{token}][{c}]: {found}, ONNX Runtime's is {expected}")


def outputs(session):
    """The rows of all ranks and batches in order. At every stage the same bits, as in training."""
    options = ("--optimizer", ADAMW_LM, "--loss", "cross_entropy(logits)", *EVAL)
    seen = {}
    for ranks, zero in ((1, 0), (4, 0), (4, 2), (4, 3)):
        folder = session.folder() / "outputs"
        event = evaluate(session, session.plan("gpt2-tiny-logits", ranks, zero, 8, options), *data_of(session, "gpt2-tiny"),
                         "--outputs", folder)
        expect_mean(event["loss"], math.fsum(reference()["gpt2-tiny"]["losses"]) / ROWS, "loss")
        expect(sorted(p.name for p in folder.iterdir()) == ["logits.npy"], f"{list(folder.iterdir())}")
        expect_logits(folder / "logits.npy")
        same = seen.setdefault(ranks, digest(folder / "logits.npy"))
        expect(same == digest(folder / "logits.npy"), f"stage {zero} gives other bits")


def outputs_alone(session):
    """--eval-only: a graph without a loss, with its outputs and nothing of training in the plan."""
    for ranks, zero in ((1, 0), (2, 3)):
        plan, folder = session.folder() / "logits.plan", session.folder() / "outputs"
        session.succeed("sheaf", "compile", session.graph("gpt2-tiny-logits"), "-o", plan, "--eval-only", "--batch", 8,
                        "--ranks", ranks, "--zero", zero)
        session.succeed("sheaf", "verify", plan)
        summary = session.inspect(plan)
        expect(summary["instructions"]["body"] == 0 and summary["instructions"]["evaluation"] > 0, f"{summary['instructions']}")
        text = session.succeed("sheaf", "inspect", plan).out
        expect("evaluation only" in text and "from step to step" not in text, f"the summary speaks of training:\n{text}")
        expect(summary["parameters"] == 0 and summary["frozen_parameters"] > 100000, "it has something to train")
        data = ("--eval-data", f"input_ids={first_rows(session, TEXT['input_ids'])}")
        event = evaluate(session, plan, *data, "--outputs", folder)
        expect(event["loss"] is None and event["accuracy"] is None, f"{event}")
        expect_logits(folder / "logits.npy")
    refused = session.call("sheaf-run", plan, "--data", data[1], "--steps", 1)
    expect_short_error(refused, ["no training step", "--eval-only"])


def ignored_labels(session):
    """Labels that do not count weigh nothing in the mean over batches, also where a batch has none that counts."""
    wanted = reference()["mlp"]["losses"]
    ignored = set(range(8, 16)) | {0, 20, 44}

    def ignore(values):
        return array.array("q", [-100 if i in ignored else v for i, v in enumerate(values)])

    data = ["--eval-data", f"x={first_rows(session, VECTORS['x'])}",
            "--eval-data", f"labels={first_rows(session, VECTORS['labels'], change=ignore)}"]
    counted = [loss for i, loss in enumerate(wanted) if i not in ignored]
    for ranks in (1, 4):
        event = evaluate(session, session.plan("mlp", ranks, 0, 8, OPTIMIZER + EVAL), *data)
        expect_mean(event["loss"], math.fsum(counted) / len(counted), f"loss on {ranks} ranks")


SCORED = 10  # rows of scored()


def scored(session, weights, nodes=(), outputs=(), inputs=()):
    """A model with the outputs logits = x @ w [N, 3] and scale, the largest weight, which has no rows; and a file of x, whose row r
    has sin(4 r + c) in column c."""
    folder = session.folder()
    graph = folder / "scored.onnx"
    graph.write_bytes(written(
        [node("MatMul", ["x", "w"], ["logits"]), node("ReduceMax", ["w"], ["scale"], keepdims=0), *nodes],
        [value("x", FLOAT, ["N", 4]), *inputs], [value("logits", FLOAT, ["N", 3]), value("scale", FLOAT, []), *outputs],
        [weight("w", [4, 3], weights), weight("zero", [], [0], INT64)]))
    write_npy(folder / "x.npy", "<f4", (SCORED, 4), array.array("f", [math.sin(i) for i in range(4 * SCORED)]).tobytes())
    return graph, folder / "x.npy"


def labels_file(session, labels):
    path = session.folder() / "labels.npy"
    write_npy(path, "<i8", (len(labels),), array.array("q", labels).tobytes())
    return path


def labels_out_of_range(session):
    """They are errors that name the row, in the training and in the evaluation, on any number of ranks."""
    graph, x = scored(session, [0.1 * i for i in range(12)])
    plan = graph.with_suffix(".plan")
    for ranks in (1, 2):
        session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", 4, "--ranks", ranks, "--loss", "cross_entropy(logits)",
                        *OPTIMIZER, *EVAL)
        for label in (3, -1):
            labels = f"labels={labels_file(session, [label if r == 7 else r % 3 for r in range(SCORED)])}"
            words = ["input 'labels'", "row 7", f"label {label} is not in [0, 3) and is not ignore_index (-100)"]
            expect_short_error(session.call("sheaf-run", plan, "--data", f"x={x}", "--data", labels, "--steps", 3), words)
            expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", f"x={x}", "--eval-data", labels), words)


def ties(session):
    """Equal logits predict the first class among them, as by argmax; ignored labels do not count, and where all are ignored there is no
    loss."""
    graph, x = scored(session, [0.0] * 12)
    plan = graph.with_suffix(".plan")
    session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", 4, "--loss", "cross_entropy(logits)", *OPTIMIZER, *EVAL)
    labels = [-100 if r in (1, 5) else r % 3 for r in range(SCORED)]
    event = evaluate(session, plan, "--eval-data", f"x={x}", "--eval-data", f"labels={labels_file(session, labels)}")
    first = labels.count(0) / sum(label >= 0 for label in labels)
    expect(event["accuracy"] == first, f"accuracy {event['accuracy']} of logits that are all equal, not {first}")
    expect(abs(event["loss"] - math.log(3)) < 1e-6, f"loss {event['loss']}")
    none, log = f"labels={labels_file(session, [-100] * SCORED)}", session.folder() / "none.jsonl"
    done = session.succeed("sheaf-run", plan, "--eval", "--eval-data", f"x={x}", "--eval-data", none, "--log", log)
    expect("no label counts (all are ignored) of 10 rows" in done.err and "nan" not in done.err, done.err)
    event = next(e for e in read_log(log)[1] if e["event"] == "eval")
    expect(event["loss"] is None and event["accuracy"] is None and event["rows"] == SCORED, f"{event}")


def outputs_of_every(session):
    """With --eval-every a folder of tensors for each evaluation, of the weights of that step; an output without rows has an entry for
    each batch."""
    graph, x = scored(session, [((7 * i) % 12 - 5) / 6 for i in range(12)])
    folder, labels = graph.parent, labels_file(session, [r % 3 for r in range(SCORED)])
    plan = folder / "scored.plan"
    session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", 4, "--ranks", 2, "--loss", "cross_entropy(logits)", *OPTIMIZER,
                    *EVAL)
    data = ("--eval-data", f"x={x}", "--eval-data", f"labels={labels}", "--outputs")
    done = session.succeed("sheaf-run", plan, "--data", f"x={x}", "--data", f"labels={labels}", "--steps", 4, "--eval-every", 2, *data,
                           folder / "every", "--save", folder / "w.safetensors")
    lines = [line.split(":")[0].split("  ")[0] for line in done.err.splitlines() if line.startswith(("step", "evaluation"))]
    expect(lines[-2:] == ["step 4/4", "evaluation after 4 steps"], f"{lines}")
    expect(sorted(p.name for p in (folder / "every").iterdir()) == ["step-00000002", "step-00000004"], "other folders")
    evaluate(session, plan, *data, folder / "first")
    evaluate(session, plan, "--weights", folder / "w.safetensors", *data, folder / "last")
    for name in ("logits.npy", "scale.npy"):
        at = {step: digest(folder / "every" / f"step-0000000{step}" / name) for step in (2, 4)}
        expect(at[4] == digest(folder / "last" / name), f"{name} of step 4 is not that of the saved weights")
        expect(at[2] not in (at[4], digest(folder / "first" / name)), f"{name} of step 2 is that of another step")
    shape, scale = read_npy(folder / "last" / "scale.npy")
    expect(tuple(shape) == (3,) and len(set(scale)) == 1, f"scale {list(scale)} of shape {shape}, of 3 batches")


def whole_inputs(session):
    """An input without rows has a file of its own shape, and is the same for every row, batch and rank."""
    weights, factor = [((7 * i) % 12 - 5) / 6 for i in range(12)], [2.0, -1.0, 0.5]
    graph, x = scored(session, weights, [node("Mul", ["logits", "factor"], ["y"])], [value("y", FLOAT, ["N", 3])],
                      [value("factor", FLOAT, [3])])
    folder, plan = graph.parent, graph.with_suffix(".plan")
    write_npy(folder / "factor.npy", "<f4", (3,), array.array("f", factor).tobytes())
    for ranks in (1, 2):
        session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", 4, "--ranks", ranks, "--eval-only")
        evaluate(session, plan, "--eval-data", f"x={x}", "--eval-data", f"factor={folder / 'factor.npy'}", "--outputs", folder / "out")
        shape, y = read_npy(folder / "out" / "y.npy")
        expect(tuple(shape) == (SCORED, 3), f"shape {shape}")
        for r in range(SCORED):
            for c in range(3):
                expected = factor[c] * sum(math.sin(4 * r + k) * weights[3 * k + c] for k in range(4))
                expect(abs(y[3 * r + c] - expected) < 1e-5, f"y[{r}][{c}] = {y[3 * r + c]}, not {expected}")
    refused = session.call("sheaf-run", plan, "--eval", "--eval-data", f"x={x}", "--eval-data", f"factor={x}")
    expect_short_error(refused, ["factor", "shape"])


def depending_rows(session):
    """Where rows depend on each other no row can be left out: every batch must be full."""
    graph, x = scored(session, [0.1 * i for i in range(12)], [node("CumSum", ["logits", "zero"], ["sums"])],
                      [value("sums", FLOAT, ["N", 3])])
    plan, labels = graph.with_suffix(".plan"), labels_file(session, [r % 3 for r in range(SCORED)])
    data = ("--eval-data", f"x={x}", "--eval-data", f"labels={labels}")
    for batch in (4, 5):
        session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", batch, "--loss", "cross_entropy(sums)", *OPTIMIZER, *EVAL)
        if batch == 4:
            expect_short_error(session.call("sheaf-run", plan, "--eval", *data), ["10 rows leave 2", "depend on each other", "every batch must be full"])
        else:
            expect(evaluate(session, plan, *data)["rows"] == SCORED, "not all rows are evaluated")


def batch_norm(session, ranks, zero, mode):
    """Whatever training normalizes by, the evaluation does by the running statistics: the graph's, those of a file of weights, and
    those that the training has moved so far. It moves none of them."""
    wanted = reference()
    plan, _ = norms.compiled(session, "resnet", ("--batch-norm", mode, *EVAL), ranks, zero)
    data = [a for name, file in IMAGES.items() for a in ("--eval-data", f"{name}={first_rows(session, file)}")]

    def compare(event, name, tolerance):
        loss, accuracy = math.fsum(wanted[name]["losses"]) / ROWS, sum(wanted[name]["correct"]) / ROWS
        expect(abs(event["loss"] - loss) <= tolerance, f"{name}: loss {event['loss']}, ONNX Runtime's is {loss}")
        expect(abs(event["accuracy"] - accuracy) <= 1e-9, f"{name}: accuracy {event['accuracy']}, ONNX Runtime's is {accuracy}")

    compare(evaluate(session, plan, *data), "resnet", 1e-5)
    compare(evaluate(session, plan, *data, "--weights", norms.FOLDER / "resnet.sync.safetensors"), "resnet-trained", 1e-5)
    if mode == "local":
        return
    train = [a for name, file in IMAGES.items() for a in ("--data", f"{name}={MODELS / file}.npy")]
    plain, where = session.folder(), session.folder()
    session.succeed("sheaf-run", plan, *train, "--steps", norms.STEPS, "--save", plain / "w.safetensors")
    session.succeed("sheaf-run", plan, *train, *data, "--steps", norms.STEPS, "--eval-every", 20, "--save", where / "w.safetensors",
                    "--log", where / "run.jsonl")
    expect(digest(plain / "w.safetensors") == digest(where / "w.safetensors"), "evaluations change weights or statistics")
    compare([e for e in read_log(where / "run.jsonl")[1] if e["event"] == "eval"][-1], "resnet-trained", 1e-4)


def dropout(session, ranks, zero):
    """Exported in training mode, dropout drops in the step and not in the evaluation, whose mask is all true."""
    weights, rows, boolean = [((7 * i) % 12 - 5) / 6 for i in range(12)], 10, 9
    graph, folder = session.folder() / "dropout.onnx", session.folder()
    graph.write_bytes(written(
        [node("Cast", ["one"], ["training"], "cast", to=boolean), node("MatMul", ["x", "w"], ["h"], "product"),
         node("Dropout", ["h", "ratio", "training"], ["y", "mask"], "dropout"),
         node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "loss")],
        [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, []), value("mask", boolean, ["N", 3])],
        [weight("w", [4, 3], weights), weight("ratio", [], [0.5]), weight("one", [], [1], INT64)]))
    x = [[math.sin(4 * r + c) for c in range(4)] for r in range(rows)]
    write_npy(folder / "x.npy", "<f4", (rows, 4), array.array("f", [v for row in x for v in row]).tobytes())
    write_npy(folder / "labels.npy", "<i8", (rows,), array.array("q", [r % 3 for r in range(rows)]).tobytes())
    losses = []
    for r, row in enumerate(x):
        logits = [sum(row[k] * weights[3 * k + c] for k in range(4)) for c in range(3)]
        losses.append(math.log(sum(math.exp(v) for v in logits)) - logits[r % 3])

    plan = folder / "dropout.plan"
    session.succeed("sheaf", "compile", graph, "-o", plan, "--loss", "loss", "--batch", 4, "--ranks", ranks, "--zero", zero, *OPTIMIZER,
                    *EVAL)
    files = [f"x={folder / 'x.npy'}", f"labels={folder / 'labels.npy'}"]
    event = evaluate(session, plan, *(a for f in files for a in ("--eval-data", f)), "--outputs", folder / "outputs")
    loss = math.fsum(losses) / rows
    expect(abs(event["loss"] - loss) <= 1e-5, f"loss {event['loss']}, without dropout it is {loss}")
    shape, mask = read_npy(folder / "outputs" / "mask.npy")
    expect(tuple(shape) == (rows, 3) and all(mask), f"the mask {list(mask)} of shape {shape} drops something")
    session.succeed("sheaf-run", plan, *(a for f in files for a in ("--data", f)), "--steps", 1, "--log", folder / "run.jsonl")
    first = read_log(folder / "run.jsonl")[0][0]["loss"]
    expect(abs(first - math.fsum(losses[:4]) / 4) > 1e-3, f"the step's loss {first} is that without dropout")


def every(session, ranks, zero):
    """Evaluations between steps change no bit of the weights, and each sees the weights of its step."""
    plan = session.plan("mlp", ranks, zero, 8, ("--optimizer", "adamw:lr=1e-3") + EVAL)
    train = [a for name, file in VECTORS.items() for a in ("--data", f"{name}={MODELS / file}.npy")]
    plain, where = session.folder(), session.folder()
    session.succeed("sheaf-run", plan, *train, "--steps", 7, "--save", plain / "w.safetensors", "--save-state", plain / "state",
                    "--log", plain / "run.jsonl")
    session.succeed("sheaf-run", plan, *train, *data_of(session, "mlp"), "--steps", 7, "--eval-every", 3,
                    "--save", where / "w.safetensors", "--save-state", where / "state", "--log", where / "run.jsonl")
    expect(digest(plain / "w.safetensors") == digest(where / "w.safetensors"), "evaluations change the weights")
    steps, events = read_log(where / "run.jsonl")
    losses = [s["loss"] for s in read_log(plain / "run.jsonl")[0]]
    expect([s["loss"] for s in steps] == losses, "evaluations change the losses")
    evaluations = [e for e in events if e["event"] == "eval"]
    expect([e["step"] for e in evaluations] == [3, 6, 7], f"evaluated after steps {[e['step'] for e in evaluations]}")
    expect(evaluations[0]["loss"] > evaluations[1]["loss"] > evaluations[2]["loss"], f"{[e['loss'] for e in evaluations]}")
    # The saved weights, evaluated by themselves: the same bits.
    for option in ("--weights", where / "w.safetensors"), ("--resume", where / "state"):
        alone = evaluate(session, plan, *data_of(session, "mlp"), *option)
        expect(alone["loss"] == evaluations[-1]["loss"], f"{option[0]}: loss {alone['loss']}, in the run {evaluations[-1]['loss']}")


def resumed(session):
    """A state is independent of the evaluation: a plan without one goes on from it."""
    train = [a for name, file in VECTORS.items() for a in ("--data", f"{name}={MODELS / file}.npy")]
    with_it, without = (session.plan("mlp", 2, 3, 8, OPTIMIZER + more) for more in (EVAL, ()))
    whole, half = session.folder(), session.folder()
    session.succeed("sheaf-run", without, *train, "--steps", 6, "--save", whole / "w.safetensors")
    session.succeed("sheaf-run", with_it, *train, *data_of(session, "mlp"), "--eval-every", 2, "--steps", 3,
                    "--save-state", half / "state")
    session.succeed("sheaf-run", without, *train, "--steps", 6, "--resume", half / "state", "--save", half / "w.safetensors")
    expect(digest(whole / "w.safetensors") == digest(half / "w.safetensors"), "a resumed run has other weights")


def processes(session, hosts):
    """Two processes of two ranks: the numbers of one process, and files to which each has written its rows."""
    plan = session.plan("gpt2-tiny-logits", 4, 3, 8, ("--optimizer", ADAMW_LM, "--loss", "cross_entropy(logits)", *EVAL))
    where, data = session.folder(), data_of(session, "gpt2-tiny")
    whole = evaluate(session, plan, *data, "--outputs", where / "whole")
    with Job(session, 2, plan, "--eval", *data, "--outputs", where / "shared", "--log", where / "log",
             environment=lambda rank: {"SHEAF_HOST": hosts[rank]}) as job:
        job.succeed()
    event = next(e for e in read_log(where / "log")[1] if e["event"] == "eval")
    for key in ("loss", "accuracy", "perplexity", "rows"):
        expect(event[key] == whole[key], f"{key}: {event[key]}, of one process {whole[key]}")
    expect(digest(where / "shared" / "logits.npy") == digest(where / "whole" / "logits.npy"), "other outputs")
    expect(len(list((where / "shared").iterdir())) == 1, f"files are left: {list((where / 'shared').iterdir())}")


def text(session):
    """The plan's text has the evaluation, and gives the same plan again; a plan without one is as before."""
    plan = session.plan("gpt2-tiny", 2, 3, 8, ("--optimizer", ADAMW_LM) + EVAL)
    folder = session.folder()
    (folder / "plan.mlir").write_text(session.succeed("sheaf", "inspect", plan, "--format", "text").out)
    # Files are named relative to the plan.
    again = plan.parent / "again.plan"
    session.succeed("sheaf", "assemble", folder / "plan.mlir", "-o", again)
    expect(plan_bytes(plan) == plan_bytes(again), "the text gives another plan")
    words = (folder / "plan.mlir").read_text()
    for word in ("plan.evaluation {", "row_mask", "loss_weight", "correct"):
        expect(word in words, f"the text has no `{word}`")
    bare = session.plan("gpt2-tiny", 2, 3, 8, ("--optimizer", ADAMW_LM))
    one, other = session.inspect(plan), session.inspect(bare)
    expect(one["instructions"]["body"] == other["instructions"]["body"], "the evaluation changes the step")
    expect(one["memory"]["peak_bytes"] <= other["memory"]["peak_bytes"] + 4096, "the evaluation takes memory of its own")


def refused(session):
    plan = session.plan("mlp", 1, 0, 8, OPTIMIZER + EVAL)
    bare = session.plan("mlp", 1, 0, 8, OPTIMIZER)
    x, labels = (f"{name}={first_rows(session, file)}" for name, file in VECTORS.items())
    expect_short_error(session.call("sheaf-run", plan, "--eval"), ["--eval-data NAME=FILE", "every input"], code=2)
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", x), ["labels", "has no data", "--eval-data"])
    expect_short_error(session.call("sheaf-run", bare, "--eval", "--eval-data", x, "--eval-data", labels),
                       ["no evaluation", "--eval"])
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--steps", 3, "--eval-data", x), ["--steps", "--eval"], code=2)
    expect_short_error(session.call("sheaf-run", plan, "--data", x, "--data", labels, "--steps", 1, "--eval-data", x),
                       ["--eval-every"], code=2)
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", x, "--eval-data", labels, "--outputs",
                                    session.folder() / "none"), ["no outputs besides its loss", "cross_entropy"])
    for option in ("--loss", "loss"), ("--eval",):
        expect_short_error(session.call("sheaf", "compile", MODELS / "mlp.onnx", "-o", session.folder() / "x.plan", "--batch", 8,
                                        "--eval-only", *option), ["without a loss", "use --eval"], code=2)
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", "x"), ["--eval-data x: expected NAME=FILE"], code=2)
    empty = session.folder() / "empty.npy"
    write_npy(empty, "<f4", (0, 64), b"")
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", f"x={empty}", "--eval-data", labels), ["has no rows"])
    wrong = f"x={MODELS / VECTORS['labels']}.npy"
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", wrong, "--eval-data", labels),
                       ["--eval-data", "x", "shape"])
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", x, "--eval-data", f"y={MODELS / 'mlp.x'}.npy"),
                       ["no input 'y'"])
    fewer = f"labels={first_rows(session, VECTORS['labels'], 44)}"
    expect_short_error(session.call("sheaf-run", plan, "--eval", "--eval-data", x, "--eval-data", fewer), ["44 rows", "45"])
