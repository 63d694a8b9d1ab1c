"""Losses in which rows of the batch meet, on several ranks and leaves: PyTorch's losses, and the same bits however the batch is divided."""
import array
import json

from formats import read_log, write_npy
from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight

FOLDER = MODELS / "crossing"
BATCH = 16
# Divisions into 8 leaves, which have the same losses to the last bit.
LEAVES = (("--ranks", 8, "--zero", 3), ("--ranks", 2, "--leaves", 8, "--zero", 0))
# The remedy in the error where a micro-batch needs rows of others.
REMEDY = "leave out --micro-batches"


def stored():
    return json.loads((FOLDER / "losses.json").read_text())


def cases(session):
    for path in sorted(FOLDER.glob("*.onnx")):
        yield Case(f"crossing/{path.stem}", lambda n=path.stem: crosses(session, n))
    for name, options in (("recompute", ("--recompute", "all")), ("bf16", ("--precision", "bf16")), ("f16", ("--precision", "f16", "--loss-scale", 128)),
                          ("nodes", ("--ranks-per-node", 2)), ("one-a-node", ("--ranks-per-node", 1))):
        yield Case(f"crossing/with/{name}", lambda o=options: varied(session, o))
    yield Case("crossing/evaluation", lambda: evaluated(session))
    yield Case("crossing/gathers", lambda: gathers(session))
    yield Case("crossing/outputs", lambda: outputs(session))
    yield Case("crossing/zeros", lambda: zeros(session))


def data(where):
    found = []
    for name, rows in stored()["inputs"].items():
        values = array.array("f", (x for row in rows for x in row))
        write_npy(where / f"{name}.npy", "<f4", (len(rows), len(rows[0])), values.tobytes())
        found += ["--data", f"{name}={where / name}.npy"]
    return found


def compiled(session, where, name, *options):
    return session.call("sheaf", "compile", FOLDER / f"{name}.onnx", "-o", where / "model.plan", "--batch", BATCH, "--optimizer",
                        f"sgd:lr={stored()['rate']}", *options)


def losses(session, where, name, *options):
    done = compiled(session, where, name, *options)
    expect(done.code == 0, f"{options}: {done.err}")
    wanted = stored()["losses"][name]
    session.succeed("sheaf-run", where / "model.plan", *data(where), "--steps", len(wanted), "--log", where / "log")
    return [step["loss"] for step in read_log(where / "log")[0]]


def compare(name, options, found, limit):
    wanted = stored()["losses"][name]
    expect(len(found) == len(wanted), f"{options}: {len(found)} losses")
    for step, (a, b) in enumerate(zip(found, wanted)):
        expect(abs(a - b) <= limit * max(1, abs(b)), f"{options}: loss {a} of step {step}, PyTorch's {b}")


def crosses(session, name):
    where = session.folder()
    options = ("--ranks", 4, "--zero", 3)
    compare(name, options, losses(session, where, name, *options), 5e-5)
    divided = [losses(session, where, name, *options) for options in LEAVES]
    compare(name, LEAVES[0], divided[0], 5e-5)
    expect(divided[0] == divided[1], f"8 ranks {divided[0]}, 2 ranks of 4 leaves {divided[1]}")
    options = ("--ranks", 2, "--micro-batches", 2)
    done = compiled(session, where, name, *options)
    if done.code:
        return expect_short_error(done, [REMEDY, "node_"], 1)
    compare(name, options, losses(session, where, name, *options), 5e-5)


def varied(session, options):
    """These options keep the losses; bits are the same with and without recomputation and nodes."""
    where, limit = session.folder(), 5e-3 if "--precision" in options else 5e-5
    for name in ("contrastive-views", "running", "rolled", "top-k"):
        found = losses(session, where, name, "--ranks", 4, "--zero", 3, *options)
        compare(name, options, found, limit)
        if limit == 5e-5:
            expect(found == losses(session, where, name, "--ranks", 4, "--zero", 3), f"{name}: {options} changes bits")


