"""f16 with f32 master weights and a loss scale: near PyTorch's f64 runs, the same bits whatever the stage and, with leaves,
the number of ranks; steps that overflow are skipped as by PyTorch's GradScaler."""
import array
import json
import math
import re

from cases import cuda as gpus
from cases.precision import expect_near, resumed
from cases import norms
from formats import read_log, read_safetensors
from harness import MODELS as FILES
from harness import Case, Skip, digest, expect, expect_short_error, plan_bytes
from jobs import Job
from training import CONFIGS, data_arguments, reference_gradients, short, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
F16 = ("--precision", "f16")
WIDE = F16 + ("--reduce-precision", "f32")
LEAVES = 4


def cases(session):
    counts = (4,) if session.quick else (1, 2, 4)
    for name in MODELS:
        for ranks in counts:
            yield Case(f"f16/loss/{name}/ranks-{ranks}", lambda n=name, r=ranks: loss(session, n, r, F16))
        yield Case(f"f16/leaves/{name}", lambda n=name: leaves(session, n))
        yield Case(f"f16/resumed/{name}", lambda n=name: resumed(session, n, F16))
    for name in ("gpt2-tiny", "cnn-adamw"):
        yield Case(f"f16/reduced-in-f32/{name}", lambda n=name: loss(session, n, 4, WIDE))
    for run in ("adamw", "momentum"):
        for ranks, zero in ((1, 0), (4, 3)):
            yield Case(f"f16/overflow/{run}/ranks-{ranks}", lambda r=run, n=ranks, z=zero: overflow(session, r, n, z))
    yield Case("f16/skipped-steps", lambda: skipped(session))
    yield Case("f16/resumed-while-scaling", lambda: resumed_while_scaling(session))
    for policy in ("stop", "skip"):
        yield Case(f"f16/floor/{policy}", lambda p=policy: floor(session, p))
    yield Case("f16/batch-norm", lambda: batch_norm(session))
    for hosts in ("aa", "ab"):  # over shared memory and over sockets
        yield Case(f"f16/processes-{hosts}", lambda h=hosts: processes(session, h))
    yield Case("f16/scale-of-f32", lambda: scale_of_f32(session))
    yield Case("f16/clipped", lambda: clipped(session))
    yield Case("f16/gradients", lambda: gradients(session))
    yield Case("f16/evaluation", lambda: evaluation(session))
    yield Case("f16/state-of-f32", lambda: state_of_f32(session))
    yield Case("f16/inspect", lambda: inspect(session))
    yield Case("f16/errors", lambda: errors(session))
    yield Case("f16/cuda/loss", lambda: cuda_loss(session))
    yield Case("f16/cuda/overflow", lambda: cuda_overflow(session))
    yield Case("f16/mutants", lambda: mutants(session))
    yield Case("f16/edited-plans", lambda: edited_plans(session))


def expect_same(ours, others, why):
    expect(digest(ours.weights) == digest(others.weights), f"{why}: other weights")


def loss(session, name, ranks, precision):
    """Near the reference all the way at stage 0, and the same weights at every stage; no step overflows."""
    config, worst, first = CONFIGS[name], 0, None
    stages = [(zero, short(session)) for zero in range(4)] if ranks > 1 else []
    for zero, steps in [(0, session.steps), *stages]:
        run = train(session, config, ranks, zero, steps, precision)
        worst = max(worst, expect_near(config, run.steps))
        expect(not any("skipped" in s for s in run.steps), "a step was skipped")
        expect(all(s["loss_scale"] == 65536 for s in run.steps), "the scale is not 65,536")
        if steps == short(session):
            first = first or run
            expect_same(run, first, f"stage {zero}")
    return f"loss {worst:.1e}"


def leaves(session, name):
    """The same bits on one, two and four ranks, for four leaves."""
    config, buckets = CONFIGS[name], ("--bucket-size", 64 << 10)
    four = train(session, config, 4, 3, 10, (*F16, *buckets))
    for ranks, zero in ((1, 0), (2, 0), (2, 3)):
        run = train(session, config, ranks, zero, 10, (*F16, *buckets, "--leaves", LEAVES))
        expect_same(run, four, f"{ranks} ranks at stage {zero}")


