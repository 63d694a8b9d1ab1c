"""Jobs of several processes give the bits of one process; they end together, in order or because one is lost."""
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from formats import read_log
from harness import MODELS, Case, Failure, Skip, digest, expect
from training import CONFIGS, data_arguments, train

MODEL = CONFIGS["gpt2-tiny"]
RANKS, STAGE, STEPS = 4, 3, 10
SECONDS = 60


def cases(session):
    for count, launcher in ((2, "torchrun"), (4, "torchrun"), (2, "mpirun"), (4, "srun"), (2, "mpiexec")):
        yield Case(f"processes/{count}-by-{launcher}", lambda n=count, v=launcher: same_bits(session, n, v))
    for stage in (0, 1, 2):
        yield Case(f"processes/stage-{stage}", lambda z=stage: same_bits(session, 2, "torchrun", z))
    for before, after in ((4, 1), (1, 4), (4, 2)):
        yield Case(f"processes/state-of-{before}-for-{after}", lambda b=before, a=after: resumed(session, b, a))
    for launcher in LAUNCHERS:
        for count in (2, 4):
            yield Case(f"processes/{launcher}/{count}", lambda v=launcher, n=count: by_mpirun(session, v, n))
        yield Case(f"processes/{launcher}/jobs-at-once", lambda v=launcher: at_once(session, v))
        yield Case(f"processes/{launcher}/interrupted", lambda v=launcher: mpirun_interrupted(session, v))
        yield Case(f"processes/{launcher}/one-rank-fails", lambda v=launcher: mpirun_fails(session, v))
    yield Case("processes/damaged-state", lambda: damaged_state(session))
    yield Case("processes/interrupted", lambda: interrupted(session))
    for victim in (0, 2):
        yield Case(f"processes/killed-{victim}", lambda v=victim: lost(session, v, signal.SIGKILL, ["ended without a message"]))
    yield Case("processes/stalled", lambda: lost(session, 1, signal.SIGSTOP, ["SHEAF_TIMEOUT"], {"SHEAF_TIMEOUT": 4 * session.slowdown}))
    yield Case("processes/killed-over-sockets", lambda: lost(session, 2, signal.SIGKILL, ["ended without a message"], lambda rank: {"SHEAF_HOST": rank}))
    for hosts in ("abcd", "aabb"):
        yield Case(f"processes/hosts-{hosts}", lambda h=hosts: same_bits(session, 4, "torchrun", hosts=h))
    yield Case("processes/gpus", lambda: gpus(session))
    yield Case("processes/gpu-killed", lambda: gpu_killed(session))
    for launcher in ("torchrun", "srun"):
        yield Case(f"processes/one-gpu-each-by-{launcher}", lambda v=launcher: one_gpu_each(session, v))
    yield Case("processes/gpu-unknown", lambda: gpu_unknown(session))
    yield Case("processes/gpu-of-two", lambda: gpu_of_two(session))
    yield Case("processes/gpu-abandoned", lambda: gpu_abandoned(session, 1))
    yield Case("processes/gpu-abandoned-kernels", lambda: gpu_abandoned(session, 0))
    yield Case("processes/gpu-other-nccl", lambda: gpu_other_nccl(session))
    yield Case("processes/different-starts", lambda: different_starts(session))
    yield Case("processes/not-finite", lambda: not_finite(session))
    yield Case("processes/one-fails", lambda: one_fails(session))
    yield Case("processes/one-rank-fails", lambda: one_rank_fails(session))
    yield Case("processes/missing", lambda: missing(session))
    yield Case("processes/wrong-environment", lambda: wrong_environment(session))


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
        while any(p.popen.poll() is None for p in rest):
            if time.monotonic() - begin > seconds * self.slowdown:
                raise Failure(f"no end after {seconds * self.slowdown} s:\n" + "\n".join(p.error_text() for p in rest))
            time.sleep(0.02)
        return [p.popen.returncode for p in rest]

    def succeed(self):
        codes = self.wait()
        expect(not any(codes), f"exits {codes}:\n" + "\n".join(p.error_text() for p in self.processes))

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


