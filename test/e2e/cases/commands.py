"""The command lines: what stands on stdout, what the phases print, text and plan in both directions, made weights."""
import json
import math
import os
import re
import shutil
import subprocess

from formats import read_log, read_safetensors, relative_difference, write_npy
from harness import MODELS, ROOT, Case, expect, expect_short_error, plan_bytes
from training import ADAMW_LM, CONFIGS, data_arguments, expect_reference, reference_run, train

# What the text of each phase has and that of the phases before it has not.
PHASES = {"import": "train.cross_entropy", "train": "train.update", "zero": "zero.all_gather", "fuse": "train.fusion",
          "plan": "plan.body", "emit": ""}


def cases(session):
    for phase in PHASES:
        yield Case(f"commands/compile-to/{phase}", lambda p=phase: compile_to(session, p))
    yield Case("commands/pipeline-page", lambda: pipeline_page(session))
    for name, ranks, zero in (("mlp-adamw", 1, 0), ("mlp-momentum", 4, 3), ("gpt2-tiny", 4, 3), ("llama-tiny", 2, 1)):
        yield Case(f"commands/text-round-trip/{name}", lambda n=name, r=ranks, z=zero: text_round_trip(session, n, r, z))
    yield Case("commands/assemble-an-edit", lambda: assemble_an_edit(session))
    yield Case("commands/compile-is-deterministic", lambda: deterministic(session))
    yield Case("commands/defaults", lambda: defaults(session))
    yield Case("commands/init", lambda: initial_weights(session))
    yield Case("commands/freeze", lambda: freeze(session))
    yield Case("commands/schedule", lambda: schedule(session))
    yield Case("commands/clipping", lambda: clipping(session))
    yield Case("commands/weights-dir", lambda: weights_dir(session))
    yield Case("commands/token-file", lambda: token_file(session))
    yield Case("commands/trace", lambda: trace(session))
    yield Case("commands/summary", lambda: summary(session))
    yield Case("commands/examples", lambda: examples(session))
    yield Case("commands/verbose", lambda: verbose(session))
    for policy in ("stop", "skip"):
        yield Case(f"commands/on-nan/{policy}", lambda p=policy: on_nan(session, p))
    yield Case("commands/help", lambda: helps(session))
    yield Case("commands/run-is-lean", lambda: run_is_lean(session))
    yield Case("commands/no-library", lambda: no_library(session))
    yield Case("commands/wrong-library", lambda: wrong_library(session))
    yield Case("commands/output-lost", lambda: output_lost(session))


def compile_to(session, phase):
    """Each phase writes its text to -o, which our MLIR driver parses; `emit` writes the plan itself."""
    out = session.folder() / "out"
    done = session.succeed("sheaf", "compile", MODELS / "mlp.onnx", "-o", out, "--batch", 8, "--ranks", 2, "--zero", 3,
                           "--bucket-size", "64KiB", "--compile-to", phase)
    expect(not done.out, f"stdout has {done.out[:200]}")
    if phase == "emit":
        plain = out.with_name("plain")
        session.succeed("sheaf", "compile", MODELS / "mlp.onnx", "-o", plain, "--batch", 8, "--ranks", 2, "--zero", 3, "--bucket-size", "64KiB")
        expect(out.read_bytes() == plain.read_bytes(), "other bytes than without --compile-to")
        return
    text, phases = out.read_text(), list(PHASES)
    expect(PHASES[phase] in text, f"no {PHASES[phase]} in the text")
    for later in phases[phases.index(phase) + 1:-1]:
        expect(PHASES[later] not in text, f"{PHASES[later]}, of the phase {later}, is in the text")
    session.succeed("sheaf-opt", out, "-o", out.with_suffix(".mlir"))


