"""`sheaf export`: the user's ONNX model with trained weights is that model, and trains on from where the run ended."""
import array

from cases import norms
from cases.evaluation import first_rows, read_npy
from formats import Tensor, read_log, read_safetensors, relative_difference, write_safetensors
from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import linear, weight
from training import CONFIGS, TEXT, data_arguments, train

BF16 = ("--precision", "bf16")


def cases(session):
    for name in ("mlp-momentum", "cnn-adamw", "gpt2-tiny", "gpt2-tiny-optimized", "gpt2-tiny-logits", "llama-tiny-optimized"):
        yield Case(f"export/{name}", lambda c=CONFIGS[name]: same_model(session, c))
    yield Case("export/bf16", lambda: same_model(session, CONFIGS["gpt2-tiny"], BF16))
    yield Case("export/inference", lambda: inference(session))
    yield Case("export/keep-training", lambda: keep_training(session))
    yield Case("export/errors", lambda: errors(session))


def exported(session, plan, config, output, *weights):
    loss = config.options[config.options.index("--loss"):][:2] if "--loss" in config.options else ()
    session.succeed("sheaf", "export", plan, "--model", MODELS / f"{config.model}.onnx", *loss, *weights, "-o", output)
    return output


def same_model(session, config, options=()):
    """The first step of the exported model has the bits of the plan's first step from the saved weights, and its own
    weights are those, whether they come from the file of weights or from the saved state of four ranks."""
    where = session.folder()
    run = train(session, config, 4, 3, steps=5, compile_options=options, run_options=("--save-state", where / "state"))
    plan = session.plan(config.model, 4, 3, 8, config.options + options)
    # External data has the model's name, so both models have one name.
    (where / "again").mkdir()
    model = exported(session, plan, config, where / "model.onnx", "--weights", run.weights)
    again = exported(session, plan, config, where / "again" / "model.onnx", "--state", where / "state")
    for file in (model, model.with_name("model.onnx.data")):
        other = again.parent / file.name
        expect(file.exists() == other.exists(), f"weights or state alone export {file.name}")
        expect(not file.exists() or file.read_bytes() == other.read_bytes(), f"weights and state export another {file.name}")
    session.succeed("sheaf", "export", plan, "--state", where / "state", "-o", where / "w.safetensors")
    expect(flat(where / "w.safetensors") == flat(run.weights), "the state's weights differ from the saved ones")

    session.succeed("sheaf", "compile", model, "-o", where / "model.plan", "--ranks", 4, "--zero", 3, "--batch", 8,
                    *config.options, *options)
    first = {}
    for name, used, more in (("ours", plan, ("--weights", run.weights)), ("exported", where / "model.plan", ())):
        session.succeed("sheaf-run", used, *data_arguments(config), *more, "--steps", 1, "--log", where / f"{name}.jsonl",
                        "--save", where / f"{name}.safetensors")
        first[name] = read_log(where / f"{name}.jsonl")[0][0]["loss"]
    expect(first["ours"] == first["exported"], f"first losses differ: {first}")
    ours, theirs = flat(where / "ours.safetensors"), flat(where / "exported.safetensors")
    expect(ours.keys() == theirs.keys(), f"the exported model has other parameters: {ours.keys() ^ theirs.keys()}")
    for name in ours:
        expect(ours[name] == theirs[name], f"{name} differs after a step of the exported model")


def flat(path):
    return {name: tensor.values for name, tensor in read_safetensors(path).items()}


def inference(session):
    """The weights go into another export of the module, which has no loss: its logits are those of the plan's evaluation. They are
    the same bits where products have as many rows, on four ranks or of four leaves; on one rank all but for rounding."""
    config, where = CONFIGS["gpt2-tiny-logits"], session.folder()
    options = (*config.options, "--eval")
    run = train(session, config, 4, 3, steps=3, compile_options=("--eval",))
    plan, model = session.plan(config.model, 4, 3, 8, options), where / "trained.onnx"
    session.succeed("sheaf", "export", plan, "--model", MODELS / "gpt2-tiny-logits.onnx", "--weights", run.weights, "-o", model)
    ids, labels = (first_rows(session, TEXT[name], 64) for name in ("input_ids", "labels"))
    session.succeed("sheaf-run", plan, "--eval", "--weights", run.weights, "--outputs", where / "ours",
                    "--eval-data", f"input_ids={ids}", "--eval-data", f"labels={labels}")
    ours = (where / "ours" / "logits.npy").read_bytes()
    for name, options in (("ranks", ("--ranks", 4)), ("leaves", ("--leaves", 4)), ("whole", ())):
        session.succeed("sheaf", "compile", model, "-o", where / f"{name}.plan", "--batch", 8, "--eval-only", *options)
        session.succeed("sheaf-run", where / f"{name}.plan", "--eval", "--outputs", where / name, "--eval-data", f"input_ids={ids}")
        theirs = (where / name / "logits.npy").read_bytes()
        if name == "whole":
            difference = relative_difference(*(read_npy(where / folder / "logits.npy")[1] for folder in (name, "ours")))
            expect(difference <= 1e-6, f"on one rank the exported model's logits differ from the evaluation's by {difference:.1e} of their norm")
        else:
            expect(ours == theirs, f"{name}: the exported model's logits differ from the evaluation's")
    # Without the training the logits are others: the weights did arrive.
    session.succeed("sheaf-run", plan, "--eval", "--outputs", where / "first", "--eval-data", f"input_ids={ids}",
                    "--eval-data", f"labels={labels}")
    expect((where / "first" / "logits.npy").read_bytes() != ours, "training changed no logit")


