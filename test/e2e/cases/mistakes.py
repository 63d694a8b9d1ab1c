"""Mistakes of users: what is typed, what must be said, and the exit status. A mistake that is refused leaves no file.

In a command, M stands for mlp.onnx, O for a plan to write, P for a plan of it (4 ranks, batch 16, with an evaluation), N for one without an evaluation,
E for an evaluation alone, C for a plan of cnn.onnx, Q for a probe, X and L for the data, D for a new folder. A row whose status is 0 is not refused: what must be said is in its output.
"""
import os
import re
import shutil
import struct

from formats import write_npy
from harness import MODELS, Case, Finished, expect, expect_short_error, has_word

X, L = f"x={MODELS / 'mlp.x.npy'}", f"labels={MODELS / 'mlp.labels.npy'}"
COMPILE = ("sheaf", "compile", "M", "-o", "O")
RUN = ("sheaf-run", "P", "--data", "X", "--data", "L")
ONCE = (*RUN, "--steps", 1)

# name: (command, what must be said, exit status)
MISTAKES = {
    # Commands and programs.
    "commands/run": (("sheaf", "run", "P"), ["sheaf-run", "OUT.plan --data NAME=FILE --steps K"], 2),
    "commands/train": (("sheaf", "train", "M"), ["sheaf-run"], 2),
    "commands/evaluate": (("sheaf", "evaluate", "P"), ["sheaf-run", "--eval"], 2),
    "commands/misspelt": (("sheaf", "compil", "M"), ["did you mean compile?"], 2),
    "commands/unknown": (("sheaf", "frobnicate"), ["unknown command 'frobnicate'", "sheaf --help"], 2),
    "commands/plan-for-a-model": (("sheaf", "compile", "P", "-o", "O", "--batch", 8), ["is a plan, not an ONNX model", "sheaf-run"], 1),
    "commands/plan-to-check": (("sheaf", "check", "P"), ["is a plan, not an ONNX model"], 1),
    "commands/plan-to-fit": (("sheaf", "fit", "P", "--ranks", 2, "--memory", "1GiB"), ["is a plan, not an ONNX model"], 1),
    "commands/model-to-run": (("sheaf-run", "M", "--data", "X", "--steps", 1), ["not a plan", "sheaf compile"], 1),
    "commands/model-to-inspect": (("sheaf", "inspect", "M"), ["not a plan"], 1),
    "commands/no-model": (("sheaf", "compile", "-o", "O", "--batch", 8), ["MODEL.onnx"], 2),
    "commands/two-models": ((*COMPILE, "M", "--batch", 8), ["one MODEL.onnx at a time"], 2),
    "commands/model-that-is-not-there": (("sheaf", "compile", "nowhere.onnx", "-o", "O", "--batch", 8), ["nowhere.onnx"], 1),
    "commands/help-of-two": (("sheaf", "help", "compile", "fit"), ["one COMMAND", "'compile' and 'fit'"], 2),
    "commands/help-of-a-word": (("sheaf", "help", "foo"), ["unknown command 'foo'; see sheaf --help"], 2),
    "commands/phase-to-assemble": (("sheaf", "assemble", "D/phase.mlir", "-o", "O"), ["not the text of a plan", "sheaf inspect OUT.plan --format text"], 1),
    "commands/model-to-assemble": (("sheaf", "assemble", "M", "-o", "O"), ["is not a text", "sheaf inspect OUT.plan --format text"], 1),
    "commands/coverage-without-models": (("sheaf", "operators", "--coverage", "D/none"), ["/none: no file"], 1),
    # Plans for which a command has no use.
    "probe/to-export": (("sheaf", "export", "Q", "--weights", "W", "--model", "M", "-o", "D/e.onnx"), ["is a probe of `sheaf profile`", "sheaf compile"], 1),
    "probe/to-init": (("sheaf", "init", "Q", "-o", "D/i.safetensors"), ["is a probe of `sheaf profile`"], 1),
    "probe/to-simulate": (("sheaf", "simulate", "Q", "--profile", "h100"), ["is a probe of `sheaf profile`"], 1),
    "probe/to-report": (("sheaf", "report", "Q", "-o", "D/r.html"), ["is a probe of `sheaf profile`"], 1),
    "probe/to-compare": (("sheaf", "same", "Q", "Q"), ["is a probe of `sheaf profile`"], 1),
    "probe/to-tell-apart": (("sheaf", "diff", "P", "Q"), ["is a probe of `sheaf profile`"], 1),
    "probe/to-imitate": ((*COMPILE, "--like", "Q"), ["--like", "is a probe of `sheaf profile`"], 2),
    "probe/to-inspect": (("sheaf", "inspect", "Q"), ["is a probe of `sheaf profile`", "--measure"], 0),
    "evaluation/to-simulate": (("sheaf", "simulate", "E", "--profile", "h100"), ["the plan only evaluates", "without --eval-only"], 1),
    "evaluation/to-report": (("sheaf", "report", "E", "-o", "D/r.html"), ["the plan only evaluates"], 1),
    "evaluation/to-tell-apart": (("sheaf", "diff", "E", "P", "--profile", "cpu"), ["step on cpu: none ->"], 0),
    "models/of-two-plans": (("sheaf", "same", "P", "C"), ["the model is", "mlp.onnx with parameters", "cnn.onnx with parameters", "from the same model"], 1),
    "models/to-imitate": (("sheaf", "compile", MODELS / "cnn.onnx", "-o", "O", "--like", "P"), ["the model is", "mlp.onnx with parameters"], 1),
    "models/to-run": (("sheaf-run", "P", "C", "--data", "X", "--data", "L", "--steps", 1), ["the model is", "mlp.onnx with parameters", "from the same model"], 1),
    # Options of the other program, and near misses.
    "options/lr-of-compile": ((*COMPILE, "--batch", 8, "--lr", "1e-3"), ["adamw:lr=1e-3", "sheaf-run --lr"], 2),
    "options/data-of-compile": ((*COMPILE, "--batch", 8, "--data", "X"), ["sheaf-run"], 2),
    "options/steps-of-compile": ((*COMPILE, "--batch", 8, "--steps", 10), ["sheaf-run"], 2),
    "options/batch-of-run": ((*ONCE, "--batch", 8), ["sheaf compile", "compile again"], 2),
    "options/precision-of-run": ((*ONCE, "--precision", "bf16"), ["sheaf compile"], 2),
    "options/zero-of-run": ((*ONCE, "--zero", 3), ["sheaf compile"], 2),
    "options/batchsize": ((*COMPILE, "--batchsize", 64), ["unknown option --batchsize", "did you mean --batch?"], 2),
    "options/batch-size": ((*COMPILE, "--batch-size", 64), ["did you mean --batch?"], 2),
    "options/micro": ((*COMPILE, "--batch", 8, "--micro", 2), ["did you mean --micro-batches?"], 2),
    "options/one-dash": ((*COMPILE, "-batch", 8), ["did you mean --batch?"], 2),
    "options/exchanged-letters": ((*COMPILE, "--hlep"), ["unknown option --hlep; did you mean --help?"], 2),
    "options/one-letter": ((*COMPILE, "-b", 8), ["unknown option -b; see sheaf compile --help"], 2),
    "options/seed-of-run": ((*ONCE, "--seed", 1), ["sheaf compile", "--shuffle SEED"], 2),
    "options/like-of-run": ((*ONCE, "--like", "N"), ["it is one of `sheaf compile`"], 2),
    "options/no-value": ((*COMPILE, "--batch"), ["--batch needs a value"], 2),
    "options/twice": ((*COMPILE, "--batch", 8, "--batch", 16), ["--batch is given twice"], 2),
    # Job.
    "job/no-output": (("sheaf", "compile", "M", "--batch", 8), ["-o OUT.plan"], 2),
    "job/no-batch": (COMPILE, ["--batch"], 1),
    "job/batch-that-does-not-divide": ((*COMPILE, "--batch", 6, "--ranks", 4), ["--batch 6 does not divide into 4 ranks", "--batch 4 or 8"], 1),
    "job/batch-of-less-than-a-row": ((*COMPILE, "--batch", 2, "--ranks", 4), ["give --batch 4"], 1),
    "job/batch-of-words": ((*COMPILE, "--batch", "eight"), ["--batch eight", "an integer"], 2),
    "job/ranks-0": ((*COMPILE, "--batch", 8, "--ranks", 0), ["--ranks 0", "1 to 65536"], 2),
    "job/bind-without-a-size": ((*COMPILE, "--batch", 8, "--bind", "sequence"), ["--bind sequence"], 2),
    "job/bind-of-no-dimension": ((*COMPILE, "--batch", 8, "--bind", "sequence=4"), ["--bind sequence", "there are '|no dimension of an input has a name"], 1),
    "job/batch-beyond-products": ((*COMPILE, "--batch", 4294967296), ["m = 4294967296", "smaller --batch"], 1),
    "job/batch-beyond-most": ((*COMPILE, "--batch", 4294967297), ["1 to 4294967296"], 2),
    "job/long-path": (("sheaf", "compile", "M", "-o", "aa/" * 1500 + "q.plan", "--batch", 8), ["-o: File name too long", "4506 bytes"], 2),
    "job/long-name": (("sheaf", "compile", "M", "-o", "a" * 300 + ".plan", "--batch", 8), ["-o: File name too long"], 2),
    "job/path-of-many-folders": (("sheaf", "compile", "M", "-o", "a/" * 1500 + "q.plan", "--batch", 8), ["-o: the path from the folder of the plan", "fewer folders"], 1),
    "job/seed-beyond-64-bits": ((*COMPILE, "--batch", 8, "--seed", "99999999999999999999"), ["to 9223372036854775807"], 2),
    "job/rows-of-no-input": ((*COMPILE, "--batch", 8, "--rows", "z=1"), ["--rows z=1", "no such input"], 1),
    "job/onto-the-model": (("sheaf", "compile", "M", "-o", "M", "--batch", 8), ["-o"], 2),
    "job/plan-to-standard-output": (("sheaf", "compile", "M", "-o", "-", "--batch", 8), ["-o -: a plan is not written to standard output", "./-"], 2),
    "job/next-command-is-quoted": (("sheaf", "compile", "M", "-o", "D/my new.plan", "--batch", 8), ["next: sheaf-run '", "my new.plan' --data"], 0),
    "job/output-with-another-ending": (("sheaf", "compile", "M", "-o", "D/m.onnx", "--batch", 8), ["-o", ".plan"], 2),
    # Training.
    "training/optimizer-in-capitals": ((*COMPILE, "--batch", 8, "--optimizer", "AdamW:lr=1e-3"), ["wrote"], 0),
    "training/optimizer-unknown": ((*COMPILE, "--batch", 8, "--optimizer", "adagrad"), ["unknown optimizer 'adagrad'", "adamw"], 1),
    "training/optimizer-key": ((*COMPILE, "--batch", 8, "--optimizer", "adamw:learning_rate=1e-3"), ["learning_rate", "lr"], 1),
    "training/optimizer-rate-beyond-f32": ((*COMPILE, "--batch", 8, "--optimizer", "adamw:lr=1e39"), ["'lr' is '1e39'", "beyond the largest number of f32"], 1),
    "training/optimizer-eps-of-0": ((*COMPILE, "--batch", 8, "--optimizer", "adamw:eps=1e-50"), ["'eps' is '1e-50'", "is 0 in f32"], 1),
    "training/group-rate-beyond-f32": ((*COMPILE, "--batch", 8, "--group", "fc1:lr=1e39"), ["'lr' is '1e39'", "beyond the largest number of f32"], 1),
    "training/clip-beyond-f32": ((*COMPILE, "--batch", 8, "--clip-norm", "1e39"), ["beyond the largest number of f32"], 2),
    "training/rate-beyond-f32": ((*ONCE, "--lr", "1e39"), ["beyond the largest number of f32"], 2),
    "training/rate-of-0": ((*ONCE, "--lr", "1e-50"), ["is 0 in f32"], 2),
    "training/schedule-beyond-f32": ((*COMPILE, "--batch", 8, "--lr-schedule", "one-cycle:steps=9,div_factor=1e39"), ["div_factor must be a number above 0 that f32 holds"], 2),
    "training/fp16": ((*COMPILE, "--batch", 8, "--precision", "fp16"), ["wrote"], 0),
    "training/bfloat16": ((*COMPILE, "--batch", 8, "--precision", "bfloat16"), ["wrote"], 0),
    "training/int8": ((*COMPILE, "--batch", 8, "--precision", "int8"), ["one of f32, tf32, bf16, f16"], 2),
    "training/freeze-misspelt": ((*COMPILE, "--batch", 8, "--freeze", "fc4"), ["matches no parameter", "fc1.weight", "did you mean 'fc1'?"], 1),
    "training/train-misspelt": ((*COMPILE, "--batch", 8, "--train", "head"), ["matches no parameter", "fc1.weight"], 1),
    "training/loss-without-its-output": ((*COMPILE, "--batch", 8, "--loss", "mse"), ["'mse' is not an output", "mse(OUTPUT)"], 1),
    "training/loss-unknown": ((*COMPILE, "--batch", 8, "--loss", "hinge(logits)"), ["there is no loss 'hinge'", "cross_entropy"], 1),
    "training/freezes-all": ((*COMPILE, "--batch", 8, "--freeze", ".*"), ["nothing is trainable: --freeze '.*' freezes all 6 parameters"], 1),
    "training/freezes-all-that-it-trains": ((*COMPILE, "--batch", 8, "--train", "fc1", "--freeze", "fc1"), ["--freeze 'fc1' freezes all that --train 'fc1' names, 2 parameters", "the other 4"], 1),
    "training/group-hidden-by-a-later-one": ((*COMPILE, "--batch", 8, "--group", "fc1:lr=0.1", "--group", "fc1:weight_decay=0"), ["warning", "--group 'fc1:lr=0.1' has no effect", "put all settings into one"], 0),
    "training/schedule-gamma": ((*COMPILE, "--batch", 8, "--lr-schedule", "step:step_size=10,gamma=1.1"), ["gamma must be a number from 0 to 1"], 2),
    "training/schedule-key": ((*COMPILE, "--batch", 8, "--lr-schedule", "cosine:warm=10"), ["'warm=10' is not one of", "warmup=STEPS"], 2),
    "training/schedule-misspelt": ((*COMPILE, "--batch", 8, "--lr-schedule", "cosin"), ["did you mean 'cosine'?"], 2),
    "training/clip-0": ((*COMPILE, "--batch", 8, "--clip-norm", 0), ["--clip-norm 0", "above 0"], 2),
    # Evaluation.
    "evaluation/none-in-the-plan": (("sheaf-run", "N", "--eval", "--eval-data", "X", "--eval-data", "L"), ["no evaluation", "compile the model with --eval"], 1),
    "evaluation/no-data": (("sheaf-run", "P", "--eval"), ["--eval-data"], 2),
    "evaluation/data-for-training": (("sheaf-run", "P", "--eval", "--data", "X", "--data", "L"), ["--eval-data"], 2),
    "evaluation/only-with-an-optimizer": ((*COMPILE, "--batch", 8, "--eval-only", "--optimizer", "sgd"), ["--optimizer has no use with --eval-only"], 2),
    "evaluation/outputs-while-training": ((*ONCE, "--outputs", "D/out"), ["--eval-every"], 2),
    # Machine.
    "machine/target-unknown": ((*COMPILE, "--batch", 8, "--target", "gpu"), ["--target gpu", "cuda:sm_"], 2),
    "machine/cpu-native": ((*COMPILE, "--batch", 8, "--cpu", "native"), ["--cpu native: unknown CPU 'native'; did you mean host?"], 2),
    "machine/cpu-misspelt": ((*COMPILE, "--batch", 8, "--cpu", "haswel"), ["--cpu haswel", "did you mean haswell?"], 2),
    "machine/profile-unknown": ((*COMPILE, "--batch", 8, "--profile", "h200x"), ["h200x"], 1),
    "machine/zero-4": ((*COMPILE, "--batch", 8, "--ranks", 2, "--zero", 4), ["--zero 4", "0 to 3"], 2),
    "machine/zero-offload": ((*COMPILE, "--batch", 8, "--offload", "optimizer"), ["--offload optimizer"], 2),
    # Memory and schedule.
    "memory/does-not-fit": ((*COMPILE, "--batch", 8, "--memory-limit", "1KiB"), ["does not fit", "use more --ranks"], 1),
    "memory/update-on-host-without-offload": ((*COMPILE, "--batch", 8, "--update-on", "host"), ["--update-on has no effect", "--offload is not given"], 2),
    "memory/host-memory-without-offload": ((*COMPILE, "--batch", 8, "--host-memory", "1GiB"), ["--host-memory has no effect"], 2),
    "memory/file-space-without-offload": ((*COMPILE, "--batch", 8, "--file-space", "1GiB"), ["--file-space has no effect"], 2),
    "memory/file-generations-without-offload": ((*COMPILE, "--batch", 8, "--file-generations", 1), ["--file-generations has no effect"], 2),
    "memory/keep-on-one-rank": ((*COMPILE, "--batch", 8, "--keep", "fc1"), ["note: --keep has no effect", "--zero 3"], 0),
    "memory/prefetch-on-one-rank": ((*COMPILE, "--batch", 8, "--prefetch", 3), ["note: --prefetch has no effect"], 0),
    "memory/order-of-gpus-on-cpus": ((*COMPILE, "--batch", 8, "--reduce-order", "ring"), ["note: --reduce-order has no effect", "no --target is one"], 0),
    "memory/limit-without-a-unit": ((*COMPILE, "--batch", 8, "--memory-limit", "lots"), ["a size in bytes, such as 24GiB"], 2),
    "memory/limit-in-lower-case": ((*COMPILE, "--batch", 8, "--memory-limit", "16gb"), ["'gb' is not one of the units", "GiB"], 2),
    "memory/limit-of-0": ((*COMPILE, "--batch", 8, "--memory-limit", 0), ["at least 1 byte is needed"], 2),
    "memory/limit-too-large": ((*COMPILE, "--batch", 8, "--memory-limit", "99999999TiB"), ["it is more than 1024 PiB"], 2),
    "memory/keep-misspelt": ((*COMPILE, "--batch", 8, "--ranks", 2, "--zero", 3, "--keep", "fc9"), ["--keep fc9 matches no parameter", "fc1.weight"], 1),
    "memory/recompute-unknown": ((*COMPILE, "--batch", 8, "--recompute", "full"), ["--recompute full", "all"], 2),
    "memory/micro-batches-that-do-not-divide": ((*COMPILE, "--batch", 8, "--micro-batches", 3), ["--batch 6 or 9"], 1),
    "memory/leaves-that-do-not-divide": ((*COMPILE, "--batch", 8, "--leaves", 3), ["--leaves 3", "1, 2, 4"], 1),
    "fit/too-large": (("sheaf", "fit", "M", "--ranks", 2, "--memory", "64KiB"), ["It does not fit."], 1),
    "fit/no-memory": (("sheaf", "fit", "M", "--ranks", 2), ["--memory SIZE is missing", "--profile"], 2),
    "fit/memory-of-the-profile": (("sheaf", "fit", "M", "--ranks", 2, "--profile", "h100"), ["with 80.0 GB each|with 7[0-9.]+ GiB each"], 0),
    "fit/no-ranks": (("sheaf", "fit", "M", "--memory", "1GiB"), ["--ranks N is missing"], 2),
    "check/batch-of-billions": (("sheaf", "check", "M", "--batch", 4294967296), ["of 4294967296 rows on 1 rank", "It does not fit."], 1),
    "check/memory-of-the-profile": (("sheaf", "check", "M", "--profile", "h100"), ["with 80.0 GB each|with 7[0-9.]+ GiB each"], 0),
    # Data.
    "data/none": (("sheaf-run", "P", "--steps", 1), ["--data"], 1),
    "data/one-input-without": (("sheaf-run", "P", "--data", "X", "--steps", 1), ["labels"], 1),
    "data/labels-of-floats": (("sheaf-run", "P", "--data", "X", "--data", "labels=D/floats.npy", "--steps", 1), ["floats.npy", "f32", "array.astype('int64')"], 1),
    "data/a-label-too-large": (("sheaf-run", "P", "--data", "X", "--data", "labels=D/large.npy", "--steps", 1), ["input 'labels'", "large.npy, row 7", "label 10 is not in [0, 10)"], 1),
    "data/a-file-that-is-not-there": (("sheaf-run", "P", "--data", "x=nowhere.npy", "--data", "L", "--steps", 1), ["nowhere.npy"], 1),
    "data/inputs-exchanged": (("sheaf-run", "P", "--data", f"x={MODELS / 'mlp.labels.npy'}", "--data", "L", "--steps", 1), ["'x'", "[rows, 64]"], 1),
    "data/fewer-rows-than-a-batch": (("sheaf-run", "P", "--data", "x=D/few-x.npy", "--data", "labels=D/few-labels.npy", "--steps", 1), ["10 rows, fewer than the batch of 16"], 0),
    "data/input-misspelt": (("sheaf-run", "P", "--data", f"X={MODELS / 'mlp.x.npy'}", "--data", "L", "--steps", 1), ["no input 'X'", "its inputs are x, labels"], 1),
    "data/without-its-option": (("sheaf-run", "P", "--data", "X", L, "--steps", 1), ["there is no plan", f"did you mean --data {L}?"], 1),
    "data/archive-of-arrays": (("sheaf-run", "P", "--data", "x=D/arrays.npz", "--data", "L", "--steps", 1), [".npz", "a file of its own with numpy.save"], 1),
    "data/empty-file": (("sheaf-run", "P", "--data", "x=D/empty.npy", "--data", "L", "--steps", 1), ["empty.npy", "the file is empty"], 1),
    "data/label-of-the-evaluation": ((*RUN, "--steps", 20, "--eval-every", 10, "--eval-data", "X", "--eval-data", "labels=D/large.npy"), ["--eval-data", "large.npy, row 7", "label 10 is not in [0, 10)"], 1),
    "data/weights-of-torch-save": ((*ONCE, "--weights", "D/weights.pt"), ["torch.save", "safetensors.torch.save_file"], 1),
    "data/no-steps": (RUN, ["--steps K or --epochs E is missing"], 2),
    "data/steps-and-epochs": ((*ONCE, "--epochs", 2), ["--steps and --epochs exclude each other"], 2),
    "data/steps-0": ((*RUN, "--steps", 0), ["--steps 0"], 2),
    # Weights and state.
    "weights/save-as-pt": ((*ONCE, "--save", "D/w.pt"), ["--save", "safetensors"], 2),
    "weights/state-as-weights": ((*ONCE, "--weights", "D"), ["model.safetensors"], 1),
    "weights/not-there": ((*ONCE, "--weights", "nowhere.safetensors"), ["nowhere.safetensors"], 1),
    "weights/partial-without-weights": ((*ONCE, "--weights-partial"), ["--weights W.safetensors"], 2),
    "state/resume-from-nowhere": ((*ONCE, "--resume", "D/nowhere"), ["nowhere"], 1),
    "state/resume-from-a-folder-without-states": ((*ONCE, "--resume", "D"), ["no saved state"], 1),
    "state/save-every-without-a-folder": ((*ONCE, "--save-every", 1), ["--save-state DIR"], 2),
    "state/keep-saves-without-a-folder": ((*ONCE, "--keep-saves", 1), ["--save-state DIR"], 2),
    "state/staging-without-saves": ((*ONCE, "--save-staging", "auto"), ["--save-every K"], 2),
    # Ranks and devices.
    "ranks/of-another-plan": ((*ONCE, "--ranks", 2), ["2 ranks", "4"], 1),
    "ranks/cuda-without-a-gpu-plan": ((*ONCE, "--device", "cuda"), ["kernels for cpu alone", "--target cuda:sm_NN"], 1),
    "ranks/more-threads-than-any-rank-has": ((*ONCE, "--threads-per-rank", 5000), ["--threads-per-rank 5000", "at most 1024"], 1),
    "ranks/device-gpu": ((*ONCE, "--device", "gpu"), ["one of cpu, cuda"], 2),
    "ranks/tuned-on-the-cpu": ((*ONCE, "--tuned", "D/t.txt"), ["runs on GPUs"], 1),
    # Inspection.
    "inspection/log-into-nowhere": ((*ONCE, "--log", "D/nowhere/run.jsonl"), ["--log", "nowhere"], 1),
    "inspection/log-as-csv": ((*ONCE, "--log", "D/run.csv"), ["--log", "jsonl"], 2),
    "inspection/trace-as-csv": ((*ONCE, "--trace", "D/t.csv"), ["--trace", "json"], 2),
    "inspection/report-without-a-file": (("sheaf", "report", "P"), ["-o REPORT.html"], 2),
    "inspection/report-as-pdf": (("sheaf", "report", "P", "-o", "D/report.pdf"), ["-o", "html"], 2),
    "inspection/export-without-weights": (("sheaf", "export", "P", "--model", "M", "-o", "D/t.onnx"), ["--weights", "--state"], 2),
    "inspection/export-onto-the-model": (("sheaf", "export", "P", "--model", "M", "--weights", "W", "-o", "M"), ["-o"], 2),
    "inspection/init-beyond-f32": (("sheaf", "init", "P", "-o", "D/w.safetensors", "--scheme", "normal:std=1e39"), ["beyond the largest number of f32"], 2),
    "inspection/init-nearly-beyond-f32": (("sheaf", "init", "P", "-o", "D/w.safetensors", "--scheme", "normal:std=1e38"), ["may be beyond f32", "fc1.weight"], 1),
    "inspection/init-as-pt": (("sheaf", "init", "P", "-o", "D/w.pt"), ["safetensors"], 2),
}