def evaluated(session):
    """Rows of an evaluation's batch need each other: batches are full, and the loss is PyTorch's."""
    where, name = session.folder(), "negatives"
    done = compiled(session, where, name, "--ranks", 4, "--eval")
    expect(done.code == 0, done.err)
    inputs = data(where)
    done = session.succeed("sheaf-run", where / "model.plan", "--eval", *(part.replace("--data", "--eval-data") for part in inputs), "--log", where / "log")
    found = [json.loads(line) for line in (where / "log").read_text().splitlines()]
    loss = [event["loss"] for event in found if event.get("event") == "eval"]
    expect(len(loss) == 1 and abs(loss[0] - stored()["losses"][name][0]) <= 5e-5, f"{loss}, {found}")
    for part in inputs[1::2]:
        path = where / f"short-{part.split('=')[0]}.npy"
        rows = stored()["inputs"][part.split("=")[0]][:13]
        write_npy(path, "<f4", (13, len(rows[0])), array.array("f", (x for row in rows for x in row)).tobytes())
    done = session.call("sheaf-run", where / "model.plan", "--eval", "--eval-data", f"x={where}/short-x.npy", "--eval-data", f"y={where}/short-y.npy")
    expect_short_error(done, ["the rows of a batch depend on each other", "every batch must be full"], 1)


def outputs(session):
    """Outputs are those of one rank, also where as many columns as rows could be taken for the batch."""
    where = session.folder()
    ends = [weight(name, [1], [number], INT64) for name, number in (("zero", 0), ("last", -1), ("end", 1 << 40))]
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Slice", ["h", "last", "end", "zero"], ["first"]), node("Slice", ["h", "zero", "last", "zero"], ["rest"]),
             node("Concat", ["first", "rest"], ["rolled"], axis=0), node("CumSum", ["h", "axis"], ["sums"]), node("Mul", ["rolled", "sums"], ["product"]),
             node("ReduceMean", ["product"], ["loss"], keepdims=0)]
    weights = [weight("w", [4, 32], [0.1 * ((7 * i) % 5 - 2) for i in range(128)]), weight("axis", [], [0], INT64), *ends]
    path = where / "model.onnx"
    path.write_bytes(model(nodes, [value("x", FLOAT, ["N", 4])], [value("loss", FLOAT, []), value("rolled", FLOAT, ["N", 32]), value("sums", FLOAT, ["N", 32])], weights))
    write_npy(where / "x.npy", "<f4", (16, 4), array.array("f", ((5 * i) % 17 - 8 for i in range(64))).tobytes())
    found = {}
    for ranks in (1, 4):
        session.succeed("sheaf", "compile", path, "-o", where / "model.plan", "--batch", 8, "--ranks", ranks, "--eval", "--loss", "loss")
        session.succeed("sheaf-run", where / "model.plan", "--eval", "--eval-data", f"x={where}/x.npy", "--outputs", where / f"on-{ranks}")
        found[ranks] = {name: (where / f"on-{ranks}" / f"{name}.npy").read_bytes() for name in ("rolled", "sums")}
    for name in ("rolled", "sums"):
        one, four = (found[ranks][name] for ranks in (1, 4))
        expect(one[:128] == four[:128] and len(one) == len(four), f"{name}: the heads of the files are {one[:128]} and {four[:128]}")
        a, b = (array.array("f", data[-16 * 32 * 4:]) for data in (one, four))
        expect(all(abs(u - v) <= 1e-5 * (1 + abs(u)) for u, v in zip(a, b)) and any(a), f"{name} differs")


# Bytes that a step gathers on 4 ranks, value by value: x, h and y are [16, 16] of f32, a column of scores is [16].
ROWS, COLUMN = 16 * 16 * 4, 16 * 4
GATHERED = {"attention-over-rows": [COLUMN], "both-negatives": [ROWS, ROWS], "contrastive-views": [2 * ROWS], "flipped": [ROWS], "gram": [ROWS],
            "groups-of-8": [ROWS], "largest": [COLUMN, ROWS], "logsumexp": [ROWS], "maximum": [ROWS], "negatives": [ROWS], "pairs": [ROWS], "permuted": [ROWS],
            "rolled-product": [ROWS], "rolled": [ROWS], "running": [ROWS], "sorted-rows": [ROWS, ROWS], "top-k": [ROWS]}


