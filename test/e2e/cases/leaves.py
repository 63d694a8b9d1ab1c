"""Leaves: training with them reaches PyTorch's losses. That weights do not depend on the number of ranks is in divisions.py."""
import json

from cases.bits import same_bits
from harness import MODELS as FOLDER
from harness import Case, expect, expect_short_error
from training import CONFIGS, expect_reference, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
LEAVES = 4  # of two rows


def cases(session):
    for name in MODELS:
        yield Case(f"leaves/{name}/reference", lambda c=CONFIGS[name]: reference(session, c))
    for precision, within in (("f32", 2e-5), ("bf16", 3e-3)):
        yield Case(f"leaves/sixty-four/{precision}", lambda p=precision, w=within: sixty_four(session, p, w))
    yield Case("leaves/refused", lambda: refused(session))


def reference(session, config):
    options = ("--leaves", LEAVES, "--bucket-size", 64 << 10)
    expect_reference(config, train(session, config, 1, 0, compile_options=options, gradients=True).steps)


def sixty_four(session, precision, within):
    """Rounding at every addition of the tree of 64 leaves leaves the losses where PyTorch's are."""
    expected = json.loads((FOLDER / "micro-batches.json").read_text())["runs"]["adamw-lm.f64.128-rows"]
    options = ("--leaves", 64, "--bucket-size", 64 << 10, "--precision", precision)
    runs = [train(session, CONFIGS["gpt2-tiny"], ranks, 3, len(expected["loss"]), options, batch=128) for ranks in (2, 8)]
    for step, entry in enumerate(runs[0].steps):
        for key in ("loss", "grad_norm"):
            difference = abs(entry[key] - expected[key][step]) / max(1, expected[key][step] if key == "grad_norm" else 1)
            expect(difference <= within, f"step {step}: {key} {entry[key]}, PyTorch's is {expected[key][step]}")
    same_bits(runs[0], [("eight ranks", runs[1])])


def refused(session):
    graph = session.graph("mlp")
    for leaves, ranks, words in ((6, 4, "is not --ranks 4 times a power of two: give 4, 8, 16"),
                                 (12, 4, "is not --ranks 4 times a power of two"), (16, 4, "--batch 8 does not divide into 16 leaves")):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", ranks,
                           "--leaves", leaves, "--optimizer", "sgd:lr=0.1")
        expect_short_error(out, words.split(), 1)
