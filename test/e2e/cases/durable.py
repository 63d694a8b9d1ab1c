"""State in files across kills of real processes, and what the folder of such a run is good for."""
import json
import os
import random
import signal
import time

from cases.evaluation import first_rows
from formats import read_log
from harness import ROOT, Case, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments, train

STEPS = 24
STATE = "optimizer=file,parameters=file"
# With these every kind of combination is compiled once.
SETTINGS = {
    "plain": ("gpt2-tiny", 2, 3, ()),
    "one-rank": ("mlp-adamw", 1, 0, ()),
    "stage-0": ("mlp-adamw", 2, 0, ()),
    "clipped": ("gpt2-tiny", 2, 1, ("--clip-norm", "1", "--on-nan", "skip")),
    "bf16": ("gpt2-tiny", 2, 3, ("--precision", "bf16")),
    "f16": ("gpt2-tiny", 2, 3, ("--precision", "f16")),
    "micro-batches": ("gpt2-tiny", 2, 3, ("--micro-batches", "2")),
    "nodes": ("gpt2-tiny", 4, 3, ("--ranks-per-node", "2")),
}


def cases(session):
    for what in SETTINGS if not session.quick else ("plain", "f16"):
        yield Case(f"durable/resumed/{what}", lambda w=what: resumed(session, w))
    for processes in (1, 2):
        yield Case(f"durable/kills/processes-{processes}", lambda p=processes: kills(session, p))
    yield Case("durable/inspected", lambda: inspected(session))
    yield Case("durable/simulated", lambda: simulated(session))
    yield Case("durable/not-covered", lambda: not_covered(session))
    yield Case("durable/mistakes", lambda: mistakes(session))
    yield Case("durable/saved", lambda: saved(session))
    yield Case("durable/folders", lambda: folders(session))


def run(session, plan, config, steps, folder, *more, log=None):
    where = session.folder()
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", steps, "--offload-dir", folder, "--shuffle", 5,
                    "--save", where / "weights.safetensors", "--log", log or where / "run.jsonl", *more)
    return where / "weights.safetensors"


def undisturbed(session, config, ranks, zero, options, steps):
    """The weights without any offload."""
    return train(session, config, ranks, zero, steps, options, ("--shuffle", 5)).weights


def resumed(session, what):
    """A run in pieces, each of which goes on from the files of the one before, has the bits of one without files."""
    model, ranks, zero, options = SETTINGS[what]
    config = CONFIGS[model]
    plan = session.plan(config.model, ranks, zero, 8, config.options + options + ("--offload", STATE))
    folder = session.folder()
    log = session.folder() / "run.jsonl"
    run(session, plan, config, 5, folder, log=log)
    left = sorted(path.name for path in folder.iterdir())
    expect(left == sorted(f"rank-{r}.{kind}" for r in range(ranks) for kind in ("arena", "commit")), f"the folder has {left}")
    run(session, plan, config, 6, folder, "--resume", folder, log=log)
    weights = run(session, plan, config, STEPS, folder, "--resume", folder, log=log)
    steps, events = read_log(log)
    begun = [e["step"] for e in events if e["event"] == "resumed"]
    expect(begun == [5, 6], f"the runs go on at {begun}")
    expect([s["step"] for s in steps] == list(range(STEPS)), "steps are missing or done twice")
    expect(digest(weights) == digest(undisturbed(session, config, ranks, zero, options, STEPS)), "other weights")


def logged(log):
    """How many steps are reported, and the states that runs went on from; a line may be cut off by a kill."""
    lines = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            pass
    return (max((line["step"] + 1 for line in lines if "loss" in line), default=0),
            [line["step"] for line in lines if line.get("event") == "resumed"])


