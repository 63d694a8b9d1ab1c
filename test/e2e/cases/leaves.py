"""Leaves: the same batch, divided among any number of ranks, trains to the same bits; and to PyTorch's losses."""
from harness import Case, expect_short_error
from cases.bits import same_bits
from training import CONFIGS, expect_reference, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
LEAVES = 4  # of two rows
STEPS = 10


def cases(session):
    for name in MODELS:
        for what, options in (("f32", ()), ("bf16", ("--precision", "bf16")), ("clipped", ("--clip-norm", "0.1"))):
            yield Case(f"leaves/{name}/{what}", lambda c=CONFIGS[name], o=options: any_ranks(session, c, o))
        yield Case(f"leaves/{name}/reference", lambda c=CONFIGS[name]: reference(session, c))
    yield Case("leaves/refused", lambda: refused(session))


def leaves(session, config, ranks, zero, options=(), steps=STEPS, **more):
    buckets = ("--bucket-size", 64 << 10)
    return train(session, config, ranks, zero, steps, ("--leaves", LEAVES, *buckets, *options), **more)


def any_ranks(session, config, options):
    """One, two and four ranks at every stage: four are what is compiled without leaves."""
    four = train(session, config, 4, 3, STEPS, ("--bucket-size", 64 << 10, *options))
    same_bits(four, [(f"{n} ranks at stage {z}", leaves(session, config, n, z, options))
                     for n, z in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (4, 3))])


def reference(session, config):
    expect_reference(config, leaves(session, config, 1, 0, steps=session.steps, gradients=True).steps)


def refused(session):
    graph = session.graph("mlp")
    for leaves, ranks, words in ((6, 4, "is not --ranks 4 times a power of two: give 4, 8, 16"),
                                 (12, 4, "is not --ranks 4 times a power of two"), (16, 4, "--batch 8 does not divide into 16 leaves")):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", ranks,
                           "--leaves", leaves, "--optimizer", "sgd:lr=0.1")
        expect_short_error(out, words.split(), 1)
