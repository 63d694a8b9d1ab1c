"""The kit for machines with GPUs: what it would start on one GPU and on several, and a part of it on emulated ones."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile

from cases.cuda import library
from harness import ROOT, Case, Skip, expect
from training import CONFIGS, data_arguments, reference_run

TARGETS = "cpu,cuda:sm_90"
WINDOWS = "SHEAF_NCCL_WINDOWS"
SCRIPTS = (*(ROOT / "test" / "gpu" / name for name in ("run.py", "job_runs.py", "offload_runs.py", "weights.py")), ROOT / "test" / "bench" / "roofline.py")


def cases(session):
    yield Case("kit/one-gpu-starts", lambda: starts_on_one(session))
    for count in (2, 3, 8):
        yield Case(f"kit/{count}-gpus-start", lambda n=count: starts_on_several(session, n))
    yield Case("kit/messages", lambda: messages(session))
    yield Case("kit/one-gpu", lambda: runs(session, 1))
    yield Case("kit/offload", lambda: offloaded(session))
    yield Case("kit/two-gpus", lambda: runs(session, 2))


def packer():
    spec = importlib.util.spec_from_file_location("gpu_kit", ROOT / "test" / "gpu" / "kit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kit(session):
    """A kit of a few plans, packed and unpacked elsewhere, whose runtime is the build's."""
    def make():
        library(session)
        pack, folder, there = packer(), session.folder() / "gpu-kit", session.folder()
        for name in ("plans", "models"):
            (folder / name).mkdir(parents=True)
        for script in SCRIPTS:
            shutil.copy(script, folder)
        config = CONFIGS["gpt2-tiny"]
        small = pack.compile_plan(session.tools, folder, "gpt2-tiny-f32-2-zero3", config.model, "--batch", 8, "--ranks", 2, "--zero", 3,
                                  "--target", TARGETS, *config.options)
        training = [{"name": "gpt2-tiny-f32-2-zero3", "precision": "f32", "ranks": 2, "stage": 3, "plan": small, "steps": 8,
                     "data": data_arguments(config), "losses": reference_run(config)["loss"]}]
        native = [{**job, "steps": 8} for job in pack.native_jobs(session.tools, folder, TARGETS, (2,), [("mlp-wide", "f32", 3)])]
        offload = [{**job, "steps": 4} for job in pack.offload_jobs(session.tools, folder, TARGETS, ("gpt2-tiny-f32-1",), data_arguments(config))]
        (folder / "jobs.json").write_text(json.dumps({"training": training, "native": native, "offload": offload, "bench": {}}))
        pack.write_archive(folder, there / "kit.tar.xz", preset=0)
        shutil.rmtree(folder)
        with tarfile.open(there / "kit.tar.xz") as tar:
            tar.extractall(there)  # ours; Python 3.11.2 has no filters
        (there / "gpu-kit" / "runtime").mkdir()
        for name in ("bin", "lib"):
            (there / "gpu-kit" / "runtime" / name).symlink_to(session.tools.parent / name)
        return there / "gpu-kit"

    return session.once("kit", make)


def dry_run(session, gpus, jobs):
    """What `processes` starts on so many GPUs, if the kit has these jobs."""
    folder = session.folder()
    for script in SCRIPTS:
        shutil.copy(script, folder)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run([sys.executable, folder / "run.py", "--dry-run", "--gpus", str(gpus), "--out", folder / "out"],
                          capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)
    return json.loads(done.stdout)


def named_jobs():
    """The jobs of a whole kit, without their plans."""
    pack = packer()
    training = [{"name": f"gpt2-tiny-f32-{n}-zero3", "ranks": n, "plan": f"plans/{n}", "data": [], "losses": [], "precision": "f32"} for n in (2, 4, 8)]
    native = [{"name": f"native-{model}-{precision}-{n}-zero{stage}", "model": model, "ranks": n, "stage": stage, "plan": f"plans/{model}-{n}-{stage}",
               "data": [], "weights": [1], "precision": precision} for n in pack.NATIVE_RANKS for model, precision, stage in pack.NATIVE]
    return {"training": training, "native": native, "bench": {}}


def starts_on_one(session):
    """One GPU: ranks share it, and NCCL takes each for a host of its own; no large messages."""
    runs = dry_run(session, 1, named_jobs())
    expect([(run["plan"], len(run["processes"])) for run in runs] == [("plans/2", 2), ("plans/4", 4), ("plans/2", 2)], f"{runs}")
    for run in runs:
        expect([p["LOCAL_RANK"] for p in run["processes"]] == ["0"] * len(run["processes"]), f"{run}")
        expect(len({p["NCCL_HOSTID"] for p in run["processes"]}) == len(run["processes"]), f"{run}")