def kills(session, processes, compiled=(), given=(), environment=None, rows=None):
    """Whenever processes are killed, the run goes on at most two steps before the last one that it reported, with the same bits.
    compiled, given: more options of the plan and of the run; environment: of its processes; rows: of the data, if not all."""
    model, ranks, zero, options = SETTINGS["plain"]
    config = CONFIGS[model]
    plan = session.plan(config.model, ranks, zero, 8, config.options + options + compiled + ("--offload", STATE))
    epochs = 3
    data = data_arguments(config) if rows is None else [
        a for name, file in config.data for a in ("--data", f"{name}={first_rows(session, file, rows)}")]
    common = [plan, *data, "--epochs", epochs, "--shuffle", 5, *given]
    where = session.folder()
    session.succeed("sheaf-run", *common, "--offload-dir", session.folder(), "--save", where / "expected", "--log", where / "log",
                    env={**os.environ, **{k: str(v) for k, v in (environment or {}).items()}})
    total, expected = logged(where / "log")[0], digest(where / "expected")
    expect(total >= 20, f"{total} steps are too few to be killed in")
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    count, killed, seconds = 3 if session.quick else session.kills, 0, 1.0
    # One that is killed before all have met is waited for.
    patience = {"SHEAF_TIMEOUT": 15 * session.slowdown, **(environment or {})}
    while killed < count:
        where, folder = session.folder(), session.folder()
        log, weights = where / "log", where / "weights"
        resume = False
        while True:
            before, states = logged(log) if resume else (0, [])
            begin = time.monotonic()
            with Job(session, processes, *common, "--offload-dir", folder, "--log", log, "--save", weights,
                     *(("--resume", folder) if resume else ()), environment=patience) as job:
                strike = killed < count and chance.random() < 0.9
                if strike:
                    time.sleep(chance.uniform(0, seconds))
                    all_of_them = processes == 1 or chance.random() < 0.5
                    for process in job.processes if all_of_them else [chance.choice(job.processes)]:
                        process.popen.send_signal(signal.SIGKILL)
                    killed += 1
                codes = job.wait(seconds=120)
                errors = "\n".join(process.error_text() for process in job.processes)
            context = f"seed {seed}, kill {killed}: {before} steps were reported"
            reported, after = logged(log)
            if len(after) > len(states):
                expect(after[-1] >= before - 2, f"{context}, it goes on at {after[-1]}")
            if not any(codes):
                break
            if not strike:
                expect(resume and before == 0 and "no state" in errors, f"{context}, and it does not go on:\n{errors}")
            if reported > 0 or before > 0:
                seconds = max(0.3, 1.3 * (time.monotonic() - begin))
            # Before its first step there may be no state: then it begins again.
            resume = strike and (reported > 0 or (folder / f"rank-{ranks - 1}.commit").exists())
            if not resume:
                for path in folder.iterdir():
                    path.unlink()
        expect(digest(weights) == expected, f"seed {seed}: other weights after {killed} kills")


def inspected(session):
    """The files take twice the state, and the plan says that every step is one to go on from."""
    config = CONFIGS["gpt2-tiny"]
    options = config.options + ("--offload", STATE)
    two = session.inspect(session.plan(config.model, 2, 3, 8, options))
    one = session.inspect(session.plan(config.model, 2, 3, 8, options + ("--file-generations", "1")))
    for kind, size in one["memory"]["spaces"]["file"]["by_kind"].items():
        expect(two["memory"]["spaces"]["file"]["by_kind"][kind] == 2 * size, f"{kind}: {two['memory']['spaces']}")
    expect(any("every step can be resumed" in d for d in two["decisions"]), f"{two['decisions']}")
    done = session.succeed("sheaf", "compile", session.graph(config.model), "-o", session.folder() / "a.plan", "--ranks", 2, "--zero", 3,
                           "--batch", 8, *options)
    expect("every step can be resumed; two generations of" in done.err, f"compile says:\n{done.err}")
    expect(any("--file-generations 1" in d for d in one["decisions"]), f"{one['decisions']}")


def simulated(session):
    """What making a step durable takes is in the predicted step, if the profile says it; else that it is missing is said."""
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, config.options + ("--offload", STATE))
    known = session.folder() / "known.json"
    shipped = json.loads((ROOT / "passes" / "schedule" / "profiles" / "cpu.json").read_text())
    known.write_text(json.dumps(shipped | {"persist": {"seconds": 0.5, "source": "test"}}))
    run = lambda profile, *more: session.succeed("sheaf", "simulate", plan, "--profile", profile, *more).out  # noqa: E731
    before, after = (json.loads(run(profile, "--json")) for profile in ("cpu", known))
    expect(before["written"]["persist_seconds"] is None, f"{before['written']}")
    expect(0.5 <= after["written"]["persist_seconds"] < 0.6, f"{after['written']}")
    expect(after["step_seconds"] >= 0.5 > before["step_seconds"], f"steps of {before['step_seconds']} and {after['step_seconds']} s")
    expect("no \"persist\"" in run("cpu") and "\"persist\"" not in run(known), "what is not known is not said")


def not_covered(session):
    """Where some state is in memory, or has one generation, the folder cannot be resumed, and the plan says why."""
    config = CONFIGS["gpt2-tiny"]
    for offload, words, error in ((("--offload", "optimizer=file"), ["parameters", "device"], ["parameters", "device"]),
                                  (("--offload", "optimizer=file,parameters=host"), ["parameters", "host"], ["parameters", "host"]),
                                  (("--offload", STATE, "--file-generations", "1"), ["--file-generations"], ["one generation", "inspect"])):
        plan = session.plan(config.model, 2, 1, 8, config.options + offload)
        decisions = " ".join(session.inspect(plan)["decisions"])
        for word in ("cannot go on", *words):
            expect(word in decisions, f"no {word!r} in {decisions}")
        folder = session.folder()
        run(session, plan, config, 2, folder)
        expect(not list(folder.iterdir()), "files are left")
        done = session.call("sheaf-run", plan, *data_arguments(config), "--steps", 2, "--offload-dir", folder, "--resume", folder)
        expect_short_error(done, ["--resume", "--offload-dir", *error])


