"""ONNX Runtime's training artifacts: their own backward pass is used, sharded, and gives ONNX Runtime's own weights."""
import json
import shutil

from formats import read_log, read_safetensors, relative_difference
from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import model, node

ARTIFACTS = MODELS / "artifacts"
ROWS = 8


def cases(session):
    for name in ("mlp", "mlp-sgd", "cnn", "block"):
        for ranks, zero in ((1, 0), (2, 2), (4, 0), (4, 3)):
            yield Case(f"artifacts/{name}/ranks-{ranks}-zero-{zero}", lambda n=name, r=ranks, z=zero: trained(session, n, r, z))
        yield Case(f"artifacts/{name}/evaluation", lambda n=name: evaluated(session, n))
    yield Case("artifacts/clipped", lambda: clipped(session))
    yield Case("artifacts/without-checkpoint", lambda: without_checkpoint(session))
    yield Case("artifacts/errors", lambda: errors(session))


def options(name, rate):
    """The optimizer of the artifacts' optimizer_model.onnx, with the run's learning rate."""
    return f"sgd:lr={rate}" if name == "mlp-sgd" else f"adamw_hf:lr={rate},eps=1e-6,weight_decay=0"


def trained(session, name, ranks, zero):
    folder, where = ARTIFACTS / name, session.folder()
    run = json.loads((folder / "run.json").read_text())
    session.succeed("sheaf", "compile", folder / "training_model.onnx", "-o", where / "p.plan", "--ranks", ranks, "--zero", zero,
                    "--batch", ROWS, "--optimizer", options(name, run["learning_rate"]))
    session.succeed("sheaf-run", where / "p.plan", "--data", f"x={folder / 'x.npy'}", "--data", f"labels={folder / 'labels.npy'}",
                    "--steps", len(run["losses"]), "--log", where / "log", "--save", where / "w.safetensors")
    losses = [step["loss"] for step in read_log(where / "log")[0]]
    for step, (ours, theirs) in enumerate(zip(losses, run["losses"], strict=True)):
        expect(abs(ours - theirs) <= 1e-5, f"step {step}: loss {ours}, ONNX Runtime's {theirs}")
    ours, theirs = read_safetensors(where / "w.safetensors"), read_safetensors(folder / "trained.safetensors")
    expect(ours.keys() == theirs.keys(), f"other parameters: {ours.keys() ^ theirs.keys()}")
    for parameter in theirs:
        difference = relative_difference(ours[parameter].values, theirs[parameter].values)
        expect(difference <= 1e-4, f"{parameter} differs by {difference:.1e}")


def evaluated(session, name):
    """An evaluation takes the forward pass of the artifacts alone: its loss is the mean of what training sees, at a rate of 0."""
    folder, where = ARTIFACTS / name, session.folder()
    steps = len(json.loads((folder / "run.json").read_text())["losses"])
    session.succeed("sheaf", "compile", folder / "training_model.onnx", "-o", where / "p.plan", "--ranks", 2, "--zero", 3, "--batch",
                    ROWS, "--optimizer", "sgd:lr=0", "--eval")
    summary = session.inspect(where / "p.plan")
    expect(not any("grad" in output["name"] for output in summary["outputs"]), f"gradients as outputs: {summary['outputs']}")
    files = [f"{i}={folder / i}.npy" for i in ("x", "labels")]
    session.succeed("sheaf-run", where / "p.plan", *(a for f in files for a in ("--data", f)), "--steps", steps, "--log", where / "log",
                    *(a for f in files for a in ("--eval-data", f)), "--eval-every", steps)
    seen, events = read_log(where / "log")
    event = next(e for e in events if e["event"] == "eval")
    mean = sum(step["loss"] for step in seen) / steps
    expect(event["rows"] == steps * ROWS, f"{event['rows']} rows, the run reads {steps * ROWS}")
    expect(abs(event["loss"] - mean) <= 1e-5, f"loss {event['loss']}, the steps' mean is {mean}")