def scaled_reference(run):
    return json.loads((FILES / "scaled.json").read_text())["runs"][run]


def run_scaled(session, options, ranks, zero, steps, *run_options, save=True):
    """The log, and the folder with the weights, of a run of the perceptron in f16."""
    plan, where = session.plan("mlp", ranks, zero, 8, tuple(options) + F16), session.folder()
    session.succeed("sheaf-run", plan, *data_arguments(CONFIGS["mlp-adamw"]), "--steps", steps, "--log", where / "log",
                    *(("--save", where / "weights") if save else ()), *run_options)
    return read_log(where / "log")[0], where


def overflow(session, run, ranks, zero):
    """Scales, skipped steps and losses are those of PyTorch's GradScaler."""
    expected = scaled_reference(run)
    log, _ = run_scaled(session, expected["options"], ranks, zero, len(expected["loss"]))
    skips = [bool(s.get("skipped")) for s in log]
    expect(skips == expected["skipped"] and sum(skips) > 5, f"skipped are {skips}, by PyTorch {expected['skipped']}")
    for step, (entry, scale, loss) in enumerate(zip(log, expected["loss_scale"], expected["loss"])):
        expect(math.isclose(entry["loss_scale"], scale, rel_tol=1e-6),
               f"step {step}: scale {entry['loss_scale']}, PyTorch's is {scale}")
        expect(abs(entry["loss"] - loss) < 3e-3, f"step {step}: loss {entry['loss']}, PyTorch's is {loss}")
        expect((entry["grad_norm"] is None) == skips[step], f"step {step}: gradient norm {entry['grad_norm']}")
    return f"{sum(skips)} of {len(skips)} steps skipped"


def tensors(folder):
    """All values of a saved state, by kind and parameter."""
    values = {}
    for file in sorted(folder.rglob("rank-*.safetensors")):
        values.update({(file.name, name): t.values for name, t in read_safetensors(file).items()})
    return values


def manifest(folder):
    return json.loads(next(folder.rglob("manifest.json")).read_text())["state"]


def skipped(session):
    """Skipped steps leave weights and moments to the bit, and are not updates; the next one is Adam's first."""
    options = scaled_reference("adamw")["options"]
    first = scaled_reference("adamw")["skipped"].index(False)
    _, none = run_scaled(session, options, 2, 2, 1, "--save-state", session.folder() / "one")
    state = session.folder() / "state"
    _, where = run_scaled(session, options, 2, 2, first, "--save-state", state)
    expect(manifest(state)["updates"] == 0 and manifest(state)["step"] == first, f"{first} skipped steps count as updates")
    still = session.folder() / "initial"
    session.succeed("sheaf-run", session.plan("mlp", 1, 0, 8, ("--optimizer", "sgd:lr=0")), *data_arguments(CONFIGS["mlp-sgd"]),
                    "--steps", 1, "--save", still)
    initial = read_safetensors(still)
    for name, tensor in read_safetensors(where / "weights").items():
        expect(tensor.values == initial[name].values, f"{name} changed in skipped steps")
    expect(digest(where / "weights") == digest(none / "weights"), "one skipped step and several leave other weights")
    for (_, name), values in tensors(state).items():
        if name.startswith("exp_avg"):
            expect(not any(values), f"{name} changed in skipped steps")
    # Adam's first update moves every weight by the rate in the direction of its gradient: with bias corrections of
    # another number of updates it would not.
    _, after = run_scaled(session, [o.replace("weight_decay=0.01", "weight_decay=0") for o in options], 2, 2, first + 1)
    moved = [abs(a - b) for name, t in read_safetensors(after / "weights").items() for a, b in zip(t.values, initial[name].values)]
    large = [m for m in moved if m > 1e-6]
    expect(len(large) > 1000 and sum(abs(m - 1e-3) < 5e-5 for m in large) > 0.95 * len(large),
           f"the first update moves {len(large)} weights by {sorted(large)[len(large) // 2]}, not by the rate 1e-3")