def keep_training(session):
    """With --keep-training the exported model's first step is the next one from the saved weights, bit by bit, batch norms in training
    mode included; without it they are in evaluation mode."""
    name, where = "resnet-torchscript", session.folder()
    _, _, weights = norms.train(session, name, ranks=4, zero=3, steps=3)
    plan, _ = norms.compiled(session, name, (), 4, 3)
    data = [a for key, file in (("x", "cnn.x"), ("labels", "cnn.labels")) for a in ("--data", f"{key}={MODELS / file}.npy")]
    losses, saved = {}, {}
    for kind in ("plan", "kept", "turned"):
        used = plan
        if kind != "plan":
            used = where / f"{kind}.plan"
            session.succeed("sheaf", "export", plan, "--model", norms.FOLDER / f"{name}.onnx", "--weights", weights, "-o",
                            where / f"{kind}.onnx", *(("--keep-training",) if kind == "kept" else ()))
            marked = b"training_mode" in (where / f"{kind}.onnx").read_bytes()
            expect(marked == (kind == "kept"), f"{kind}.onnx has batch norms in {'training' if marked else 'evaluation'} mode")
            if kind == "turned":
                continue
            session.succeed("sheaf", "compile", where / f"{kind}.onnx", "-o", used, "--ranks", 4, "--zero", 3, "--batch", norms.BATCH,
                            "--bucket-size", "8KiB", *norms.SGD)
        session.succeed("sheaf-run", used, *data, *(("--weights", weights) if kind == "plan" else ()), "--steps", 1, "--log",
                        where / f"{kind}.jsonl", "--save", where / f"{kind}.safetensors")
        losses[kind] = read_log(where / f"{kind}.jsonl")[0][0]["loss"]
        saved[kind] = flat(where / f"{kind}.safetensors")
    expect(losses["kept"] == losses["plan"], f"the losses differ: {losses}")
    expect(saved["kept"] == saved["plan"], "the weights or statistics differ after the step")


def errors(session):
    config, where = CONFIGS["mlp-sgd"], session.folder()
    run, plan = train(session, config, 1, 0, steps=2), session.plan("mlp", 1, 0, 8, config.options)
    weights = ("--weights", run.weights)
    model, output = ("--model", MODELS / "mlp.onnx"), ("-o", where / "out.onnx")
    for words, code, arguments in (
            ("--weights or --state", 2, (*model, *output)),
            ("--model", 2, (*weights, *output)),
            ("has no initializer for the plan's parameter", 1, ("--model", MODELS / "gpt2-tiny.onnx", *weights, *output)),
            ("cannot read", 1, ("--model", where / "none.onnx", *weights, *output)),
            ("no tensor", 1, (*model, "--weights", MODELS / "norms" / "resnet.sync.safetensors", *output))):
        expect_short_error(session.call("sheaf", "export", plan, *arguments), words.split(), code)
        expect(not (where / "out.onnx").exists(), "something was written")
    # The model and its data stay: plans read their initial weights from them.
    (where / "far.onnx").write_bytes(linear(weight_tensor=weight("w", [4, 3], location="far.onnx.data")))
    (where / "far.onnx.data").write_bytes(bytes(48))
    session.succeed("sheaf", "compile", where / "far.onnx", "-o", where / "far.plan", "--batch", 4)
    write_safetensors(where / "far.safetensors", {"w": Tensor("F32", (4, 3), array.array("f", [0.5] * 12))})
    before = {path: path.read_bytes() for path in where.glob("far.onnx*")}
    for output, word in (("./far.onnx", "--model"), ("far.onnx.data", "another format")):
        refused = session.call("sheaf", "export", "far.plan", "--weights", "far.safetensors", "--model", where / "far.onnx", "-o", output,
                               cwd=where)
        expect_short_error(refused, [word, "give"], 2)
    # Its data would be far.onnx.data.
    (where / "other").mkdir()
    (where / "other" / "far.onnx.data").symlink_to(where / "far.onnx.data")
    refused = session.call("sheaf", "export", where / "far.plan", "--weights", where / "far.safetensors", "--model", where / "far.onnx", "-o",
                           where / "other" / "far.onnx")
    expect_short_error(refused, ["external data"], 2)
    expect(all(path.read_bytes() == data for path, data in before.items()), "a file of the model was replaced")
