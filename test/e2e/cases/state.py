"""Saved states: they resume on other ranks and stages, are written whole or not at all, and a damaged one is refused."""
import shutil

from formats import read_log, read_safetensors
from harness import MODELS, Case, expect
from training import CONFIGS, data_arguments, expect_reference, train


def cases(session):
    pairs = [((4, 3), (2, 1))] if session.quick else [((4, 3), (2, 1)), ((2, 1), (4, 3)), ((1, 0), (4, 2)), ((4, 3), (1, 0))]
    for name in ("mlp-momentum", "gpt2-tiny", "llama-tiny"):
        for before, after in pairs:
            title = f"state/{name}/ranks-{before[0]}-zero-{before[1]}-to-ranks-{after[0]}-zero-{after[1]}"
            yield Case(title, lambda c=CONFIGS[name], b=before, a=after: resharded(session, c, b, a))
    yield Case("state/weights-replace", lambda: weights_replace(session))
    for precision in ("f32", "bf16"):
        yield Case(f"state/frozen/{precision}", lambda p=precision: frozen(session, p))
    yield Case("state/damaged", lambda: damaged(session))
    yield Case("state/shuffle-goes-on", lambda: shuffle_goes_on(session))


def resharded(session, config, before, after):
    half, state = session.steps // 2, session.folder() / "state"
    train(session, config, *before, steps=half, run_options=("--save-state", state))
    rest = train(session, config, *after, steps=session.steps, run_options=("--resume", state))
    expect_reference(config, rest.steps, first=half)


def weights_replace(session):
    """--save then --weights continues with the saved weights: SGD without momentum has no other state but the step."""
    config, half = CONFIGS["mlp-sgd"], session.steps // 2
    whole = train(session, config, 2, 1, gradients=True)
    first = train(session, config, 2, 1, steps=half)
    rolled = []
    for name, path in config.data:
        rolled += ["--data", f"{name}={roll(session, path, half * 8)}"]
    plan, where = session.plan(config.model, 2, 1, 8, config.options), session.folder()
    session.succeed("sheaf-run", plan, *rolled, "--weights", first.weights, "--steps", session.steps - half,
                    "--save", where / "w.safetensors")
    ours, expected = read_safetensors(where / "w.safetensors"), read_safetensors(whole.weights)
    for name in expected:
        expect(ours[name].values == expected[name].values, f"{name} differs after continuing from saved weights")


def roll(session, name, rows):
    """A copy of a data file whose first rows stand at its end."""
    content = (MODELS / f"{name}.npy").read_bytes()
    start = 10 + int.from_bytes(content[8:10], "little")
    row = (len(content) - start) // 800
    path = session.folder() / f"{name}.npy"
    path.write_bytes(content[:start] + content[start + rows * row:] + content[start:start + rows * row])
    return path


def frozen(session, precision):
    """Parameters are frozen, and trained again, between runs: values go by name, and of optimizer state what both runs have."""
    config, folder = CONFIGS["mlp-adamw"], session.folder()
    options = ("--precision", precision)
    frozen = (*options, "--freeze", "^fc1")
    first = train(session, config, 2, 3, steps=4, compile_options=options, run_options=("--save-state", folder / "a"))
    plan = session.plan(config.model, 4, 1, 8, (*config.options, *frozen))
    common = data_arguments(config)
    done = session.succeed("sheaf-run", plan, *common, "--steps", 7, "--resume", folder / "a", "--save-state", folder / "b", "--save", folder / "b.safetensors")
    expect("frozen now, and trained in the state: fc1.bias, fc1.weight" in done.err.replace("fc1.weight, fc1.bias", "fc1.bias, fc1.weight"), done.err)
    if precision == "f32":
        before, after = read_safetensors(first.weights), read_safetensors(folder / "b.safetensors")
        for name in before:
            expect((before[name].values == after[name].values) == name.startswith("fc1"), f"{name} is frozen and has changed, or the other way round")
    # Trained again: as in a run whose moments of fc1 are zero.
    again = session.plan(config.model, 2, 0, 8, (*config.options, *options))
    done = session.succeed("sheaf-run", again, *common, "--steps", 10, "--resume", folder / "b", "--log", folder / "log", "--save", folder / "c.safetensors")
    expect("trained now, and frozen in the state: fc1" in done.err and "optimizer state begins at zero" in done.err, done.err)
    expect([s["step"] for s in read_log(folder / "log")[0]] == [7, 8, 9], "the run does not go on from step 7")
    last, start = (read_safetensors(path) for path in (folder / "c.safetensors", first.weights))
    expect(all(last[name].values != start[name].values for name in last), "not all parameters are trained again")
    moved = max(abs(a - b) for a, b in zip(last["fc1.weight"].values, start["fc1.weight"].values))
    expect(moved < 0.02, f"fc1.weight has moved by {moved} in three steps")  # rounding to bf16, and three steps of 1e-3


def damaged(session):
    """A flipped byte in a saved state is a short error, or, where it does not matter, changes nothing."""
    config, state = CONFIGS["mlp-adamw"], session.folder() / "state"
    train(session, config, 2, 2, steps=3, run_options=("--save-state", state))
    intact = train(session, config, 2, 2, steps=4, run_options=("--resume", state)).steps[0]["loss"]
    plan = session.plan(config.model, 2, 2, 8, config.options)
    files = sorted(p for p in state.rglob("*") if p.is_file() and p.stat().st_size)
    expect(files, f"{state} is empty")
    refused = 0
    for victim in files:
        where = session.folder()
        shutil.copytree(state, where / "state", symlinks=True)
        path = where / "state" / victim.relative_to(state)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
        done = session.call("sheaf-run", plan, *data_arguments(config), "--steps", 4, "--resume", where / "state", "--log", where / "log")
        expect(done.code in (0, 1), f"exit {done.code} on a damaged {victim.name}")
        if done.code:
            refused += 1
            expect(len(done.err.splitlines()) <= 12, f"{len(done.err.splitlines())} lines of error on a damaged {victim.name}")
        else:
            expect(read_log(where / "log")[0][0]["loss"] == intact, f"another loss after damage to {victim.name}")
    expect(refused, "no damage was noticed")


def shuffle_goes_on(session):
    """A resumed run draws the permutation's next rows, not its first ones again."""
    config, state = CONFIGS["mlp-adamw"], session.folder() / "state"
    shuffle = ("--shuffle", 5)
    whole = train(session, config, 2, 3, steps=20, run_options=shuffle)
    train(session, config, 2, 3, steps=10, run_options=shuffle + ("--save-state", state))
    rest = train(session, config, 2, 3, steps=20, run_options=shuffle + ("--resume", state))
    plain = train(session, config, 2, 3, steps=20)
    expect([s["loss"] for s in rest.steps] == [s["loss"] for s in whole.steps[10:]], "the resumed half has other losses")
    expect(whole.steps[0]["loss"] != plain.steps[0]["loss"], "--shuffle reads the same rows as without it")