def resumed_while_scaling(session):
    """Saved with a scale in between, where it has good steps: the bits, scales and skips of a run without interruption."""
    options = scaled_reference("adamw")["options"]
    steps, half = len(scaled_reference("adamw")["loss"]), 13
    whole, weights = run_scaled(session, options, 4, 0, steps)
    state = session.folder() / "state"
    run_scaled(session, options, 4, 3, half, "--save-state", state)
    saved = manifest(state)
    expect(saved["updates"] == sum("skipped" not in s for s in whole[:half]), f"{saved['updates']} updates are saved")
    scale = saved.get("loss_scale") or {}
    expect(scale.get("scale") == whole[half]["loss_scale"] and scale["good_steps"] > 0, f"the state has the loss scale {scale}")
    for zero in (3, 1, 0):
        rest, after = run_scaled(session, options, 4, zero, steps, "--resume", state)
        expect(digest(after / "weights") == digest(weights / "weights"), f"resumed at stage {zero}: other weights")
        same = [[s["loss"], s["loss_scale"], s.get("skipped")] for s in rest] == [[s["loss"], s["loss_scale"], s.get("skipped")] for s in whole[half:]]
        expect(same, f"resumed at stage {zero}: another log")
    # With leaves on another number of ranks, too; the state is saved in the middle and evaluated from there.
    cut = ("--leaves", "4", "--bucket-size", "64KiB")
    whole, weights = run_scaled(session, [*options, *cut], 4, 3, steps)
    state = session.folder() / "leaves"
    run_scaled(session, [*options, *cut], 2, 1, half, "--save-state", state)
    rest, after = run_scaled(session, [*options, *cut], 1, 0, steps, "--resume", state)
    expect(digest(after / "weights") == digest(weights / "weights"), "resumed on one rank: other weights")


def broken_data(session):
    """Inputs of which step 2's first value is NaN."""
    where, content = session.folder(), bytearray((FILES / "mlp.x.npy").read_bytes())
    at = 10 + int.from_bytes(content[8:10], "little") + 2 * 8 * 64 * 4
    content[at:at + 4] = array.array("f", [math.nan]).tobytes()
    (where / "x.npy").write_bytes(content)
    return "--data", f"x={where / 'x.npy'}", "--data", f"labels={FILES / 'mlp.labels.npy'}"


def floor(session, policy):
    """Above the floor a NaN is skipped whatever --on-nan says; at the floor it is as --on-nan says."""
    data, config = broken_data(session), CONFIGS["mlp-sgd"]
    for init, ends in ((2, False), (1, policy == "stop")):
        where = session.folder()
        plan = session.plan("mlp", 2, 3, 8, config.options + F16 + ("--loss-scale", f"dynamic:init={init}", "--on-nan", policy))
        done = session.call("sheaf-run", plan, *data, "--steps", 5, "--log", where / "log", "--save", where / "w")
        if ends:
            expect(done.code == 1 and re.search(r"error: .*\bstep 2\b.*loss scale cannot be reduced", done.err), done.err)
            expect(not (where / "w").exists(), "weights were saved")
            continue
        expect(done.code == 0, f"exit {done.code}: {done.err}")
        log = read_log(where / "log")[0]
        expect([s["loss_scale"] for s in log] == [init] * 3 + [1, 1], f"scales are {[s['loss_scale'] for s in log]}")
        expect([bool(s.get("skipped")) for s in log] == [False, False, True, False, False], "skipped is not step 2 alone")
        expect("update is skipped" in done.err, f"nothing is said of the skipped step: {done.err}")
        expect(all(math.isfinite(v) for t in read_safetensors(where / "w").values() for v in t.values), "weights are not finite")


def batch_norm(session):
    """A skipped step leaves the running statistics, which are f32 and not scaled; else they are near those of f32."""
    options = (*F16, "--loss-scale", "dynamic:init=1e12,backoff=1e-8")
    steps, skipped, _ = norms.train(session, options=options, ranks=2, zero=2, steps=1)
    expect(steps[0].get("skipped"), f"the first step does not overflow: {steps[0]}")
    initial = read_safetensors(session.once("norms initial", lambda: norms.initial_weights(session)))
    norms.expect_equal(skipped, initial, "changed in a skipped step")
    after = norms.train(session, options=options, ranks=2, zero=2, steps=2)[1]
    for name in ("norm.running_mean", "norm.running_var", "stem.weight"):
        expect(after[name].values != initial[name].values, f"{name} stayed in the second step")
    same, first, _ = norms.train(session, options=F16, ranks=2, zero=3, steps=6)
    plain, second, _ = norms.train(session, ranks=2, zero=3, steps=6)
    expect(max(abs(a["loss"] - b["loss"]) for a, b in zip(same, plain)) < 2e-2, "losses leave those of f32")
    for name in first:
        if "running" in name:
            worst = max(abs(a - b) for a, b in zip(first[name].values, second[name].values))
            expect(worst < 1e-2 * max(1, max(map(abs, second[name].values))), f"{name} differs from f32's by {worst}")