def cases(session):
    for name, row in MISTAKES.items():
        yield Case(f"mistakes/{name}", lambda r=row: mistake(session, *r))
    yield Case("mistakes/options-of-compile", lambda: options_of_compile(session))
    yield Case("mistakes/temporary-folder", lambda: temporary_folder(session))


def options_of_compile(session):
    """sheaf-run says of every option that only sheaf compile has where it belongs."""
    def options(tool, *words):
        return set(re.findall(r"^\| `(--?[\w-]+)", session.succeed(tool, *words, "--help=markdown").out, re.MULTILINE))

    for option in sorted(options("sheaf", "compile") - options("sheaf-run")):
        done = session.call("sheaf-run", "x.plan", option, 1)
        expect(done.code == 2 and f"{option} is not an option of sheaf-run: " in done.err and "sheaf compile" in done.err, f"{option}: {done.err}")


def temporary_folder(session):
    """A TMPDIR that is not there is named, by whatever needs one. Without it TMP, TEMP and TEMPDIR count, as for other programs."""
    environment = {**os.environ, "TMPDIR": "/nowhere"}
    others = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "TMP")} | {"TEMP": "/nowhere/either"}
    done = session.call("sheaf", "check", MODELS / "mlp.onnx", "--try", "--ranks", 2, env=environment)
    expect_short_error(Finished(done.code, "", done.err, 0), ["TMPDIR=/nowhere", "No such file or directory"], 2)
    done = session.call("sheaf", "check", MODELS / "mlp.onnx", "--try", "--ranks", 2, env=others)
    expect_short_error(Finished(done.code, "", done.err, 0), ["TEMP=/nowhere/either", "set TMPDIR"], 2)
    command = ("sheaf", "compile", MODELS / "mlp.onnx", "-o", session.folder() / "x.plan", "--batch", 16, "--target", "cuda:sm_90")
    if "needs ptxas" not in session.call(*command).err:
        expect_short_error(session.call(*command, env=environment), ["TMPDIR=/nowhere", "No such file or directory"], 1)