def same_bits(session, count, launcher, stage=STAGE, hosts=""):
    """hosts: names the host of each process; those of one host share memory, and so do all if it is empty."""
    where, expected = session.folder(), whole(session, stage)
    with Job(session, count, plan(session, stage), *common(), "--save", where / "w", "--log", where / "log", "--dump-gradients",
                      where / "g", "--trace", where / "trace", "--poison", launcher=launcher,
             environment=lambda rank: {"SHEAF_HOST": hosts[rank]} if hosts else {}) as job:
        job.succeed()
        expect("loss" in job.processes[0].error_text(), "process 0 shows no progress")
        for process in job.processes[1:]:
            expect(not process.error_text(), f"another process than 0 says\n{process.error_text()}")
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    expect(digest(where / "g") == digest(expected.gradients), "other gradients")
    steps, events = read_log(where / "log")
    expect(losses(steps) == losses(expected.steps), "other losses")
    arenas = [e for e in events if e["event"] == "arena"]
    expect([e["rank"] for e in arenas] == list(range(RANKS)), f"arenas of {arenas}")
    expect(all(e["highest_touched_byte"] <= e["peak_bytes"] for e in arenas), f"more than the arena is touched: {arenas}")
    nodes = len(set(hosts)) or 1
    expect((events[0]["processes"], events[0]["nodes"]) == (count, nodes) and (events[0]["exchange_bytes"] > 0) == (nodes > 1),
           f"the log begins with {events[0]}")
    traces = [where / "trace"] + [where / f"trace.process-{p}" for p in range(1, count)]
    expect(all(t.exists() for t in traces), f"traces: {sorted(p.name for p in where.iterdir())}")


# Debian's launchers, which may be installed side by side, and their options.
LAUNCHERS = {"mpirun.openmpi": ["--oversubscribe"], "mpirun.mpich": []}


def mpirun(session, launcher, count, *arguments, options=()):
    """The command line of a job that a real launcher starts."""
    path = shutil.which(launcher)
    if not path:
        raise Skip(f"there is no {launcher}: Debian's packages openmpi-bin and mpich have them")
    root = ["--allow-run-as-root"] if launcher == "mpirun.openmpi" and os.geteuid() == 0 else []
    return [path, *root, *LAUNCHERS[launcher], *options, "-np", count, session.tools / "sheaf-run", plan(session), *arguments]


@contextlib.contextmanager
def started(session, launcher, count, *arguments, options=()):
    """A job under way: its launcher's process, and the file with what it and its processes say."""
    log = session.folder() / "output"
    command = list(map(str, mpirun(session, launcher, count, *arguments, options=options)))
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
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
    expect(done.err.count("step 0/") == 1, f"not one process shows progress:\n{done.err}")
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    steps, events = read_log(where / "log")
    expect(losses(steps) == losses(expected.steps), "other losses")
    expect(events[0]["processes"] == count, f"the log begins with {events[0]}")


def at_once(session, launcher):
    """Jobs that run on one host at the same time do not meet each other."""
    where, expected = session.folder(), whole(session)
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(started(session, launcher, 2, *common(), "--save", where / str(job))) for job in range(4)]
        for job, (process, log) in enumerate(jobs):
            expect(ended(session, process, log) == 0, f"job {job} fails:\n{log.read_text()}")
            expect(digest(where / str(job)) == digest(expected.weights), f"job {job} leaves other weights")


def mpirun_interrupted(session, launcher):
    """A SIGTERM to the launcher reaches the processes: they save their state, from which the run goes on. Open MPI sends
    SIGKILL after a second, or after the seconds that its option gives, and calls a job that was interrupted a failure."""
    where, openmpi = session.folder(), launcher == "mpirun.openmpi"
    options = ["--mca", "odls_base_sigkill_timeout", 4 * session.slowdown] if openmpi else []
    with started(session, launcher, 2, *common(100000), "--save-state", where / "state", "--log", where / "log",
                 options=options) as (process, log):
        begin = time.monotonic()
        while not running(where / "log")():
            expect(time.monotonic() - begin < SECONDS * session.slowdown, f"the job does not get going:\n{log.read_text()}")
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        code = ended(session, process, log)
    expect(code == (1 if openmpi else 0), f"exit {code}:\n{log.read_text()}")
    done = len(read_log(where / "log")[0])
    expect((where / "state" / f"step-{done:08}" / "manifest.json").exists(), f"no state is saved:\n{log.read_text()}")
    session.succeed("sheaf-run", plan(session), *common(3), "--resume", where / "state", "--save", where / "w")
    expected = train(session, MODEL, RANKS, STAGE, steps=done + 3, repeat=launcher)
    expect(digest(where / "w") == digest(expected.weights), "the run goes on with other bits")


