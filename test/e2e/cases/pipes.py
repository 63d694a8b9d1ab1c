"""Rows through a pipe: the same weights as from files, and an error for what a pipe should not carry."""
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from formats import read_log, write_npy
from harness import MODELS, ROOT, Case, Skip, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments, train

CONFIG = CONFIGS["mlp-momentum"]
BATCH, STEPS = 8, 12
INPUTS = {"x": ("<f4", (64,), 256), "labels": ("<i8", (), 8)}


def cases(session):
    for ranks, zero, micro in ((1, 0, 1), (4, 3, 1), (2, 3, 2)):
        yield Case(f"pipes/weights/{ranks}-{zero}-{micro}", lambda r=ranks, z=zero, m=micro: weights(session, r, z, m))
    yield Case("pipes/resumed", lambda: resumed(session))
    yield Case("pipes/silent", lambda: silent(session))
    yield Case("pipes/of-a-shell", lambda: of_a_shell(session))
    yield Case("pipes/refused", lambda: refused(session))
    yield Case("pipes/wrong-rows", lambda: wrong_rows(session))
    yield Case("pipes/several-processes", lambda: several_processes(session))
    yield Case("pipes/documented", lambda: documented(session))


def rows(where, name, first, count, descr=None, shape=None):
    """The bytes of a .npy array of rows of the model's data."""
    known, row, size = INPUTS[name]
    content = (MODELS / f"mlp.{name}.npy").read_bytes()
    start = 10 + int.from_bytes(content[8:10], "little") + first * size
    path = where / f"{name}-{first}"
    write_npy(path, descr or known, shape or (count, *row), content[start:start + count * size])
    return path.read_bytes()


def stream(where, counts, first=0, names=("x", "labels")):
    """Arrays of both inputs in turns, of so many rows."""
    parts = []
    for count in counts:
        parts += [rows(where, name, first, count) for name in names]
        first += count
    return b"".join(parts)


def fed(session, plan, content, *options, names="x,labels", steps=STEPS, env=None):
    """A run that reads `content` through a named pipe: how it ended, and its folder."""
    where = session.folder()
    os.mkfifo(where / "rows")

    def write():
        try:
            with open(where / "rows", "wb") as pipe:
                pipe.write(content)
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    done = session.call("sheaf-run", plan, "--data", f"{names}={where / 'rows'}", "--steps", steps, "--log", where / "log",
                        "--save", where / "w", *options, env=env)
    if writer.is_alive():  # it was refused before it opened the pipe
        os.close(os.open(where / "rows", os.O_RDONLY | os.O_NONBLOCK))
    writer.join(10)
    return done, where


def weights(session, ranks, zero, micro):
    more = ("--micro-batches", micro) if micro > 1 else ()
    plan = session.plan(CONFIG.model, ranks, zero, BATCH, CONFIG.options + more)
    expected = train(session, CONFIG, ranks, zero, steps=STEPS, compile_options=more)
    where = session.folder()
    # One row at a time, batches, several batches, none, and more than are needed.
    done, made = fed(session, plan, stream(where, [1] * 8 + [8, 0, 37, 16] + [40]))
    expect(done.code == 0, done.err)
    expect(digest(made / "w") == digest(expected.weights), "other weights than from files")
    start = next(e for e in read_log(made / "log")[1] if e["event"] == "start")
    expect(start["rows"] is None and start["steps"] == STEPS, f"{start}")


def resumed(session):
    """What follows a saved state begins with the first row that was not read."""
    plan = session.plan(CONFIG.model, 2, 3, BATCH, CONFIG.options)
    where = session.folder()
    first, _ = fed(session, plan, stream(where, [24, 24]), "--save-state", where / "state", steps=5)
    rest, made = fed(session, plan, stream(where, [56], first=40), "--resume", where / "state", steps=STEPS)
    expect(first.code == 0 and rest.code == 0, first.err + rest.err)
    expect(digest(made / "w") == digest(train(session, CONFIG, 2, 3, steps=STEPS).weights), "other weights than of one run")


def silent(session):
    """A run says after ten seconds that no rows come; SIGTERM ends it, and its state has the steps whose rows have come."""
    plan = session.plan(CONFIG.model, 4, 3, BATCH, CONFIG.options)
    where = session.folder()
    os.mkfifo(where / "rows")
    # Some bytes of the next rows, too.
    content = stream(where, [40]) + rows(where, "x", 40, 8)[:300]
    command = [session.tools / "sheaf-run", plan, "--data", f"x,labels={where / 'rows'}", "--steps", str(STEPS), "--save-state", where / "state",
               "--log", where / "log"]
    with open(where / "err", "w") as err:
        process = subprocess.Popen(command, stdout=err, stderr=err)
    with open(where / "rows", "wb") as pipe:
        pipe.write(content)
        pipe.flush()
        deadline = time.monotonic() + 60 * session.slowdown
        waits = f"waiting for rows of {where / 'rows'}: nothing has come for 10 s\n"
        while time.monotonic() < deadline and waits not in (where / "err").read_text():
            time.sleep(0.05)
        process.terminate()
        try:
            process.wait(timeout=60 * session.slowdown)
        finally:
            process.kill()
    steps, events = read_log(where / "log")
    output = (where / "err").read_text()
    expect(waits in output, output)
    expect(process.returncode == 128 + signal.SIGTERM, f"exit {process.returncode}")
    expect(len(steps) == 5 and any(e["event"] == "interrupted" and e["step"] == 5 for e in events), f"{output}{events}")
    rest, made = fed(session, plan, stream(where, [56], first=40), "--resume", where / "state", steps=STEPS)
    expect(rest.code == 0, rest.err)
    expect(digest(made / "w") == digest(train(session, CONFIG, 4, 3, steps=STEPS).weights), "other weights than of one run")


