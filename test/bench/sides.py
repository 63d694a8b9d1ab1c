"""The two sides of a benchmark: our runs and the baselines', how each is started, timed and its memory sampled."""
import array
import ctypes.util
import dataclasses
import json
import math
import os
import pathlib
import platform
import random as random_module
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "test" / "models"))

import unpack  # noqa: E402

MODELS = {"gpt2-tiny": (64, 1), "gpt2-mini": (256, 1), "gpt2-124m": (1024, 2)}  # tokens a row, bytes a token in the data file
IMAGES = {"resnet-18": ((3, 64, 64), 1000), "vit": ((3, 64, 64), 1000)}  # of a row, classes
OPTIMIZER = "adamw:lr=3e-4,beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.01"
# Tried for a baseline at its best: name, libraries to preload, environment. glibc as PyTorch's own guide tunes jemalloc:
# freed memory is kept, so that the kernel need not clear its pages again; "huge pages" asks for them as our arenas do.
KEEP = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_TOP_PAD_": "268435456"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
ALLOCATORS = {
    "glibc": ((), KEEP),
    "glibc, huge pages": ((), {**KEEP, **HUGE}),
    "tcmalloc": (("tcmalloc_minimal",), {}),
    "jemalloc": (("jemalloc",), {"MALLOC_CONF": "oversize_threshold:1,background_thread:true,metadata_thp:auto,"
                                                "dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000"}),
}
MEMORY_STEPS, MEMORY_SECONDS = 4, 1.0  # at least both, so that short steps are seen, too
WARM = 2  # steps at the start of every turn that do not count: the other side's turn has taken the caches


@dataclasses.dataclass(frozen=True)
class Setting:
    """Our side: a model on some ranks. batch: rows of all ranks together; threads: of one rank; processes: the ranks' own, or
    one that has them all as threads."""
    model: str
    ranks: int
    zero: int
    batch: int
    threads: int
    precision: str = "f32"
    processes: int = 1
    options: tuple = ()  # more of `sheaf compile`

    def __str__(self):
        ranks = f"1 rank, {self.threads} threads" if self.ranks == 1 else f"{self.ranks} ranks, ZeRO-{self.zero}"
        processes = [f"{self.processes} processes"] if self.processes > 1 else []
        options = [f"{name[2:]} {value}" for name, value in zip(self.options[::2], self.options[1::2])]
        row = " x ".join(map(str, IMAGES[self.model][0])) if self.model in IMAGES else f"{MODELS[self.model][0]:,}"
        return ", ".join([f"{self.model}, {self.batch} x {row}, {self.precision}", ranks, *processes, *options])

    @property
    def tokens(self):
        """Of a step; images count as one."""
        return self.batch if self.model in IMAGES else self.batch * MODELS[self.model][0]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A way of pytorch_baseline.py on some ranks, with an allocator of ALLOCATORS, or as shipped if that is empty."""
    model: str
    way: str
    ranks: int
    batch: int
    threads: int
    precision: str
    allocator: str = ""
    deepspeed: str = ""  # more of DeepSpeed's configuration, as JSON

    def __str__(self):
        ranks = f"1 rank, {self.threads} threads" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"PyTorch {self.way}, {self.precision}, {ranks}" + (f", {self.allocator}, MKL unlocked" if self.allocator else ", as shipped")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launched(rank, size, port):
    """What torchrun puts into the environment of a process."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def resident_bytes(pid):
    """A process's resident memory, of shared pages its share (PSS)."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.M).group(1))


class MemoryWatch:
    """The largest sum of some processes' resident memory, looked at ten times a second. Not to be used while timing."""

    def __init__(self, pids):
        self.pids, self.peak, self.stop = pids, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while True:
            self.peak = max(self.peak, sum(map(resident_bytes, self.pids)))
            if self.stop.wait(0.1):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