def processes(session, hosts):
    """Processes skip the same steps: the bits of one process, also after resuming."""
    options, steps, half = scaled_reference("adamw")["options"], 20, 9
    whole, expected = run_scaled(session, options, 4, 3, steps)
    plan, where = session.plan("mlp", 4, 3, 8, (*options, *F16)), session.folder()
    common = (plan, *data_arguments(CONFIGS["mlp-adamw"]))
    for arguments in (("--steps", half, "--save-state", where / "state"),
                      ("--steps", steps, "--resume", where / "state", "--save", where / "w", "--log", where / "log")):
        with Job(session, 2, *common, *arguments, environment=lambda rank: {"SHEAF_HOST": hosts[rank]}) as job:
            job.succeed()
    expect(digest(where / "w") == digest(expected / "weights"), "other weights than in one process")
    log = read_log(where / "log")[0]
    expect([[s["loss_scale"], s.get("skipped")] for s in log] == [[s["loss_scale"], s.get("skipped")] for s in whole[half:]], "other scales")


def scale_of_f32(session):
    """In f32 a scale that is a power of two changes no bit but through step scalars: of SGD none, of AdamW almost none."""
    for name in ("mlp-momentum", "mlp-adamw"):
        config = CONFIGS[name]
        plain = train(session, config, 2, 2, steps=20, compile_options=("--on-nan", "skip"))
        for scale in ("1024", "dynamic:init=1024,interval=3"):
            run = train(session, config, 2, 3, steps=20, compile_options=("--loss-scale", scale))
            if name == "mlp-momentum":
                expect_same(run, plain, f"--loss-scale {scale}")
            worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(run.steps, plain.steps))
            expect(worst < 1e-6, f"--loss-scale {scale} changes the loss of {name} by {worst}")
    expect(run.steps[-1]["loss_scale"] == 1024 * 2**6, f"the scale ends at {run.steps[-1]['loss_scale']}")


def clipped(session):
    """Clipping sees unscaled gradients: at another scale the norm is the same, and so is the step."""
    config = CONFIGS["gpt2-tiny"]
    runs = [train(session, config, 2, 3, steps=5, compile_options=WIDE + ("--clip-norm", "0.1", "--loss-scale", s)) for s in ("1024", "65536")]
    plain = train(session, config, 2, 3, steps=5, compile_options=WIDE)
    for a, b, c in zip(runs[0].steps, runs[1].steps, plain.steps):
        expect(abs(a["grad_norm"] - b["grad_norm"]) < 1e-2 * a["grad_norm"], f"norms {a['grad_norm']} and {b['grad_norm']}")
        expect(a["grad_norm"] > 0.1 and abs(a["loss"] - b["loss"]) < 3e-3, "the scale changes what is clipped")
    expect(runs[0].steps[4]["loss"] != plain.steps[4]["loss"], "clipping changes nothing")


def gradients(session):
    """--dump-gradients writes unscaled gradients; moments of batch norms are not scaled."""
    config = CONFIGS["gpt2-tiny"]
    ours = read_safetensors(train(session, config, 2, 1, steps=1, compile_options=F16, gradients=True).gradients)
    for name, expected in reference_gradients(config).items():
        error = expected.difference(ours[name].values)
        expect(error < 2e-2, f"{name} differs by {error:.1e} of its norm")


