#!/usr/bin/env python3
"""Runs all `gpu` tests and benchmarks from a kit (test/gpu/kit.py), in some ten minutes; the figures go to results.json,
and card.json is the profile of the card: `test/bench/predict.py --kit FOLDER` says how near the simulator is with it.

    python3 run.py [--only tests,training,sanitizer,processes,offload,predict,bench,large] [--out FOLDER] [--device-library FILE]
                   [--gpus N] [--dry-run]

`large` is GPT-2 1.5B against PyTorch and is not among the parts that run if none are named.

`processes` takes what there is. On one GPU each rank is a process, and NCCL takes each for a host of its own. On several, ranks have a
GPU each, as in training: with windows and without, in the tree's order and in NCCL's ring, with buckets of 8 MiB and more; their bits are
compared with those of ranks that share one GPU. --gpus N uses N of them. --dry-run prints what `processes` would start, as JSON.

--device-library names another device than the kit's CUDA device, such as its emulated double, to try this script without
a GPU.
"""
import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import roofline
from job_runs import KIT, LOSS_WITHIN, off_by, print_runs, processes  # noqa: F401, a part of PARTS
from offload_runs import compare_offload
from weights import write_tokens, write_weights

PARTS = ("tests", "training", "sanitizer", "processes", "offload", "predict", "bench")  # and "large", which takes longer
REPEATS = 10
PREDICTED_STEPS = 30  # after five that warm up


OLDEST_DRIVER_OF_CUDA_13 = 580


def cuda_build(driver):
    """The kit's build for a driver, "cuda13" or "cuda12", by the driver's version as nvidia-smi writes it."""
    major = int(driver.split(".")[0]) if driver.split(".")[0].isdigit() else OLDEST_DRIVER_OF_CUDA_13
    if major >= OLDEST_DRIVER_OF_CUDA_13:
        return "cuda13"
    if not (KIT / "tests" / "cuda12").exists():
        sys.exit(f"run.py: the driver is {driver}; CUDA 13 needs {OLDEST_DRIVER_OF_CUDA_13} or later. Build the kit where CUDA "
                 "12.8 is installed, too (make kit CUDA12=/usr/local/cuda-12.8), or update the driver")
    return "cuda12"


def driver_version():
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def library_folders(build):
    """Where PyPI's packages have the libraries that the loader does not find by itself: only PyTorch installs others."""
    spec, folders = importlib.util.find_spec("nvidia"), []
    for name in (f"libcublasLt.so.{build[-2:]}", "libnccl.so.2"):
        try:
            ctypes.CDLL(name)
        except OSError:
            for package in spec.submodule_search_locations if spec else ():
                folders += [str(found.parent) for found in sorted(pathlib.Path(package).rglob(name))[:1]]
    return folders


def visible_gpus(library):
    """How the GPUs that this process sees are called in CUDA_VISIBLE_DEVICES."""
    if library:
        return [str(i) for i in range(int(os.environ.get("SHEAF_EMULATED_DEVICES", "1")))]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return ["0"]
    return done.stdout.split() if done.returncode == 0 and done.stdout.split() else ["0"]


class Runner:
    def __init__(self, out, library, gpus):
        self.out, self.results, self.failed = out, {}, []
        self.gpus = gpus
        # What CUDA calls the variable that says which GPUs a process sees; the emulated one has its own.
        self.visible = "SHEAF_EMULATED_VISIBLE_DEVICES" if library else "CUDA_VISIBLE_DEVICES"
        self.build = cuda_build("" if library else driver_version())
        if self.build == "cuda12":
            library = KIT / "runtime" / "lib" / "cuda12" / "libsheaf_cuda.so"
        path = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p] + library_folders(self.build)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(path), "SHEAF_LIBRARY_PATH": str(KIT / "runtime" / "lib")}
        self.environment["SHEAF_DEVICE_LIBRARY"] = str(library or KIT / "runtime" / "lib" / "libsheaf_cuda.so")
        if library:
            self.environment["SHEAF_CUDA_LIBRARY"] = str(library)

    def check(self, name, good, text=""):
        if not good:
            self.failed.append(name)
        print(f"{'passed' if good else 'FAILED':>8}  {name}  {text}", flush=True)

    def call(self, command, timeout=300, **environment):
        try:
            done = subprocess.run(list(map(str, command)), cwd=KIT, env={**self.environment, **environment}, text=True,
                                  capture_output=True, timeout=timeout)
            return done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as e:
            return -9, f"no end after {timeout} s: {e.cmd}"
        except OSError as e:
            return -1, str(e)

    def train(self, job, steps, name, *options, **environment):
        log, weights = self.out / f"{name}.jsonl", self.out / f"{name}.safetensors"
        code, text = self.call([KIT / "runtime" / "bin" / "sheaf-run", KIT / job["plan"], "--device", "cuda", *job["data"],
                                "--steps", steps, "--log", log, "--save", weights, *options],
                               **environment)
        if code:
            return None, None, text.strip()[-400:]
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        weights.unlink()
        return [e["loss"] for e in lines if "loss" in e], digest, ""


