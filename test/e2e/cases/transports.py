"""Jobs that the mpirun of Open MPI and MPICH start, over sockets and over MPI: the bits of one process, and an end in time
with the name of the process that is lost."""
import os
import shutil
import signal
import time

from cases.launchers import ended, mpirun, started
from formats import read_log
from harness import Case, Failure, digest, expect
from jobs import SECONDS, STAGE, Job, common, losses, plan, running, whole

# What makes their MPI take TCP, as between machines, where it would take shared memory on one.
# MPICH 4.0.2 is not tried: over UCX's TCP its MPI_Finalize may not return (docs/cluster.md).
LAUNCHERS = {"mpirun.openmpi": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"], "mpirun.mpich": None}
# MPICH's launcher ends, and with it the processes' output, some 20 ms after a process is killed. So the name is lost in some
# jobs, whatever the processes do: one of so many must show it, and every one must end in time.
ATTEMPTS = {"mpirun.openmpi": 1, "mpirun.mpich": 5}
# Where a process finds its number, whichever MPI has started it.
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


def cases(session):
    for launcher in LAUNCHERS:
        for transport in ("sockets", "mpi"):
            # Hosts that the processes take themselves to be on.
            for count, hosts in ((4, RANK), (4, f"$(({RANK} / 2))"), (2, RANK)):
                name = f"transports/{launcher}/{transport}/{count}-processes-{'pairs' if '/' in hosts else 'apart'}"
                yield Case(name, lambda v=launcher, t=transport, n=count, h=hosts: same_bits(session, v, t, n, h))
            for victim in (0, 2):
                yield Case(f"transports/{launcher}/{transport}/killed-{victim}",
                           lambda v=launcher, t=transport, k=victim: killed(session, v, t, k))
        for stage in (0, 1, 2):
            yield Case(f"transports/{launcher}/mpi/stage-{stage}",
                       lambda v=launcher, z=stage: same_bits(session, v, "mpi", 4, RANK, z))
        if LAUNCHERS[launcher]:
            yield Case(f"transports/{launcher}/mpi/bits-over-tcp", lambda v=launcher: same_bits(session, v, "mpi", 4, RANK, tcp=True))
            yield Case(f"transports/{launcher}/mpi/killed-over-tcp", lambda v=launcher: killed(session, v, "mpi", 1, tcp=True))
        yield Case(f"transports/{launcher}/mpi/stalled", lambda v=launcher: lost(session, v, "mpi", 1, signal.SIGSTOP))
        yield Case(f"transports/{launcher}/mpi/one-host", lambda v=launcher: same_bits(session, v, "mpi", 4, "all"))
    yield Case("transports/no-mpi", lambda: no_mpi(session))
    yield Case("transports/no-library", lambda: no_library(session))
    yield Case("transports/other-mpi", lambda: other_mpi(session))
    yield Case("transports/gpus", lambda: gpus(session))
    yield Case("transports/different", lambda: different(session))


def on_hosts(command, hosts):
    """The command line of a launcher, with each process on the host that the shell makes of `hosts`."""
    at = next(i for i, word in enumerate(command) if str(word).endswith("sheaf-run"))
    return [*command[:at], "sh", "-c", f'SHEAF_HOST={hosts} exec "$@"', "sh", *command[at:]]


def job(session, launcher, count, transport, hosts, *arguments, stage=STAGE, options=(), tcp=False, **environment):
    more = LAUNCHERS[launcher] if tcp else []
    command = mpirun(session, launcher, count, *arguments, "--transport", transport, options=[*options, *more], stage=stage)
    # MPI's libraries keep memory until the end.
    kept = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}
    return started(session, on_hosts(command, hosts), {**environment, **kept})


def same_bits(session, launcher, transport, count, hosts, stage=STAGE, tcp=False):
    where, expected = session.folder(), whole(session, stage)
    arguments = [*common(), "--save", where / "w", "--dump-gradients", where / "g", "--log", where / "log"]
    with job(session, launcher, count, transport, hosts, *arguments, stage=stage, tcp=tcp) as (process, log):
        expect(ended(session, process, log) == 0, f"it fails:\n{log.read_text()}")
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    expect(digest(where / "g") == digest(expected.gradients), "other gradients")
    steps, events = read_log(where / "log")
    expect(losses(steps) == losses(expected.steps), "other losses")
    nodes = {RANK: count, "all": 1}.get(hosts, 2)
    expect((events[0]["nodes"], events[0]["transport"]) == (nodes, "memory" if nodes == 1 else transport),
           f"the log begins with {events[0]}")