def evaluation(session):
    """A plan with an evaluation evaluates near f32's, and trains to the same bits."""
    config = CONFIGS["gpt2-tiny"]
    plain = train(session, config, 2, 3, steps=6, compile_options=F16)
    data = [a.replace("--data", "--eval-data") for a in map(str, data_arguments(config))]
    losses = []
    for options in (F16, ()):
        plan, where = session.plan(config.model, 2, 3, 8, config.options + options + ("--eval",)), session.folder()
        session.succeed("sheaf-run", plan, *data_arguments(config), *data, "--steps", 6, "--eval-every", 3, "--log", where / "log",
                        "--save", where / "w")
        if options:
            expect(digest(where / "w") == digest(plain.weights), "evaluations change the training")
        losses.append([json.loads(line)["loss"] for line in (where / "log").read_text().splitlines() if '"eval"' in line])
    expect(len(losses[0]) == 2 and all(0 < abs(a - b) < 3e-3 for a, b in zip(*losses)), f"evaluations give {losses}")


def state_of_f32(session):
    """What is saved is f32: a run in f32 goes on with the state of a run in f16, and the other way round."""
    config, half = CONFIGS["gpt2-tiny"], short(session) // 2
    for before, after in ((F16, ()), ((), F16)):
        state = session.folder() / "state"
        train(session, config, 2, 3, steps=half, compile_options=before, run_options=("--save-state", state))
        rest = train(session, config, 2, 1, steps=short(session), compile_options=after, run_options=("--resume", state))
        expect_near(config, rest.steps, first=half)
        expect(after == () or rest.steps[0]["loss_scale"] == 65536, "the scale does not begin at 65,536")


def inspect(session):
    """`inspect` and `fit` say precision and scale; the text assembles to the same bytes."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    options = config.options + F16 + ("--loss-scale", "dynamic:interval=100,floor=0.5")
    plan = session.plan(config.model, 2, 3, 8, options)
    out = session.succeed("sheaf", "inspect", plan).out
    for words in ("precision   f16 with f32 master weights; gradients are summed over ranks in f16",
                  "loss scale  dynamic:interval=100,floor=0.5", "the update is skipped and the scale reduced; at 0.5 the run stops"):
        expect(words in out, f"`inspect` does not say `{words}`:\n{out}")
    report = session.inspect(plan)
    expect(report["loss_scale"] == "dynamic:interval=100,floor=0.5", f"{report['loss_scale']}")
    expect(report["memory"]["by_kind"]["optimizer"] % 128 == 24, "the state of the scale is not counted")
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    (where / "plan.mlir").write_text(text)
    session.succeed("sheaf", "assemble", where / "plan.mlir", "-o", where / "again.plan")
    expect(plan_bytes(where / "again.plan") == plan_bytes(plan), "the text assembles to other bytes")
    expect(session.inspect(session.plan(config.model, 2, 3, 8, config.options))["loss_scale"] is None, "f32 has a loss scale")
    out = session.succeed("sheaf", "fit", FILES / "gpt2-tiny.onnx", "--ranks", 2, "--batch", 8, "--precision", "f16", "--memory", "1GiB").out
    expect("f16" in out, f"`fit` does not say f16:\n{out}")


def cuda_loss(session):
    """On emulated GPUs near the reference, the same bits with and without graphs."""
    for name in ("gpt2-tiny", "mlp-adamw"):
        run = gpus.train(session, CONFIGS[name], 2, 3, compiled=F16)
        expect_near(CONFIGS[name], run.steps)
        expect_same(gpus.train(session, CONFIGS[name], 2, 3, "--no-graphs", compiled=F16), run, "without graphs")


def cuda_overflow(session):
    """Emulated GPUs skip the same steps and have the same scales as PyTorch's GradScaler; a state resumes to the same bits."""
    expected, config, steps, half = scaled_reference("adamw"), CONFIGS["mlp-adamw"], 20, 9
    compiled = (*expected["options"][2:], *F16)
    run = gpus.train(session, config, 2, 1, steps=steps, compiled=compiled)
    for step, entry in enumerate(run.steps):
        expect(bool(entry.get("skipped")) == expected["skipped"][step], f"step {step}: {entry}")
        expect(entry["loss_scale"] == expected["loss_scale"][step], f"step {step}: scale {entry['loss_scale']}")
        expect(abs(entry["loss"] - expected["loss"][step]) < 3e-3, f"step {step}: loss {entry['loss']}")
    state = session.folder() / "state"
    gpus.train(session, config, 2, 1, "--save-state", state, steps=half, compiled=compiled)
    rest = gpus.train(session, config, 2, 1, "--resume", state, steps=steps, compiled=compiled)
    expect_same(rest, run, "resumed")


