"""States saved while a run goes on: what stays of them when the run is killed, and what a damaged one says."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

from formats import read_log, read_safetensors
from harness import Case, Skip, digest, expect, expect_short_error
from jobs import Job
from training import ADAMW_LM, CONFIGS, data_arguments, train

CONFIG = CONFIGS["mlp-adamw"]
KILLS = 6


def cases(session):
    yield Case("saves/kept", lambda: kept(session))
    yield Case("saves/latest-is-damaged", lambda: latest_is_damaged(session))
    for name in ("gpt2-tiny", "llama-tiny-optimized"):
        for ranks, zero in ((1, 0), (4, 3)):
            yield Case(f"saves/shards/{name}/ranks-{ranks}", lambda c=CONFIGS[name], r=ranks, z=zero: shards(session, c, r, z))
    yield Case("saves/shards/processes", lambda: shards_of_processes(session))
    yield Case("saves/shards/refused", lambda: refused_shards(session))
    yield Case("saves/shards/readers", lambda: read_by_others(session))
    if not session.quick:
        yield Case("saves/memory", lambda: memory(session))
    for ranks, zero in ((1, 0), (2, 3)):
        for staging in (None, "auto", "64KiB"):
            yield Case(f"saves/killed/ranks-{ranks}/staging-{staging or 'none'}", lambda r=ranks, z=zero, s=staging: killed(session, r, z, s))
    for name in ("gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, 0), (4, 3)):
            yield Case(f"saves/staged/{name}/ranks-{ranks}", lambda c=CONFIGS[name], r=ranks, z=zero: staged(session, c, r, z))
    for what, options in STAGED_WITH.items():
        yield Case(f"saves/staged/{what}", lambda o=options: staged(session, CONFIGS["gpt2-tiny"], 4, 3, o))
    yield Case("saves/staged/processes", lambda: staged_by_processes(session))
    yield Case("saves/staged/lost-process", lambda: lost_process(session))
    yield Case("saves/staged/interrupted", lambda: interrupted(session))
    yield Case("saves/staged/refused", lambda: refused_staging(session))
    for staging in (None, "auto"):
        yield Case(f"saves/full-disk/staging-{staging or 'none'}", lambda s=staging: full_disk(session, s))
    yield Case("saves/late-error", lambda: late_error(session))
    yield Case("saves/next-to-files", lambda: next_to_files(session))


def states(folder):
    return sorted(p.name for p in folder.iterdir())


def kept(session):
    """The newest states stay, and nothing else; a second run may not use the folder meanwhile."""
    state = session.folder() / "state"
    train(session, CONFIG, 2, 3, 10, (), ("--save-state", state, "--save-every", 2, "--keep-saves", 3))
    expect(states(state) == ["latest", "step-00000006", "step-00000008", "step-00000010"], f"{states(state)}")
    rest = train(session, CONFIG, 2, 3, 14, (), ("--resume", state, "--save-state", state, "--save-every", 2, "--keep-saves", 1))
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
    done = session.call("sheaf-run", plan, *data_arguments(CONFIG), "--steps", 6, "--resume", state)
    expect_short_error(done, [str(path), "step-00000006", str(state / "step-00000004")])
    rest = train(session, CONFIG, 2, 2, 6, (), ("--resume", state / "step-00000004"))
    expect([s["loss"] for s in rest.steps] == [s["loss"] for s in train(session, CONFIG, 2, 2, 6).steps[4:]], "other losses")


def newest(state):
    """The step of the state that `latest` names, or 0."""
    try:
        return int((state / "latest").read_text().strip()[5:])
    except (OSError, ValueError):
        return 0


def killed(session, ranks, zero, staging):
    """A run that saves after every step and is killed again and again ends with the bits of one that is not."""
    plan, where = session.plan(CONFIG.model, ranks, zero, 8, CONFIG.options), session.folder()
    state, draw, done_steps = where / "state", random.Random(ranks), 0

    def arguments(steps):
        resume = ("--resume", state) if done_steps else ()
        return ["sheaf-run", plan, *data_arguments(CONFIG), "--steps", steps, *resume, "--save-state", state, "--save-every", 1, "--keep-saves", 1,
                *staging_options(staging)]

    for kill in range(KILLS):
        tool, *rest = arguments(1_000_000)  # More than it can reach, however fast the machine is.
        process = subprocess.Popen([str(a) for a in (session.tools / tool, *rest)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # Until it has saved something, so that every kill finds another state.
        limit = time.monotonic() + 100 * session.slowdown
        while process.poll() is None and newest(state) == done_steps and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        code, error = process.wait(), process.stderr.read().decode(errors="replace")
        process.stderr.close()
        expect(code == -signal.SIGKILL, f"after {kill} kills, from step {done_steps}: exit {code}\n{error}")
        expect(newest(state) > done_steps, f"after {kill + 1} kills the newest state is of step {newest(state)}, before it was {done_steps}: {states(state)}")
        done_steps = newest(state)
        expect(f"step-{done_steps:08}" in states(state), f"the newest state is not there: {states(state)}")
    ours, last = session.folder() / "state", done_steps + 2
    session.succeed(*arguments(last))
    train(session, CONFIG, ranks, zero, last, (), ("--save-state", ours))
    for path in (ours / f"step-{last:08}").iterdir():
        expect(content(path) == content(state / f"step-{last:08}" / path.name), f"{path.name} is another one after {KILLS} kills")
    return f"{KILLS} kills in {last} steps"


INDEX = "model.safetensors.index.json"


def expect_shards(folder, whole, most):
    """The folder has an index of files of at most `most` bytes of tensors each, with the same tensors as a file."""
    index, expected = json.loads((folder / INDEX).read_text()), read_safetensors(whole)
    names = sorted(set(index["weight_map"].values()))
    expect(len(names) > 2, f"only {names}")
    expect(names == [f"model-{i + 1:05}-of-{len(names):05}.safetensors" for i in range(len(names))], f"{names}")
    expect(sorted(p.name for p in folder.iterdir()) == [*names, INDEX], f"{sorted(p.name for p in folder.iterdir())}")
    files = {name: read_safetensors(folder / name) for name in names}
    expect(sorted(t for f in files.values() for t in f) == sorted(expected) == sorted(index["weight_map"]), "other tensors")
    for tensor, name in index["weight_map"].items():
        ours, theirs = files[name][tensor], expected[tensor]
        expect((ours.shape, ours.dtype, ours.values) == (theirs.shape, theirs.dtype, theirs.values), f"{tensor} differs in {name}")
    size = whole.stat().st_size
    for name in names:
        expect((folder / name).stat().st_size < most + 16384 or len(files[name]) == 1, f"{name} of {(folder / name).stat().st_size} bytes")
    expect(0 <= size - index["metadata"]["total_size"] < 65536, f"{index['metadata']} of {size}")


def shards(session, config, ranks, zero):
    """Weights in several files are those of one file, and are read back by index and by folder."""
    where = session.folder()
    whole = train(session, config, ranks, zero, 5)
    train_to = ("--save", where / INDEX, "--shard-size", "100KB")
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 5, *train_to)
    expect_shards(where, whole.weights, 100_000)
    for given in (where, where / INDEX):
        again = session.folder() / "w.safetensors"
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 1, "--lr", 0, "--weights", given, "--save", again)
        expect(digest(again) == digest(whole.weights), f"other weights are read from {given.name}")
    exported = session.folder() / "e.safetensors"
    session.succeed("sheaf", "export", plan, "--weights", where, "--model", session.graph(config.model), "-o", exported)


def shards_of_processes(session):
    """Every process writes what its ranks own; none holds the whole model for it."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plan = session.plan(config.model, 4, 3, 8, config.options)
    whole = train(session, config, 4, 3, 5)
    with Job(session, 4, plan, *data_arguments(config), "--steps", 5, "--save", where / INDEX, "--shard-size", "100KB") as job:
        job.succeed()
    expect_shards(where, whole.weights, 100_000)


