"""Jobs of several processes on the GPUs of a machine: what is started, with which variables, and what must come out."""
import dataclasses
import hashlib
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import time

from weights import write_uniform

KIT = pathlib.Path(__file__).resolve().parent
LOSS_WITHIN = {"f32": 2e-5, "bf16": 3e-3}
STEPS = 30
PYTORCH = "PyTorch"


def off_by(losses, expected):
    return max(abs(a - b) for a, b in zip(losses, expected)) if losses else float("inf")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@dataclasses.dataclass
class Run:
    """A job: one process for each entry of `variables`, with what it has in its environment besides the others'. losses: whose they
    must be near to, a run's name or PyTorch's. same: runs with the same name for their bits must have the same bits."""
    name: str
    job: dict
    variables: list
    options: tuple = ()
    losses: str = ""
    same: str = ""
    killed: bool = False


def one_gpu(count):
    """All on one GPU, each a host of its own to NCCL."""
    return [{"LOCAL_RANK": "0", "NCCL_HOSTID": f"rank-{rank}"} for rank in range(count)]


def a_gpu_each(count, **all_have):
    return [{"LOCAL_RANK": str(rank), **all_have} for rank in range(count)]


def own_gpu_only(runner, count):
    """As srun --gpus-per-task=1 does it."""
    return [{"LOCAL_RANK": str(rank), runner.visible: runner.gpus[rank]} for rank in range(count)]


def folder_in(runner, name):
    """An empty folder: files that outlive a run are a state that another one does not overwrite."""
    folder = runner.out / f"{name}.files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def process_runs(runner, jobs):
    """What `processes` starts: on one GPU small models whose ranks pass for hosts, on several large messages, a GPU a rank."""
    small = {job["ranks"]: job for job in jobs["training"] if job["name"] in ("gpt2-tiny-f32-2-zero3", "gpt2-tiny-f32-4-zero3")}
    if len(runner.gpus) == 1:
        for count, job in small.items():
            yield Run(f"gpt2-tiny-{count}", job, one_gpu(count), losses=PYTORCH)
        yield Run("killed", small[2], one_gpu(2), killed=True)
        return
    native = [j for j in jobs["native"] if j["ranks"] <= len(runner.gpus)]
    most = max(j["ranks"] for j in native)
    for job in native:
        if job["ranks"] not in (2, most):
            continue
        name, count = job["name"], job["ranks"]
        yield Run(f"{name}-sharing", job, [{}], same=name)
        yield Run(f"{name}-windows", job, a_gpu_each(count), same=name)
        yield Run(f"{name}-no-windows", job, a_gpu_each(count, SHEAF_NCCL_WINDOWS="0"), same=name)
        for space, plan in job.get("offloaded", {}).items():
            files = ("--offload-dir", folder_in(runner, f"{name}-{space}")) if space == "file" else ()
            yield Run(f"{name}-offload-{space}", {**job, "plan": plan}, a_gpu_each(count), options=files, same=name)
        if job["stage"] == 3:
            yield Run(f"{name}-own-gpu", job, own_gpu_only(runner, count), same=name)
        if job["stage"] in (0, 3):
            for repeated in ("", "-again"):
                yield Run(f"{name}-ring{repeated}", job, a_gpu_each(count), options=("--reduce-order", "ring"),
                          losses=f"{name}-sharing", same=f"{name}-ring")
            yield Run(f"{name}-ring-no-windows", job, a_gpu_each(count, SHEAF_NCCL_WINDOWS="0"),
                      options=("--reduce-order", "ring"), losses=f"{name}-sharing", same=f"{name}-ring")
    for count, job in small.items():
        if count <= len(runner.gpus):
            yield Run(f"gpt2-tiny-{count}", job, a_gpu_each(count), losses=PYTORCH)
    last = next(j for j in reversed(native) if j["ranks"] == most and j["stage"] == 3)
    yield Run("killed", last, a_gpu_each(most), killed=True)
    yield Run("killed-no-windows", last, a_gpu_each(most, SHEAF_NCCL_WINDOWS="0"), killed=True)


def command_of(runner, run):
    weights = ["--weights", runner.out / f"{run.job['model']}.safetensors"] if run.job.get("weights") else []
    steps = 1_000_000 if run.killed else run.job.get("steps", STEPS)
    kept = [] if run.killed else ["--save", runner.out / f"{run.name}.safetensors"]
    words = (KIT / "runtime" / "bin" / "sheaf-run", KIT / run.job["plan"], "--device", "cuda", *run.job["data"], *weights, "--steps", steps,
             "--log", runner.out / f"{run.name}.jsonl", *kept, *run.options)
    return [str(word) for word in words]


