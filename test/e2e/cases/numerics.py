"""Losses, gradient norms and first gradients equal PyTorch's f64 runs, for every model, number of ranks and stage."""
import dataclasses

from formats import read_safetensors
from harness import Case, expect
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
    yield Case("numerics/lion", lambda: lion(session))


def case(session, config, ranks, zero):
    return Case(f"numerics/{config.name}/ranks-{ranks}/zero-{zero}", lambda: run(session, config, ranks, zero))


def run(session, config, ranks, zero):
    trained = train(session, config, ranks, zero, gradients=True)
    expect_reference(config, trained.steps)
    expect_gradients(config, trained.gradients)


def lion(session):
    """Lion, which PyTorch does not have: every step's weights follow from the gradients by the formula in double precision."""
    rate, beta1, beta2, decay = 1e-2, 0.9, 0.95, 0.1
    config = dataclasses.replace(CONFIGS["mlp-adamw"], name="mlp-lion",
                                 options=("--optimizer", f"lion:lr={rate},beta1={beta1},beta2={beta2},weight_decay={decay}"))
    state, momentum, before = session.folder() / "state", {}, {}
    for step in range(4):
        resume = ("--resume", state) if step else ()
        trained = train(session, config, 4, 3, steps=1, run_options=(*resume, "--save-state", state), gradients=True, repeat=step)
        weights, gradients = read_safetensors(trained.weights), read_safetensors(trained.gradients)
        moved = 0
        for name, gradient in gradients.items():
            m = momentum.get(name, [0.0] * len(gradient.values))
            for i, (w, g) in enumerate(zip(weights[name].values, gradient.values)):
                average = beta1 * m[i] + (1 - beta1) * g
                sign = (average > 0) - (average < 0)
                if before and abs(average) > 1e-9:  # below, rounding decides the sign
                    expected = before[name].values[i] * (1 - rate * decay) - rate * sign
                    expect(abs(w - expected) < 1e-6, f"step {step}, {name}[{i}]: {w}, expected {expected}")
                    moved += 1
            momentum[name] = [beta2 * a + (1 - beta2) * g for a, g in zip(m, gradient.values)]
        expect(not before or moved > 10000, f"step {step}: only {moved} elements have a gradient")
        before = weights
    one, four = (train(session, config, ranks, zero, steps=4) for ranks, zero in ((4, 0), (4, 3)))
    other = read_safetensors(four.weights)
    for name, tensor in read_safetensors(one.weights).items():
        expect(tensor.values == other[name].values, f"{name} depends on the stage")
        expect(tensor.values == before[name].values, f"{name} depends on whether the run was resumed")
