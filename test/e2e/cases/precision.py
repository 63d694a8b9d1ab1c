"""bf16 with f32 master weights: near the f32 reference but not on it, the same bits whatever the stage, half the gathers,
and the state of the ZeRO paper's table."""
import json
import os
import struct

from formats import read_log, read_safetensors
from harness import MODELS as FILES
from harness import Case, Skip, digest, expect, plan_bytes
from onnxwriter import BFLOAT16, FLOAT, INT64, model, node, value, weight
from training import CONFIGS, data_arguments, reference_run, short, train

MODELS = ("gpt2-tiny", "llama-tiny")
OTHERS = ("mlp-adamw", "mlp-training-info", "gpt2-tiny-optimized", "gpt2-tiny-logits", "llama-tiny-optimized")
BF16 = ("--precision", "bf16")
WIDE = BF16 + ("--reduce-precision", "f32")

# Bytes of parameters, gradients and optimizer state of Adam for one parameter (arXiv:1910.02054, figure 1).
BYTES = {"bf16": (2, 2, 12), "f32": (4, 4, 8)}
PARAMETERS = 7_459_729_408  # of gpt-7.5b


def cases(session):
    counts = (4,) if session.quick else (1, 2, 4)
    for name in MODELS:
        for ranks in counts:
            yield Case(f"precision/loss/{name}/ranks-{ranks}", lambda n=name, r=ranks: loss(session, n, r, BF16))
            yield Case(f"precision/bits/{name}/ranks-{ranks}", lambda n=name, r=ranks: bits(session, n, r, BF16))
        yield Case(f"precision/reduced-in-f32/{name}", lambda n=name: (loss(session, n, 4, WIDE), bits(session, n, 4, WIDE)))
        yield Case(f"precision/resumed/{name}", lambda n=name: resumed(session, n, BF16))
        yield Case(f"precision/gathers/{name}", lambda n=name: gathers(session, n))
        yield Case(f"precision/emulated/{name}", lambda n=name: emulated(session, n))
    for name in OTHERS:
        yield Case(f"precision/loss/{name}/ranks-2", lambda n=name: loss(session, n, 2, BF16, stages=(0,)))
    for folder in sorted((FILES / "precision").iterdir()):
        for precision in ("bf16", "f16"):
            yield Case(f"precision/angles/{folder.name}/{precision}", lambda f=folder, p=precision: angles(session, f, p))
    yield Case("precision/angles/parameter", lambda: single_parameter(session))
    yield Case("precision/clipped", lambda: clipped(session))
    yield Case("precision/state-of-f32", lambda: state_of_f32(session))
    yield Case("precision/model-in-bf16", lambda: model_in_bf16(session))
    yield Case("precision/text", lambda: text(session))
    for precision in BYTES:
        for zero in range(4):
            yield Case(f"precision/zero-table/{precision}/zero-{zero}",
                       lambda p=precision, z=zero: zero_table(session, p, z))


def expect_near(config, steps, first=0):
    """Loss differs from PyTorch's f64 run, by more than f32 does and less than 3e-3."""
    expected = reference_run(config)["loss"][first:first + len(steps)]
    worst = max(abs(step["loss"] - e) for step, e in zip(steps, expected))
    expect(1e-6 < worst < 3e-3, f"the loss differs by up to {worst:.2e} from the reference")
    return worst


def loss(session, name, ranks, precision, stages=range(4)):
    """Near the reference all the way at stage 0, and the same weights at every stage."""
    expect_near(CONFIGS[name], train(session, CONFIGS[name], ranks, 0, compile_options=precision).steps)
    first = None
    for zero in stages if ranks > 1 and len(stages) > 1 else ():
        run = train(session, CONFIGS[name], ranks, zero, steps=short(session), compile_options=precision)
        expect_near(CONFIGS[name], run.steps)
        first = first or digest(run.weights)
        expect(digest(run.weights) == first, f"stage {zero} leaves other weights than stage 0")


def angles(session, folder, precision):
    """As near PyTorch's f32 run as its autocast: angles, which would be rounded by whole radians, are not rounded."""
    where, reference = session.folder(), json.loads((folder / "run.json").read_text())
    # A scale that overflows at first would skip steps.
    scale = ("--loss-scale", "dynamic:init=64") if precision == "f16" else ()
    session.succeed("sheaf", "compile", folder / "model.onnx", "-o", where / "plan", *reference["options"], "--precision", precision, *scale)
    data = [a for path in sorted(folder.glob("*.npy")) for a in ("--data", f"{path.stem}={path}")]
    session.succeed("sheaf-run", where / "plan", *data, "--steps", len(reference["f32"]), "--log", where / "log")
    losses = [step["loss"] for step in read_log(where / "log")[0]]
    expect(len(losses) == len(reference["f32"]), f"the log has {len(losses)} steps")
    ours, autocast = (max(abs(a - b) for a, b in zip(run, reference["f32"])) for run in (losses, reference["autocast"]))
    expect(ours < 2 * autocast + 0.01, f"the loss differs by up to {ours:.4f} from f32, that of autocast by {autocast:.4f}")