class OurSide:
    """A plan, run again for every turn. `more`: of sheaf-run."""

    def __init__(self, bench, setting, more=()):
        self.bench, self.setting, self.more = bench, setting, more
        bench.plan(setting)

    def start(self, steps, *options):
        bench, setting, port = self.bench, self.setting, free_port()
        command = [bench.tools / "sheaf-run", bench.plan(setting), "--weights", bench.weights(setting), *bench.data(setting.model),
                   "--steps", steps + WARM, "--threads-per-rank", setting.threads, *self.more, *options]
        rendezvous = {"SHEAF_RENDEZVOUS": f"127.0.0.1:{port}"}
        return [bench.process(command, {**launched(rank, setting.processes, port), **rendezvous} if setting.processes > 1 else {})
                for rank in range(setting.processes)]

    def finish(self, processes):
        for process in processes:
            _, said = process.communicate()
            if process.returncode:
                raise RuntimeError(f"sheaf-run ended with {process.returncode}:\n{said}")

    def seconds(self, steps):
        log = self.bench.scratch / "run.jsonl"
        self.finish(self.start(steps, "--log", log))
        taken = [o["seconds"] for o in map(json.loads, log.read_text().splitlines()) if "event" not in o]
        return statistics.median(taken[WARM:])

    def instructions(self, steps):
        """Seconds of a step in each instruction of the body, of one rank on average, and whether it is on the compute stream."""
        trace = self.bench.scratch / "trace.json"
        self.finish(self.start(steps, "--trace", trace))
        seconds = {}
        for span in json.loads(trace.read_text())["traceEvents"]:
            if span["ph"] == "X" and span["args"]["step"] >= WARM:
                index = span["args"]["instruction"], span["tid"] == 0
                seconds[index] = seconds.get(index, 0) + span["dur"] / 1e6 / steps / self.setting.ranks
        return seconds

    def memory(self):
        processes = self.start(max(MEMORY_STEPS, round(MEMORY_SECONDS / self.seconds(MEMORY_STEPS))))
        with MemoryWatch([p.pid for p in processes]) as watch:
            self.finish(processes)
        return watch.peak

    def close(self):
        pass