def of_a_shell(session):
    """What a shell's <(command) stands for has no name, and its writer may have gone before it is read."""
    plan = session.plan(CONFIG.model, 2, 3, BATCH, CONFIG.options)
    where = session.folder()
    (where / "content").write_bytes(stream(where, [96]))
    command = f"{session.tools / 'sheaf-run'} {plan} --data x,labels=<(cat content) --steps {{}} --save w"
    for script, code in ((command.format(STEPS), 0), (command.format(STEPS + 1), 1), (command.format(1).replace("cat", "true"), 1)):
        done = subprocess.run(["bash", "-c", script], cwd=where, capture_output=True, text=True, timeout=300)
        expect(done.returncode == code and ("ended after" in done.stderr) == bool(code), done.stderr)
    expect(digest(where / "w") == digest(train(session, CONFIG, 2, 3, steps=STEPS).weights), "other weights than from files")
    # stdin is one, too.
    with open(where / "content", "rb") as content:
        reader = subprocess.run([session.tools / "sheaf-run", plan, "--data", "x,labels=/dev/stdin", "--steps", "1"],
                                input=content.read(), capture_output=True)
    expect(reader.returncode == 0, reader.stderr)


def refused(session):
    """Found before the run starts."""
    plan = session.plan(CONFIG.model, 2, 3, BATCH, CONFIG.options + ("--eval",))
    where = session.folder()
    content = stream(where, [96])
    for options, names, words in (
            (("--shuffle", 1), "x,labels", ["--shuffle", "their own order"]),
            ((), "x", ["input 'labels'", "no data"]),
            ((), "x,label", ["no input 'label'", "did you mean 'labels'"]),
            (("--data", data_arguments(CONFIG)[3]), "x", ["'labels' has rows in a file"])):
        done, _ = fed(session, plan, content, *options, names=names)
        expect_short_error(done, words)
    os.mkfifo(where / "rows")
    done = session.call("sheaf-run", plan, "--data", f"x,labels={where / 'rows'}", "--epochs", 1)
    expect_short_error(done, ["--epochs", "give --steps"])
    done = session.call("sheaf-run", plan, "--eval", "--eval-data", f"x,labels={where / 'rows'}")
    expect_short_error(done, ["--eval-data", "not a pipe"])


def wrong_rows(session):
    """Found when they come: each error says which input, and at which row."""
    plan = session.plan(CONFIG.model, 4, 3, BATCH, CONFIG.options)
    where = session.folder()
    good = stream(where, [16])
    for content, words in (
            (good, ["ended after 16 rows", "--steps"]),
            (b"", ["ended after 0 rows"]),
            (good + rows(where, "x", 16, 8), ["input 'labels'", "row 16", "ended before its array"]),
            (good + rows(where, "x", 16, 8)[:500], ["input 'x'", "ended within an array of shape [8, 64]"]),
            (good + rows(where, "x", 16, 8) + rows(where, "labels", 16, 7), ["input 'labels'", "7 rows, that of 'x' before it 8"]),
            (stream(where, [16], names=("labels", "x")), ["input 'x'", "shape is [16], the plan expects [rows, 64]"]),
            (good + rows(where, "x", 16, 8, shape=(8, 32, 2)), ["input 'x'", "[8, 32, 2]", "[rows, 64]"]),
            (good + rows(where, "x", 16, 8, descr="<i4"), ["input 'x'", "elements are i32", "f32"]),
            (b"x,labels\n" * 100, ["input 'x'", "row 0", "not a .npy file"])):
        done, made = fed(session, plan, content)
        expect_short_error(done, words)
        expect(not (made / "w").exists(), "weights of a run that failed")


def several_processes(session):
    """Only one process could read it."""
    plan = session.plan(CONFIG.model, 2, 3, BATCH, CONFIG.options)
    where = session.folder()
    os.mkfifo(where / "rows")
    with Job(session, 2, plan, "--data", f"x,labels={where / 'rows'}", "--steps", 1) as job:
        codes = job.wait()
        said = "\n".join(process.error_text() for process in job.processes)
    expect(codes == [1, 1] and "a pipe is read by one process" in said, f"exits {codes}:\n{said}")


def documented(session):
    """The example of docs/training.md, whose program writes for ever: the run takes what it needs, and learns."""
    named = os.environ.get("SHEAF_PYTORCH")
    if not named:
        raise Skip("SHEAF_PYTORCH names no Python with numpy")
    section = (ROOT / "docs" / "training.md").read_text().partition("### Rows through a pipe")[2]
    command = re.search(r"^```\n(sheaf-run .*\n)```$", section, re.MULTILINE)[1]
    where = session.folder()
    (where / "rows.py").write_text(re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1])
    shutil.copy(session.plan(CONFIG.model, 2, 3, BATCH, ("--optimizer", "adamw:lr=3e-3")), where / "model.plan")
    script = command.replace("1000", "200").replace("python3", named).rstrip() + " --log log"
    done = subprocess.run(["bash", "-c", script], cwd=where, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PATH": f"{session.tools}:{os.environ['PATH']}"})
    expect(done.returncode == 0, done.stderr)
    losses = [s["loss"] for s in read_log(where / "log")[0]]
    expect(len(losses) == 200 and sum(losses[-20:]) < 0.6 * sum(losses[:20]), f"losses from {losses[:3]} to {losses[-3:]}")