def single_parameter(session):
    """A learned frequency stays f32 in memory: at every stage, in the evaluation and in a saved state the same bits."""
    folder, where = FILES / "precision" / "learned-frequencies", session.folder()
    options = json.loads((folder / "run.json").read_text())["options"]
    data = [a for path in sorted(folder.glob("*.npy")) for a in ("--data", f"{path.stem}={path}")]
    evaluation = [a.replace("--data", "--eval-data") for a in data]
    saved = set()
    for zero in range(4):
        plan = where / f"plan{zero}"
        session.succeed("sheaf", "compile", folder / "model.onnx", "-o", plan, *options, *BF16, "--ranks", 2, "--zero", zero, "--eval")
        session.succeed("sheaf-run", plan, *data, *evaluation, "--steps", 6, "--eval-every", 3, "--save", where / f"{zero}.safetensors")
        saved.add(digest(where / f"{zero}.safetensors"))
        session.succeed("sheaf-run", plan, *data, "--steps", 3, "--save-state", where / f"state{zero}")
        session.succeed("sheaf-run", plan, *data, "--steps", 6, "--resume", where / f"state{zero}", "--save", where / "resumed.safetensors")
        saved.add(digest(where / "resumed.safetensors"))
    expect(len(saved) == 1, "stages or a resumed run leave other weights")
    text = session.succeed("sheaf", "inspect", where / "plan3", "--format", "text").out
    expect('plan.parameter "b" f32' in text or '"b" f32' in text, "the frequencies are not f32")


def bits(session, name, ranks, precision):
    """The same weights on every run, with one thread a rank and two; loss() compares the stages."""

    def run(zero, **options):
        return train(session, CONFIGS[name], ranks, zero, steps=short(session), compile_options=precision, **options)

    expected, others = run(0), []
    for threads in (1, 2):
        others.append((f"{threads} threads a rank", run(3, repeat=threads, run_options=("--threads-per-rank", threads))))
    for what, other in others:
        expect(digest(other.weights) == digest(expected.weights), f"{what} leaves other weights")


def resumed(session, name, precision):
    """A state goes on bit by bit, at another stage too; on another number of ranks near the reference."""
    config, steps, state = CONFIGS[name], short(session), session.folder() / "state"
    half, whole = steps // 2, train(session, config, 4, 0, steps, precision)
    train(session, config, 4, 3, steps=half, compile_options=precision, run_options=("--save-state", state))
    for zero in (3, 1):
        rest = train(session, config, 4, zero, steps=steps, compile_options=precision, run_options=("--resume", state))
        expect(digest(rest.weights) == digest(whole.weights), f"resumed at stage {zero}: other weights")
    rest = train(session, config, 2, 2, steps=steps, compile_options=precision, run_options=("--resume", state))
    expect_near(config, rest.steps, first=half)


def gathers(session, name):
    """Gathers and reductions carry half the bytes of f32's; reduced in f32, only gathers do."""
    config = CONFIGS[name]

    def sent(precision):
        report = session.inspect(session.plan(config.model, 4, 3, 8, config.options + ("--bucket-size", 65536) + precision))
        of = {op: sum(c["bytes"] for c in report["communication"] if c["op"] == op and c["bucket"]) for op in ("all_gather", "reduce_scatter")}
        return of["all_gather"], of["reduce_scatter"]

    def near(value, expected, what):
        expect(abs(value - expected) <= 0.02 * expected, f"{what} {value} bytes, expected {expected:.0f}")

    # Buckets are closed by bytes, so bf16's hold more: the sum over buckets is of the same parameters but for padding,
    # and at stage 3 of as many visits only where the buckets are the same.
    (_, single), (half_gather, half), (wide_gather, wide) = sent(()), sent(BF16), sent(WIDE)
    near(half, single / 2, "reductions carry")
    near(wide, single, "reductions in f32 carry")
    near(wide_gather, half_gather, "gathers with reductions in f32 carry")
    for zero in (1, 2):
        whole = [sum(c["bytes"] for c in session.inspect(session.plan(config.model, 4, zero, 8, config.options + p))["communication"]
                     if c["op"] == "all_gather" and c["bucket"]) for p in ((), BF16)]
        near(whole[1], whole[0] / 2, f"gathers of stage {zero} carry")


def emulated(session, name):
    """Without bf16 instructions products are computed in f32 of the rounded operands: near the reference all the same."""
    config, where = CONFIGS[name], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options + BF16)
    log = where / "log"
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", session.steps, "--log", log,
                    env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})
    expect_near(config, read_log(log)[0])


