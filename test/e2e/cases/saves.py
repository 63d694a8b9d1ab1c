"""States saved while a run goes on: what stays of them when the run is killed, and what a damaged one says."""
import random
import signal
import subprocess
import time

from harness import Case, Failure, digest, expect, expect_short_error
from training import CONFIGS, data_arguments, train

CONFIG = CONFIGS["mlp-adamw"]
STEPS = 24


def cases(session):
    yield Case("saves/kept", lambda: kept(session))
    yield Case("saves/latest-is-damaged", lambda: latest_is_damaged(session))
    for ranks, zero in ((1, 0), (2, 3)):
        yield Case(f"saves/killed/ranks-{ranks}", lambda r=ranks, z=zero: killed(session, r, z))


def states(folder):
    return sorted(p.name for p in folder.iterdir())


def kept(session):
    """The newest states stay, and nothing else; a second run may not use the folder meanwhile."""
    state = session.folder() / "state"
    train(session, CONFIG, 2, 3, 10, (), ("--save-state", state, "--save-every", 2, "--keep-saves", 3))
    expect(states(state) == ["latest", "step-00000006", "step-00000008", "step-00000010"], f"{states(state)}")
    rest = train(session, CONFIG, 2, 3, 4, (), ("--resume", state, "--save-state", state, "--save-every", 2, "--keep-saves", 1))
    expect(states(state) == ["latest", "step-00000014"], f"{states(state)}")
    whole = train(session, CONFIG, 2, 3, 14)
    expect(digest(rest.weights) == digest(whole.weights), "other weights than without a cut")
    done = session.call("sheaf-run", session.plan(CONFIG.model, 2, 3, 8, CONFIG.options), *data_arguments(CONFIG), "--steps", 1, "--keep-saves", 2)
    expect_short_error(done, ["--keep-saves", "--save-state"], code=2)


def latest_is_damaged(session):
    state = session.folder() / "state"
    train(session, CONFIG, 2, 2, 6, (), ("--save-state", state, "--save-every", 2))
    path = state / "step-00000006" / "rank-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    plan = session.plan(CONFIG.model, 2, 2, 8, CONFIG.options)
    done = session.call("sheaf-run", plan, *data_arguments(CONFIG), "--steps", 2, "--resume", state)
    expect_short_error(done, [str(path), "step-00000006", str(state / "step-00000004")])
    rest = train(session, CONFIG, 2, 2, 2, (), ("--resume", state / "step-00000004"))
    expect([s["loss"] for s in rest.steps] == [s["loss"] for s in train(session, CONFIG, 2, 2, 6).steps[4:]], "other losses")


def newest(state):
    """The step of the state that `latest` names, or 0."""
    try:
        return int((state / "latest").read_text().strip()[5:])
    except (OSError, ValueError):
        return 0


def killed(session, ranks, zero):
    """A run that saves after every step and is killed again and again ends with the bits of one that is not."""
    plan, where = session.plan(CONFIG.model, ranks, zero, 8, CONFIG.options), session.folder()
    state, draw = where / "state", random.Random(ranks)
    done_steps, kills = 0, 0
    while done_steps < STEPS:
        resume = ("--resume", state) if kills else ()
        command = [session.tools / "sheaf-run", plan, *data_arguments(CONFIG), "--steps", STEPS - done_steps, *resume,
                   "--save-state", state, "--save-every", 1, "--keep-saves", 1]
        process = subprocess.Popen([str(a) for a in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # Until it has saved something, so that the whole comes to an end.
        before, limit = newest(state), time.monotonic() + 100 * session.slowdown
        while process.poll() is None and newest(state) == before and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        code, error = process.wait(), process.stderr.read().decode(errors="replace")
        process.stderr.close()
        if code not in (0, -signal.SIGKILL):
            raise Failure(f"after {kills} kills, from step {done_steps}: exit {code}\n{error}")
        kills += code != 0
        if code == 0:
            break
        expect(newest(state) >= done_steps, f"after {kills} kills the state of step {done_steps} is gone: {states(state)}")
        done_steps = newest(state)
        expect([n for n in states(state) if n.startswith("step-")], f"no state is left: {states(state)}")
    expect(kills >= 3, f"only {kills} kills")
    ours = session.folder() / "state"
    train(session, CONFIG, ranks, zero, STEPS, (), ("--save-state", ours))
    for path in (ours / f"step-{STEPS:08}").iterdir():
        expect(digest(path) == digest(state / f"step-{STEPS:08}" / path.name), f"{path.name} is another one after {kills} kills")
    return f"{kills} kills"