def process_of(rank, log):
    """The process id of a rank of the job whose processes write this log."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = dict(e.split(b"=", 1) for e in file.read().split(b"\0") if b"=" in e)
        except OSError:
            continue  # another user's, or gone
        number = environment.get(b"OMPI_COMM_WORLD_RANK", environment.get(b"PMI_RANK"))
        if command[0].endswith(b"sheaf-run") and os.fsencode(log) in command and number == b"%d" % rank:
            return int(pid)
    return None


def killed(session, launcher, transport, victim, tcp=False):
    for left in reversed(range(ATTEMPTS[launcher])):
        try:
            return lost(session, launcher, transport, victim, signal.SIGKILL, tcp)
        except Unnamed as e:
            if not left:
                raise Failure(*e.args) from None
    return None


class Unnamed(Exception):
    """A job has ended in time, but nothing that it says has the name."""


def lost(session, launcher, transport, victim, deed, tcp=False):
    """A process is killed, or hangs: the job ends, and what it says has the process's name. What is left of a job whose
    process hangs is the launcher's to end."""
    log, hangs = session.folder() / "log", deed == signal.SIGSTOP
    patience = 4 * session.slowdown
    # Without the option MPICH's launcher may kill the others before they have said anything.
    options = ["-disable-auto-cleanup"] if launcher == "mpirun.mpich" else []
    # Under Debian's MPICH lies UCX, which ends a process too that is reading the memory of the killed one (its `cma`). Between
    # machines it does not, and processes of one host have no need of MPI.
    apart = {"UCX_TLS": "^cma"} if launcher == "mpirun.mpich" else {}
    with job(session, launcher, 4, transport, RANK, *common(1000000), "--log", log, options=options, tcp=tcp,
             SHEAF_TIMEOUT=patience if hangs else 300, **apart) as (process, output):
        begin = time.monotonic()
        while not running(log)():
            expect(time.monotonic() - begin < SECONDS * session.slowdown, f"the job does not get going:\n{output.read_text()}")
            time.sleep(0.02)
        pid = process_of(victim, log)
        expect(pid, "the victim is not to be found")
        begin = time.monotonic()
        os.kill(pid, deed)
        named = f"process {victim} ("
        if hangs:
            while named not in output.read_text():
                expect(time.monotonic() - begin < 3 * patience, f"no process names it:\n{output.read_text()}")
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
        code = ended(session, process, output)
        seconds = time.monotonic() - begin
    said = output.read_text()
    expect(code != 0, f"exit {code}:\n{said}")
    expect(hangs or seconds < 2 * session.slowdown, f"the job ends after {seconds:.1f} s:\n{said}")
    if named not in said:
        raise Unnamed(f"exit {code}:\n{said}")
    expect(("SHEAF_TIMEOUT" if hangs else "ended without a message") in said, said)
    return f"after {seconds:.2f} s"


def alone(session, *arguments, tool="sheaf-run", **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
    return session.call(tool, plan(session), *common(1), *arguments, env={**environment, **variables})


def no_mpi(session):
    done = alone(session, "--transport", "mpi")
    expect(done.code == 1 and "mpirun" in done.err and "--transport mpi" in done.err, done.err)
    done = alone(session, "--transport", "mpi", SHEAF_MPI="lam")
    expect(done.code == 1 and "SHEAF_MPI is 'lam'" in done.err, done.err)
    done = alone(session, "--transport", "pigeons")
    expect(done.code == 2 and "sockets" in done.err and "mpi" in done.err, done.err)


def no_library(session):
    """A runtime without the library of this MPI says what it is missing, and where it comes from."""
    folder = session.folder()
    for name in ("bin", "lib"):
        (folder / name).mkdir()
    shutil.copy(session.tools / "sheaf-run", folder / "bin")
    (folder / "lib" / "libsheaf_cpu.so").symlink_to((session.tools / "sheaf-run").resolve().parents[1] / "lib" / "libsheaf_cpu.so")
    for name in ("openmpi", "mpich"):
        done = alone(session, "--transport", "mpi", tool=folder / "bin" / "sheaf-run", SHEAF_MPI=name)
        for word in (f"libsheaf_mpi_{name}.so", f"lib{name}-dev", "SHEAF_LIBRARY_PATH"):
            expect(done.code == 1 and word in done.err, f"exit {done.code}, no {word}:\n{done.err}")


def other_mpi(session):
    """To the library of another MPI than the launcher's every process is alone."""
    with job(session, "mpirun.openmpi", 2, "mpi", RANK, *common(3), SHEAF_MPI="mpich") as (process, output):
        code = ended(session, process, output)
    said = output.read_text()
    expect(code != 0 and "were not started by this MPI's mpirun" in said, f"exit {code}:\n{said}")


def gpus(session):
    done = alone(session, "--transport", "mpi", "--device", "cuda")
    expect(done.code == 2 and "NCCL" in done.err, f"exit {done.code}:\n{done.err}")


def different(session):
    """Before MPI is started, the processes see that they do not agree."""
    with Job(session, 2, plan(session), *common(), own=[[], ["--transport", "mpi"]]) as job:
        expect(job.wait() == [1, 1], "no error")
        for process in job.processes:
            expect("--transport sockets" in process.error_text() and "--transport mpi" in process.error_text(), process.error_text())