def clipped(session):
    """The clipping of an optimizer_model.onnx gives the bits of --clip-norm, which replaces it."""
    clip = [node("InplaceClipGradNorm", ["gradients"], ["clipped"], domain="com.microsoft", max_norm=0.25),
            node("AdamWOptimizer", ["rate", "step", "params", "clipped", "first", "second"], ["updated"], domain="com.microsoft",
                 adam_mode=1, alpha=0.9, beta=0.999, epsilon=1e-6, weight_decay=0.0)]

    def weights(own, *arguments):
        where = session.folder()
        for file in ("training_model.onnx", "checkpoint", "optimizer_model.onnx"):
            shutil.copy(ARTIFACTS / "mlp" / file, where / file)
        if own:
            (where / "optimizer_model.onnx").write_bytes(model(clip, [], [], [], domains=("com.microsoft",)))
        session.succeed("sheaf", "compile", where / "training_model.onnx", "-o", where / "p.plan", "--ranks", 2, "--zero", 2, "--batch",
                        ROWS, *arguments)
        data = [a for name in ("x", "labels") for a in ("--data", f"{name}={ARTIFACTS / 'mlp' / name}.npy")]
        session.succeed("sheaf-run", where / "p.plan", *data, "--steps", 4, "--save", where / "w.safetensors")
        return (where / "w.safetensors").read_bytes()

    named = ("--optimizer", "adamw_hf:eps=1e-6,weight_decay=0,lr=1e-2")
    expect(weights(True, *named) == weights(False, *named, "--clip-norm", 0.25), "the clipping of the graph differs from --clip-norm's")
    expect(weights(True) == weights(False, "--clip-norm", 0.25), "the optimizer of the graph clips in another way")
    expect(weights(True, *named, "--clip-norm", 0.5) == weights(False, *named, "--clip-norm", 0.5), "--clip-norm does not replace it")
    expect(weights(True) != weights(False), "nothing is clipped at a norm of 0.25: the case shows nothing")


def without_checkpoint(session):
    """The graph alone compiles, with the optimizer of its folder; a run asks for weights."""
    where = session.folder()
    for file in ("training_model.onnx", "optimizer_model.onnx"):
        shutil.copy(ARTIFACTS / "mlp" / file, where / file)
    session.succeed("sheaf", "compile", where / "training_model.onnx", "-o", where / "p.plan", "--batch", ROWS)
    optimizer = json.loads(session.succeed("sheaf", "inspect", where / "p.plan", "--format", "json").out)["optimizer"]
    expect(optimizer.startswith("adamw_hf:"), f"the optimizer is {optimizer}")
    data = [a for name in ("x", "labels") for a in ("--data", f"{name}={ARTIFACTS / 'mlp' / name}.npy")]
    expect_short_error(session.call("sheaf-run", where / "p.plan", *data, "--steps", 1), ["initial", "sheaf init"])
    session.succeed("sheaf", "init", where / "p.plan", "-o", where / "w.safetensors")
    session.succeed("sheaf-run", where / "p.plan", *data, "--steps", 1, "--weights", where / "w.safetensors")


def errors(session):
    where = session.folder()

    def refused(words, *arguments, files=("training_model.onnx", "checkpoint"), damage=None, optimizer=None):
        folder = session.folder()
        for file in files:
            shutil.copy(ARTIFACTS / "mlp" / file, folder / file)
        if optimizer:
            (folder / "optimizer_model.onnx").write_bytes(optimizer)
        if damage:
            content = bytearray((folder / damage).read_bytes())
            content[len(content) // 2:] = b""
            (folder / damage).write_bytes(content)
        expect_short_error(session.call("sheaf", "compile", folder / files[0], "-o", where / "p.plan", "--batch", ROWS, *arguments),
                           words)

    refused(["optimizer", "training_model.onnx"], files=("optimizer_model.onnx",))
    refused(["checkpoint", "damaged"], damage="checkpoint")
    refused(["--loss"], "--loss", "onnx::loss::8")
    mul = model([node("Mul", ["gradients", "scale"], ["scaled"])], [], [], [], domains=("com.microsoft",))
    refused(["optimizer_model.onnx", "Mul", "--optimizer"], optimizer=mul)
