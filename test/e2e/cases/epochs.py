"""--epochs, schedules of the training's length, and files that are read as one."""
import array
import json
import math

from formats import read_log, write_npy
from harness import MODELS, Case, digest, expect, expect_short_error
from training import CONFIGS, data_arguments, train

MLP = CONFIGS["mlp-momentum"]


def cases(session):
    yield Case("epochs/steps", lambda: steps(session))
    yield Case("epochs/resumed", lambda: resumed(session))
    yield Case("epochs/schedule-of-the-run", lambda: schedule_of_the_run(session))
    yield Case("epochs/files-as-one", lambda: files_as_one(session))
    yield Case("epochs/errors", lambda: errors(session))


def rows_of(session, count):
    """The first rows of the MLP's data, as arguments of sheaf-run."""
    where, arguments = session.folder(), []
    for name, descr, shape, size in (("x", "<f4", (count, 64), 256), ("labels", "<i8", (count,), 8)):
        content = (MODELS / f"mlp.{name}.npy").read_bytes()
        start = 10 + int.from_bytes(content[8:10], "little")
        write_npy(where / f"{name}.npy", descr, shape, content[start:start + count * size])
        arguments += ["--data", f"{name}={where / name}.npy"]
    return arguments


def run(session, data, *options, ranks=2, zero=3):
    where = session.folder()
    plan = session.plan("mlp", ranks, zero, 8, MLP.options)
    session.succeed("sheaf-run", plan, *data, "--log", where / "log", "--save", where / "w", *options)
    log = read_log(where / "log")
    return log[0], {e["event"]: e for e in log[1]}, digest(where / "w")


def steps(session):
    """Three passes over 37 rows in batches of 8 are 13 steps: batches go on over the end of a pass, seven rows are left."""
    data = rows_of(session, 37)
    made, events, weights = run(session, data, "--epochs", 3, "--shuffle", 4)
    expect(len(made) == 13 and events["end"]["samples"] == 104, f"{len(made)} steps, {events['end']['samples']} samples")
    expect((events["start"]["rows"], events["start"]["steps"]) == (37, 13), f"{events['start']}")
    expect(weights == run(session, data, "--steps", 13, "--shuffle", 4)[2], "the same number of steps leaves other weights")
    # As if the passes stood one after the other in one file.
    whole, events, _ = run(session, rows_of(session, 40), "--epochs", 1)
    expect(len(whole) == 5 and events["end"]["samples"] == 40, f"{len(whole)} steps of 40 rows")


def resumed(session):
    """A run that is cut within a pass goes on to the end of the last pass, with the same rows, rates and bits."""
    data, state = rows_of(session, 37), session.folder() / "state"
    schedule = ("--shuffle", 4, "--lr-schedule", "wsd:warmup=2,decay=6,min=0.1")
    whole, _, weights = run(session, data, "--epochs", 3, *schedule)
    stated = ("--shuffle", 4, "--lr-schedule", "wsd:warmup=2,decay=6,min=0.1,steps=13")
    run(session, data, "--steps", 6, *stated, "--save-state", state)
    rest, events, end = run(session, data, "--epochs", 3, *schedule[2:], "--resume", state, zero=1)
    expect([s["step"] for s in rest] == list(range(6, 13)), f"steps {[s['step'] for s in rest]}")
    for key in ("loss", "lr"):
        expect([s[key] for s in rest] == [s[key] for s in whole[6:]], f"the resumed run has another {key}")
    expect(end == weights, "the resumed run leaves other weights")
    expect(events["end"]["samples"] == 104, f"{events['end']}")
    # As a launcher that starts the same command once more.
    run(session, data, "--epochs", 3, *schedule[2:], "--resume", state, "--save-state", state, zero=1)
    again, events, end = run(session, data, "--epochs", 3, *schedule[2:], "--resume", state)
    expect(not again and end == weights and "nothing is left to train" in json.dumps(events), f"{len(again)} more steps, {events}")


def schedule_of_the_run(session):
    """A schedule without steps= takes the training's length, in the plan and in the run alike."""
    plan = session.plan("mlp", 1, 0, 8, ("--optimizer", "sgd:lr=0.1", "--lr-schedule", "linear:min=0.5,warmup=2"))
    expect(session.inspect(plan)["schedule"] == "linear:min=0.5,warmup=2", f"{session.inspect(plan)['schedule']}")
    for length in (10, 20):
        log = session.folder() / "log"
        session.succeed("sheaf-run", plan, *data_arguments(MLP), "--steps", length, "--log", log)
        made, events = read_log(log)
        for step, entry in enumerate(made):
            share = (step + 1) / 2 if step < 2 else 1 - 0.5 * (step - 2) / (length - 2)
            expect(math.isclose(entry["lr"], 0.1 * share, rel_tol=1e-9), f"step {step} of {length}: {entry['lr']}")
        expect(events[0]["schedule"] == f"linear:steps={length},min=0.5,warmup=2", f"{events[0]}")


def files_as_one(session):
    """Token files that a pattern matches train as one file of their rows does."""
    where, sequence = session.folder(), 64
    content = (MODELS / "gpt2-tiny.input_ids.npy").read_bytes()
    numbers = array.array("q")
    numbers.frombytes(content[10 + int.from_bytes(content[8:10], "little"):])
    tokens = array.array("H", numbers)
    whole = array.array("H")
    for i, (begin, rows, more) in enumerate(((0, 7, 1), (1000, 5, 40), (5000, 9, 12))):
        piece = tokens[begin:begin + rows * sequence + more]  # labels need one more, what is beyond is not read
        (where / f"train-{i}.u16").write_bytes(piece.tobytes())
        for row in range(rows):  # rows with a spare token each, so that the labels of one file's last row are the same
            whole.extend(piece[row * sequence:(row + 1) * sequence])
    (where / "whole.u16").write_bytes(whole.tobytes())
    labels = array.array("H")
    for begin, rows, _ in ((0, 7, 1), (1000, 5, 40), (5000, 9, 12)):
        labels.extend(tokens[begin + 1:begin + 1 + rows * sequence])
    (where / "labels.u16").write_bytes(labels.tobytes())
    plan, weights = session.plan("gpt2-tiny", 2, 3, 8, CONFIGS["gpt2-tiny"].options), []
    for data in (("--data", f"input_ids,labels={where / 'train-*.u16'}"),
                 ("--data", f"input_ids={where / 'whole.u16'}", "--data", f"labels={where / 'labels.u16'}")):
        out = session.folder() / "w"
        session.succeed("sheaf-run", plan, *data, "--epochs", 2, "--shuffle", 3, "--save", out, "--log", where / "log")
        expect(read_log(where / "log")[1][0]["rows"] == 21, f"{read_log(where / 'log')[1][0]}")
        weights.append(digest(out))
    expect(weights[0] == weights[1], "three files as one train otherwise than one file of their rows")


def errors(session):
    """What a run's length cannot be taken from says so."""
    data, state = rows_of(session, 37), session.folder() / "state"
    plan = session.plan("mlp", 2, 3, 8, MLP.options)
    session.succeed("sheaf-run", plan, *data, "--steps", 5, "--save-state", state)

    def refused(words, *options):
        expect_short_error(session.call("sheaf-run", plan, *data, *options), words)

    refused(["--steps 4", "whole training", "step 5"], "--steps", 4, "--resume", state)
    refused(["--epochs 1", "37 rows", "40 have been read"], "--epochs", 1, "--resume", state)
    small = rows_of(session, 7)
    done = session.call("sheaf-run", plan, *small, "--epochs", 1)
    expect_short_error(done, ["less than a batch of 8"])
