"""Batch norm: losses, weights and running statistics of a residual network equal PyTorch's f64 runs, in every mode; the state of
running statistics over saves, stages and steps that are left out."""
import array
import json

from formats import Tensor, read_log, read_safetensors, write_safetensors
from harness import MODELS, Case, expect

FOLDER = MODELS / "norms"
SGD = ("--optimizer", "sgd:lr=0.05,momentum=0.9,weight_decay=1e-4")
STEPS, BATCH = 50, 16
# Of losses, absolute; of tensors and norms, relative to their largest number where that is above 1. PyTorch's own f32 run leaves
# its f64 run by 1e-6.
TOLERANCE = {"loss": 2e-5, "gradient norm": 2e-4, "weights": 2e-5, "statistics": 2e-5}


def cases(session):
    ranks, stages = ((4,), (0, 3)) if session.quick else ((1, 4), (0, 3))
    for n in ranks:
        for zero in stages:
            yield Case(f"norms/sync/ranks-{n}/zero-{zero}", lambda n=n, z=zero: sync(session, "resnet", (), n, z))
    yield Case("norms/sync/torchscript", lambda: sync(session, "resnet-torchscript", (), 2, 2))
    yield Case("norms/sync/one-row-a-rank", lambda: sync(session, "resnet", ("--batch-norm", "sync"), 16, 1))
    yield Case("norms/local", lambda: local(session))
    for n, zero in ((1, 0), (4, 3)):
        yield Case(f"norms/eval/ranks-{n}", lambda n=n, z=zero: evaluation(session, n, z))
    yield Case("norms/bits", lambda: bits(session))
    yield Case("norms/resume", lambda: resume(session))
    yield Case("norms/skipped-steps", lambda: skipped(session))
    yield Case("norms/precision", lambda: precision(session))


def compiled(session, model, options, ranks, zero):
    def make():
        path = session.folder() / "norms.plan"
        output = session.succeed("sheaf", "compile", FOLDER / f"{model}.onnx", "-o", path, "--ranks", ranks, "--zero", zero, "--batch",
                                 BATCH, "--bucket-size", "8KiB", *(() if "--optimizer" in options else SGD), *options)
        return path, output.err
    return session.once(("norms", model, options, ranks, zero), make)


def train(session, model="resnet", options=(), ranks=1, zero=0, steps=STEPS, run_options=(), images=MODELS / "cnn.x.npy"):
    """The log's steps, the weights and the path of a run's weights."""
    plan, _ = compiled(session, model, options, ranks, zero)
    where = session.folder()
    session.succeed("sheaf-run", plan, "--data", f"x={images}", "--data", f"labels={MODELS / 'cnn.labels.npy'}", "--steps",
                    steps, "--log", where / "run.jsonl", "--save", where / "weights.safetensors", *run_options)
    return read_log(where / "run.jsonl")[0], read_safetensors(where / "weights.safetensors"), where / "weights.safetensors"


def largest(values):
    return max(abs(v) for v in values)


def compare(steps, weights, run, stored):
    """Returns what the largest differences are."""
    reference = json.loads((FOLDER / "resnet.json").read_text())["runs"][run]
    worst = {"loss": 0, "gradient norm": 0, "weights": 0, "statistics": 0}
    for step, entry in enumerate(steps):
        worst["loss"] = max(worst["loss"], abs(entry["loss"] - reference["loss"][step]))
        norm = reference["grad_norm"][step]
        worst["gradient norm"] = max(worst["gradient norm"], abs(entry["grad_norm"] - norm) / max(1, norm))
    for name, expected in (read_safetensors(FOLDER / stored).items() if stored else ()):
        expect(name in weights, f"there is no '{name}' among {', '.join(weights)}")
        difference = largest(a - b for a, b in zip(weights[name].values, expected.values)) / max(1, largest(expected.values))
        kind = "statistics" if "running" in name else "weights"
        worst[kind] = max(worst[kind], difference)
    for kind, difference in worst.items():
        expect(difference <= TOLERANCE[kind], f"{kind}: {difference:.2e} from PyTorch's")
    return ", ".join(f"{kind} {difference:.1e}" for kind, difference in worst.items())