def mpirun_fails(session, launcher):
    """An error of one rank ends the job with its words."""
    done = session.call(*mpirun(session, launcher, 2, *broken_labels(session)), timeout=SECONDS)
    expect(done.code == 1 and "rank 3: " in done.err and "row 23" in done.err, f"exit {done.code}:\n{done.err}")


def resumed(session, before, after):
    half, where, expected = STEPS // 2, session.folder(), whole(session)
    for count, options in ((before, ("--save-state", where / "state", "--save-every", 2)),
                           (after, ("--resume", where / "state", "--save", where / "w"))):
        arguments = [plan(session), *common(half), *options]
        if count == 1:
            session.succeed("sheaf-run", *arguments)
        else:
            with Job(session, count, *arguments) as job:
                job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "other weights than without the interruption")
    states = sorted(p.name for p in (where / "state").iterdir())
    expect(states == ["latest", "step-00000002", "step-00000004", "step-00000005"], f"the states are {states}")


def damaged_state(session):
    """Each process verifies some of the files; a damaged one is passed over by all of them."""
    where, expected = session.folder(), whole(session)
    session.succeed("sheaf-run", plan(session), *common(4), "--save-state", where / "state", "--save-every", 2)
    for rank in range(RANKS):
        path = where / "state" / "step-00000004" / f"rank-{rank:05}.safetensors"
        right = path.read_bytes()
        path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
        with Job(session, 2, plan(session), *common(STEPS - 2), "--resume", where / "state", "--save", where / "w") as job:
            job.succeed()
            expect("step-00000004 is not usable" in job.processes[0].error_text(), job.processes[0].error_text())
        expect(digest(where / "w") == digest(expected.weights), "other weights")
        path.write_bytes(right)


def running(log, steps=3):
    return lambda: log.exists() and log.read_text().count('"loss"') >= steps


def interrupted(session):
    """One process is asked to end: all end after the same step, with the state saved, from which the run goes on."""
    where = session.folder()
    log, state = where / "log", where / "state"
    with Job(session, 4, plan(session), *common(100000), "--save-state", state, "--log", log) as job:
        job.until(running(log))
        job.processes[2].popen.send_signal(signal.SIGTERM)
        job.succeed()
        expect("interrupted" in job.processes[0].error_text(), job.processes[0].error_text())
    steps, events = read_log(log)
    done = len(steps)
    expect([e["step"] for e in events if e["event"] == "interrupted"] == [done], f"{done} steps, {events}")
    expect((state / f"step-{done:08}" / "manifest.json").exists(), "no state is saved")
    expected = train(session, MODEL, RANKS, STAGE, steps=done + 3, repeat=1)
    with Job(session, 2, plan(session), *common(3), "--resume", state, "--save", where / "w") as job:
        job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "the run goes on with other bits")


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


def emulated(session):
    """The environment of a job on emulated GPUs, one for each process."""
    library = session.tools.parent / "lib" / "libsheaf_cuda_emulated.so"
    if not library.exists():
        raise Skip("there is no emulated CUDA device: it is built where CUDA's headers are")
    return {"SHEAF_CUDA_LIBRARY": library, "SHEAF_EMULATED_DEVICES": RANKS}


def fat_plan(session):
    return session.plan(MODEL.model, RANKS, STAGE, 8, (*MODEL.options, "--target", "cpu,cuda:sm_90"))


def gpus(session):
    """A GPU for each process, with NCCL between them, gives the bits of ranks that share one."""
    where, environment = session.folder(), emulated(session)
    arguments = [fat_plan(session), *common(4), "--device", "cuda"]
    session.succeed("sheaf-run", *arguments, "--save", where / "one", "--log", where / "one.log",
                    env={**os.environ, **{k: str(v) for k, v in environment.items()}})
    with Job(session, RANKS, *arguments, "--save", where / "four", "--log", where / "four.log", "--save-state", where / "state",
             environment=environment) as job:
        job.succeed()
    expect(digest(where / "one") == digest(where / "four"), "other weights")
    expect(losses(read_log(where / "one.log")[0]) == losses(read_log(where / "four.log")[0]), "other losses")
    session.succeed("sheaf-run", plan(session), *common(1), "--resume", where / "state")


