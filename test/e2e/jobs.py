"""Jobs of several processes of sheaf-run, started as launchers do."""
import dataclasses
import os
import signal
import socket
import subprocess
import time

from harness import MODELS, Failure, await_end, expect
from training import CONFIGS, data_arguments, train

MODEL = CONFIGS["gpt2-tiny"]
RANKS, STAGE, STEPS = 4, 3, 10
SECONDS = 60


def variables(launcher, rank, size, port):
    """What a launcher puts into the environment of a process."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port - 1}
    return {
        "torchrun": {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, **master},
        "mpirun": {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                   "OMPI_COMM_WORLD_LOCAL_SIZE": size, "SHEAF_RENDEZVOUS": f"127.0.0.1:{port}"},
        "mpiexec": {"PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": size, **master},
        "srun": {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": rank, "SLURM_STEP_ID": 0,
                 "SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "localhost", **master},
        "kubernetes": {"JOB_COMPLETION_INDEX": rank, "SHEAF_PROCESSES": size, "SHEAF_RENDEZVOUS": f"127.0.0.1:{port}"},
    }[launcher]


@dataclasses.dataclass
class Process:
    popen: subprocess.Popen
    err: object
    ended: float = 0

    def error_text(self):
        return self.err.read_text(errors="replace")


class Job:
    """The processes of a job. `arguments` of all; `own[rank]` come after them. environment: of all, or a function of the rank."""

    def __init__(self, session, size, *arguments, launcher="torchrun", own=(), environment=None):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        where = session.folder()
        self.slowdown, self.processes = session.slowdown, []
        for rank in range(size):
            command = [session.tools / "sheaf-run", *arguments, *(own[rank] if own else ())]
            more = environment(rank) if callable(environment) else environment or {}
            given = {k: str(v) for k, v in {**variables(launcher, rank, size, port), **more}.items()}
            err = where / f"err-{rank}"
            with open(err, "wb") as out:
                self.processes.append(Process(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out,
                                                               stderr=out, env={**os.environ, **given}), err))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()

    def wait(self, but=(), seconds=SECONDS):
        """Until all but some have ended; their exit codes."""
        begin = time.monotonic()
        rest = [p for i, p in enumerate(self.processes) if i not in but]
        while alive := [p for p in rest if p.popen.poll() is None]:
            if time.monotonic() - begin > seconds * self.slowdown:
                raise Failure(f"no end after {seconds * self.slowdown} s:\n" + "\n".join(p.error_text() for p in rest))
            await_end(alive[0].popen.pid, 0.1)
        return [p.popen.returncode for p in rest]

    def succeed(self):
        self.end_with(0)

    def end_with(self, *statuses):
        """All processes end with one of these statuses, the same."""
        codes = self.wait()
        expect(len(set(codes)) == 1 and codes[0] in statuses, f"exits {codes}:\n" + "\n".join(p.error_text() for p in self.processes))

    def until(self, condition, seconds=SECONDS):
        begin = time.monotonic()
        while not condition():
            expect(time.monotonic() - begin < seconds * self.slowdown, "the job does not get going:\n" + self.processes[0].error_text())
            time.sleep(0.02)


def plan(session, stage=STAGE):
    return session.plan(MODEL.model, RANKS, stage, 8, MODEL.options)


def common(steps=STEPS):
    return [*data_arguments(MODEL), "--steps", steps]


def whole(session, stage=STAGE, steps=STEPS):
    return train(session, MODEL, RANKS, stage, steps=steps, gradients=True)


def losses(steps):
    return [(s["step"], s["loss"], s["grad_norm"]) for s in steps]


def running(log, steps=3):
    return lambda: log.exists() and log.read_text().count('"loss"') >= steps


def lost(session, victim, deed, words, environment=None, *arguments):
    log = session.folder() / "output"
    with Job(session, 4, *(arguments or (plan(session),)), *common(100000), "--log", log,
             environment=environment) as job:
        job.until(running(log))
        job.processes[victim].popen.send_signal(deed)
        begin = time.monotonic()
        codes = job.wait(but=(victim,), seconds=10)
        seconds = time.monotonic() - begin
        expect(codes == [1, 1, 1], f"exits {codes}")
        for rank, process in enumerate(job.processes):
            errors = [line for line in process.error_text().splitlines() if "error" in line]
            if rank != victim:
                expect(len(errors) == 1 and f"process {victim} (" in errors[0] and all(word in errors[0] for word in words),
                       f"process {rank} says\n{process.error_text()}")
    return f"the others end after {seconds:.1f} s"


def broken_labels(session):
    """Data with a label that its type does not hold, in a row of the last process's in the third step."""
    bad = session.folder() / "labels.npy"
    right = (MODELS / "gpt2-tiny.labels.npy").read_bytes().replace(b"<i8", b"<u8")
    at = 128 + 23 * 64 * 8  # the header, 23 rows of 64 labels
    bad.write_bytes(right[:at] + (2**63).to_bytes(8, "little") + right[at + 8:])
    return common()[:2] + ["--data", f"labels={bad}", *common()[4:]]
