"""Losses, gradient norms and first gradients equal PyTorch's f64 runs, for every model, number of ranks and stage."""
from harness import Case
from training import CONFIGS, expect_gradients, expect_reference, train

RANKS = (1, 2, 4)
STAGES = (0, 1, 2, 3)


def cases(session):
    ranks, stages = ((4,), (0, 3)) if session.quick else (RANKS, STAGES)
    for config in CONFIGS.values():
        for n in ranks:
            for zero in stages:
                yield case(session, config, n, zero)
    # A row a rank: a dimension of size 1 is the batch.
    for name in ("mlp-momentum", "gpt2-tiny"):
        yield case(session, CONFIGS[name], 8, 3)


def case(session, config, ranks, zero):
    return Case(f"numerics/{config.name}/ranks-{ranks}/zero-{zero}", lambda: run(session, config, ranks, zero))


def run(session, config, ranks, zero):
    trained = train(session, config, ranks, zero, gradients=True)
    expect_reference(config, trained.steps)
    expect_gradients(config, trained.gradients)