def on_gpus(session, launcher, **more):
    """A short job on GPUs; `more` are variables of its processes, by rank if they are functions."""
    return Job(session, RANKS, fat_plan(session), *common(2), "--device", "cuda", launcher=launcher,
               environment=lambda rank: {**emulated(session), **{k: v(rank) if callable(v) else v for k, v in more.items()}})


def one_gpu_each(session, launcher):
    """A launcher that shows every process its own GPU only leaves one to each, whatever the process's number on its host."""
    with on_gpus(session, launcher, SHEAF_EMULATED_VISIBLE_DEVICES=lambda rank: RANKS - 1 - rank) as job:
        job.succeed()


def expect_all_refuse(job, *words):
    codes = job.wait()
    expect(codes == [1] * RANKS, f"exits {codes}")
    text = job.processes[0].error_text()
    for word in words:
        expect(word in text, f"`{word}` is not in\n{text}")


def gpu_unknown(session):
    """Where several GPUs are visible, no process takes the first one by default: the error names what launchers set."""
    for launcher, name in (("torchrun", "LOCAL_RANK"), ("srun", "SLURM_LOCALID"), ("mpirun", "OMPI_COMM_WORLD_LOCAL_RANK")):
        with on_gpus(session, launcher, **{name: ""}) as job:
            expect_all_refuse(job, "4 GPUs are visible", f"{name} is not set", "LOCAL_RANK (torchrun)", "SLURM_LOCALID (Slurm)",
                              "MPI_LOCALRANKID (MPICH)", "--gpus-per-task=1")
    with on_gpus(session, "torchrun", LOCAL_RANK="", SHEAF_EMULATED_VISIBLE_DEVICES=lambda rank: rank) as job:
        job.succeed()  # with one visible GPU there is nothing to choose


def gpu_of_two(session):
    """Two processes never share a GPU, unless NCCL_HOSTID says that they are on different hosts."""
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="1") as job:
        expect_all_refuse(job, "process 0 (", "process 1 (", "have the same GPU", "one process a GPU")
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="2") as job:
        expect_all_refuse(job, "of this host finds 2 GPUs", "one process a GPU")
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="1", NCCL_HOSTID=lambda rank: f"rank-{rank}") as job:
        job.succeed()


def gpu_killed(session):
    """The others say where they were: copy engines that gather cannot be aborted, and the process ends without its device."""
    for windows in (0, 1):
        outcome = lost(session, 2, signal.SIGKILL, ["ended without a message", "it was at"],
                       {**emulated(session), "SHEAF_NCCL_WINDOWS": windows}, fat_plan(session), "--device", "cuda")
    return outcome


def gpu_abandoned(session, windows):
    """A process whose GPU does not let go ends after some seconds, with its error; a SIGTERM ends it at once."""
    log = session.folder() / "log"
    with Job(session, RANKS, fat_plan(session), *common(100000), "--device", "cuda", "--log", log,
             environment={**emulated(session), "SHEAF_EMULATED_NCCL_ABORT": 600000,
                          "SHEAF_NCCL_WINDOWS": windows}) as job:
        job.until(running(log))
        job.processes[2].popen.send_signal(signal.SIGKILL)
        time.sleep(1)
        job.processes[1].popen.send_signal(signal.SIGTERM)
        expect(job.processes[1].popen.wait(timeout=2 * session.slowdown) == -signal.SIGTERM, "a SIGTERM does not end a process that is aborting")
        codes = job.wait(but=(1, 2), seconds=15)
        expect(codes == [1, 1], f"exits {codes}")
        for rank in (0, 3):
            errors = [line for line in job.processes[rank].error_text().splitlines() if "error" in line]
            expect(len(errors) == 1 and "process 2 (" in errors[0] and "has not let go of the GPU" in errors[0],
                   f"process {rank} says\n{job.processes[rank].error_text()}")
    messages = [e["message"] for e in read_log(log)[1] if e["event"] == "error"]
    expect(len(messages) == 1 and "process 2 (" in messages[0], f"the log says {messages}")


