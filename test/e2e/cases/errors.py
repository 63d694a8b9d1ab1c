"""What cannot be done gets one short error that says what to do, and leaves no files."""
import os
import shutil

from formats import write_npy
from harness import MODELS, ROOT, Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, linear, model, nested, node, value, weight
from training import CONFIGS, data_arguments

MLP = MODELS / "mlp.onnx"


def cases(session):
    for name, (content, options, words) in models().items():
        yield Case(f"errors/model/{name}", lambda c=content, o=options, w=words: refused_model(session, c, o, w))
    for name, (options, words) in OPTIONS.items():
        code = 2 if name in MISUSED else 1
        yield Case(f"errors/option/{name}", lambda o=options, w=words, c=code: refused_options(session, o, w, c))
    for name, (arguments, words) in RUNS.items():
        code = 2 if name in ("steps-negative", "steps-and-epochs", "option-unknown") else 1
        yield Case(f"errors/run/{name}", lambda a=arguments, w=words, c=code: refused_run(session, a, w, c))
    for name, (damage, words) in DAMAGES.items():
        yield Case(f"errors/plan/{name}", lambda d=damage, w=words: refused_plan(session, d, w))
    for name, arguments in NPYS.items():
        yield Case(f"errors/npy/{name}", lambda a=arguments: refused_npy(session, *a))
    yield Case("errors/weights-missing", lambda: weights_missing(session))
    yield Case("errors/weights-changed", lambda: weights_changed(session))
    yield Case("errors/old-output-stays", lambda: old_output_stays(session))
    yield Case("errors/assemble", lambda: refused_assembly(session))


