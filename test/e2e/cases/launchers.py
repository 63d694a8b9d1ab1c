"""What launchers put into the environment, and jobs that real launchers start."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

from formats import read_log
from harness import Case, Failure, Skip, digest, expect
from jobs import MODEL, RANKS, SECONDS, STAGE, Job, broken_labels, common, losses, plan, running, whole
from training import train

# Debian's launchers, which may be installed side by side, and their options.
LAUNCHERS = {"mpirun.openmpi": ["--oversubscribe"], "mpirun.mpich": []}


def cases(session):
    for launcher in LAUNCHERS:
        for count in (2, 4):
            yield Case(f"launchers/{launcher}/{count}", lambda v=launcher, n=count: by_mpirun(session, v, n))
        yield Case(f"launchers/{launcher}/jobs-at-once", lambda v=launcher: at_once(session, v))
        yield Case(f"launchers/{launcher}/interrupted", lambda v=launcher: interrupted(session, v))
        yield Case(f"launchers/{launcher}/one-rank-fails", lambda v=launcher: one_rank_fails(session, v))
    yield Case("launchers/missing", lambda: missing(session))
    yield Case("launchers/secret", lambda: secret(session))
    for name, (first, second, words) in SECRETS.items():
        yield Case(f"launchers/secret-{name}", lambda a=first, b=second, w=words: other_secret(session, a, b, w))
    yield Case("launchers/wrong-environment", lambda: wrong_environment(session))


def mpirun(session, launcher, count, *arguments, options=(), stage=STAGE):
    """The command line of a job that a real launcher starts."""
    path = shutil.which(launcher)
    if not path:
        raise Skip(f"there is no {launcher}: Debian's packages openmpi-bin and mpich have them")
    root = ["--allow-run-as-root"] if launcher == "mpirun.openmpi" and os.geteuid() == 0 else []
    return [path, *root, *LAUNCHERS[launcher], *options, "-np", count, session.tools / "sheaf-run", plan(session, stage), *arguments]


@contextlib.contextmanager
def started(session, command, environment=None):
    """A job under way: its launcher's process, and the file with what it and its processes say."""
    log = session.folder() / "output"
    given = {**os.environ, **{k: str(v) for k, v in (environment or {}).items()}}
    with open(log, "wb") as out:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=given)
    try:
        yield process, log
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def ended(session, process, log):
    """The exit code of a job's launcher."""
    try:
        return process.wait(SECONDS * session.slowdown)
    except subprocess.TimeoutExpired:
        raise Failure(f"no end:\n{log.read_text()}") from None


def by_mpirun(session, launcher, count):
    """The launcher's own variables, its binding to cores and its output: the bits of one process."""
    where, expected = session.folder(), whole(session)
    done = session.succeed(*mpirun(session, launcher, count, *common(), "--save", where / "w", "--log", where / "log"),
                           timeout=SECONDS)
    expect(done.err.count("step 10/10") == 1, f"not one process shows progress:\n{done.err}")
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    steps, events = read_log(where / "log")
    expect(losses(steps) == losses(expected.steps), "other losses")
    expect(events[0]["processes"] == count, f"the log begins with {events[0]}")


def at_once(session, launcher):
    """Jobs that run on one host at the same time do not meet each other."""
    where, expected = session.folder(), whole(session)
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(started(session, mpirun(session, launcher, 2, *common(), "--save", where / str(job))))
                for job in range(4)]
        for job, (process, log) in enumerate(jobs):
            expect(ended(session, process, log) == 0, f"job {job} fails:\n{log.read_text()}")
            expect(digest(where / str(job)) == digest(expected.weights), f"job {job} leaves other weights")