def gpu_other_nccl(session):
    """Variables by which NCCL chooses how messages travel are the same in all processes."""
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_REGISTER", "NCCL_LOCAL_REGISTER", "NCCL_P2P_LL_THRESHOLD"):
        with on_gpus(session, "torchrun", **{name: lambda rank: rank}) as job:
            expect_all_refuse(job, f"{name}=0", f"{name}=1")


def refused(session, words, *arguments, own):
    with Job(session, 2, *arguments, own=own) as job:
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            for word in words:
                expect(word in process.error_text(), f"`{word}` is not in\n{process.error_text()}")


def different_starts(session):
    one, other = plan(session), plan(session, 2)
    refused(session, ["process 0 (", "process 1 (", "a plan for 4 ranks"], *common(), own=[[one], [other]])
    refused(session, ["--steps 10", "--steps 11"], one, *common()[:-2], own=[["--steps", 10], ["--steps", 11]])
    refused(session, ["--lr 0.1"], one, *common(), own=[["--lr", 0.1], []])
    refused(session, ["--shuffle 3", "--shuffle not given"], one, *common(), own=[["--shuffle", 3], []])
    swapped = ["--data", common()[1].replace("input_ids=", "labels="), "--data", common()[3].replace("labels=", "input_ids=")]
    refused(session, ["--data input_ids"], one, *common()[4:], own=[common()[:4], swapped])
    weights = session.folder() / "w"
    session.succeed("sheaf-run", one, *common(1), "--save", weights)
    refused(session, ["--weights of", "--weights not given"], one, *common(), own=[["--weights", weights], []])
    trace = session.folder() / "trace.json"
    refused(session, ["--trace given", "--trace not given"], one, *common(), own=[["--trace", trace], []])
    with Job(session, 3, one, *common()) as job:
        expect(job.wait() == [1, 1, 1] and "start 1, 2 or 4" in job.processes[1].error_text(), job.processes[1].error_text())


def not_finite(session):
    """Every process notices at the same step, whatever is under way."""
    state = session.folder() / "state"
    with Job(session, 4, plan(session), *common(50), "--lr", "1e30", "--save-state", state) as job:
        expect(job.wait() == [1] * 4, "no error")
        steps = {re.search(r"step (\d+): the loss", p.error_text()).group(1) for p in job.processes}
        expect(len(steps) == 1, f"it is noticed at steps {steps}")
    expect(not state.exists(), "a state is saved")


def one_fails(session):
    """An error of one process is reported by all, in its words."""
    refused(session, ["no-such-file"], plan(session), *common(), own=[[], ["--weights", "no-such-file"]])


def one_rank_fails(session):
    with Job(session, 2, plan(session), *broken_labels(session)) as job:
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            expect("rank 3: " in process.error_text() and "row 23" in process.error_text(), process.error_text())
        expect("process 1 (" in job.processes[0].error_text(), job.processes[0].error_text())


def broken_labels(session):
    """Data with a label that its type does not hold, in a row of the last process's in the third step."""
    bad = session.folder() / "labels.npy"
    right = (MODELS / "gpt2-tiny.labels.npy").read_bytes().replace(b"<i8", b"<u8")
    at = 128 + 23 * 64 * 8  # the header, 23 rows of 64 labels
    bad.write_bytes(right[:at] + (2**63).to_bytes(8, "little") + right[at + 8:])
    return common()[:2] + ["--data", f"labels={bad}", *common()[4:]]


def missing(session):
    done = session.call("sheaf-run", plan(session), *common(), env={
        **os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777", "SHEAF_TIMEOUT": "1"})
    expect(done.code == 1 and "missing: 1" in done.err and "SHEAF_TIMEOUT" in done.err, done.err)


def wrong_environment(session):
    for name, value, words in (("RANK", "9", "from 0 to 1"), ("WORLD_SIZE", "x", "WORLD_SIZE is 'x'"),
                               ("SHEAF_RENDEZVOUS", "here", "host:port"), ("MASTER_PORT", "", "MASTER_PORT is not set")):
        environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29777", name: value}
        done = session.call("sheaf-run", plan(session), *common(), env={**os.environ, **environment})
        expect(done.code == 1 and words in done.err and name in done.err, done.err)