def models():
    """name: (bytes of the model, more options, words the error must have)."""
    good, batch = linear(), ["--batch", "2"]
    integer_loss = model([node("MatMul", ["x", "w"], ["h"]), node("Cast", ["h"], ["i"], to=INT64),
                          node("ReduceSum", ["i"], ["loss"], keepdims=0)],
                         [value("x", FLOAT, ["N", 4])], [value("loss", INT64, [])], [weight("w", [4, 3], [0.5] * 12)])
    no_loss = model([node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["N", 3])],
                    [weight("w", [4, 3], [0.5] * 12)])
    one_class = model([node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["N", 1])],
                      [weight("w", [4, 1], [0.5] * 4)])
    unmade = model([node("MatMul", ["x", "w"], ["h"]), node("ReduceMean", ["h"], ["loss"], keepdims=0)],
                   [value("x", FLOAT, ["N", 4])], [value("Loss", FLOAT, [])], [weight("w", [4, 3], [0.5] * 12)])
    return {
        "unknown-operator": (linear("Frobnicate"), batch, ["Frobnicate", "second", "18"]),
        "unknown-domain": (linear("Relu", domain="com.example"), batch, ["com.example", "second"]),
        "no-loss": (no_loss, batch, ["--loss"]),
        "integer-loss": (integer_loss, batch + ["--loss", "loss"], ["loss"]),
        "loss-misspelt": (good, batch + ["--loss", "los"], ["did you mean 'loss'?"]),
        "loss-function-misspelt": (good, batch + ["--loss", "CrossEntropy(h)"], ["there is no loss 'CrossEntropy'", "did you mean 'cross_entropy'?"]),
        "loss-without-its-end": (good, batch + ["--loss", "cross_entropy(h"], ["closing ) is missing"]),
        "loss-target-is-a-weight": (no_loss, batch + ["--loss", "cross_entropy(y,target=w)"], ["already has a value named 'w'", "target=NAME"]),
        "loss-of-one-class": (one_class, batch + ["--loss", "cross_entropy(y)"], ["a single class", "bce_with_logits(y)"]),
        "loss-that-nothing-makes": (unmade, ["--batch", "3", "--ranks", "2"], ["output 'Loss': nothing makes 'Loss'", "did you mean 'loss'?"]),
        "rows-twice": (good, batch + ["--rows", "x=0", "--rows", "x=0"], ["--rows names the input 'x' twice"]),
        "fixed-batch-that-does-not-divide": (linear(batch=3), ["--ranks", "2"], ["batch of 3 rows", "--ranks 1 or 3"]),
        "unknown-loss": (good, batch + ["--loss", "nonsense"], ["nonsense"]),
        "nothing-trainable": (good, batch + ["--freeze", ".*"], ["nothing is trainable: --freeze '.*' freezes the only parameter"]),
        "unbound-dimension": (linear(width="D", weight_tensor=weight("w", [4, 3], [0.5] * 12)), batch, ["'D'", "--bind"]),
        "unbound-batch": (good, [], ["--batch"]),
        "batch-that-does-not-divide": (good, ["--batch", "6", "--ranks", "4"], ["--batch 6", "4 ranks"]),
        "shapes-that-do-not-fit": (linear(width=5), batch, ["first"]),
        "external-file-above": (linear(weight_tensor=weight("w", [4, 3], location="../secret.bin")), batch, ["../secret.bin"]),
        "external-file-absolute": (linear(weight_tensor=weight("w", [4, 3], location="/etc/passwd")), batch, ["/etc/passwd"]),
        "empty": (b"", batch, ["no graph"]),
        "not-protobuf": (bytes(range(256)) * 8, batch, ["not an ONNX model"]),
        "truncated": (good[:len(good) * 2 // 3], batch, ["truncated"]),
        "length-beyond-the-end": (b"\x3a\xff\xff\xff\xff\x07" + good, batch, ["truncated"]),
        "nested-deeply": (nested(4000), batch, ["not an ONNX model"]),
        "negative-dimension": (linear(weight_tensor=weight("w", [4, -3], [0.5] * 12)), batch, ["'w'", "negative dimension"]),
        "weight-too-short": (linear(weight_tensor=weight("w", [4, 3], [0.5] * 11)), batch, ["'w'", "44", "48"]),
        "dimensions-that-overflow": (linear(weight_tensor=weight("w", [1 << 40, 1 << 40], [0.5])), batch, ["'w'", "too many elements"]),
    }


OPTIONS = {  # with mlp.onnx: (options, words the error must have)
    "zero-4": (["--batch", "8", "--zero", "4"], ["--zero"]),
    "ranks-0": (["--batch", "8", "--ranks", "0"], ["--ranks"]),
    "ranks-negative": (["--batch", "8", "--ranks", "-2"], ["--ranks"]),
    "batch-0": (["--batch", "0"], ["--batch"]),
    "batch-text": (["--batch", "many"], ["many"]),
    "bind-without-number": (["--batch", "8", "--bind", "N"], ["--bind"]),
    "bind-unknown": (["--batch", "8", "--bind", "nonsense=3"], ["nonsense"]),
    "optimizer-unknown": (["--batch", "8", "--optimizer", "adamq"], ["adamq"]),
    "optimizer-unknown-key": (["--batch", "8", "--optimizer", "sgd:speed=3"], ["speed"]),
    "optimizer-negative-rate": (["--batch", "8", "--optimizer", "sgd:lr=-1"], ["lr"]),
    "optimizer-beta": (["--batch", "8", "--optimizer", "adamw:beta1=1.5"], ["beta1"]),
    "optimizer-nan": (["--batch", "8", "--optimizer", "adamw:lr=nan"], ["lr"]),
    "nesterov-without-momentum": (["--batch", "8", "--optimizer", "sgd:nesterov=true"], ["momentum"]),
    "group-unknown-key": (["--batch", "8", "--optimizer", "sgd", "--group", "fc:beta1=0.9"], ["--group 'fc:beta1=0.9'", "beta1", "momentum"]),
    "group-matches-nothing": (["--batch", "8", "--group", "fc1:lr=1", "--group", "head:lr=0.1"], ["head:lr=0.1", "matches no parameter", "fc1.weight"]),
    "group-bad-regex": (["--batch", "8", "--group", "(:lr=1"], ["'('", "regular expression"]),
    "group-without-settings": (["--batch", "8", "--group", "fc1"], ["--group", "REGEX:key=value"]),
    "schedule-unknown": (["--batch", "8", "--lr-schedule", "linaer"], ["linaer", "'linear'"]),
    "schedule-without-what-it-needs": (["--batch", "8", "--lr-schedule", "wsd:steps=10"], ["decay=STEPS"]),
    "schedule-warmup": (["--batch", "8", "--lr-schedule", "cosine:warmup=100,steps=10,min=0.1"], ["warmup"]),
    "clip-negative": (["--batch", "8", "--clip-norm", "-1"], ["--clip-norm"]),
    "on-nan-unknown": (["--batch", "8", "--on-nan", "ignore"], ["ignore"]),
    "train-bad-regex": (["--batch", "8", "--train", "("], ["regular expression"]),
    "train-matches-nothing": (["--batch", "8", "--train", "nonsense"], ["nonsense"]),
    "target-unknown": (["--batch", "8", "--target", "toaster"], ["toaster"]),
    "threads-0": (["--batch", "8", "--max-threads-per-rank", "0"], ["--max-threads-per-rank"]),
    "phase-unknown": (["--batch", "8", "--compile-to", "moon"], ["moon"]),
    "option-unknown": (["--batch", "8", "--nonsense"], ["--nonsense", "sheaf compile --help"]),
    "option-misspelt": (["--batch", "8", "--rank", "2"], ["--rank", "did you mean --ranks?"]),
    "option-twice": (["--batch", "8", "--ranks", "2", "--ranks", "4"], ["--ranks is given twice", "1 to 65536"]),
    "value-missing": (["--batch", "8", "--ranks"], ["--ranks needs a value", "1 to 65536"]),
    "flag-with-a-value": (["--batch", "8", "--verbose=yes"], ["--verbose takes no value"]),
    "loss-of-unknown-logits": (["--batch", "8", "--loss", "cross_entropy(nonsense)"], ["nonsense"]),
}

# What the table of options refuses by itself: wrong usage, exit status 2. The rest depends on the model.
MISUSED = {"zero-4", "ranks-0", "ranks-negative", "batch-0", "batch-text", "bind-without-number", "schedule-unknown",
           "schedule-without-what-it-needs", "group-without-settings", "schedule-warmup", "clip-negative", "on-nan-unknown", "target-unknown", "threads-0", "phase-unknown", "option-unknown",
           "option-misspelt", "option-twice", "value-missing", "flag-with-a-value"}

X, LABELS = f"x={MODELS / 'mlp.x.npy'}", f"labels={MODELS / 'mlp.labels.npy'}"
RUNS = {  # of a plan of the MLP: (arguments, words the error must have)
    "no-data": (["--steps", "1"], ["--data"]),
    "one-input-without-data": (["--data", X, "--steps", "1"], ["labels"]),
    "unknown-input": (["--data", X, "--data", LABELS, "--data", f"z={MODELS / 'mlp.x.npy'}", "--steps", "1"], ["'z'"]),
    "file-missing": (["--data", X, "--data", "labels=nowhere.npy", "--steps", "1"], ["nowhere.npy"]),
    "inputs-swapped": (["--data", f"x={MODELS / 'mlp.labels.npy'}", "--data", LABELS, "--steps", "1"], ["'x'", "[800]", "[rows, 64]"]),
    "steps-negative": (["--data", X, "--data", LABELS, "--steps", "-1"], ["--steps"]),
    "threads-beyond-the-plan": (["--data", X, "--data", LABELS, "--steps", "1", "--threads-per-rank", "99"], ["--threads-per-rank"]),
    "steps-and-epochs": (["--data", X, "--data", LABELS, "--steps", "1", "--epochs", "1"], ["--steps", "--epochs"]),
    "no-file-matches": (["--data", "x=nowhere-*.npy", "--data", LABELS, "--steps", "1"], ["nowhere-*.npy"]),
    "schedule-longer-than-the-run": (["--data", X, "--data", LABELS, "--steps", "5", "--lr-schedule", "linear:warmup=5"], ["warmup"]),
    "resume-nowhere": (["--data", X, "--data", LABELS, "--steps", "1", "--resume", "nowhere"], ["nowhere"]),
    "weights-nowhere": (["--data", X, "--data", LABELS, "--steps", "1", "--weights", "nowhere"], ["nowhere"]),
    "weights-not-safetensors": (["--data", X, "--data", LABELS, "--steps", "1", "--weights", str(MLP)], ["mlp.onnx"]),
    "weights-of-another-model": (["--data", X, "--data", LABELS, "--steps", "1", "--weights",
                                  str(MODELS / "norms" / "resnet.sync.safetensors")], ["none of the model's parameters", "fc1.weight"]),
    "log-nowhere": (["--data", X, "--data", LABELS, "--steps", "1", "--log", "nowhere/run.jsonl"], ["nowhere"]),
    "save-nowhere": (["--data", X, "--data", LABELS, "--steps", "1", "--save", "nowhere/w.safetensors"], ["nowhere"]),
    "tuning-on-the-cpu": (["--data", X, "--data", LABELS, "--steps", "1", "--tuned", "table.txt"], ["--tuned", "runs on GPUs"]),
    "option-unknown": (["--data", X, "--data", LABELS, "--steps", "1", "--nonsense"], ["--nonsense"]),
}

DAMAGES = {  # what is done to a plan's bytes, and what the error says
    "empty": (lambda b: b"", "not a plan"),
    "text": (lambda b: b"not a plan at all\n", "not a plan"),
    "truncated": (lambda b: b[:len(b) // 2], "truncated"),
    "last-byte-gone": (lambda b: b[:-1], "truncated"),
    "flipped-early": (lambda b: b[:len(b) // 10] + bytes([b[len(b) // 10] ^ 1]) + b[len(b) // 10 + 1:], "checksum"),
    "flipped-late": (lambda b: b[:-40] + bytes([b[-40] ^ 0x80]) + b[-39:], "checksum"),
    "an-onnx-model": (lambda b: MLP.read_bytes(), "not a plan"),
}

NPYS = {  # for the input `x` of the MLP, f32[N, 64]: type, shape, bytes cut from the end, what the error says
    "too-narrow": ("<f4", (16, 63), 0, "[16, 63]"),
    "rank-1": ("<f4", (1024,), 0, "[1024]"),
    "big-endian": (">f4", (16, 64), 0, "'>f4'"),
    "wrong-kind": ("<i8", (16, 64), 0, "i64"),
    "no-rows": ("<f4", (0, 64), 0, "has no rows"),
    "truncated": ("<f4", (16, 64), 1, "4095 bytes"),
    "object": ("|O", (16, 64), 0, "'|O'"),
}


def expect_only(folder, names):
    left = sorted(set(os.listdir(folder)) - set(names))
    expect(not left, f"left behind: {', '.join(left)}")


def refused_model(session, content, options, words):
    where = session.folder()
    (where / "model.onnx").write_bytes(content)
    done = session.call("sheaf", "compile", where / "model.onnx", "-o", where / "out.plan", *options, timeout=30)
    expect_short_error(done, words)
    expect_only(where, ["model.onnx"])


def refused_options(session, options, words, code):
    where = session.folder()
    expect_short_error(session.call("sheaf", "compile", MLP, "-o", where / "out.plan", *options, timeout=30), words, code)
    expect_only(where, [])


def refused_run(session, arguments, words, code):
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    plan = session.plan(config.model, 2, 1, 8, config.options)
    expect_short_error(session.call("sheaf-run", plan, *arguments, cwd=where, timeout=30), words, code)
    expect_only(where, [])


def refused_plan(session, damage, words):
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    plan = where / "damaged.plan"
    plan.write_bytes(damage(session.plan(config.model, 2, 1, 8, config.options).read_bytes()))
    run = session.call("sheaf-run", plan, *data_arguments(config), "--steps", 1, timeout=30)
    expect_short_error(run, ["damaged.plan", words])
    expect_short_error(session.call("sheaf", "inspect", plan, timeout=30), ["damaged.plan", words])


def refused_npy(session, descr, shape, cut, words):
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    count = 1
    for d in shape:
        count *= d
    payload = bytes(count * (8 if descr.endswith(("8", "O")) else 4) - cut)
    write_npy(where / "x.npy", descr, shape, payload)
    plan = session.plan(config.model, 2, 1, 8, config.options)
    done = session.call("sheaf-run", plan, "--data", f"x={where / 'x.npy'}", "--data", LABELS, "--steps", 1, timeout=30)
    expect_short_error(done, ["'x'", "x.npy", words])


def weights_missing(session):
    """A graph whose weights' file does not exist compiles; only a run needs the file."""
    plan = session.plan("gpt2-mini", 1, 0, 1)
    done = session.call("sheaf-run", plan, "--data", f"input_ids,labels={ROOT / 'LICENSE'}:u8", "--steps", 1, timeout=30)
    expect_short_error(done, ["gpt2-mini.weights", "--weights"])


def weights_changed(session):
    """A model file that changed after compiling is an error, not a wrong model."""
    where, config = session.folder(), CONFIGS["mlp-adamw"]
    shutil.copy(MLP, where / "mlp.onnx")
    session.succeed("sheaf", "compile", where / "mlp.onnx", "-o", where / "mlp.plan", "--batch", 8)
    with open(where / "mlp.onnx", "ab") as f:
        f.write(b"\0")
    run = session.call("sheaf-run", where / "mlp.plan", *data_arguments(config), "--steps", 1, timeout=30)
    expect_short_error(run, ["mlp.onnx"])


def old_output_stays(session):
    """A failed compilation does not touch what stood at -o before."""
    where = session.folder()
    (where / "out.plan").write_text("what stood here before")
    expect_short_error(session.call("sheaf", "compile", MLP, "-o", where / "out.plan", "--batch", 7, "--ranks", 2), ["--batch 7", "2 ranks"])
    expect((where / "out.plan").read_text() == "what stood here before", "the old file is gone or changed")
    expect_only(where, ["out.plan"])


def refused_assembly(session):
    where = session.folder()
    (where / "plan.mlir").write_text("module { this is not a plan }\n")
    done = session.call("sheaf", "assemble", where / "plan.mlir", "-o", where / "out.plan", timeout=30)
    expect_short_error(done, ["plan.mlir"])
    expect_only(where, ["plan.mlir"])