def pipeline_page(session):
    """docs/pipeline.md shows lines, in their order, of what each phase writes and of the plan's summary. `...` stands for what it
    leaves out; the memory of libraries depends on the processor."""
    page, where = (ROOT / "docs" / "pipeline.md").read_text(), session.folder()
    command = re.search(r"^```\n(sheaf compile .*)\n```$", page, re.MULTILINE).group(1).split()[1:]

    def compiled(name, *more):
        session.succeed("sheaf", *(name if argument == "mlp.plan" else argument for argument in command), *more, cwd=ROOT)
        return name

    for phase in ("import", "train", "zero", "fuse", "plan", "emit"):
        section = re.search(rf"^## {phase}: .*?(?=^## )", page, re.MULTILINE | re.DOTALL).group()
        shown = re.search(r"^```(?:mlir)?\n(.*?)^```$", section, re.MULTILINE | re.DOTALL).group(1)
        if phase == "emit":
            text = session.succeed("sheaf", "inspect", compiled(where / "mlp.plan")).out
        else:
            text = compiled(where / f"{phase}.mlir", "--compile-to", phase).read_text()
        rest = iter([" ".join(line.split()) for line in text.splitlines()])
        for line in shown.splitlines():
            pattern = re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*")
            pattern = re.sub(r"at\\ most\\ .*\\ in\\ libraries", "at most .* in libraries", pattern)
            expect(any(re.fullmatch(pattern, written) for written in rest), f"docs/pipeline.md shows this line of the phase {phase}, which is not written, or not there:\n{line}")


def text_round_trip(session, name, ranks, zero):
    config, where = CONFIGS[name], session.folder()
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    (where / "plan.mlir").write_text(text)
    session.succeed("sheaf", "assemble", where / "plan.mlir", "-o", where / "again.plan")
    expect(plan_bytes(where / "again.plan") == plan_bytes(plan), "assembling the text gives other bytes")
    expect(ranks == 1 or ("plan.wait" in text and "plan.record" in text), "the text has no plan.wait or plan.record")
    for line in text.splitlines():
        expect(len(re.findall(r"\bplan\.(?:wait|record)\b", line)) <= 1, f"two instructions in one line: {line}")


def assemble_an_edit(session):
    """An edited number makes another plan: here AdamW's learning rate, which the text shows as the user wrote it."""
    config, where = CONFIGS["mlp-adamw"], session.folder()
    plan = session.plan("mlp", 1, 0, 8, ("--optimizer", "sgd:lr=0.0123"))
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    expect(re.search(r"1\.23\d*e-0?2|0\.0123", text), "the text does not show the learning rate 0.0123")
    # What the plan says of its options and its origin stays.
    before, after = text.split(" training = ", 1)
    line, rest = after.split("\n", 1)
    edited = f"{before} training = {re.sub(r'1[.]23[0-9]*e-0?2|0[.]0123', '0.5', line)}\n{rest}"
    (where / "edited.mlir").write_text(edited)
    session.succeed("sheaf", "assemble", where / "edited.mlir", "-o", where / "edited.plan")
    expect((where / "edited.plan").read_bytes() != plan.read_bytes(), "the edit changed nothing")
    session.succeed("sheaf-run", where / "edited.plan", *data_arguments(config), "--steps", 1, "--log", where / "log")
    rate = read_log(where / "log")[0][0]["lr"]
    expect(abs(rate - 0.5) < 1e-6, f"the edited plan trains with lr {rate}")


def deterministic(session):
    config, plans = CONFIGS["gpt2-tiny"], []
    for _ in range(2):
        out = session.folder() / "out.plan"
        session.succeed("sheaf", "compile", session.graph(config.model), "-o", out, "--batch", 8, "--ranks", 2, "--zero", 3,
                        *config.options)
        plans.append(out.read_bytes())
    expect(plans[0] == plans[1], "two compilations of one model give different plans")


def defaults(session):
    """One rank, stage 0, AdamW with PyTorch's values, the only scalar float output as the loss."""
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    session.succeed("sheaf", "compile", MODELS / "mlp.onnx", "-o", where / "out.plan", "--batch", 8)
    report = session.inspect(where / "out.plan")
    expect((report["ranks"], report["zero"]) == (1, 0), f"ranks {report['ranks']}, zero {report['zero']}")
    session.succeed("sheaf-run", where / "out.plan", *data_arguments(config), "--steps", session.steps, "--log", where / "log")
    expect_reference(config, read_log(where / "log")[0])