def plans(session):
    """The plans, in a folder of their own."""
    def make():
        where = session.folder()
        for name, model, options in (("p", "mlp", ["--ranks", 4, "--eval"]), ("n", "mlp", ["--ranks", 4]), ("e", "mlp", ["--eval-only"]), ("c", "cnn", [])):
            session.succeed("sheaf", "compile", MODELS / f"{model}.onnx", "-o", where / f"{name}.plan", "--batch", 16, *options)
        session.succeed("sheaf", "profile", "-o", where / "q.plan", "--target", "cpu")
        return where
    return session.once("mistakes", make)


def mistake(session, command, words, status):
    where, made = session.folder(), plans(session)
    shutil.copy(MODELS / "mlp.onnx", where / "mlp.onnx")
    write_npy(where / "floats.npy", "<f4", (800,), bytes(4 * 800))
    write_npy(where / "large.npy", "<i8", (800,), struct.pack("<800q", *[10 * (row == 7) for row in range(800)]))
    write_npy(where / "few-x.npy", "<f4", (10, 64), bytes(4 * 640))
    write_npy(where / "few-labels.npy", "<i8", (10,), bytes(8 * 10))
    (where / "empty.npy").write_bytes(b"")
    for archive in ("arrays.npz", "weights.pt"):
        (where / archive).write_bytes(b"PK\x03\x04" + bytes(100))
    (where / "phase.mlir").write_text("module attributes {train.batch = 8 : i64} {\n}\n")
    (where / "none").mkdir()
    before = {p.name: p.read_bytes() for p in where.iterdir() if p.is_file()}
    names = {"M": where / "mlp.onnx", "O": where / "out.plan", "P": made / "p.plan", "N": made / "n.plan", "E": made / "e.plan", "C": made / "c.plan", "Q": made / "q.plan", "X": X, "L": L, "D": where,
             "W": MODELS / "mlp.safetensors"}
    words_of = [str(names.get(str(word), word)).replace("D/", f"{where}/") if isinstance(word, str) else word for word in command]
    done = session.call(*words_of)
    expect(done.code == status, f"exit {done.code}, not {status}\n{done.err}")
    text = done.err if status and not done.out else done.out + done.err
    for word in words:
        expect(re.search(word, text) if "|" in word else has_word(text, word), f"it does not say `{word}`:\n{text}")
    if status:
        expect(len(done.err.strip().splitlines()) <= 12, f"{done.err.count(chr(10))} lines on stderr")
        after = {p.name: p.read_bytes() for p in where.iterdir() if p.is_file()}
        expect(after == before, f"files changed: {sorted(set(after) ^ set(before))}")