def gathers(session):
    """A step gathers the rows that its results depend on and nothing more: nothing where rows are counted, shifted within, joined as views or
    looked up in their own row. Each gather is named by its node."""
    where = session.folder()
    for path in sorted(FOLDER.glob("*.onnx")):
        name, expected = path.stem, GATHERED.get(path.stem, [])
        done = compiled(session, where, name, "--ranks", 4, "--zero", 0)
        expect(done.code == 0, done.err)
        text = session.succeed("sheaf", "inspect", where / "model.plan", "--format", "text").out
        found = [line.strip() for line in text.splitlines() if 'plan.all_gather "" forward' in line]
        expect(len(found) == len(expected), f"{name}: {len(found)} gathers: {found}")
        report = json.loads(session.succeed("sheaf", "inspect", where / "model.plan", "--format", "json").out)
        decisions = report["decisions"]
        named = [line for line in decisions if "needs rows of all leaves" in line]
        bytes_of = [int(line.split("leaves; ")[1].split()[0]) for line in named]
        moved = [c["bytes"] for c in report["communication"] if (c["op"], c["bucket"], c["phase"]) == ("all_gather", "", "forward")]
        expect(sum(moved) == sum(bytes_of), f"{name}: {bytes_of} bytes are predicted, the plan gathers {moved}")
        expect(bytes_of == expected and all("node_" in line for line in named), f"{name}: {bytes_of}, {decisions}")
    notes = json.loads(session.succeed("sheaf", "check", FOLDER / "negatives.onnx", "--ranks", 4, "--batch", BATCH, "--json").out)["notes"]
    expect(any("node_matmul: needs rows of all leaves" in note for note in notes), f"{notes}")


def zeros(session):
    """The root of a sum over the batch that is 0 has the gradient 0, as on one rank: of what is computed with weights of 0."""
    where = session.folder()
    moments = [node("ReduceMean", ["h", "rows"], ["mean"]), node("Sub", ["h", "mean"], ["centred"]), node("Mul", ["centred", "centred"], ["squares"]),
               node("ReduceMean", ["squares", "rows"], ["variance"]), node("Sqrt", ["variance"], ["roots"])]
    of_squares = [node("Mul", ["h", "h"], ["squares"])]
    roots = {
        "norm": [*of_squares, node("ReduceSum", ["squares"], ["sum"]), node("Sqrt", ["sum"], ["roots"])],
        "columns": [*of_squares, node("ReduceMean", ["squares", "rows"], ["means"]), node("Sqrt", ["means"], ["roots"])],
        "deviation": moments,
        "ReduceL2": [node("ReduceL2", ["h"], ["roots"])],
        "power": [*of_squares, node("ReduceSum", ["squares", "rows"], ["sum"]), node("Pow", ["sum", "half"], ["roots"])],
        "cubes": [node("Abs", ["h"], ["sizes"]), node("Pow", ["sizes", "three"], ["cubes"]), node("ReduceSum", ["cubes", "rows"], ["sum"]),
                  node("Pow", ["sum", "third"], ["roots"])],
    }
    scalars = [weight(name, [], [number]) for name, number in (("half", 0.5), ("three", 3.0), ("third", 1 / 3), ("part", 0.01))]
    weights = [weight("a", [4, 2], [0.3, -0.2, 0.5, 0.1, -0.4, 0.2, 0.6, -0.1]), weight("b", [2, 3], [0.0] * 6), *scalars, weight("rows", [1], [0], INT64)]
    write_npy(where / "x.npy", "<f4", (16, 4), array.array("f", ((5 * i) % 17 - 8 for i in range(64))).tobytes())
    write_npy(where / "y.npy", "<f4", (16, 3), array.array("f", ((7 * i) % 11 - 5 for i in range(48))).tobytes())
    for name, nodes in roots.items():
        nodes = [node("MatMul", ["x", "a"], ["low"]), node("MatMul", ["low", "b"], ["h"]), *nodes, node("ReduceSum", ["roots"], ["total"], keepdims=0),
                 node("Mul", ["total", "part"], ["penalty"]), node("Sub", ["h", "y"], ["error"]), node("Mul", ["error", "error"], ["errors"]),
                 node("ReduceMean", ["errors"], ["fit"], keepdims=0), node("Add", ["fit", "penalty"], ["loss"])]
        path = where / "model.onnx"
        path.write_bytes(model(nodes, [value("x", FLOAT, ["N", 4]), value("y", FLOAT, ["N", 3])], [value("loss", FLOAT, [])], weights))
        found = {}
        for options in (("--ranks", 1), ("--ranks", 1, "--leaves", 2), ("--ranks", 4, "--zero", 3)):
            session.succeed("sheaf", "compile", path, "-o", where / "model.plan", "--batch", 8, "--optimizer", "sgd:lr=0.01", *options)
            session.succeed("sheaf-run", where / "model.plan", "--data", f"x={where}/x.npy", "--data", f"y={where}/y.npy", "--steps", 3, "--log", where / "log")
            found[options] = [step["loss"] for step in read_log(where / "log")[0]]
        one = found[("--ranks", 1)]
        expect(len(set(one)) == 3, f"{name}: nothing is trained: {one}")
        for options, losses_of in found.items():
            expect(all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(losses_of, one, strict=True)), f"{name}, {options}: {losses_of}, on one rank {one}")
