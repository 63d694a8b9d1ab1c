"""Families of models, as two exporters write them, train as in PyTorch's f64 runs (test/models/families), and to the same bits
on any number of ranks.
"""
import json

from formats import read_log
from harness import MODELS, Case, digest, expect, expect_short_error

FOLDER = MODELS / "families"
EXPORTERS = ("raw", "optimized", "torchscript")
LEAVES = 8
# Ranks, micro-batches and stage; the first has a leaf for each rank.
DIVISIONS = ((8, 1, 1), (1, 1, 0), (2, 2, 2), (4, 1, 3), (2, 1, 1), (1, 8, 0))
# They need a sum over the batch of what the model computes, those with batch norm only while all leaves share its moments.
NO_MICRO_BATCHES = {"efficientnet", "experts", "mobilenet", "pointnet", "resnet"}


def cases(session):
    for model in sorted(FOLDER.iterdir()):
        exporters = [path.stem for path in model.glob("*.onnx")]
        ranks = json.loads((model / "run.json").read_text())["ranks"]
        # The first exporter's graph on all numbers of ranks and at both stages, other graphs of the same model on fewer.
        everything = [(n, zero) for n in ranks for zero in (0, 3)]
        for i, exporter in enumerate(sorted(exporters, key=EXPORTERS.index)):
            configurations = everything[-1:] if session.quick else [everything[0], everything[-1]] if i else everything
            yield case(session, model, exporter, configurations)
        exporter = min(exporters, key=EXPORTERS.index)
        yield Case(f"families/{model.name}/leaves", lambda m=model, e=exporter: leaves(session, m, e))


def case(session, model, exporter, configurations):
    def trains():
        for ranks, zero in configurations:
            run(session, model, exporter, ranks, zero)

    return Case(f"families/{model.name}/{exporter}", trains)


def run(session, model, exporter, ranks, zero):
    """50 steps; 5 batches are read ten times over. Small buckets, so that stage 3 has several."""
    where = session.folder()
    reference = json.loads((model / "run.json").read_text())
    session.succeed("sheaf", "compile", model / f"{exporter}.onnx", "-o", where / "plan", "--batch", reference["batch"],
                    "--ranks", ranks, "--zero", zero, "--bucket-size", 16384, *reference["options"])
    data = [a for path in sorted(model.glob("*.npy")) for a in ("--data", f"{path.stem}={path}")]
    steps = len(reference["loss"])
    session.succeed("sheaf-run", where / "plan", *data, "--steps", steps, "--log", where / "log")
    log = read_log(where / "log")[0]
    expect(len(log) == steps, f"{ranks} ranks, stage {zero}: the log has {len(log)} steps of {steps}")
    for entry, expected in zip(log, reference["loss"]):
        expect(abs(entry["loss"] - expected) <= reference["tolerance"],
               f"{ranks} ranks, stage {zero}, step {entry['step']}: loss {entry['loss']}, PyTorch's is {expected}")


def leaves(session, model, exporter):
    """Eight leaves of two rows and of one, divided in several ways: proved to compute the same, and they do. `make bits` has more ways."""
    divisions, some = DIVISIONS if session.every_division else DIVISIONS[:3], DIVISIONS[:3]
    if model.name in NO_MICRO_BATCHES:
        divisions, some = ([d for d in listed if d[1] == 1] for listed in (divisions, some))
    options = tuple(json.loads((model / "run.json").read_text())["options"])
    for rows, listed in ((2, divisions), (1, some)):
        losses = same_bits(session, model, exporter, rows, options, listed)
        expect_close_losses(session, model, exporter, rows, options, losses)
    if model.name in NO_MICRO_BATCHES:
        refused(session, model, exporter, 2, options, (2, 2, 2), "needs a sum over the global batch of what the model computes")
    if "sync" in options:
        local = tuple("local" if o == "sync" else o for o in options)
        same_bits(session, model, exporter, 2, local, DIVISIONS[:3])


def compilation(session, model, exporter, rows, options, ranks, micro, zero, leaves=LEAVES):
    return ("sheaf", "compile", model / f"{exporter}.onnx", "-o", session.folder() / "plan", "--batch", rows * LEAVES,
            "--ranks", ranks, "--zero", zero, "--bucket-size", 16384, *(("--leaves", leaves) if ranks * micro < leaves else ()),
            *(("--micro-batches", micro) if micro > 1 else ()), *options)


def refused(session, model, exporter, rows, options, division, words):
    expect_short_error(session.call(*compilation(session, model, exporter, rows, options, *division)), [words], 1)


def same_bits(session, model, exporter, rows, options, divisions):
    """The losses that all divisions have."""
    plans = []
    for division in divisions:
        command = compilation(session, model, exporter, rows, options, *division)
        session.succeed(*command)
        plans.append(command[command.index("-o") + 1])
    out = session.succeed("sheaf", "same", *plans).out
    expect(f"the same bits, with {LEAVES} leaves of {rows} row" in out, out)
    found = [trained(session, model, plan) for plan in plans]
    for division, one in zip(divisions, found):
        expect(one == found[0], f"leaves of {rows} rows: {division} leave other weights, or have other losses, than {divisions[0]}")
    return found[0][1]


def expect_close_losses(session, model, exporter, rows, options, losses):
    """They are those of the whole batch on one rank, but for rounding."""
    command = compilation(session, model, exporter, rows, options, 1, 1, 0, leaves=1)
    session.succeed(*command)
    tolerance = json.loads((model / "run.json").read_text())["tolerance"]
    for step, (ours, whole) in enumerate(zip(losses, trained(session, model, command[command.index("-o") + 1])[1])):
        expect(abs(ours - whole) <= tolerance, f"leaves of {rows} rows, step {step}: loss {ours}, that of the whole batch is {whole}")


def trained(session, model, plan):
    """What three steps leave of the weights, and their losses."""
    where = session.folder()
    data = [a for path in sorted(model.glob("*.npy")) for a in ("--data", f"{path.stem}={path}")]
    session.succeed("sheaf-run", plan, *data, "--steps", 3, "--save", where / "weights", "--log", where / "log")
    return digest(where / "weights"), [entry["loss"] for entry in read_log(where / "log")[0]]