def clipped(session):
    """Clipping that does not bite changes no bit; clipping that bites changes some."""
    config, steps = CONFIGS["gpt2-tiny"], short(session)
    plain = train(session, config, 2, 0, steps, BF16)
    idle = train(session, config, 2, 3, steps, BF16 + ("--clip-norm", "1e6", "--on-nan", "skip"))
    expect(digest(idle.weights) == digest(plain.weights), "clipping that does not bite leaves other weights")
    biting = train(session, config, 2, 2, compile_options=BF16 + ("--clip-norm", "0.01"), steps=5)
    expect(biting.steps[0]["grad_norm"] == plain.steps[0]["grad_norm"] > 0.01, "the norm before clipping is another")
    same_length = train(session, config, 2, 0, compile_options=BF16, steps=5)
    expect(digest(biting.weights) != digest(same_length.weights), "clipping that bites changes no bit")
    expect([s["loss"] for s in biting.steps[1:]] != [s["loss"] for s in same_length.steps[1:]], "nor a loss")


def state_of_f32(session):
    """What is saved is f32: --save writes f32 weights, and a state of a run in bf16 is one of a run in f32."""
    config, half, state = CONFIGS["gpt2-tiny"], short(session) // 2, session.folder() / "state"
    first = train(session, config, 2, 3, steps=half, compile_options=BF16, run_options=("--save-state", state))
    values = [v for tensor in read_safetensors(first.weights).values() for v in tensor.values]
    rounded = sum(v == float_of_bf16(v) for v in values)
    expect(rounded < len(values) / 2, f"{rounded} of {len(values)} saved weights are bf16 numbers")
    rest = train(session, config, 2, 1, steps=short(session), run_options=("--resume", state))
    expect_near(config, rest.steps, first=half)


def float_of_bf16(value):
    """The f32 whose lower half is cut off."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def model_in_bf16(session):
    """A model whose own floats are bf16 trains as the f32 model with the same weights does."""
    values, saved = [(i % 17 - 8) / 64 for i in range(640)], {}
    for dtype in (FLOAT, BFLOAT16):
        where = session.folder()
        nodes = [node("MatMul", ["x", "w"], ["h"]), node("Cast", ["h"], ["y"], to=FLOAT),
                 node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"])]
        (where / "m.onnx").write_bytes(model(nodes, [value("x", dtype, ["N", 64]), value("labels", INT64, ["N"])],
                                             [value("loss", FLOAT, [])], [weight("w", [64, 10], values, dtype)]))
        for precision in BYTES:
            session.succeed("sheaf", "compile", where / "m.onnx", "-o", where / "plan", "--batch", 8, "--ranks", 2, "--zero", 3,
                            "--optimizer", "adamw:lr=1e-3", "--precision", precision)
            session.succeed("sheaf-run", where / "plan", "--data", f"x={FILES / 'mlp.x.npy'}", "--data",
                            f"labels={FILES / 'mlp.labels.npy'}", "--steps", 10, "--save", where / "w.safetensors")
            saved[dtype, precision] = digest(where / "w.safetensors")
    for precision in BYTES:
        expect(saved[FLOAT, precision] == saved[BFLOAT16, precision], f"{precision}: other weights than the f32 model's")
    expect(saved[FLOAT, "f32"] != saved[FLOAT, "bf16"], "bf16 leaves the weights of f32")


def text(session):
    """A plan in bf16 is its text, and its text is the plan."""
    config, where = CONFIGS["llama-tiny"], session.folder()
    plan = session.plan(config.model, 4, 3, 8, config.options + WIDE)
    (where / "plan.mlir").write_text(session.succeed("sheaf", "inspect", plan, "--format", "text").out)
    session.succeed("sheaf", "assemble", where / "plan.mlir", "-o", where / "again.plan")
    expect(plan_bytes(where / "again.plan") == plan_bytes(plan), "the text gives another plan")


def zero_table(session, precision, zero):
    """gpt-7.5b on 64 ranks keeps what the paper's table says: parameters and optimizer within 1 %, gradients at most."""
    if session.quick:
        raise Skip("a large model")
    plan = session.plan("gpt-7.5b", 64, zero, 64, ("--precision", precision))
    report = session.inspect(plan)
    expect(report["parameters"] == PARAMETERS, f"{report['parameters']} parameters")
    parameters, gradients, optimizer = BYTES[precision]
    formula = {"parameters": parameters * PARAMETERS / (64 if zero >= 3 else 1),
               "gradients": gradients * PARAMETERS / (64 if zero >= 2 else 1),
               "optimizer": optimizer * PARAMETERS / (64 if zero >= 1 else 1)}
    kinds = report["memory"]["by_kind"]
    for kind in ("parameters", "optimizer"):
        expect(abs(kinds[kind] - formula[kind]) <= 0.01 * formula[kind], f"{kind}: {kinds[kind]} bytes, expected {formula[kind]:.0f}")
    expect(0 < kinds["gradients"] <= 1.01 * formula["gradients"], f"gradients: {kinds['gradients']} bytes, allowed are {formula['gradients']:.0f}")
