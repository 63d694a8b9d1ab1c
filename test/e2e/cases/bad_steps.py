"""A step is bad if its loss or its gradients are not finite: one definition for skipping, stopping, the loss scale and messages."""
import array
import math

from formats import read_log, read_safetensors, write_npy
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight

BATCH, STEPS, BAD, IGNORED = 4, 5, 2, -1
LAYOUTS = {"ranks-1": (), "ranks-2": ("--ranks", 2, "--zero", 2), "micro-batches": ("--micro-batches", 2), "micro-batches-2": ("--ranks", 2, "--micro-batches", 2)}
# Two causes, and what the run says of step BAD: all labels are ignored, or a row has a NaN.
CAUSES = {"ignored-labels": "the loss is not finite, though the gradients are", "nan": "the loss and the gradient norm are not finite"}


def cases(session):
    for cause in CAUSES:
        for name, layout in LAYOUTS.items():
            yield Case(f"bad-steps/{cause}/skip/{name}", lambda c=cause, o=layout: skipped(session, c, o))
            yield Case(f"bad-steps/{cause}/f16/{name}", lambda c=cause, o=layout: scaled(session, c, o))
        yield Case(f"bad-steps/{cause}/stop", lambda c=cause: stopped(session, c))


def compiled(session, cause, *options):
    """A plan, and the arguments of a run whose step BAD is bad, as are the arguments of the same data."""
    def prepare():
        where = session.folder()
        (where / "model.onnx").write_bytes(model(
            [node("MatMul", ["x", "w"], ["y"]), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], ignore_index=IGNORED)],
            [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
            [weight("w", [4, 3], [0.1 * math.sin(i) for i in range(12)])]))
        rows = BATCH * STEPS
        x = array.array("f", [math.cos(i * i) for i in range(4 * rows)])
        labels = array.array("q", [i % 3 for i in range(rows)])
        if cause == "nan":
            x[4 * BATCH * BAD + 1] = math.nan
        else:
            labels[BATCH * BAD:BATCH * (BAD + 1)] = array.array("q", [IGNORED] * BATCH)
        write_npy(where / "x.npy", "<f4", (rows, 4), x.tobytes())
        write_npy(where / "labels.npy", "<i8", (rows,), labels.tobytes())
        return where

    where = session.once(("bad steps", cause), prepare)
    plan = session.folder() / "model.plan"
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", plan, "--batch", BATCH, "--optimizer", "adamw:lr=0.1,weight_decay=0.5", *options)
    return plan, ("--data", f"x={where / 'x.npy'}", "--data", f"labels={where / 'labels.npy'}")


def run(session, plan, data, steps):
    where = session.folder()
    done = session.call("sheaf-run", plan, *data, "--steps", steps, "--log", where / "log", "--save", where / "w")
    expect(done.code == 0, f"exit {done.code}: {done.err}")
    return read_log(where / "log")[0], read_safetensors(where / "w")["w"].values, done.err


def skipped(session, cause, layout):
    """The update alone is left out: weights and moments stay, and so does the number of updates."""
    plan, data = compiled(session, cause, "--on-nan", "skip", *layout)
    log, after, said = run(session, plan, data, STEPS)
    expect([bool(s.get("skipped")) for s in log] == [step == BAD for step in range(STEPS)], f"skipped: {log}")
    expect(f"step {BAD}: {CAUSES[cause]}, the update is skipped" in said, said)
    expect(run(session, plan, data, BAD)[1] == run(session, plan, data, BAD + 1)[1], "a skipped step changed the weights")
    expect(all(map(math.isfinite, after)) and all(math.isfinite(s["loss"]) for s in log if s["step"] != BAD), "numbers are not finite after it")


def scaled(session, cause, layout):
    """The loss scale is reduced, and the run goes on, as far as the scale can be reduced."""
    plan, data = compiled(session, cause, "--precision", "f16", *layout)
    log, after, said = run(session, plan, data, STEPS)
    expect([s["loss_scale"] for s in log] == [65536] * (BAD + 1) + [32768] * (STEPS - BAD - 1), f"scales: {[s['loss_scale'] for s in log]}")
    expect([bool(s.get("skipped")) for s in log] == [step == BAD for step in range(STEPS)], f"skipped: {log}")
    expect(f"{CAUSES[cause]} at the loss scale 65536, the update is skipped" in said, said)
    plan, data = compiled(session, cause, "--precision", "f16", "--loss-scale", "dynamic:init=1", *layout)
    done = session.call("sheaf-run", plan, *data, "--steps", STEPS)
    expect_short_error(done, [f"step {BAD}", CAUSES[cause], "the loss scale cannot be reduced further", "--on-nan skip"])


def stopped(session, cause):
    """The run ends and saves nothing; the message names what is not finite, and advises what is not on."""
    for options in ((), ("--clip-norm", 1)):
        plan, data = compiled(session, cause, *options)
        where = session.folder()
        done = session.call("sheaf-run", plan, *data, "--steps", STEPS, "--save", where / "w")
        expect_short_error(done, [f"step {BAD}", CAUSES[cause], "--on-nan skip"])
        expect("the initial weights" not in done.err, done.err)
        expect("loss scale" not in done.err and not (where / "w").exists(), done.err)
    # A first step that is bad has another reason than the learning rate.
    where = session.folder()
    write_npy(where / "x.npy", "<f4", (BATCH * STEPS, 4), array.array("f", [math.nan] * 4 * BATCH * STEPS).tobytes())
    done = session.call("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", *data[2:], "--steps", STEPS)
    expect_short_error(done, ["step 0", "the data or the initial weights may hold a NaN", "--lr", "--on-nan skip"])
