"""Files of two runs that write to the same places, of many ranks at once, and of runs that cannot write all that they should."""
import array
import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile

from formats import read_log, write_npy
from harness import Case, digest, expect, expect_short_error
from jobs import Job, variables
from onnxwriter import FLOAT, model, node, value, weight
from training import CONFIGS, data_arguments

CONFIG = CONFIGS["gpt2-tiny"]
INDEX = "model.safetensors.index.json"
MODES = ((0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775))  # umasks, and what files and folders then have


def cases(session):
    yield Case("written-files/two-runs/index", lambda: expect_none(pairs(session, saving(session), 4)))
    yield Case("written-files/two-runs/outputs", lambda: expect_none(pairs(session, evaluating(session), 4)))
    yield Case("written-files/modes", lambda: expect_none(modes(session, [(umask, 40) for umask in MODES])))
    for size in (1, 2):
        for staging in ((), ("--save-every", 20, "--save-staging", "auto"), ("--save-every", 20)):
            yield Case(f"written-files/without-state/processes-{size}/{staging[-1] if staging else 'last'}",
                       lambda n=size, s=staging: without_state(session, n, s))
    for saves in ((), ("--save-every", 20), ("--save-every", 20, "--save-staging", "auto")):
        yield Case(f"written-files/without-state/other-process/{saves[-1] if saves else 'last'}", lambda s=saves: without_room(session, s))


def expect_none(counts):
    expect(not any(number for what, number in counts.items() if what.startswith("bad: ")), f"{counts}")
    return f"{counts}"


def contents(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def pairs(session, commands, tries):
    """Both commands at once, each with the folder that both write to: afterwards it must have what one of them leaves alone."""
    alone = []
    for command in commands:
        where = session.folder()
        subprocess.run(command(where), check=True, capture_output=True)
        alone.append(contents(where))
    expect(alone[0] != alone[1], "both runs write the same")
    counts = {"bad: mixtures": 0, "bad: incomplete": 0, "bad: with other files": 0, "bad: runs with an error": 0, "the first's": 0, "the second's": 0}
    for _ in range(tries):
        where = session.folder()
        both = [subprocess.Popen(command(where), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]
        counts["bad: runs with an error"] += sum(p.wait() != 0 for p in both)
        found = contents(where)
        kept = {name: found.get(name) for name in alone[0].keys() | alone[1].keys()}
        counts["bad: with other files"] += found.keys() != kept.keys()
        if kept in alone:
            counts[("the first's", "the second's")[alone.index(kept)]] += 1
        else:
            counts["bad: incomplete" if None in kept.values() else "bad: mixtures"] += 1
        shutil.rmtree(where)
    return counts


def saving(session):
    """Two runs with other learning rates save to one index."""
    plan = session.plan(CONFIG.model, 4, 3, 8, CONFIG.options)
    return [lambda where, rate=rate: [str(a) for a in (session.tools / "sheaf-run", plan, *data_arguments(CONFIG), "--steps", 2, "--lr", rate, "--save",
                                                       where / INDEX, "--shard-size", "20KB")] for rate in ("1e-3", "2e-3")]


def evaluating(session):
    """Two evaluations of other rows write their outputs to one folder."""
    folder, rows, names = session.folder(), 20000, ("y", "z", "u", "v")
    graph, plan = folder / "m.onnx", folder / "m.plan"
    graph.write_bytes(model([node("MatMul", ["x", "w"], ["y"], "product"), *(node("Neg", [a], [b], b) for a, b in zip(names, names[1:]))],
                            [value("x", FLOAT, ["N", 4])], [value(name, FLOAT, ["N", 3]) for name in names], [weight("w", [4, 3], range(12))]))
    session.succeed("sheaf", "compile", graph, "-o", plan, "--eval-only", "--batch", 1000, "--ranks", 2)
    for number in range(2):
        write_npy(folder / f"x{number}.npy", "<f4", (rows, 4), array.array("f", [i + number for i in range(4 * rows)]).tobytes())
    return [lambda where, number=number: [str(a) for a in (session.tools / "sheaf-run", plan, "--eval", "--eval-data", f"x={folder / f'x{number}.npy'}",
                                                           "--outputs", where)] for number in range(2)]


def modes(session, runs):
    """Eight ranks of a process save at every step from threads of their own: every file and folder has the mode that the umask gives.
    runs: ((umask, modes of files and of folders), steps) of each."""
    config = CONFIGS["mlp-sgd"]
    plan = session.plan(config.model, 8, 3, 8, config.options)
    counts = {"bad: world-writable": 0, "bad: with another mode than the umask's": 0, "files": 0, "folders": 0}
    memory = pathlib.Path("/dev/shm")
    for (umask, file_mode, folder_mode), steps in runs:
        where = pathlib.Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else session.folder()))
        try:
            subprocess.run([str(a) for a in (session.tools / "sheaf-run", plan, *data_arguments(config), "--steps", steps, "--save-state", where / "a/b/state",
                                             "--save-every", 1, "--save-staging", "auto", "--save", where / "w")], check=True, capture_output=True, umask=umask)
            for path in where.rglob("*"):
                found, is_folder = path.lstat().st_mode, path.is_dir()
                counts["bad: world-writable"] += bool(found & 0o002)
                counts["bad: with another mode than the umask's"] += stat.S_IMODE(found) != (folder_mode if is_folder else file_mode)
                counts["folders" if is_folder else "files"] += 1
        finally:
            shutil.rmtree(where)
    return counts