def initial_weights(session):
    """Made weights: matrices normal with the given deviation, scales one, biases zero; seeded; a run takes them."""
    where = session.folder()
    plan = session.plan("gpt2-mini", 2, 3, 2)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        session.succeed("sheaf", "init", plan, "--scheme", "normal:std=0.02", "--seed", seed, "-o", where / name)
    expect((where / "a").read_bytes() == (where / "b").read_bytes(), "one seed, two sets of weights")
    expect((where / "a").read_bytes() != (where / "c").read_bytes(), "two seeds, one set of weights")
    tensors = read_safetensors(where / "a")
    expect(sum(len(t.values) for t in tensors.values()) == session.inspect(plan)["parameters"], "the counts differ")
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1:
            expected = 0.0 if name.endswith("bias") else 1.0
            expect(all(v == expected for v in tensor.values), f"{name} is not all {expected}")
        else:
            sample = tensor.values[:20000]
            deviation = math.sqrt(math.fsum(v * v for v in sample) / len(sample))
            expect(abs(deviation - 0.02) < 0.001, f"{name} has deviation {deviation}")
    if session.quick:
        return
    tokens = where / "tokens.u8"
    tokens.write_bytes((ROOT / "test" / "models" / "README.md").read_bytes())
    session.succeed("sheaf-run", plan, "--weights", where / "a", *token_arguments(tokens), "--steps", 2, "--log", where / "log")
    first = read_log(where / "log")[0][0]["loss"]
    expect(abs(first - math.log(256)) < 0.5, f"the first loss of random weights is {first}, not about ln 256")


def freeze(session):
    """Frozen weights keep their bits; only the others count and change."""
    config, where = CONFIGS["mlp-sgd"], session.folder()
    plan = session.plan("mlp", 2, 3, 8, config.options + ("--freeze", r"fc1\..*"))
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 3, "--save", where / "w", "--log", where / "log")
    whole = session.inspect(session.plan("mlp", 2, 3, 8, config.options))["parameters"]
    frozen = 64 * 256 + 256
    expect(session.inspect(plan)["parameters"] == whole - frozen, "the frozen parameters are counted as trainable")
    expect(abs(read_log(where / "log")[0][0]["loss"] - reference_run(config)["loss"][0]) < 2e-5, "another first loss")
    trained, saved = read_safetensors(train(session, config, 2, 3, steps=3).weights), read_safetensors(where / "w")
    expect(set(saved) == set(trained), f"the saved weights are {sorted(saved)}")
    model = (MODELS / "mlp.onnx").read_bytes()  # has the initial weights as they are in memory
    for name, tensor in saved.items():
        expect((tensor.values.tobytes() in model) == name.startswith("fc1."), f"{name}: frozen and changed, or trained and not")
        expect(tensor.values != trained[name].values, f"{name} trained as if nothing were frozen")


def schedule(session):
    """A cosine schedule with warm-up, step by step."""
    config, where = CONFIGS["mlp-sgd"], session.folder()
    options = ("--lr-schedule", "cosine:warmup=5,steps=20,min=0.1")
    plan = session.plan("mlp", 1, 0, 8, ("--optimizer", "sgd:lr=0.1") + options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 25, "--log", where / "log")
    rates = [s["lr"] for s in read_log(where / "log")[0]]
    for step, rate in enumerate(rates):
        share = (step + 1) / 5 if step < 5 else 0.1 + 0.9 * (1 + math.cos(math.pi * min(1, (step - 5) / 15))) / 2
        expect(abs(rate - 0.1 * share) < 1e-7, f"step {step}: the rate is {rate}, not {0.1 * share}")
    constant = session.plan("mlp", 1, 0, 8, ("--optimizer", "sgd:lr=0.1"))
    session.succeed("sheaf-run", constant, *data_arguments(config), "--steps", 25, "--log", where / "log", *options)
    given = [s["lr"] for s in read_log(where / "log")[0]]
    expect(given == rates, "a schedule given to the run is not the one given to the compiler")