def refused_shards(session):
    """One clear error before the training; what was there stays."""
    plan, data = session.plan(CONFIG.model, 1, 0, 8, CONFIG.options), data_arguments(CONFIG)
    where = session.folder()
    session.succeed("sheaf-run", plan, *data, "--steps", 1, "--save", where / INDEX)
    before = {p.name: digest(p) for p in where.iterdir()}
    for arguments, words, code in ((("--save", where / "none" / INDEX), ["--save", "none"], 1),
                                   (("--save", where / "w.safetensors", "--shard-size", "1MB"), ["--shard-size", "index.json"], 2),
                                   (("--weights", session.folder()), ["--weights", INDEX], 1)):
        expect_short_error(session.call("sheaf-run", plan, *data, "--steps", 1, *arguments), words, code=code)
    # Of another model: the first file is there, the second is not.
    (where / "model-00001-of-00001.safetensors").rename(where / "elsewhere")
    expect_short_error(session.call("sheaf-run", plan, *data, "--steps", 1, "--weights", where), [INDEX, "model-00001-of-00001.safetensors"])
    (where / "elsewhere").rename(where / "model-00001-of-00001.safetensors")
    expect({p.name: digest(p) for p in where.iterdir()} == before, "an error changes what was there")


READ = """
import json, sys
from safetensors import safe_open
from transformers.utils.hub import get_checkpoint_shard_files
files, metadata = get_checkpoint_shard_files(sys.argv[1], sys.argv[1] + "/model.safetensors.index.json", local_files_only=True)
tensors = {}
for path in files:
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
        for name in file.keys():
            tensors[name] = [list(file.get_tensor(name).shape), float(file.get_tensor(name).astype("float64").sum())]
assert sorted(metadata["all_checkpoint_keys"]) == sorted(tensors), metadata
json.dump(tensors, sys.stdout)
"""