def interrupted(session, launcher):
    """A SIGTERM to the launcher reaches the processes: they save their state, from which the run goes on. Open MPI sends
    SIGKILL after a second, or after the seconds that its option gives, and calls a job that was interrupted a failure."""
    where, openmpi = session.folder(), launcher == "mpirun.openmpi"
    options = ["--mca", "odls_base_sigkill_timeout", 4 * session.slowdown] if openmpi else []
    command = mpirun(session, launcher, 2, *common(100000), "--save-state", where / "state", "--log", where / "log",
                     options=options)
    with started(session, command) as (process, log):
        begin = time.monotonic()
        while not running(where / "log")():
            expect(time.monotonic() - begin < SECONDS * session.slowdown, f"the job does not get going:\n{log.read_text()}")
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        code = ended(session, process, log)
    expect(code != 0, f"exit {code}:\n{log.read_text()}")
    done = len(read_log(where / "log")[0])
    expect((where / "state" / f"step-{done:08}" / "manifest.json").exists(), f"no state is saved:\n{log.read_text()}")
    session.succeed("sheaf-run", plan(session), *common(done + 3), "--resume", where / "state", "--save", where / "w")
    expected = train(session, MODEL, RANKS, STAGE, steps=done + 3, repeat=launcher)
    expect(digest(where / "w") == digest(expected.weights), "the run goes on with other bits")


def one_rank_fails(session, launcher):
    """An error of one rank ends the job with its words."""
    done = session.call(*mpirun(session, launcher, 2, *broken_labels(session)), timeout=SECONDS)
    expect(done.code == 1 and "rank 3: " in done.err and "row 23" in done.err, f"exit {done.code}:\n{done.err}")


def missing(session):
    done = session.call("sheaf-run", plan(session), *common(), env={
        **os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777", "SHEAF_TIMEOUT": "1"})
    expect(done.code == 1 and "missing: 1" in done.err and "SHEAF_TIMEOUT" in done.err, done.err)


SECRETS = {
    "differs": ("what both should know", "what both should knoW", "SHEAF_SECRET is not that of process 0"),
    "lacks": ("what both should know", None, "SHEAF_SECRET is set for process 0, but not for it"),
    "surplus": (None, "what both should know", "SHEAF_SECRET is set for it, but not for process 0"),
}


def secret(session):
    where, expected = session.folder(), whole(session)
    with Job(session, 4, plan(session), *common(), "--save", where / "w", environment={"SHEAF_SECRET": "what all know, at length"}) as job:
        job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    done = session.call("sheaf-run", plan(session), *common(1), env={**os.environ, "SHEAF_SECRET": "short"})
    expect(done.code == 1 and "SHEAF_SECRET has 5 characters" in done.err and "short" not in done.err, done.err)
    # A file that is missing: export SHEAF_SECRET=$(cat job.secret)
    with Job(session, 2, plan(session), *common(1), environment={"SHEAF_SECRET": ""}) as job:
        expect(job.wait(seconds=10) == [1, 1], "an empty secret is none")
        expect(all("SHEAF_SECRET is set, but empty" in p.error_text() for p in job.processes), job.processes[0].error_text())


def other_secret(session, first, second, words):
    """The refused process ends at once; process 0 says at its end whom it has refused."""
    limit = 2 * session.slowdown
    with Job(session, 2, plan(session), *common(), environment=lambda rank: {**({"SHEAF_SECRET": said} if (said := second if rank else first) else {}),
                                                                             "SHEAF_TIMEOUT": limit}) as job:
        codes = job.wait(seconds=10)
        expect(codes == [1, 1], f"exits {codes}")
        for process, more in zip(job.processes, ("missing: 1", "process 0 refuses process 1")):
            text = process.error_text()
            errors = [line for line in text.splitlines() if "waiting for other processes: 1 of 2" not in line]
            expect(words in text and more in text and len(errors) == 1 and "what both" not in text, text)


def wrong_environment(session):
    for name, value, words in (("RANK", "9", "from 0 to 1"), ("WORLD_SIZE", "x", "WORLD_SIZE is 'x'"),
                               ("SHEAF_RENDEZVOUS", "here", "host:port"), ("MASTER_PORT", "", "MASTER_PORT is not set")):
        environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777", name: value}
        done = session.call("sheaf-run", plan(session), *common(), env={**os.environ, **environment})
        expect(done.code == 1 and words in done.err and name in done.err, done.err)