def clipping(session):
    """Clipping that bites: SGD's first step is scaled by limit / norm, and the log keeps the norm before clipping."""
    config, limit = CONFIGS["mlp-sgd"], 0.5
    plain = train(session, config, 2, 2, steps=1, gradients=True)
    clipped = train(session, config, 2, 2, steps=1, compile_options=("--clip-norm", limit))
    norm = plain.steps[0]["grad_norm"]
    expect(norm > limit, f"the reference norm {norm} would not be clipped")
    expect(clipped.steps[0]["grad_norm"] == norm, "the logged norm is not the one before clipping")
    gradients, whole = read_safetensors(plain.gradients), read_safetensors(plain.weights)
    for name, ours in read_safetensors(clipped.weights).items():
        left_out = [0.1 * (1 - limit / norm) * g for g in gradients[name].values]
        difference = [a - b for a, b in zip(ours.values, whole[name].values)]
        expect(relative_difference(difference, left_out) < 1e-3, f"{name}: the clipped step is not the scaled one")


def weights_dir(session):
    """A plan whose model has moved runs again with --weights-dir."""
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    (where / "before").mkdir()
    (where / "after").mkdir()
    (where / "before" / "mlp.onnx").write_bytes((MODELS / "mlp.onnx").read_bytes())
    session.succeed("sheaf", "compile", where / "before" / "mlp.onnx", "-o", where / "mlp.plan", "--batch", 8)
    (where / "before" / "mlp.onnx").rename(where / "after" / "mlp.onnx")
    arguments = [where / "mlp.plan", *data_arguments(config), "--steps", 1]
    expect_short_error(session.call("sheaf-run", *arguments), ["before/mlp.onnx", "--weights-dir"])
    session.succeed("sheaf-run", *arguments, "--weights-dir", where / "after", "--log", where / "log")
    expect_reference(config, read_log(where / "log")[0])


def token_arguments(tokens):
    return ["--data", f"input_ids,labels={tokens}"]


def token_file(session):
    """A raw token file gives rows of the sequence's length, and labels shifted by one: the same run as with .npy rows."""
    where, config = session.folder(), CONFIGS["gpt2-tiny"]
    text = (ROOT / "LICENSE").read_bytes()
    width, rows = 64, 16
    for width_of, suffix in ((1, "u8"), (2, "u16"), (4, "u32")):
        (where / f"tokens.{suffix}").write_bytes(b"".join(c.to_bytes(width_of, "little") for c in text))
    for name, shift in (("input_ids", 0), ("labels", 1)):
        content = b"".join(c.to_bytes(8, "little") for c in text[shift:shift + rows * width])
        write_npy(where / f"{name}.npy", "<i8", (rows, width), content)
    plan = session.plan(config.model, 2, 3, 8, config.options)

    def losses(*data):
        session.succeed("sheaf-run", plan, *data, "--steps", 2, "--log", where / "log")
        return [s["loss"] for s in read_log(where / "log")[0]]

    expected = losses("--data", f"input_ids={where / 'input_ids.npy'}", "--data", f"labels={where / 'labels.npy'}")
    for suffix in ("u8", "u16", "u32"):
        ours = losses(*token_arguments(where / f"tokens.{suffix}"))
        expect(ours == expected, f"tokens.{suffix}: losses {ours}, with rows {expected}")