def sync(session, model, options, ranks, zero):
    _, said = compiled(session, model, options, ranks, zero)
    expect("warning" not in said, f"the graph is clear, but the compiler said: {said}")
    steps, weights, _ = train(session, model, options, ranks, zero)
    return compare(steps, weights, "sync", "resnet.sync.safetensors")


def local(session):
    options = ("--batch-norm", "local", "--optimizer", "sgd:lr=0.01,momentum=0.9,weight_decay=1e-4")
    _, said = compiled(session, "resnet", options, 2, 3)
    expect("depend on the number of ranks" in said, f"no warning of ranks: {said}")
    steps, weights, _ = train(session, options=options, ranks=2, zero=3)
    return compare(steps, weights, "local", "resnet.local.safetensors")


def evaluation(session, ranks, zero):
    steps, weights, _ = train(session, options=("--batch-norm", "eval"), ranks=ranks, zero=zero)
    one, first, _ = train(session, options=("--batch-norm", "eval"), ranks=ranks, zero=zero, steps=1)
    for name in weights:
        if "running" in name:
            expect(weights[name].values == first[name].values, f"{name} moved in evaluation mode")
    return compare(steps, weights, "eval", None)


def expect_equal(ours, others, why):
    for name, tensor in ours.items():
        expect(tensor.values == others[name].values, f"{name} {why}")


def bits(session):
    """Statistics are the same bits at every stage, with clipping that never takes effect and with guards."""
    weights = train(session, ranks=4, zero=0, steps=5)[1]
    for zero, options in ((1, ()), (2, ()), (3, ()), (3, ("--clip-norm", "1e6")), (2, ("--on-nan", "skip"))):
        expect_equal(train(session, options=options, ranks=4, zero=zero, steps=5)[1], weights, f"depends on stage {zero} {options}")


def resume(session):
    """Saved after 20 steps at one stage and resumed at it: the bits of a run that was not interrupted; also at another."""
    state = session.folder() / "state"
    whole = train(session, ranks=4, zero=3, steps=40)[1]
    train(session, ranks=4, zero=3, steps=20, run_options=("--save-state", state))
    for zero in (3, 1):
        expect_equal(train(session, ranks=4, zero=zero, steps=40, run_options=("--resume", state))[1], whole,
                     f"differs after resuming at stage {zero}")


def skipped(session):
    """A step whose loss is not finite leaves the statistics: with images of NaN all steps are left out."""
    broken, content = session.folder() / "x.npy", bytearray((MODELS / "cnn.x.npy").read_bytes())
    start = 10 + int.from_bytes(content[8:10], "little")
    content[start:start + 4] = array.array("f", [float("nan")]).tobytes()
    broken.write_bytes(content)
    options = ("--on-nan", "skip")
    before = train(session, options=options, ranks=2, zero=2, steps=1, images=broken)[1]
    initial = read_safetensors(session.once("norms initial", lambda: initial_weights(session)))
    expect_equal(before, initial, "changed in a step that was left out")
    # The next step's rows are sound.
    after = train(session, options=options, ranks=2, zero=2, steps=2, images=broken)[1]
    for name in ("norm.running_mean", "norm.running_var", "stem.weight"):
        expect(after[name].values != initial[name].values, f"{name} stayed in the second step")


def initial_weights(session):
    """The weights in the file: what a step at a rate of 0 leaves where running statistics stay."""
    return train(session, options=("--batch-norm", "eval", "--optimizer", "sgd:lr=0"), steps=1)[2]


def precision(session):
    """Under bf16 losses stay near PyTorch's, and statistics are f32 in memory, with nothing that keeps them a second time."""
    options = ("--precision", "bf16")
    steps, _, _ = train(session, options=options, ranks=2, zero=3)
    reference = json.loads((FOLDER / "resnet.json").read_text())["runs"]["sync"]["loss"]
    expect(all(abs(s["loss"] - reference[i]) < 0.1 for i, s in enumerate(steps[:6])), "the loss leaves PyTorch's")
    text = session.succeed("sheaf", "inspect", compiled(session, "resnet", options, 2, 3)[0], "--format", "text").out
    buckets = [line for line in text.splitlines() if "plan.bucket" in line and "statistics" in line]
    expect(len(buckets) == 2, f"there are {len(buckets)} buckets of statistics, not one for each momentum")
    for line in buckets:
        expect("bf16" not in line and "master" not in line, f"statistics are not plain f32: {line}")