class BaselineSide:
    """Processes that stay and take steps when asked."""

    def __init__(self, bench, baseline):
        port, preload, more = free_port(), [], {}
        if baseline.allocator:
            libraries, more = ALLOCATORS[baseline.allocator]
            preload = [*bench.unlocked_mkl(), *map(ctypes.util.find_library, libraries)]
        command = [bench.pytorch, ROOT / "test/bench/pytorch_baseline.py", baseline.model, baseline.way,
                   baseline.batch // baseline.ranks, baseline.threads, "--precision", baseline.precision]
        if baseline.deepspeed:
            command += ["--deepspeed", baseline.deepspeed]
        self.processes, self.errors = [], bench.scratch / "baseline-errors"
        for rank in range(baseline.ranks):
            environment = {**launched(rank, baseline.ranks, port), "OMP_NUM_THREADS": str(baseline.threads), "DS_ACCELERATOR": "cpu",
                           "TRANSFORMERS_VERBOSITY": "error", **more}
            if preload:
                environment["LD_PRELOAD"] = ":".join(map(str, preload))
            with open(f"{self.errors}-{rank}", "w") as errors:
                self.processes.append(bench.process(command, environment, stdin=subprocess.PIPE, stderr=errors))
        self.seconds(3)  # compiles and warms up

    def seconds(self, steps):
        try:
            for p in self.processes:
                p.stdin.write(f"{steps + WARM}\n")
                p.stdin.flush()
            answers = [p.stdout.readline() for p in self.processes]
        except BrokenPipeError:
            answers = [""]
        if not all(answers):
            self.close()
            said = "\n".join(pathlib.Path(f"{self.errors}-{rank}").read_text()[-2000:] for rank in range(len(self.processes)))
            raise RuntimeError(f"the baseline has ended:\n{said}")
        return statistics.median(json.loads(answers[0])[WARM:])

    def memory(self):
        until = time.monotonic() + MEMORY_SECONDS
        with MemoryWatch([p.pid for p in self.processes]) as watch:
            self.seconds(MEMORY_STEPS)
            while time.monotonic() < until:
                self.seconds(MEMORY_STEPS)
        return watch.peak

    def close(self):
        for p in self.processes:
            try:
                p.stdin.close()
            except BrokenPipeError:
                pass
        for p in self.processes:
            try:
                p.wait(30)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


class Bench:
    """Where the tools and scratch files lie. `nice` is the priority of everything that is measured."""

    def __init__(self, tools, scratch, pytorch=None, nice=0):
        self.tools, self.scratch, self.pytorch, self.nice = pathlib.Path(tools).resolve(), pathlib.Path(scratch), pytorch, nice
        self.plans = {}

    def process(self, command, environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE):
        nice = ["nice", "-n", str(self.nice)] if self.nice else []
        return subprocess.Popen(list(map(str, [*nice, *command])), env={**os.environ, **environment}, text=True, stdin=stdin,
                                stdout=subprocess.PIPE, stderr=stderr)

    def tool(self, name, *args):
        done = subprocess.run([self.tools / name, *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def plan(self, setting):
        one = dataclasses.replace(setting, processes=1, threads=0)
        if one not in self.plans:
            path = self.scratch / (re.sub(r"[^\w]+", "-", str(one)) + ".plan")
            self.tool("sheaf", "compile", unpack.unpack() / f"{setting.model}.onnx", "-o", path, "--ranks", setting.ranks,
                      "--zero", setting.zero, "--batch", setting.batch, "--precision", setting.precision,
                      "--optimizer", OPTIMIZER, *setting.options)
            self.plans[one] = path
        return self.plans[one]

    def weights(self, setting):
        path = self.scratch / f"{setting.model}.safetensors"
        if not path.exists():
            self.tool("sheaf", "init", self.plan(setting), "--scheme", "normal:std=0.02", "--seed", 1, "-o", path)
        return path

    def data(self, model):
        """The options that name it."""
        if model in IMAGES:
            return [option for name, path in zip(("x", "labels"), self.images(model)) for option in ("--data", f"{name}={path}")]
        return ["--data", f"input_ids,labels={self.tokens(model)}"]

    def images(self, model):
        """Noise: 256 rows, and their labels."""
        shape, classes = IMAGES[model]
        paths = self.scratch / "images.npy", self.scratch / "labels.npy"
        if not paths[0].exists():
            random, rows = random_module.Random(1), 256
            noise = array.array("f", (random.uniform(-1.7, 1.7) for _ in range(1 << 16)))
            elements = rows * math.prod(shape)
            pixels = (noise * -(-elements // len(noise)))[:elements]
            labels = array.array("q", (random.randrange(classes) for _ in range(rows)))
            for path, values, dtype, sizes in ((paths[0], pixels, "<f4", (rows, *shape)), (paths[1], labels, "<i8", (rows,))):
                header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {sizes}, }}"
                header += " " * (-(len(header) + 11) % 64) + "\n"
                path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes())
        return paths

    def tokens(self, model):
        """Pseudo-random tokens below 256, which all vocabularies have."""
        width = MODELS[model][1]
        path = self.scratch / f"tokens.u{8 * width}"
        if not path.exists():
            state, out = 1, bytearray()
            for _ in range(1 << 18):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                out += (state >> 16 & 0xFF).to_bytes(width, "little")
            path.write_bytes(out)
        return path

    def unlocked_mkl(self):
        """The library that lets MKL use AVX-512 on an AMD processor; nothing elsewhere."""
        if "AuthenticAMD" not in pathlib.Path("/proc/cpuinfo").read_text():
            return []
        path = self.scratch / "mkl_on_amd.so"
        if not path.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", path, ROOT / "test/bench/mkl_on_amd.c"], check=True)
        return [path]

    def side(self, what):
        return BaselineSide(self, what) if isinstance(what, Baseline) else OurSide(self, what)


def allocators():
    """Those of ALLOCATORS whose libraries this machine has."""
    return [name for name, (libraries, _) in ALLOCATORS.items() if all(map(ctypes.util.find_library, libraries))]


def machine():
    cpu = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return f"{os.cpu_count()} cores of {cpu.group(1) if cpu else platform.processor()}"