def trace(session):
    """--trace has the times at which the instructions of each rank's streams ran; the instructions of a stream do not overlap."""
    config, where = CONFIGS["mlp-adamw"], session.folder()
    plan = session.plan("mlp", 2, 3, 8, config.options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 20, "--trace", where / "trace.json")
    events = json.loads((where / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    expect({e["args"]["step"] for e in spans} == set(range(4, 20)), "the trace does not have the last 16 steps")
    expect({"all_gather", "reduce_scatter", "gemm", "kernel"} <= {e["cat"] for e in spans}, "kinds are missing")
    ends = {}
    for e in spans:
        stream = e["pid"], e["tid"]
        expect(e["ts"] >= ends.get(stream, 0) - 0.01, f"{e['name']} begins before its predecessor ends")
        ends[stream] = e["ts"] + e["dur"]
    expect(len(ends) == 4, f"{len(ends)} streams, not two of two ranks")


def summary(session):
    """The summary has a row for each of the four stages: what a rank keeps there, as the plans of the stages have it."""
    plans = [session.plan("gpt2-tiny", 4, zero, 8, ("--optimizer", ADAMW_LM)) for zero in range(4)]
    text = session.succeed("sheaf", "inspect", plans[3]).out
    rows = re.findall(r"(?m)^  ([0-3])  +(\S+ \w+)  +(\S+ \w+)  +(\S+ \w+)  +(\S+ \w+)(   <- this plan)?$", text)
    expect([(row[0], bool(row[5])) for row in rows] == [("0", False), ("1", False), ("2", False), ("3", True)], text)

    def near(report, size):
        number, unit = report.split()
        size /= {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
        expect(abs(float(number) - size) <= 0.06 or abs(float(number) - size) < 0.6 <= 60 < size, f"{report} is not {size} {unit}:\n{text}")

    for plan, (stage, parameters, gradients, optimizer, total, _) in zip(plans, rows):
        report = session.inspect(plan)
        kinds, whole = report["memory"]["by_kind"], 4 * report["parameters"]
        reduced = whole / 4 if int(stage) >= 2 else whole
        near(parameters, kinds["parameters"])
        near(gradients, reduced)
        near(optimizer, kinds["optimizer"])
        near(total, kinds["parameters"] + reduced + kinds["optimizer"])


def verbose(session):
    """Decisions are printed on stderr, and only there."""
    out = session.folder() / "out.plan"
    done = session.succeed("sheaf", "compile", MODELS / "gpt2-tiny.onnx", "-o", out, "--batch", 8, "--verbose")
    expect(not done.out, "stdout is not empty")
    for word in ("trainable", "tied", "gelu", "attention"):
        expect(word in done.err.lower(), f"--verbose does not mention `{word}`:\n{done.err[:1500]}")


def on_nan(session, policy):
    """A batch with a NaN: `stop` ends the run naming the step and saves nothing, `skip` leaves that step out."""
    where, config = session.folder(), CONFIGS["mlp-sgd"]
    content = bytearray((MODELS / "mlp.x.npy").read_bytes())
    start = 10 + int.from_bytes(content[8:10], "little")
    at = start + 2 * 8 * 64 * 4  # step 2's first value
    content[at:at + 4] = b"\x00\x00\xc0\x7f"
    (where / "x.npy").write_bytes(content)
    plan = session.plan("mlp", 2, 3, 8, config.options + ("--on-nan", policy))
    done = session.call("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", "--data", f"labels={MODELS / 'mlp.labels.npy'}",
                        "--steps", 5, "--log", where / "log", "--save", where / "w")
    if policy == "stop":
        expect(done.code == 1, f"exit {done.code}")
        expect(re.search(r"error: .*\bstep 2\b", done.err), f"the error does not name step 2:\n{done.err}")
        expect(not (where / "w").exists(), "weights were saved from memory")
        return
    expect(done.code == 0, f"exit {done.code}: {done.err}")
    for name, tensor in read_safetensors(where / "w").items():
        expect(all(math.isfinite(v) for v in tensor.values), f"{name} is not finite after a skipped step")
    two = train(session, config, 2, 3, steps=2, compile_options=("--on-nan", "skip"))
    done = session.succeed("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", "--data",
                           f"labels={MODELS / 'mlp.labels.npy'}", "--steps", 3, "--save", where / "three")
    expect((where / "three").read_bytes() == two.weights.read_bytes(), "the skipped step changed the weights")


def helps(session):
    """`sheaf help COMMAND` and `sheaf COMMAND --help` print one text, which has every option of the command's page."""
    overview = session.succeed("sheaf", "help").out
    expect(overview == session.succeed("sheaf", "--help").out, "sheaf help is not sheaf --help")
    names = re.findall(r"(?m)^  (\w+) +[A-Z]", overview[overview.index("\nCommands\n"):])
    expect(len(names) >= 10, f"the commands are {names}")
    pages = [(("sheaf", "help", name), ("sheaf", name)) for name in names] + [(("sheaf-run", "--help"), ("sheaf-run",))]
    for first, command in pages:
        text = session.succeed(*first).out
        expect(text == session.succeed(*command, "--help").out, f"{first} and {command} --help differ")
        expect(max(map(len, text.splitlines())) <= 100, f"{command} --help has long lines")
        page = session.succeed(*command, "--help=markdown").out
        for option in re.findall(r"(?m)^\| `(-[\w-]+)", page):
            expect(re.search(rf"(?m)^  {option}( |$)", text), f"{command} --help has no {option}")
        short = session.succeed(*command, "-h").out
        expect(len(short.splitlines()) <= 40 and len(short) <= len(text), f"{command} -h is not short:\n{short}")
        expect(all(option in short for option in re.findall(r"(?m)^  (--?[\w-]+)", text)), f"{command} -h lacks an option:\n{short}")
    expect(session.succeed("sheaf", "help", "compile", "--help").out == session.succeed("sheaf", "help", "compile").out, "help COMMAND --help prints another text than help COMMAND")
    expect(session.succeed("sheaf", "help", "--help").out == overview, "sheaf help --help is not sheaf --help")
    done = session.call("sheaf", "help", "compil")
    expect_short_error(done, ["unknown command 'compil'", "did you mean compile?"], 2)
    expect(session.call("sheaf").code == 2, "sheaf without a command does not end with 2")


def examples(session):
    """The examples of help work, one after the other in one folder; every command has at least two."""
    where = session.folder()
    for name in ("mlp.onnx", "mlp.x.npy", "mlp.labels.npy"):
        shutil.copy(MODELS / name, where / {"mlp.onnx": "model.onnx"}.get(name, name.removeprefix("mlp.")))
    overview = session.succeed("sheaf", "help").out
    names = re.findall(r"(?m)^  (\w+) +[A-Z]", overview[overview.index("\nCommands\n"):])
    first = ["check", "fit", "compile", "sheaf-run"]
    for name in first + [name for name in names if name not in first]:
        page = session.succeed(*((name,) if name == "sheaf-run" else ("sheaf", name)), "--help=markdown").out
        found = re.search(r"Examples:\n\n```\n(.*?)```", page, re.DOTALL)
        expect(found and len(found[1].splitlines()) >= 2, f"{name} has no examples")
        for line in found[1].splitlines():
            if "this-machine" in line:
                continue  # measures for half a minute, which `measuring` tests
            done = subprocess.run(["bash", "-c", line], cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  env={**os.environ, "PATH": f"{session.on_path()}:{os.environ['PATH']}"})
            expect(done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stderr}")


def run_is_lean(session):
    """A running sheaf-run has neither MLIR, LLVM, ONNX, MPI nor OpenSSL mapped, nor what measures and compares, and needs the model's weights only."""
    config, seen = CONFIGS["gpt2-tiny"], set()

    def watch(process):
        try:
            with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
                seen.update(line.split()[-1] for line in maps if "/" in line)
        except OSError:
            pass

    plan = session.plan(config.model, 2, 3, 8, config.options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 20, watch=watch)
    expect(any("libsheaf_cpu" in s for s in seen), f"libsheaf_cpu was never mapped: {sorted(seen)}")
    foreign = sorted(s for s in seen if re.search(r"(?i)lib(mlir|llvm|onnx|clang|python|mpi|mpich|sheaf_(mpi|measure|same)|crypto|ssl)", s))
    expect(not foreign, f"mapped: {', '.join(foreign)}")


def no_library(session):
    """A runtime without the libraries of --measure and of several plans runs one plan; where it needs one, it names that and its folder."""
    config, folder = CONFIGS["mlp-momentum"], session.folder()
    for name in ("bin", "lib"):
        (folder / name).mkdir()
    shutil.copy(session.tools / "sheaf-run", folder / "bin")
    (folder / "lib" / "libsheaf_cpu.so").symlink_to((session.tools / "sheaf-run").resolve().parents[1] / "lib" / "libsheaf_cpu.so")
    plan = session.plan(config.model, 1, 0, 8, config.options)
    run = [plan, *data_arguments(config), "--steps", 1]
    session.succeed(folder / "bin" / "sheaf-run", *run)
    # A number of ranks, for one plan, needs no comparison.
    session.succeed(folder / "bin" / "sheaf-run", *run, "--ranks", 1)
    expect_short_error(session.call(folder / "bin" / "sheaf-run", *run, "--ranks", 3), ["no plan is for 3 ranks"])
    for library, command in (("libsheaf_measure.so", (plan, "--measure", folder / "p.json")), ("libsheaf_same.so", (plan, *run))):
        expect_short_error(session.call(folder / "bin" / "sheaf-run", *command), [library, "SHEAF_LIBRARY_PATH"])
        # With the library the command gets further.
        (folder / "lib" / library).symlink_to((session.tools / "sheaf-run").resolve().parents[1] / "lib" / library)
        done = session.call(folder / "bin" / "sheaf-run", *command)
        expect(library not in done.err and ("is a training plan" in done.err if "--measure" in command else done.code == 0), done.err)


def wrong_library(session):
    """A library that is cut off, of another version or another one is not loaded: the error names it. The right one in the next folder is."""
    config, folder = CONFIGS["mlp-momentum"], session.folder()
    real = (session.tools / "sheaf-run").resolve().parents[1] / "lib" / "libsheaf_cpu.so"
    plan = session.plan(config.model, 1, 0, 8, config.options)
    run = [folder / "bin" / "sheaf-run", plan, *data_arguments(config), "--steps", 1]
    for name in ("bin", "wrong"):
        (folder / name).mkdir()
    shutil.copy(session.tools / "sheaf-run", folder / "bin")
    wrong = folder / "wrong" / "libsheaf_cpu.so"
    version = subprocess.run([session.tools / "sheaf-run", "--version"], capture_output=True, text=True, check=True).stdout.split()[1].encode()
    contents = real.read_bytes()
    expect(contents.count(version + b"\0") >= 1, f"{version} is not in {real}")
    kinds = {"is cut off": contents[:len(contents) // 2], "is of sheaf": contents.replace(version + b"\0", b"9" * len(version) + b"\0"),
             "is another library": real.with_name("libsheaf_measure.so").read_bytes(), "file too short": b"no library"}
    for why, data in kinds.items():
        wrong.write_bytes(data)
        expect_short_error(session.call(*run, env=os.environ | {"SHEAF_LIBRARY_PATH": str(folder / "wrong")}), [str(wrong), why])
        session.succeed(*run, env=os.environ | {"SHEAF_LIBRARY_PATH": f"{folder / 'wrong'}:{real.parent}"})


def output_lost(session):
    """Every command that prints to standard output fails if it cannot be written."""
    config = CONFIGS["mlp-momentum"]
    plan = session.plan(config.model, 1, 0, 8, config.options)
    commands = [("sheaf", "inspect", plan), ("sheaf", "inspect", plan, "--format", "text"), ("sheaf", "inspect", plan, "--format", "onnx"),
                ("sheaf", "verify", plan), ("sheaf", "simulate", plan, "--profile", "cpu"), ("sheaf", "check", MODELS / "mlp.onnx"), ("sheaf", "calls"), ("sheaf", "operators"),
                ("sheaf", "schedules"), ("sheaf", "--version"), ("sheaf", "compile", "--help"), ("sheaf-run", "--help"), ("sheaf-run", "--version"),
                ("sheaf-opt", "--plan-steps"), ("sheaf", "compile", MODELS / "mlp.onnx", "-o", "-", "--batch", 8, "--compile-to", "plan")]
    for name, *arguments in commands:
        command = [str(session.tools / name), *map(str, arguments)]
        for redirection in ("> /dev/full", ">&-"):
            done = subprocess.run(["bash", "-c", f'"$@" {redirection}', "bash", *command], capture_output=True, text=True)
            expect(done.returncode == 1 and "cannot write to standard output" in done.stderr, f"{' '.join(command)} {redirection}: {done.returncode}, {done.stderr}")