def device(runner):
    query = "name,driver_version,memory.total,compute_cap"
    code, text = runner.call(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
    runner.results["device"] = text.strip() if code == 0 else "no nvidia-smi"
    runner.results["date"] = time.strftime("%Y-%m-%d")
    print(runner.results["device"], runner.results["date"])


def tests(runner, jobs):
    for test in sorted((KIT / "tests" / runner.build).iterdir()):
        code, text = runner.call([test, "--gtest_brief=1"])
        last = [line for line in text.splitlines() if "PASSED" in line or "FAILED" in line or "SKIPPED" in line]
        runner.check(f"tests/{test.name}", code == 0, " ".join(last[-2:]) if code == 0 else text[-1500:])


def training(runner, jobs):
    """PyTorch's losses at every stage and number of virtual ranks; the same bits at every stage and in ten runs."""
    digests = {}
    for job in jobs["training"]:
        steps = 30 if job["precision"] == "bf16" else 100
        losses, digest, why = runner.train(job, steps, job["name"])
        worst = off_by(losses, job["losses"])
        runner.check(f"training/{job['name']}", worst <= LOSS_WITHIN[job["precision"]], why or f"loss off by {worst:.1e}")
        digests.setdefault((job["config"], job["precision"], job["ranks"]), set()).add(digest)
    for key, found in digests.items():
        runner.check(f"bits/{'-'.join(map(str, key))}", len(found) == 1 and None not in found, "same at every stage")
    job = next(j for j in jobs["training"] if j["config"] == "gpt2-tiny" and j["ranks"] == 4 and j["stage"] == 3)
    found = {runner.train(job, 20, "repeat")[1] for _ in range(REPEATS)}
    runner.check("bits/ten-runs", len(found) == 1 and None not in found)


def sanitizer(runner, jobs):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(tool).exists():
        print(" skipped  sanitizer: there is no compute-sanitizer")
        return
    job = next(j for j in jobs["training"] if j["name"] == "gpt2-tiny-bf16-4-zero3")
    for check in ("memcheck", "racecheck", "synccheck"):
        code, text = runner.call([tool, "--tool", check, "--error-exitcode", 9, KIT / "runtime" / "bin" / "sheaf-run",
                                  KIT / job["plan"], "--device", "cuda", *job["data"], "--steps", 1],
                                 timeout=150)
        runner.check(f"sanitizer/{check}", code == 0, "" if code == 0 else text[-800:])


class MemoryUsed(threading.Thread):
    """The most memory of the GPU in use since the start, beyond what was in use then."""

    def __init__(self):
        super().__init__(daemon=True)
        self.first, self.most, self.ended = self.used(), 0, threading.Event()
        self.start()

    @staticmethod
    def used():
        try:
            done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
                                  capture_output=True, text=True)
            return int(done.stdout) << 20
        except (OSError, ValueError):
            return 0

    def run(self):
        while not self.ended.wait(0.3):
            self.most = max(self.most, self.used() - self.first)

    def end(self):
        self.ended.set()
        self.join()
        return self.most


def gpt2_data(runner, job):
    weights, text = runner.out / f"{job['model']}.safetensors", runner.out / f"{job['model']}.u16"
    if not text.exists():
        write_weights(weights, job["weights"])
        write_tokens(text, job["rows"] * 60, job["tokens"], job["vocabulary"])
    return ["--weights", weights, "--data", f"input_ids,labels={text}"]


def offload(runner, jobs):
    """Host memory and files: the same bits as without, and the time of a step with each."""
    for job in jobs["offload"]:
        whole = jobs["bench"].get(job["model"])
        compare_offload(runner, job, gpt2_data(runner, whole) if whole else job["data"])


def predict(runner, jobs):
    """Measures the card, and the steps that are to be predicted, with the products that the library chooses by itself; the
    simulator is elsewhere: what it needs is card.json, steps.json and plans/ in the output folder."""
    code, text = runner.call([KIT / "runtime" / "bin" / "sheaf-run", KIT / jobs["probe"], "--device", "cuda", "--measure",
                              runner.out / "card.json"])
    runner.check("predict/measure", code == 0, "" if code == 0 else text[-800:])
    if code:
        return
    (runner.out / "plans").mkdir(exist_ok=True)
    gpt2 = jobs["bench"]["gpt2-124m"]
    chosen = [(gpt2, "gpt2-124m-bf16", gpt2_data(runner, gpt2))]
    chosen += [(job, job["name"], job["data"]) for job in jobs["training"]
               if job["ranks"] == 1 and job["stage"] == 0 and job["config"] != "mlp-adamw"]
    steps = []
    for job, name, data in chosen:
        log = runner.out / f"predict-{name}.jsonl"
        code, text = runner.call([KIT / "runtime" / "bin" / "sheaf-run", KIT / job["plan"], "--device", "cuda", *data, "--steps",
                                  PREDICTED_STEPS + 5, "--log", log])
        runner.check(f"predict/{name}", code == 0, "" if code == 0 else text[-800:])
        if code:
            continue
        seconds = [e["seconds"] for e in map(json.loads, log.read_text().splitlines()) if "loss" in e][5:]
        shutil.copy(KIT / job["plan"], runner.out / "plans")
        steps.append({"name": name, "plan": f"plans/{pathlib.Path(job['plan']).name}", "step_seconds": statistics.median(seconds),
                      "fastest_seconds": min(seconds)})
    (runner.out / "steps.json").write_text(json.dumps(steps, indent=1))
    runner.results["steps"] = steps


