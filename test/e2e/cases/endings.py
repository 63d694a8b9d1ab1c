"""Nothing ends without a message: not a run whose data become shorter, or that may have little memory, few threads or small files, and
not one that is stopped."""
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

from formats import write_npy
from harness import Case, Skip, expect
from jobs import Job, common, plan
from training import CONFIGS, data_arguments

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "attacks"))

from common import End, Processes, limiting  # noqa: E402

CONFIG = CONFIGS["mlp-sgd"]
MIB, USER = 1 << 20, 62000


def cases(session):
    for held in (True, False):
        yield Case(f"endings/shorter-data/{'held' if held else 'read'}", lambda h=held: shorter_data(session, h))
    yield Case("endings/threads", lambda: threads(session))
    yield Case("endings/memory", lambda: memory(session))
    yield Case("endings/file-sizes", lambda: file_sizes(session))
    yield Case("endings/compiler", lambda: compiler(session))
    yield Case("endings/stopped", lambda: stopped(session))
    yield Case("endings/nohup", lambda: nohup(session))
    yield Case("endings/launcher-signal", lambda: launcher_signal(session))


def judge(ends, what):
    """All have ended, in order or with an error; the dynamic linker says itself that it has no memory, with 127."""
    for end in ends:
        expect(end.good or end.code == 127 and end.text, f"{what}: exit {end.code}: {end.text}")


def shorter_data(session, held):
    """A file of data that becomes shorter during a run is one error that names the file and a row."""
    where, rows = session.folder(), 4096 if held else 100_000
    made = session.plan(CONFIG.model, 2, 3, 8, CONFIG.options)
    inputs = {i["name"]: i for i in session.inspect(made)["inputs"]}
    data = []
    for name, entry in inputs.items():
        size = 1
        for extent in entry["shape"][1:]:
            size *= extent
        form, width = {"f32": ("<f4", 4), "i64": ("<i8", 8)}[entry["type"]]
        write_npy(where / f"{name}.npy", form, (rows, *entry["shape"][1:]), bytes(rows * size * width))
        data += ["--data", f"{name}={where / name}.npy"]
    largest = max(where.glob("*.npy"), key=lambda p: p.stat().st_size)
    with Job(session, 1, made, *data, "--steps", 10**7, "--log", where / "log") as job:
        job.until(lambda: (where / "log").exists() and (where / "log").read_text().count('"loss"') > 3)
        os.truncate(largest, 200)
        codes = job.wait(seconds=20)
        errors = job.processes[0].error_text()
    expect(codes == [1] and errors.count("error") == 1, f"exit {codes}: {errors}")
    expect(str(largest) in errors and ", row " in errors and "has become shorter" in errors, errors)


def threads(session):
    """Processes that may have few threads, of users of their own: the limit is one of a user, and root has none."""
    if os.getuid() != 0:
        raise Skip("only root can start processes of a user who has no others")
    for number, (most, count) in enumerate(((2, 1), (5, 1), (9, 1), (3, 2), (6, 2), (4, 4))):
        users = iter(range(USER + 10 * number, USER + 10 * number + 10))
        ends = Processes(session, count, 4, limit=3, limits={resource.RLIMIT_NPROC: most}, user=lambda rank, u=users: next(u)).ends(20 * session.slowdown)
        judge(ends, f"{most} threads, {count} processes")
        expect(any("cannot start a thread for " in e.text and f"`ulimit -u` is {most}" in e.text for e in ends), f"{most} threads: {[e.text for e in ends]}")


def memory(session):
    """Processes that may have little address space."""
    if session.slowdown > 1:
        raise Skip("sanitizers keep shadow memory of their own")
    said = []
    for mib in (60, 100, 140, 200, 300, 450):
        ends = Processes(session, 1, 4, limit=3, limits={resource.RLIMIT_AS: mib * MIB}).ends(20 * session.slowdown)
        judge(ends, f"{mib} MiB")
        said += [e.text for e in ends if e.code == 1]
    expect(said and all("raise `ulimit -v`" in text or "`ulimit -v` is" in text or "cannot map" in text or "cannot load" in text or "allocate" in text for text in said), str(said))