def mistakes(session):
    """Each is one clear error, and the state stays."""
    config = CONFIGS["mlp-adamw"]
    options = config.options + ("--offload", STATE)
    plan, other = (session.plan(config.model, ranks, 0, 8, options) for ranks in (2, 1))
    folder = session.folder()
    call = lambda plan, *more: session.call("sheaf-run", plan, *data_arguments(config), "--steps", 2, *more)  # noqa: E731
    expect_short_error(call(plan, "--offload-dir", folder, "--resume", folder), ["no", "state", "rank", "0"])
    run(session, plan, config, 2, folder)
    expect_short_error(call(plan, "--offload-dir", folder), ["holds", "state", "--resume"])
    expect_short_error(call(other, "--offload-dir", folder), ["holds", "state", "--resume"])
    expect_short_error(call(other, "--offload-dir", folder, "--resume", folder), ["another", "plan"])
    expect_short_error(call(plan, "--offload-dir", folder / "nowhere", "--resume", folder / "nowhere"), ["nowhere"])
    elsewhere = session.folder()
    expect_short_error(call(plan, "--offload-dir", elsewhere, "--resume", folder), ["--resume"])
    run(session, plan, config, 2, elsewhere)
    # A rank's files of another run of the same plan.
    for kind in ("arena", "commit"):
        (elsewhere / f"rank-1.{kind}").write_bytes((folder / f"rank-1.{kind}").read_bytes())
    expect_short_error(call(plan, "--offload-dir", elsewhere, "--resume", elsewhere), ["different", "runs"])
    # Files that were changed after the run had ended.
    arena = folder / "rank-1.arena"
    good = arena.read_bytes()
    arena.write_bytes(bytes(byte ^ (at % 512 == 0 and at < len(good) - 4096) for at, byte in enumerate(good)))
    expect_short_error(call(plan, "--offload-dir", folder, "--resume", folder), ["--resume", "rank-1.arena", "changed"])
    arena.write_bytes(good)
    run(session, plan, config, 3, folder, "--resume", folder)
    expect_short_error(call(plan, "--offload-dir", folder, "--save-state", folder), ["--save-state", "--offload-dir"])
    # Without its record, or with a damaged one, a state is still not overwritten.
    record = folder / "rank-0.commit"
    content = record.read_bytes()
    for left in (None, b""):
        record.unlink(missing_ok=True)
        if left is not None:
            record.write_bytes(left)
        expect_short_error(call(plan, "--offload-dir", folder), ["holds", "state", "remove"])
    record.write_bytes(content)
    # Of two folders in another order, and of one of them next to a new one.
    a, b, c = (session.folder() for _ in range(3))
    both = lambda x, y: ("--offload-dir", x, "--offload-dir", y)  # noqa: E731
    expect(call(plan, *both(a, b)).code == 0, "two folders")
    for folders in ((a, b), (b, a), (c, b), (a, c), (c, a)):
        expect_short_error(call(plan, *both(*folders)), ["holds", "state", "--resume"])
    expect(call(plan, *both(a, b), "--resume", a).code == 0, "the state is lost")


def saved(session):
    """A state that is saved from the files is one like any other, and so are evaluations of it."""
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, config.options + ("--offload", STATE, "--eval"))
    plain = session.plan(config.model, 2, 3, 8, config.options)
    folder, state = session.folder(), session.folder() / "state"
    run(session, plan, config, 7, folder)
    run(session, plan, config, 10, folder, "--resume", folder, "--save-state", state)
    where = session.folder()
    session.succeed("sheaf-run", plain, *data_arguments(config), "--steps", STEPS, "--shuffle", 5, "--resume", state,
                    "--save", where / "weights.safetensors")
    expect(digest(where / "weights.safetensors") == digest(undisturbed(session, config, 2, 3, (), STEPS)), "other weights")
    evaluation = [f"--eval-{a[2:]}" if a == "--data" else a for a in data_arguments(config)]
    content = lambda: {p.name: (digest(p), p.stat().st_mtime_ns) for p in folder.iterdir()}  # noqa: E731
    before = content()
    session.succeed("sheaf-run", plan, "--eval", *evaluation, "--offload-dir", folder, "--resume", folder)
    expect(content() == before, "an evaluation changes the state that it reads, or the record of the one before")
    every = ("--eval-every", 2, *evaluation)
    weights = run(session, plan, config, STEPS, folder, "--resume", folder, *every)
    expect(digest(weights) == digest(undisturbed(session, config, 2, 3, (), STEPS)), "other weights after evaluations")


def folders(session):
    """A state that is striped needs all its folders, in their order."""
    config = CONFIGS["mlp-adamw"]
    plan = session.plan(config.model, 2, 3, 8, config.options + ("--offload", STATE))
    one, two = session.folder(), session.folder()
    run(session, plan, config, 2, one, "--offload-dir", two)
    again = ("sheaf-run", plan, *data_arguments(config), "--steps", 3)
    expect_short_error(session.call(*again, "--offload-dir", one, "--resume", one), ["2", "folders", "--offload-dir"])
    expect_short_error(session.call(*again, "--offload-dir", two, "--offload-dir", one, "--resume", two), ["no", "state"])
    expect_short_error(session.call(*again, "--offload-dir", two), ["holds", "state"])
    run(session, plan, config, 3, one, "--offload-dir", two, "--resume", one)
