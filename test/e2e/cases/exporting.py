"""`sheaf export`: the user's ONNX model with trained weights is that model, and trains on from where the run ended."""
from formats import read_log, read_safetensors
from harness import MODELS, Case, expect, expect_short_error
from training import CONFIGS, data_arguments, train

BF16 = ("--precision", "bf16")


def cases(session):
    for name in ("mlp-momentum", "cnn-adamw", "gpt2-tiny", "gpt2-tiny-optimized", "gpt2-tiny-logits", "llama-tiny-optimized"):
        yield Case(f"export/{name}", lambda c=CONFIGS[name]: same_model(session, c))
    yield Case("export/bf16", lambda: same_model(session, CONFIGS["gpt2-tiny"], BF16))
    yield Case("export/inference", lambda: inference(session))
    yield Case("export/errors", lambda: errors(session))


def exported(session, plan, config, output, *weights):
    loss = config.options[config.options.index("--loss"):][:2] if "--loss" in config.options else ()
    session.succeed("sheaf", "export", plan, "--model", MODELS / f"{config.model}.onnx", *loss, *weights, "-o", output)
    return output


def same_model(session, config, options=()):
    """The first step of the exported model has the bits of the plan's first step from the saved weights, and its own
    weights are those, whether they come from the file of weights or from the saved state of four ranks."""
    where, half = session.folder(), session.steps // 2
    run = train(session, config, 4, 3, steps=half, compile_options=options, run_options=("--save-state", where / "state"))
    plan = session.plan(config.model, 4, 3, 8, config.options + options)
    model = exported(session, plan, config, where / "model.onnx", "--weights", run.weights)
    again = exported(session, plan, config, where / "again.onnx", "--state", where / "state")
    expect(model.read_bytes() == again.read_bytes(), "weights and state export another model")
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
    """The weights go into another export of the module, which has no loss: its logits are those of the plan's evaluation."""
    config, where = CONFIGS["gpt2-tiny-logits"], session.folder()
    options = (*config.options, "--eval", "on")
    run = train(session, config, 4, 3, steps=3, compile_options=("--eval", "on"))
    plan, model = session.plan(config.model, 4, 3, 8, options), where / "trained.onnx"
    session.succeed("sheaf", "export", plan, "--model", MODELS / "gpt2-tiny-logits.onnx", "--weights", run.weights, "-o", model)
    session.succeed("sheaf", "compile", model, "-o", where / "inference.plan", "--batch", 8, "--eval-only")
    ids = MODELS / "gpt2-tiny.input_ids.npy"
    labels = MODELS / "gpt2-tiny.labels.npy"
    session.succeed("sheaf-run", plan, "--eval", "--weights", run.weights, "--outputs", where / "ours",
                    "--eval-data", f"input_ids={ids}", "--eval-data", f"labels={labels}")
    session.succeed("sheaf-run", where / "inference.plan", "--eval", "--outputs", where / "theirs", "--eval-data", f"input_ids={ids}")
    ours, theirs = ((where / name / "logits.npy").read_bytes() for name in ("ours", "theirs"))
    expect(ours == theirs, "the exported model's logits differ from the evaluation's")
    # Without the training the logits are others: the weights did arrive.
    session.succeed("sheaf-run", plan, "--eval", "--outputs", where / "first", "--eval-data", f"input_ids={ids}",
                    "--eval-data", f"labels={labels}")
    expect((where / "first" / "logits.npy").read_bytes() != ours, "training changed no logit")


def errors(session):
    config, where = CONFIGS["mlp-sgd"], session.folder()
    run, plan = train(session, config, 1, 0, steps=2), session.plan("mlp", 1, 0, 8, config.options)
    weights = ("--weights", run.weights)
    model, output = ("--model", MODELS / "mlp.onnx"), ("-o", where / "out.onnx")
    for words, code, arguments in (
            ("--weights or --state", 2, (*model, *output)),
            ("--model", 2, (*weights, *output)),
            ("has no parameter plan", 1, ("--model", MODELS / "gpt2-tiny.onnx", *weights, *output)),
            ("cannot read", 1, ("--model", where / "none.onnx", *weights, *output)),
            ("no tensor", 1, (*model, "--weights", MODELS / "gpt2-tiny.grad0.safetensors", *output))):
        expect_short_error(session.call("sheaf", "export", plan, *arguments), words.split(), code)
        expect(not (where / "out.onnx").exists(), "something was written")
