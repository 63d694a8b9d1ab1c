"""Jobs of several processes with a GPU each, on the emulated CUDA device: which GPU is whose, what must be the same in all
processes, and how a job ends when one is lost."""
import os
import signal
import time

from cases.cuda import library
from formats import read_log
from harness import Case, digest, expect
from jobs import MODEL, RANKS, STAGE, Job, common, losses, lost, plan, running


def cases(session):
    yield Case("gpu-processes/bits", lambda: same_bits(session))
    for nccl in ("2.25", "2.28"):
        yield Case(f"gpu-processes/nodes-{nccl}", lambda v=nccl: nodes(session, v))
    for launcher in ("torchrun", "srun"):
        yield Case(f"gpu-processes/one-gpu-each-by-{launcher}", lambda v=launcher: one_gpu_each(session, v))
    yield Case("gpu-processes/unknown", lambda: unknown(session))
    yield Case("gpu-processes/one-gpu-for-two", lambda: one_gpu_for_two(session))
    yield Case("gpu-processes/killed", lambda: killed(session))
    yield Case("gpu-processes/abandoned", lambda: abandoned(session, 1))
    yield Case("gpu-processes/abandoned-kernels", lambda: abandoned(session, 0))
    yield Case("gpu-processes/other-nccl", lambda: other_nccl(session))


def emulated(session):
    """The environment of a job on emulated GPUs, one for each process, which ends a process that opens another one's."""
    return {"SHEAF_CUDA_LIBRARY": library(session), "SHEAF_EMULATED_DEVICES": RANKS, "SHEAF_EMULATED_CONTEXTS": 1}


def fat_plan(session):
    return session.plan(MODEL.model, RANKS, STAGE, 8, (*MODEL.options, "--target", "cpu,cuda:sm_90"))


def same_bits(session):
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
    session.succeed("sheaf-run", plan(session), *common(5), "--resume", where / "state")


def nodes(session, nccl):
    """Hops between nodes and within them are on two streams. NCCL orders them, or events do before NCCL 2.26."""
    plan_of_nodes = session.plan(MODEL.model, RANKS, STAGE, 8, (*MODEL.options, "--target", "cpu,cuda:sm_90", "--ranks-per-node", 2))
    where = session.folder()
    arguments = [plan_of_nodes, *common(6), "--device", "cuda"]
    session.succeed("sheaf-run", *arguments, "--save", where / "one", env={**os.environ, **{k: str(v) for k, v in emulated(session).items()}})
    for graphs in ((), ("--no-graphs",)):
        with Job(session, RANKS, *arguments, *graphs, "--save", where / "four", "--log", where / "log",
                 environment={**emulated(session), "SHEAF_EMULATED_NCCL": nccl}) as job:
            job.succeed()
        expect(digest(where / "one") == digest(where / "four"), f"other weights {graphs}")
        device = next(e for e in read_log(where / "log")[1] if e["event"] == "device")
        expect(device["order_of_collectives"] == ("events" if nccl == "2.25" else "nccl"), f"the log says {device}")
        expect(not any("nothing orders" in process.error_text() for process in job.processes), "a collective has no order")


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


def unknown(session):
    """Where several GPUs are visible, no process takes the first one by default: the error names what launchers set."""
    for launcher, name in (("torchrun", "LOCAL_RANK"), ("srun", "SLURM_LOCALID"), ("mpirun", "OMPI_COMM_WORLD_LOCAL_RANK")):
        with on_gpus(session, launcher, **{name: ""}) as job:
            expect_all_refuse(job, "4 GPUs are visible", f"{name} is not set", "LOCAL_RANK (torchrun)", "SLURM_LOCALID (Slurm)",
                              "MPI_LOCALRANKID (MPICH)", "--gpus-per-task=1")
    with on_gpus(session, "torchrun", LOCAL_RANK="", SHEAF_EMULATED_VISIBLE_DEVICES=lambda rank: rank) as job:
        job.succeed()  # with one visible GPU there is nothing to choose


def one_gpu_for_two(session):
    """Two processes never share a GPU, unless NCCL_HOSTID says that they are on different hosts."""
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="1") as job:
        expect_all_refuse(job, "process 0 (", "process 1 (", "have the same GPU", "one process a GPU")
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="2") as job:
        expect_all_refuse(job, "of this host finds 2 GPUs", "one process a GPU")
    with on_gpus(session, "torchrun", SHEAF_EMULATED_DEVICES="1", NCCL_HOSTID=lambda rank: f"rank-{rank}") as job:
        job.succeed()


def killed(session):
    """The others say where they were: copy engines that gather cannot be aborted, and the process ends without its device."""
    for windows in (0, 1):
        outcome = lost(session, 2, signal.SIGKILL, ["ended without a message", "it was at"],
                       {**emulated(session), "SHEAF_NCCL_WINDOWS": windows}, fat_plan(session), "--device", "cuda")
    return outcome


def abandoned(session, windows):
    """A process whose GPU does not let go ends after some seconds, with its error; a SIGTERM ends it at once."""
    log = session.folder() / "log"
    with Job(session, RANKS, fat_plan(session), *common(100000), "--device", "cuda", "--log", log,
             environment={**emulated(session), "SHEAF_EMULATED_NCCL_ABORT": 600000,
                          "SHEAF_NCCL_WINDOWS": windows}) as job:
        job.until(running(log))
        job.processes[2].popen.send_signal(signal.SIGKILL)
        time.sleep(1)
        job.processes[1].popen.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        while job.processes[1].popen.poll() is None:
            expect(time.monotonic() - asked < 2 * session.slowdown, "a SIGTERM does not end a process that is aborting")
            time.sleep(0.02)
        expect(job.processes[1].popen.returncode == -signal.SIGTERM, f"after a SIGTERM, exit {job.processes[1].popen.returncode}")
        codes = job.wait(but=(1, 2), seconds=15)
        expect(codes == [1, 1], f"exits {codes}")
        for rank in (0, 3):
            errors = [line for line in job.processes[rank].error_text().splitlines() if "error" in line]
            expect(len(errors) == 1 and "process 2 (" in errors[0] and "has not let go of the GPU" in errors[0],
                   f"process {rank} says\n{job.processes[rank].error_text()}")
    messages = [e["message"] for e in read_log(log)[1] if e["event"] == "error"]
    expect(len(messages) == 1 and "process 2 (" in messages[0], f"the log says {messages}")


def other_nccl(session):
    """Variables by which NCCL chooses how messages travel are the same in all processes."""
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_REGISTER", "NCCL_LOCAL_REGISTER", "NCCL_P2P_LL_THRESHOLD", "NCCL_CTA_POLICY",
                 "NCCL_SYM_CE_THRESHOLD", "NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_LAUNCH_ORDER_IMPLICIT",
                 "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_GRAPH_STREAM_ORDERING"):
        with on_gpus(session, "torchrun", **{name: lambda rank: rank}) as job:
            expect_all_refuse(job, f"{name}=0", f"{name}=1")