def read_by_others(session):
    """Hugging Face's own code finds the files by the index and reads the tensors."""
    python = os.environ.get("SHEAF_PYTORCH")
    if not python:
        raise Skip("SHEAF_PYTORCH names no Python")
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 2, "--save", where / INDEX, "--shard-size", "100KB")
    done = subprocess.run([python, "-c", READ, where], capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    theirs = json.loads(done.stdout)
    ours = {name: t for path in where.glob("*.safetensors") for name, t in read_safetensors(path).items()}
    expect(set(theirs) == set(ours), f"{sorted(theirs)}")
    for name, (shape, total) in theirs.items():
        expect(list(ours[name].shape) == shape, f"{name} has shape {shape}")
        expect(abs(sum(ours[name].values) - total) <= 1e-9 * max(1, abs(total)), f"{name} has other values")


# What is saved in other ways: from host memory and files, with a loss scale, between evaluations.
STAGED_WITH = {
    "offload": ("--offload", "optimizer=file,parameters=host"),
    "bf16": ("--precision", "bf16"),
    "f16": ("--precision", "f16"),
    "nodes": ("--ranks-per-node", "2"),
}


def staging_options(staging):
    return ("--save-staging", staging) if staging else ()


def content(path):
    """A file of a state: of a manifest all but the run's number, which is random, those of the runs before it, and the checksum."""
    if path.name != "manifest.json":
        return digest(path)
    state = json.loads(path.read_text())["state"]
    run = state.pop("run")
    expect(len(run["number"]) == 16 and run["number"] not in run["earlier"], f"{run}")
    return json.dumps(state)


def all_files(folder):
    return {str(p.relative_to(folder)): content(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def staged(session, config, ranks, zero, options=()):
    """States saved while the run goes on are those that the run waits for, but for the run's number, and the training is the same."""
    plan = session.plan(config.model, ranks, zero, 8, config.options + options)
    staging = session.inspect(plan)["memory"]["save_staging_bytes"]
    results = {}
    for way in (None, "auto", "64KiB", staging // 2):
        where = session.folder()
        folder = ("--offload-dir", session.folder()) if "--offload" in options else ()
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 10, "--save-state", where / "state", "--save-every", 3,
                        "--save", where / "weights", "--log", where / "log", *staging_options(way), *folder)
        steps, events = read_log(where / "log")
        results[way] = ([s["loss"] for s in steps], digest(where / "weights"), all_files(where / "state"))
        expect(results[way] == results[None], f"with --save-staging {way} something differs")
        saved = [e for e in events if e["event"] == "saved_state"]
        expect([e["step"] for e in saved] == [3, 6, 9, 10], f"{saved}")
        taken = next(e for e in events if e["event"] == "start")["save_staging_bytes"]
        asked = {None: 0, "auto": staging, "64KiB": min(staging, 65536)}.get(way, way)
        expect(asked - 64 < taken <= asked, f"{taken} bytes of staging, asked for {asked}")
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 10, "--resume", where / "state" / "step-00000009", "--log", where / "again", *folder)
    expect(read_log(where / "again")[0][0]["loss"] == results[None][0][9], "the state resumes with another loss")


def staged_by_processes(session):
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 4, 3, 8, config.options)
    states = []
    for size, staging in ((1, None), (2, "auto"), (4, "64KiB")):
        where = session.folder()
        arguments = (plan, *data_arguments(config), "--steps", 7, "--save-state", where / "state", "--save-every", 2, "--keep-saves", 2, *staging_options(staging))
        if size == 1:
            session.succeed("sheaf-run", *arguments)
        else:
            with Job(session, size, *arguments) as job:
                job.succeed()
        states.append(all_files(where / "state"))
        expect(set(n.split("/")[0] for n in states[-1]) == {"latest", "step-00000006", "step-00000007"}, f"{sorted(states[-1])}")
    expect(states[1] == states[0] and states[2] == states[0], "processes save other bytes")


def lost_process(session):
    """One of several processes is killed at any time: the others end with its name, and the newest state is whole."""
    config, draw = CONFIGS["gpt2-tiny"], random.Random(4)
    plan = session.plan(config.model, 4, 3, 8, config.options)
    state, done = session.folder() / "state", 0
    for victim in (3, 0, 1):
        resume = ("--resume", state) if done else ()
        with Job(session, 4, plan, *data_arguments(config), "--steps", 100000, "--save-state", state, "--save-every", 1, "--keep-saves", 2,
                 "--save-staging", "64KiB", *resume) as job:
            job.until(lambda: newest(state) > done + 2)
            time.sleep(draw.random() * 0.05)
            job.processes[victim].popen.kill()
            codes = job.wait(but=(victim,), seconds=20)
            expect(codes == [1, 1, 1], f"exits {codes}")
            for process in (p for i, p in enumerate(job.processes) if i != victim):
                expect(f"process {victim} (" in process.error_text(), process.error_text())
        expect(newest(state) > done, f"{states(state)}")
        done = newest(state)
    where, whole = session.folder(), session.folder()
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", done + 1, "--resume", state, "--save", where / "w")
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", done + 1, "--save", whole / "w")
    expect(digest(where / "w") == digest(whole / "w"), "other weights than without the losses")


def interrupted(session):
    """A signal: the save under way is completed, then the state of the last step saved."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options)
    command = [session.tools / "sheaf-run", plan, *data_arguments(config), "--steps", 100000, "--save-state", where / "state", "--save-every", 5,
               "--keep-saves", 2, "--save-staging", "auto", "--log", where / "log"]
    process = subprocess.Popen([str(a) for a in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 60 * session.slowdown
    while newest(where / "state") < 10 and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    expect(process.wait(60 * session.slowdown) == 128 + signal.SIGTERM, "the exit status does not say that the run was interrupted")
    steps, events = read_log(where / "log")
    saved = [e["step"] for e in events if e["event"] == "saved_state"]
    expect(saved[-1] == len(steps) and saved[:-1] == list(range(5, len(steps), 5)), f"{len(steps)} steps, saved are {saved}")
    expect(newest(where / "state") == len(steps), f"{states(where / 'state')}")
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", len(steps) + 1, "--resume", where / "state")


def refused_staging(session):
    plan, data = session.plan(CONFIG.model, 1, 0, 8, CONFIG.options), data_arguments(CONFIG)
    state = session.folder() / "state"
    for arguments, words in ((("--save-state", state, "--save-every", 1, "--save-staging", "1KiB"), ["--save-staging", "64KiB"]),
                             (("--save-state", state, "--save-staging", "auto"), ["--save-staging", "--save-every"])):
        expect_short_error(session.call("sheaf-run", plan, *data, "--steps", 1, *arguments), words, code=2)
    expect(not state.exists(), "a refused run makes its folder")


def next_to_files(session):
    """A training whose state is in files goes on from them, and saves on into its folder, of which it keeps the newest state."""
    plan = session.plan(CONFIG.model, 2, 3, 8, (*CONFIG.options, "--offload", "optimizer=file,parameters=file"))
    where = session.folder()
    (where / "files").mkdir()
    run = (plan, *data_arguments(CONFIG), "--offload-dir", where / "files", "--save-state", where / "state", "--save-every", 2, "--keep-saves", 1)
    session.succeed("sheaf-run", *run, "--steps", 4)
    done = session.succeed("sheaf-run", *run, "--steps", 8, "--resume", where / "files")
    expect("another training" not in done.err and newest(where / "state") == 8, f"{done.err}{states(where / 'state')}")
    # The files of another training do not make the states theirs, and a backup is resumed after its original was removed.
    (where / "other").mkdir()
    other = (plan, *data_arguments(CONFIG), "--offload-dir", where / "other")
    session.succeed("sheaf-run", *other, "--steps", 2)
    done = session.call("sheaf-run", *other, "--steps", 10, "--resume", f"{where / 'other'}/", "--save-state", where / "state", "--keep-saves", 1)
    expect_short_error(done, ["holds states of another training, such as step-00000008"])
    shutil.copytree(where / "state" / "step-00000008", where / "backup")
    plain = (session.plan(CONFIG.model, 2, 3, 8, CONFIG.options), *data_arguments(CONFIG), "--save-state", where / "state", "--keep-saves", 1)
    session.succeed("sheaf-run", *plain, "--steps", 9, "--resume", where / "backup")
    done = session.succeed("sheaf-run", *plain, "--steps", 10, "--resume", where / "state")
    expect("another training" not in done.err and states(where / "state") == ["latest", "step-00000010"], f"{done.err}{states(where / 'state')}")


def late_error(session):
    """An error at the end of a save, when all is copied and written, ends the run after the step under way, not when the next save is due."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options)
    (where / "state" / "latest").mkdir(parents=True)
    done = session.call("sheaf-run", plan, *data_arguments(config), "--save-state", where / "state", "--save-every", 20, "--save-staging", "auto",
                        "--log", where / "log", "--steps", 500)
    expect_short_error(done, ["--save-state", "latest", "not a regular file"])
    steps = read_log(where / "log")[0]
    expect(20 <= len(steps) < 40, f"the run goes on until step {len(steps)}")


def full_disk(session, staging):
    """A file that has no room ends the run with one error after the step under way; the last state stays."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plan = session.plan(config.model, 2, 3, 8, config.options)
    arguments = [plan, *data_arguments(config), "--save-state", where / "state", "--log", where / "log"]
    every = ("--save-every", 20, *staging_options(staging))
    session.succeed("sheaf-run", *arguments, "--steps", 4)
    before = all_files(where / "state")

    def limit():
        # Room for a larger file is refused, or, where the file system reserves none, a write beyond this.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    done = subprocess.run([str(a) for a in (session.tools / "sheaf-run", *arguments, *every, "--steps", 500, "--resume", where / "state")],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=limit, restore_signals=False)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    expect(done.returncode == 1 and len(errors) == 1, f"exit {done.returncode}\n{done.stderr}")
    for word in ("--save-state", "cannot write", "rank-0000"):
        expect(word in errors[0], f"`{word}` is not in {errors[0]}")
    steps = read_log(where / "log")[0]
    expect(20 <= steps[-1]["step"] + 1 < 40, f"the run goes on until step {steps[-1]}")
    expect(all_files(where / "state") == before, f"something changed: {sorted(all_files(where / 'state'))}")
    session.succeed("sheaf-run", *arguments, "--steps", 5, "--resume", where / "state")


def memory(session):
    """Writing the weights takes a few pieces of them, not the model, and staging what is announced."""
    plan, where = session.plan("gpt2-mini", 1, 0, 2, ("--optimizer", ADAMW_LM)), session.folder()
    weights, tokens = where / "weights.safetensors", where / "tokens.u8"
    session.succeed("sheaf", "init", plan, "--scheme", "normal:std=0.02", "--seed", 1, "-o", weights)
    tokens.write_bytes(random.Random(1).randbytes(1 << 14))
    model = weights.stat().st_size
    staging = session.inspect(plan)["memory"]["save_staging_bytes"]
    expect(3 * model * 0.99 < staging < 3 * model * 1.01, f"{staging} bytes of staging for a model of {model}")

    def run(*options):
        """The largest resident set with and without mapped files."""
        done = session.succeed("sheaf-run", plan, "--weights", weights, "--data", f"input_ids,labels={tokens}", "--steps", 4, "--log", where / "log", *options)
        return 1024 * done.peak_kib, read_log(where / "log")[1][-1]["resident_bytes_without_files"]

    none = run()
    shards = run("--save", where / INDEX, "--shard-size", model // 4)
    expect(shards[0] - none[0] < 24 << 20, f"--save takes {shards[0] - none[0]:,} bytes of memory, the model has {model:,}")
    waiting = run("--save-state", where / "waiting", "--save-every", 2)
    for asked, announced in (("auto", staging), (8 << 20, 8 << 20)):
        staged = run("--save-state", where / "staged", "--save-every", 2, "--save-staging", asked)
        more = staged[1] - waiting[1]
        expect(announced - (8 << 20) < more < announced + (8 << 20), f"--save-staging {asked} takes {more:,} bytes, not {announced:,}")
    return f"model {model:,}, --save {shards[0] - none[0]:,}, staging {staging:,}"
