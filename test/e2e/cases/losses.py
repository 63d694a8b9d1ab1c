"""The losses that --loss adds: a run of several ranks has the loss of one, though they hold different numbers of rows that count."""
import array
import math

from formats import read_log, write_npy
from harness import Case, expect
from onnxwriter import FLOAT, INT64, model, node, value, weight

ROWS, STEPS = 16, 4
# Of 8 rows a step: on two ranks the first has no label that counts in step 1.
LABELS = [-1, -1, -1, -1, 0, 2, 1, 2, 1, -1, 0, 0, 2, -1, 1, 1]
LOSSES = {
    "cross_entropy": ("cross_entropy(y, ignore_index=-1)", "labels"),
    "label_smoothing": ("cross_entropy(y, label_smoothing=0.1, ignore_index=-1, weight=classes)", "labels"),
    "mse": ("mse(y)", "targets"),
    "l1": ("l1(y)", "targets"),
    "smooth_l1": ("smooth_l1(y, beta=0.5)", "targets"),
    "bce_with_logits": ("bce_with_logits(h, pos_weight=classes)", "targets"),
    "kl_div": ("kl_div(y, target=wanted)", "wanted"),
}


def cases(session):
    for name in LOSSES:
        yield Case(f"losses/{name}", lambda n=name: same_on_all_ranks(session, n))
    for form in ("OneHot", "Equal"):
        yield Case(f"losses/one-hot-{form}", lambda f=form: one_hot(session, f))


def graph(path):
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("LogSoftmax", ["h"], ["y"])]
    path.write_bytes(model(nodes, [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["N", 3])],
                           [weight("w", [4, 3], [math.sin(i) for i in range(12)]), weight("classes", [3], [0.5, 1.5, 2.0])]))
    return path


def same_on_all_ranks(session, name):
    loss, target = LOSSES[name]
    where = session.folder()
    path = graph(where / "model.onnx")
    write_npy(where / "x.npy", "<f4", (ROWS, 4), array.array("f", (math.cos(i * 1.7) for i in range(ROWS * 4))).tobytes())
    if target == "labels":
        write_npy(where / "t.npy", "<i8", (ROWS,), array.array("q", LABELS).tobytes())
    else:
        values = array.array("f", ((i * 7 % 11) / 16 for i in range(ROWS * 3)))
        write_npy(where / "t.npy", "<f4", (ROWS, 3), values.tobytes())
    runs = {}
    for ranks, zero in ((1, 0), (2, 3), (4, 1)):
        plan, log = where / f"{ranks}.plan", where / f"{ranks}.log"
        session.succeed("sheaf", "compile", path, "-o", plan, "--batch", 8, "--ranks", ranks, "--zero", zero, "--loss", loss,
                        "--optimizer", "sgd:lr=0.5")
        session.succeed("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", "--data", f"{target}={where / 't.npy'}",
                        "--steps", STEPS, "--log", log)
        runs[ranks] = [(entry["loss"], entry["grad_norm"]) for entry in read_log(log)[0]]
    expect(len({value for value, _ in runs[1]}) == STEPS, f"the loss does not change: {runs[1]}")
    for ranks in (2, 4):
        for one, several in zip(runs[1], runs[ranks], strict=True):
            for a, b in zip(one, several, strict=True):
                expect(math.isfinite(a) and abs(a - b) <= 1e-5 * (1 + abs(a)), f"{ranks} ranks: {several}, one: {one}")


def one_hot(session, form):
    """A label outside the columns has a one-hot encoding of zeros: its row has the loss 0 and no gradient, as by hand. OneHot counts negative labels
    from the end, down to -3."""
    where, rate = session.folder(), 0.5
    labels = [-100, 3, 0, 2, 1, -1, 5, 2, 1, -1, 0, 0, 2, -7, 1, 1]
    encoded = {"OneHot": [node("OneHot", ["labels", "depth", "ends"], ["codes"]), node("Cast", ["codes"], ["hot"], to=FLOAT)],
               "Equal": [node("Unsqueeze", ["labels", "axis"], ["column"]), node("Equal", ["column", "range"], ["same"]), node("Cast", ["same"], ["hot"], to=FLOAT)]}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("LogSoftmax", ["h"], ["y"]), *encoded[form], node("Mul", ["y", "hot"], ["picked"]),
             node("ReduceSum", ["picked", "axis"], ["sums"], keepdims=0), node("Neg", ["sums"], ["rows"]), node("ReduceMean", ["rows"], ["loss"], keepdims=0)]
    start = [math.sin(i) for i in range(12)]
    known = [weight("depth", [], [3], INT64), weight("ends", [2], [0, 1], INT64), weight("axis", [1], [1], INT64), weight("range", [1, 3], [0, 1, 2], INT64)]
    path = where / "model.onnx"
    path.write_bytes(model(nodes, [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])], [weight("w", [4, 3], start), *known]))
    xs = [[math.cos((row * 4 + i) * 1.7) for i in range(4)] for row in range(ROWS)]
    write_npy(where / "x.npy", "<f4", (ROWS, 4), array.array("f", (x for row in xs for x in row)).tobytes())
    write_npy(where / "t.npy", "<i8", (ROWS,), array.array("q", labels).tobytes())
    w, wanted = [start[3 * i:3 * i + 3] for i in range(4)], []
    for step in range(2):
        loss, slope = 0, [[0.0] * 3 for _ in range(4)]
        for x, label in zip(xs[8 * step:8 * step + 8], labels[8 * step:8 * step + 8]):
            label += 3 if form == "OneHot" and label < 0 else 0
            if not 0 <= label < 3:
                continue
            powers = [math.exp(sum(x[i] * w[i][c] for i in range(4))) for c in range(3)]
            loss -= math.log(powers[label] / sum(powers)) / 8
            for i in range(4):
                for c in range(3):
                    slope[i][c] += x[i] * (powers[c] / sum(powers) - (c == label)) / 8
        wanted.append(loss)
        w = [[w[i][c] - rate * slope[i][c] for c in range(3)] for i in range(4)]
    for ranks in (1, 2):
        session.succeed("sheaf", "compile", path, "-o", where / "model.plan", "--batch", 8, "--ranks", ranks, "--optimizer", f"sgd:lr={rate}")
        session.succeed("sheaf-run", where / "model.plan", "--data", f"x={where / 'x.npy'}", "--data", f"labels={where / 't.npy'}", "--steps", 2, "--log", where / "log")
        found = [entry["loss"] for entry in read_log(where / "log")[0]]
        expect(all(abs(a - b) <= 1e-5 for a, b in zip(found, wanted, strict=True)), f"{ranks} ranks: {found}, by hand {wanted}")
