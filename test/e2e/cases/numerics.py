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
                yield Case(f"numerics/{config.name}/ranks-{n}/zero-{zero}", lambda c=config, n=n, z=zero: run(session, c, n, z))


def run(session, config, ranks, zero):
    trained = train(session, config, ranks, zero, gradients=True)
    expect_reference(config, trained.steps)
    expect_gradients(config, trained.gradients)