def starts_on_several(session, gpus):
    """A GPU and a number on the host for each rank, NCCL left to itself, with windows and without."""
    runs = dry_run(session, gpus, named_jobs())
    together = [run for run in runs if len(run["processes"]) > 1]
    for run in together:
        expect([p["LOCAL_RANK"] for p in run["processes"]] == [str(i) for i in range(len(run["processes"]))], f"{run}")
        expect(not any("NCCL_HOSTID" in p for p in run["processes"]), f"{run} puts ranks on hosts of their own")
    counts = {len(run["processes"]) for run in together}
    expect(counts == {2: {2}, 3: {2}, 8: {2, 4, 8}}[gpus], f"jobs of {counts} processes")
    for count in counts & {2, 8}:
        large = [run for run in together if len(run["processes"]) == count and "/mlp-wide" in run["plan"]]
        expect({run["plan"][-1] for run in large} == set("0123"), "not every stage has large messages")
        for ring in (False, True):
            settings = {(run["plan"], run["processes"][0].get(WINDOWS, "1")) for run in large if ("ring" in run["command"]) == ring}
            for plan in {plan for plan, _ in settings}:
                expect({windows for p, windows in settings if p == plan} == {"0", "1"}, f"{plan}: {settings}")
        expect(any("ring" in run["command"] for run in large), "nothing sums in NCCL's ring")
        # Ranks with a GPU each have the bits of ranks that share one.
        for run in large:
            same = [other for other in runs if other["same"] == run["same"]]
            expect("ring" in run["command"] or any(len(other["processes"]) == 1 for other in same), f"{run['name']} is compared with nothing")
        alone = [run for run in large if all("CUDA_VISIBLE_DEVICES" in p for p in run["processes"])]
        expect(alone and all([p["CUDA_VISIBLE_DEVICES"] for p in run["processes"]] == [str(i) for i in range(count)] for run in alone),
               "no process sees its own GPU only")
        expect({run["processes"][0].get(WINDOWS) for run in together if run["killed"]} == {None, "0"}, "no process is killed")


def messages(session):
    """What a rank sends each other at once is beyond NCCL's size for small messages, on 8 ranks, too."""
    if session.quick:
        raise Skip("instrumented tools would take long")
    library(session)
    pack, folder = packer(), session.folder()
    (folder / "plans").mkdir()
    (folder / "models").mkdir()
    jobs = list(pack.native_jobs(session.tools, folder, "cuda:sm_90", (8,)))
    expect(len(jobs) == len(pack.NATIVE), f"{len(jobs)} jobs")
    for job in jobs:
        expect(job["least_bucket_bytes"] >= 8 << 20, f"{job['name']}: a bucket of {job['least_bucket_bytes']} bytes")
        report = session.inspect(folder / job["plan"])
        sums = [c for c in report["communication"] if c["op"] != "all_gather" and c["bytes"] > 4096]
        expect(sums and min(c["bytes"] for c in sums) // 8 > 512 << 10, f"{job['name']}: {sums}")


def start(session, gpus, part):
    """A part of the script on so many emulated GPUs: what it printed, and its results."""
    if session.quick:
        raise Skip("instrumented devices would take long")
    folder, out = kit(session), session.folder()
    done = subprocess.run([sys.executable, folder / "run.py", "--only", part, "--out", out, "--device-library", library(session)],
                          capture_output=True, text=True, timeout=600 * session.slowdown, env={**os.environ, "SHEAF_EMULATED_DEVICES": str(gpus)})
    expect(done.returncode == 0, done.stdout + done.stderr)
    return done.stdout, json.loads((out / "results.json").read_text())[part]


def offloaded(session):
    """Plans with offload are compared with the one without, in graphs and one by one."""
    printed, found = start(session, 1, "offload")
    ways = {"all-host", "all-file", "mixed"}
    runs = found["gpt2-tiny-f32-1"]
    expect(set(runs) == {"without"} | ways | {f"{way}--no-graphs" for way in ways}, f"{sorted(runs)}\n{printed}")
    for name, run in runs.items():
        expect(run["device"]["graphs"] == ("off" if "--no-graphs" in name else "on"), f"{name}: {run}")
        expect(("pinned_bytes" in run["device"]) == (name != "without"), f"{name}: {run}")
        expect(("file_input_output" in run["device"]) == ("file" in name or "mixed" in name), f"{name}: {run}")


def runs(session, gpus):
    """Jobs of several processes."""
    printed, found = start(session, gpus, "processes")
    if gpus == 1:
        expect(set(found) == {"gpt2-tiny-2"} and "processes/killed" in printed, f"{sorted(found)}\n{printed}")
        return
    for name in ("windows", "no-windows", "own-gpu", "ring", "ring-no-windows", "offload-host", "offload-file"):
        facts = found[f"native-mlp-wide-f32-2-zero3-{name}"]
        expect(facts["windows"] == ("off" if name.endswith("no-windows") else "on"), f"{name}: {facts}")
        expect(("pinned_bytes" in facts) == ("offload" in name), f"{name}: {facts}")
    expect("processes/killed-no-windows" in printed, printed)