def file_sizes(session):
    """Files that may not become large: each output has its error, and nothing temporary is left."""
    outputs = {"--save": "w.safetensors", "--save-state": "state", "--log": "log.jsonl", "--trace": "trace.json", "--dump-gradients": "g.safetensors"}
    for option, name in outputs.items():
        where = session.folder()
        ends = Processes(session, 1, 4, option, where / name, limit=3, limits={resource.RLIMIT_FSIZE: 256}).ends(20 * session.slowdown)
        expect([e.code for e in ends] == [1] and ends[0].good and "File too large" in ends[0].text, f"{option}: {ends}")
        left = [str(p) for p in where.rglob("*") if p.name != name or option not in ("--log", "--save-state")]
        expect(not left, f"{option} leaves {left}")


def compiler(session):
    """The compiler, with files that may not become large and few threads."""
    where, model = session.folder(), session.graph(CONFIG.model)
    where.chmod(0o777)
    limits = [("File too large", {resource.RLIMIT_FSIZE: 1024}, None)]
    if os.getuid() == 0:
        limits.append(("", {resource.RLIMIT_NPROC: 1}, USER + 500))
    for says, limit, user in limits:
        done = subprocess.run([session.tools / "sheaf", "compile", model, "-o", where / "out.plan", "--batch", "8"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, preexec_fn=limiting(limit, user))
        expect(done.returncode == 0 and not says or done.returncode == 1 and "error: " in done.stderr and says in done.stderr,
               f"{limit}: exit {done.returncode}: {done.stderr}")
        expect(done.returncode == 0 or not list(where.iterdir()), f"{limit} leaves {list(where.iterdir())}")


def stopped(session):
    """A process that was stopped for longer than the others wait says so, and accuses no other."""
    with Job(session, 2, plan(session), *common(10**7), environment={"SHEAF_TIMEOUT": 1}) as job:
        time.sleep(0.5 * session.slowdown)
        job.processes[1].popen.send_signal(signal.SIGSTOP)
        time.sleep(1.6)
        job.processes[1].popen.send_signal(signal.SIGCONT)
        codes = job.wait(seconds=10 * session.slowdown)
        errors = [p.error_text() for p in job.processes]
    expect(codes == [1, 1], f"exits {codes}: {errors}")
    expect("this process did not run for " in errors[1] and "crashed or was killed" not in errors[1], errors[1])
    expect("process 1 (" in errors[0] and "did not run" not in errors[0], errors[0])


def nohup(session):
    """A hangup does not end a run that was started by nohup."""
    outlives(session, signal.SIGHUP, ignored=True)


def launcher_signal(session):
    """SIGUSR1, by which MPICH's launcher says that a process has died, does not end a run: the run names the process itself."""
    outlives(session, signal.SIGUSR1)


def outlives(session, number, ignored=False):
    """A run goes on after a signal, which its parent may have had it ignore."""
    where = session.folder()
    arguments = [session.tools / "sheaf-run", session.plan(CONFIG.model, 1, 0, 8, CONFIG.options), *data_arguments(CONFIG), "--steps", 10**7,
                 "--log", where / "log"]
    with subprocess.Popen(list(map(str, arguments)), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          preexec_fn=lambda: ignored and signal.signal(number, signal.SIG_IGN)) as process:

        def steps():
            return (where / "log").read_text().count('"loss"') if (where / "log").exists() else 0

        def until(wanted):
            end = time.monotonic() + 20 * session.slowdown
            while steps() < wanted and process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)

        until(1)
        process.send_signal(number)
        before = steps()
        # An interruption would come after one step or two.
        until(before + 10)
        after = steps()
        process.send_signal(signal.SIGTERM)
        process.wait(20 * session.slowdown)
    expect(process.returncode == 128 + signal.SIGTERM and before > 0 and after >= before + 10, f"ended with {process.returncode}, {before} steps and {after}")