def errors(session):
    graph, where = session.graph("mlp"), session.folder()

    def compiled(*options):
        return session.call("sheaf", "compile", graph, "-o", where / "x.plan", "--batch", 8, *options)

    for options, words, code in (
        (("--loss-scale", "sometimes"), ["--loss-scale", "expected none, a number or dynamic"], 2),
        (("--loss-scale", "dynamic:backoff=1"), ["backoff must be a number between 0 and 1"], 2),
        (("--loss-scale", "dynamic:interval=0"), ["interval must be a number of steps"], 2),
        (("--loss-scale", "dynamic:init=1,floor=2"), ["floor must be at most init"], 2),
        (("--loss-scale", "dynamic:window=2"), ["dynamic has no 'window': it takes init, growth"], 2),
        (("--loss-scale", "dynamic:init=2,init=2"), ["'init' is given twice"], 2),
        (("--loss-scale", "-1"), ["a fixed scale must be"], 2),
        (("--precision", "f16", "--reduce-precision", "bf16"), ["--reduce-precision bf16 needs --precision bf16"], 2),
        (("--eval-only", "--loss-scale", "2"), ["--loss-scale has no use with --eval-only"], 2),
    ):
        expect_short_error(compiled(*options), words, code)


def mutants(session):
    """No mutant of a plan with a loss scale is accepted and at fault: see sheaf-mutants. Samples, unless all are asked for."""
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    config = CONFIGS["mlp-adamw"]
    plans = [session.plan(config.model, ranks, zero, 8, config.options + F16 + more)
             for ranks, zero, more in ((2, 3, ()), (2, 1, ("--clip-norm", "1", "--eval")))]
    every = [] if session.every_mutant else ["--sample", 12]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def edited_plans(session):
    """A plan whose loss scale is not advanced, not read or advanced by another rule is refused, whatever its digests say."""
    config, where = CONFIGS["mlp-adamw"], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options + F16)
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    lines = text.splitlines(keepends=True)
    calls = [i for i, line in enumerate(lines) if 'plan.call "advance_loss_scale"' in line]
    scalars = [i for i, line in enumerate(lines) if 'plan.call "update_scalar"' in line]
    expect(len(calls) == 1 and len(scalars) == 3, f"there are {len(calls)} and {len(scalars)} calls")
    call = lines[calls[0]]

    def edited(what, new, words, redigest=True):
        (where / "plan.mlir").write_text("".join(new))
        assemble = "sheaf", "assemble", where / "plan.mlir", "-o", where / "x.plan"
        if redigest:  # which refuses what does not verify
            done = session.call(*assemble, "--redigest")
        else:
            session.succeed(*assemble)
            done = session.call("sheaf", "verify", where / "x.plan")
        expect(done.code == 1 and all(w in done.err for w in words), f"{what}: {done.code} {done.err}")

    without = lines[:calls[0]] + lines[calls[0] + 1:]
    edited("not advanced", without, ["its body does not advance the loss scale"])
    edited("advanced twice", lines[:calls[0]] + [call, call] + lines[calls[0] + 1:], ["advanced twice"])
    edited("another rule", [line.replace("interval = 2000", "interval = 1") if line is call else line for line in lines],
           ["its attributes are not those of the loss scale dynamic"])
    # What the digests notice: scalars of another kind or of another beta, and a norm of scaled gradients.
    for what, pattern, other in (("another kind", "kind = 3", "kind = 2"), ("another beta", "value = 9.000000e-01", "value = 8.000000e-01"),
                                 ("no scale", "scaled = 1 : i64", "scaled = 0 : i64")):
        changed = [line.replace(pattern, other) if "plan.call" in line else line for line in lines]
        expect(changed != lines, f"no call has `{pattern}`")
        if what == "no scale":
            changed = [re.sub(r", r %update_scalars\[0 : 4\]", "", line) if '"gradient_norm"' in line and "plan.call" in line else line for line in changed]
        edited(what, changed, ["is computed by other operations or from other bytes"], redigest=False)