def start(runner, run, command=None):
    """The processes of a job, with what torchrun would give them; a single one has no launcher."""
    count, started = len(run.variables), []
    torchrun = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if count > 1 else {}
    for rank, variables in enumerate(run.variables):
        environment = {**runner.environment, **torchrun, **({"RANK": str(rank)} if count > 1 else {}), **variables}
        started.append(subprocess.Popen(command or command_of(runner, run), cwd=KIT, env=environment, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True))
    return started


def ended(started, timeout):
    """(error text, exit code) of each; what has not ended in time, such as a job that hangs, is killed."""
    deadline, results = time.monotonic() + timeout, []
    for process in started:
        try:
            text = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))[1]
            results.append((text, process.returncode))
        except subprocess.TimeoutExpired:
            for other in started:
                other.kill()
            results.append((f"no end after {timeout} s; {process.communicate()[1]}", -9))
    return results


def train_processes(runner, run):
    """Losses, digest of the weights, event `device`, and why not."""
    log, saved = runner.out / f"{run.name}.jsonl", runner.out / f"{run.name}.safetensors"
    results = ended(start(runner, run), timeout=240)
    why = next((text.strip()[-400:] for text, code in results if code), "")
    if why:
        return None, None, {}, why
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    saved.unlink()
    seconds = [e["seconds"] for e in lines if "loss" in e][5:]
    facts = next((e for e in lines if e.get("event") == "device"), {})
    facts = {key: facts[key] for key in ("nccl", "windows", "copy_engine_gathers", "graphs", "pinned_bytes") if key in facts}
    return [e["loss"] for e in lines if "loss" in e], digest, {**facts, "step_seconds": statistics.median(seconds)}, ""


def kill_one(runner, run):
    """All other processes end by themselves, with an error."""
    log = runner.out / f"{run.name}.jsonl"
    log.unlink(missing_ok=True)
    started = start(runner, run)
    begin = time.monotonic()
    going = False
    while not going and time.monotonic() - begin < 120 and all(p.poll() is None for p in started):
        time.sleep(0.1)
        going = log.exists() and log.read_text().count('"loss"') >= 5
    started[-1].kill()
    begin = time.monotonic()
    others = ended(started[:-1], timeout=60)
    started[-1].communicate()
    runner.check(f"processes/{run.name}", going and all(code == 1 and "error" in text for text, code in others),
                 f"{'' if going else 'the job did not get going; '}the others ended after {time.monotonic() - begin:.1f} s: {others[0][0].strip()[-200:]}")


def processes(runner, jobs):
    losses, digests = {}, {}
    for run in process_runs(runner, jobs):
        weights = runner.out / f"{run.job['model']}.safetensors" if run.job.get("weights") else None
        if weights and not weights.exists():
            write_uniform(weights, run.job["weights"])
        if run.killed:
            kill_one(runner, run)
            continue
        losses[run.name], digest, facts, why = train_processes(runner, run)
        first = digests.setdefault(run.same, (run.name, digest)) if run.same else (run.name, digest)
        good = not why
        if good and run.losses:
            worst = off_by(losses[run.name], run.job["losses"] if run.losses == PYTORCH else losses.get(run.losses))
            good, why = worst <= LOSS_WITHIN[run.job["precision"]], f"losses of {run.losses}: off by {worst:.1e}"
        if good and first[1] != digest:
            good, why = False, f"other bits than {first[0]}"
        runner.results.setdefault("processes", {})[run.name] = facts
        runner.check(f"processes/{run.name}", good, f"{why} {json.dumps(facts)}")
    if len(runner.gpus) > 1 and "probe" in jobs:
        measure_together(runner, jobs)


def measure_together(runner, jobs):
    """The profile of all GPUs of the job, links and all: cards.json."""
    count = len(runner.gpus)
    job = {"plan": jobs["probe"], "data": []}
    run = Run("cards", job, a_gpu_each(count))
    command = [KIT / "runtime" / "bin" / "sheaf-run", KIT / jobs["probe"], "--device", "cuda", "--measure", runner.out / "cards.json"]
    results = ended(start(runner, run, list(map(str, command))), timeout=400)
    why = next((text.strip()[-400:] for text, code in results if code), "")
    runner.check("processes/cards", not why, why)


def print_runs(runner, jobs):
    print(json.dumps([{"name": run.name, "plan": run.job["plan"], "same": run.same, "losses": run.losses, "killed": run.killed,
                       "command": command_of(runner, run), "processes": run.variables} for run in process_runs(runner, jobs)], indent=1))
