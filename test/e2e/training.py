"""Training runs against PyTorch's: which model runs with which options, and the run itself."""
import dataclasses
import json

from formats import read_log, read_safetensors
from gradients import read as read_gradients
from harness import MODELS, expect

ADAMW = "adamw:lr=1e-3,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01"
ADAMW_LM = "adamw:lr=3e-4,beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.01"
TEXT = {"input_ids": "gpt2-tiny.input_ids", "labels": "gpt2-tiny.labels"}
VECTORS = {"x": "mlp.x", "labels": "mlp.labels"}
IMAGES = {"x": "cnn.x", "labels": "cnn.labels"}


@dataclasses.dataclass(frozen=True)
class Config:
    """One model with one optimizer. reference: the .json and .grad0.sample of that model; run: the .json's name of the run."""
    name: str
    model: str
    reference: str
    run: str
    data: tuple
    options: tuple = ()


def _config(name, model, reference, run, data, *options):
    return Config(name, model, reference, run, tuple(data.items()), options)


CONFIGS = {c.name: c for c in [
    _config("mlp-sgd", "mlp", "mlp", "sgd", VECTORS, "--optimizer", "sgd:lr=0.1"),
    _config("mlp-momentum", "mlp", "mlp", "sgd-momentum", VECTORS,
            "--optimizer", "sgd:lr=0.05,momentum=0.9,weight_decay=1e-4"),
    _config("mlp-adamw", "mlp", "mlp", "adamw", VECTORS,
            "--optimizer", "adamw:lr=1e-3,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01"),
    _config("mlp-training-info", "mlp-training-info", "mlp", "sgd", VECTORS),
    _config("cnn-adamw", "cnn", "cnn", "adamw", IMAGES,
            "--optimizer", "adamw:lr=1e-3,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01"),
    _config("moe-adamw", "moe", "moe", "adamw", VECTORS, "--optimizer", ADAMW),
    _config("unet-adamw", "unet", "unet", "adamw", IMAGES, "--optimizer", ADAMW),
    _config("gpt2-tiny", "gpt2-tiny", "gpt2-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM),
    _config("gpt2-tiny-optimized", "gpt2-tiny-optimized", "gpt2-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM),
    _config("gpt2-tiny-logits", "gpt2-tiny-logits", "gpt2-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM,
            "--loss", "cross_entropy(logits)"),
    _config("llama-tiny", "llama-tiny", "llama-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM),
    _config("mistral-tiny", "mistral-tiny", "mistral-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM),
    _config("llama-tiny-optimized", "llama-tiny-optimized", "llama-tiny", "adamw-lm", TEXT, "--optimizer", ADAMW_LM),
]}


def data_arguments(config):
    return [a for name, file in config.data for a in ("--data", f"{name}={MODELS / file}.npy")]


@dataclasses.dataclass
class Trained:
    """What a run left: its log's step objects, and the paths of its weights and first gradients."""
    steps: list
    weights: object
    gradients: object


def train(session, config, ranks, zero, steps=None, compile_options=(), run_options=(), gradients=False, repeat=0, batch=8):
    """A run to step `steps`, from the model's own weights or from a state. Runs with the same arguments are made once; `repeat`
    distinguishes repetitions."""
    steps = steps or session.steps

    def run():
        plan = session.plan(config.model, ranks, zero, batch, config.options + tuple(compile_options))
        where = session.folder()
        trained = Trained(None, where / "weights.safetensors", where / "gradients.safetensors")
        options = ["--dump-gradients", trained.gradients] if gradients else []
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", steps, "--log", where / "run.jsonl",
                        "--save", trained.weights, *options, *run_options)
        trained.steps = read_log(where / "run.jsonl")[0]
        first = trained.steps[0]["step"] if trained.steps and "--resume" in run_options else 0
        expect([s["step"] for s in trained.steps] == list(range(first, steps)), f"the log has {len(trained.steps)} steps of {steps}")
        return trained

    key = ("train", config.name, ranks, zero, steps, tuple(compile_options), tuple(map(str, run_options)), gradients, repeat, batch)
    return session.once(key, run)


def in_turn(session, items, turn, callers):
    """The items that are tried at this turn, so that each is tried by exactly one of as many callers with consecutive turns.
    `make bits` has every caller try all."""
    return [item for i, item in enumerate(items) if session.every_division or (i + turn) % callers == 0]


def short(session):
    """The steps of runs that are compared with each other: bits that differ have spread over all weights by then."""
    return min(session.steps, 30)


def instructions(session, plan):
    """The text of a plan's instructions, without its memory and its notes."""
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    return text[text.index("plan.prologue"):]


def expect_other_instructions(session, plans):
    """No two of the plans have the same instructions. plans: {what it was compiled with: its path}."""
    seen = {}
    for what, plan in plans.items():
        text = instructions(session, plan)
        expect(text not in seen, f"`{what}` gives the same instructions as `{seen.get(text)}`")
        seen[text] = what


def reference_run(config):
    return json.loads((MODELS / f"{config.reference}.json").read_text())["runs"][f"{config.run}.f64"]


def expect_reference(config, steps, first=0):
    """Every loss within 2e-5 of PyTorch's f64 run, every gradient norm within 1e-4 relative or 2e-5 absolute."""
    reference = reference_run(config)
    for step, entry in enumerate(steps, first):
        for key in ("step", "loss", "grad_norm", "lr", "seconds"):
            expect(key in entry, f"step {step}: the log has no `{key}`")
        loss, expected = entry["loss"], reference["loss"][step]
        expect(abs(loss - expected) <= 2e-5, f"step {step}: loss {loss}, PyTorch's is {expected}")
        norm, expected = entry["grad_norm"], reference["grad_norm"][step]
        expect(abs(norm - expected) <= max(2e-5, 1e-4 * expected),
               f"step {step}: gradient norm {norm}, PyTorch's is {expected}")


def reference_gradients(config):
    """{parameter: what is stored of PyTorch's first gradient}"""
    return read_gradients(MODELS / f"{config.reference}.grad0.sample.safetensors")


def expect_gradients(config, path):
    """Every parameter's first gradient within 1e-5 relative of PyTorch's; an optimized export may hold it transposed."""
    reference = reference_gradients(config)
    ours = read_safetensors(path)
    missing = sorted(set(reference) - set(ours))
    expect(not missing, f"no gradient of {', '.join(missing)}; there are {', '.join(sorted(ours))}")
    for name, expected in reference.items():
        tensor = ours[name]
        candidates = [tensor] if tensor.shape == expected.shape else []
        if config.model.endswith("-optimized") and tensor.shape == expected.shape[::-1] and len(tensor.shape) == 2:
            candidates.append(tensor.transposed())
        expect(candidates, f"{name}: shape {tensor.shape}, PyTorch's is {expected.shape}")
        error = min(expected.difference(t.values) for t in candidates)
        expect(error <= 1e-5, f"{name}: first gradient differs by {error:.2e} of its norm")