def bench(runner, jobs):
    compare(runner, jobs["bench"]["gpt2-124m"], steps=20, pairs=5)


def large(runner, jobs):
    compare(runner, jobs["bench"]["gpt2-1.5b"], steps=10, pairs=2)


def compare(runner, job, steps, pairs):
    """A model in bf16 against PyTorch's torch.compile, interleaved: tokens a second, MFU, peak memory; then where the time of
    a step goes."""
    name, data = job["model"], gpt2_data(runner, job)
    tuned, tokens = runner.out / f"{name}.tuned.txt", job["rows"] * job["tokens"]

    def run(steps, *options):
        return runner.call([KIT / "runtime" / "bin" / "sheaf-run", KIT / job["plan"], "--device", "cuda", *data, "--steps", steps,
                            "--tuned", tuned, *options])

    def ours(index):
        log, memory = runner.out / f"{name}-{index}.jsonl", MemoryUsed()
        code, said = run(steps + 5, "--log", log)
        device_bytes = memory.end()
        if code:
            return None, said[-800:]
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        seconds = [e["seconds"] for e in entries if "loss" in e][5:]
        return statistics.median(seconds), device_bytes

    baseline = subprocess.Popen([sys.executable, KIT / "pytorch_baseline.py", name, "compile", str(job["rows"]), "0",
                             "--device", "cuda", "--precision", "bf16"],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def theirs():
        try:
            baseline.stdin.write(f"{steps}\n")
            baseline.stdin.flush()
            line = baseline.stdout.readline()
        except BrokenPipeError:
            return None
        return json.loads(line) if line else None

    warm, measured = theirs(), []
    for index in range(pairs):
        mine, memory = ours(index)
        other = theirs() if warm else None
        if mine is None:
            runner.check(f"bench/{name}", False, memory)
            break
        measured.append((mine, statistics.median(other["seconds"]) if other else None, memory, other and other["peak_bytes"]))
    if warm:
        baseline.stdin.close()
    baseline.wait()
    if not measured:
        return
    mine = statistics.median(m[0] for m in measured)
    # Of forward and backward: 6 flops a parameter and token, and attention's products (causal: half of them).
    flops = tokens * (6 * job["parameters"] + 6 * job["layers"] * job["width"] * job["tokens"])
    limits = roofline.gpu_named(runner.results["device"])
    figures = {"tokens_per_second": tokens / mine, "step_seconds": mine, "device_bytes": measured[-1][2],
               "mfu": flops / mine / limits["bf16"] if limits else None}
    if measured[0][1]:
        other = statistics.median(m[1] for m in measured if m[1])
        figures |= {"pytorch_tokens_per_second": tokens / other, "speed_ratio": other / mine, "pytorch_bytes": measured[-1][3]}
    runner.results[name] = figures
    runner.check(f"bench/{name}", True, json.dumps(figures))
    trace = runner.out / f"{name}.trace.json"
    code, said = run(12, "--trace", trace)
    if code:
        return runner.check(f"bench/{name}/trace", False, said[-800:])
    rows = roofline.table(KIT / job["predicted"], trace, limits or roofline.GPUS["H100"])
    runner.results[name]["parts"] = rows
    roofline.print_table(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--device-library", type=pathlib.Path)
    parser.add_argument("--gpus", type=int, help="use so many of the GPUs that this process sees")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    out = (args.out or pathlib.Path(tempfile.mkdtemp(prefix="sheaf-gpu-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    library = args.device_library and args.device_library.resolve()
    gpus = visible_gpus(library)
    if args.gpus is not None and args.dry_run:
        gpus = [str(i) for i in range(args.gpus)]
    elif args.gpus is not None and not 0 < args.gpus <= len(gpus):
        parser.error(f"--gpus {args.gpus}: there are {len(gpus)}")
    runner, jobs = Runner(out, library, gpus[:args.gpus]), json.loads((KIT / "jobs.json").read_text())
    if args.dry_run:
        print_runs(runner, jobs)
        return 0
    device(runner)
    for part in args.only.split(","):
        begin = time.monotonic()
        globals()[part](runner, jobs)
        runner.results.setdefault("seconds", {})[part] = time.monotonic() - begin
    runner.results["failed"] = runner.failed
    (out / "results.json").write_text(json.dumps(runner.results, indent=1))
    print(f"{len(runner.failed)} failed; the figures are in {out / 'results.json'}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