def without_state(session, size, saves):
    """A state that cannot be named ends the training with an error, and the weights, gradients and outputs are written all the same."""
    config, steps = CONFIGS["gpt2-tiny-logits"], 200
    plan = session.plan(config.model, 2, 3, 8, (*config.options, "--eval"))
    where = session.folder()
    (where / "state" / "latest").mkdir(parents=True)
    rows = {name: where / f"{name}.npy" for name, _ in config.data}
    for path in rows.values():
        write_npy(path, "<i8", (16, 64), array.array("q", [i % 50 for i in range(16 * 64)]).tobytes())
    evaluation = [a for name, path in rows.items() for a in ("--eval-data", f"{name}={path}")]
    count = steps if saves else 3
    arguments = (plan, *data_arguments(config), "--steps", count, "--save", where / INDEX, "--dump-gradients", where / "g", "--log", where / "log",
                 "--save-state", where / "state", "--eval-every", 1000, *evaluation, "--outputs", where / "o", *saves)
    with Job(session, size, *arguments) as job:
        codes = job.wait()
        expect(codes == [1] * size, f"exits {codes}")
        for process in job.processes:
            errors = [line for line in process.error_text().splitlines() if "error" in line]
            expect(len(errors) == 1 and "--save-state" in errors[0] and "latest" in errors[0], process.error_text())
    done = len(read_log(where / "log")[0])
    expect(done == 3 if not saves else 20 <= done < 60, f"{done} steps")
    reference = session.folder()
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", done, "--save", reference / INDEX, "--dump-gradients", reference / "g",
                    "--eval-every", 1000, *evaluation, "--outputs", reference / "o")
    for path in (p for p in reference.rglob("*") if p.is_file()):
        if saves and "o/" in str(path.relative_to(reference)):
            continue  # the training was not completed
        expect((where / path.relative_to(reference)).exists(), f"{path.relative_to(reference)} is not written")
        expect(digest(where / path.relative_to(reference)) == digest(path), f"{path.relative_to(reference)} is another one than without --save-state")
    # A second error does not hide the first.
    if size == 1 and not saves:
        (where / "model-00001-of-00001.safetensors").unlink()
        (where / "model-00001-of-00001.safetensors").mkdir()
        expect_short_error(session.call("sheaf-run", *arguments), ["--save-state", "latest", "--save", "model-00001-of-00001.safetensors"])


def without_room(session, saves):
    """Process 1 has no room for its files of a state: process 0 writes the weights of all the same, and both name process 1."""
    plan, where = session.plan(CONFIG.model, 4, 3, 8, CONFIG.options), session.folder()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [str(a) for a in (session.tools / "sheaf-run", plan, *data_arguments(CONFIG), "--steps", 200 if saves else 5, "--save", where / "w", "--log",
                                where / "log", "--save-state", where / "state", *saves)]
    processes = []
    for rank in range(2):
        # By sockets, because a block of shared memory is a file of this size, too.
        given = {**variables("torchrun", rank, 2, port), "SHEAF_HOST": rank, "SHEAF_TIMEOUT": 60}
        processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                          env={**os.environ, **{k: str(v) for k, v in given.items()}}, preexec_fn=limit if rank else None, restore_signals=False))
    errors = [p.communicate()[1] for p in processes]
    expect([p.returncode for p in processes] == [1, 1], f"{errors}")
    # Either of its two ranks may be the first that fails.
    expect("process 1 (" in errors[0] and all("--save-state: " in e and re.search("rank-0000[23].safetensors", e) for e in errors), f"{errors}")
    done = len(read_log(where / "log")[0])
    expect(done == 5 if not saves else 20 <= done < 60, f"{done} steps")
    session.succeed("sheaf-run", plan, *data_arguments(CONFIG), "--steps", done, "--save", where / "reference")
    expect(digest(where / "w") == digest(where / "reference"), "other weights than without --save-state")
    expect(not (where / "state").exists(), "a part of a state is left")
