#!/usr/bin/env python3
"""Training speed side by side with PyTorch, and the distance to what the machine can do.

    python3 test/bench/bench.py --tools build/bin [--pytorch VENV/bin/python] [--only REGEX] [--pairs N] [--json FILE]

Every comparison is made of interleaved pairs: some steps of ours, some of the other side, again and again, so that both
see the same machine; a pair's figure is the median of its steps, the result the median of the pairs. Without --pytorch
our own stages are compared and the bound is printed. Nothing else should run meanwhile.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {"gpt2-mini": (256, 1), "gpt2-124m": (1024, 2)}  # tokens a row, bytes a token in the data file
OPTIMIZER = "adamw:lr=3e-4,beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.01"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model on some ranks. batch: rows of all ranks together; threads: of one rank."""
    model: str
    ranks: int
    zero: int
    batch: int
    threads: int
    options: tuple = ()  # more of `sheaf compile`

    def __str__(self):
        ranks = f"1 rank, {self.threads} threads" if self.ranks == 1 else f"{self.ranks} ranks, ZeRO-{self.zero}"
        return ", ".join([f"{self.model}, {self.batch} x {MODELS[self.model][0]:,}, {ranks}", *self.options[1::2]])

    @property
    def tokens(self):
        return self.batch * MODELS[self.model][0]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Ours against another side: a way of PyTorch, or a setting of our own. goal: the least ratio of their time to ours."""
    ours: Setting
    other: object
    pairs: int
    steps: int
    goal: float = 0.0


SMALL, LARGE = Setting("gpt2-mini", 1, 0, 8, 2), Setting("gpt2-124m", 1, 0, 1, 2)
SMALL_4, LARGE_4 = Setting("gpt2-mini", 4, 3, 8, 1), Setting("gpt2-124m", 4, 3, 4, 1)
COMPARISONS = (
    Comparison(SMALL, "eager", 9, 3, 1.8),
    Comparison(SMALL, "compile", 9, 3),
    Comparison(LARGE, "eager", 5, 2, 2.0),
    Comparison(LARGE, "compile", 5, 2),
    Comparison(SMALL_4, "fsdp2", 9, 3, 2.5),
    Comparison(LARGE_4, "fsdp2", 5, 1, 1.9),
    Comparison(SMALL_4, dataclasses.replace(SMALL_4, zero=0), 9, 5, 1 / 1.08),
    Comparison(LARGE_4, dataclasses.replace(LARGE_4, zero=0), 5, 2, 1 / 1.08),
    Comparison(dataclasses.replace(SMALL_4, options=("--recompute", "full")), SMALL_4, 9, 5),
    Comparison(dataclasses.replace(SMALL_4, options=("--precision", "bf16")), SMALL_4, 9, 5),
    Comparison(dataclasses.replace(SMALL, options=("--precision", "bf16")), SMALL, 9, 5),
)


class Ours:
    """Our side: a plan, run anew for every pair; the first two steps of a run warm it up."""

    def __init__(self, bench, setting):
        self.bench, self.setting = bench, setting
        bench.plan(setting)

    def seconds(self, steps):
        log = self.bench.scratch / "run.jsonl"
        self.bench.run(self.setting, steps + 2, "--log", log)
        taken = [o["seconds"] for o in map(json.loads, log.read_text().splitlines()) if "event" not in o]
        return statistics.median(taken[2:])

    def parts(self, steps=8):
        """Seconds of a step that the ranks' compute streams spend in each kind of instruction, of one rank on average."""
        trace = self.bench.scratch / "trace.json"
        self.bench.run(self.setting, steps + 2, "--trace", trace)
        spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["tid"] == 0 and e["args"]["step"] >= 2]
        parts = {}
        for span in spans:
            parts[span["cat"]] = parts.get(span["cat"], 0) + span["dur"] / 1e6 / steps / self.setting.ranks
        return parts

    def close(self):
        pass


class Peer:
    """PyTorch's side: processes that stay and take steps when asked."""

    def __init__(self, python, setting, how):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.processes = []
        for rank in range(setting.ranks):
            environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads), "RANK": str(rank), "WORLD_SIZE": str(setting.ranks),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TRANSFORMERS_VERBOSITY": "error"}
            command = [python, ROOT / "test/bench/pytorch_peer.py", setting.model, how, str(setting.batch // setting.ranks),
                       str(setting.threads)]
            self.processes.append(subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        self.seconds(3)  # compiles and warms up

    def seconds(self, steps):
        for p in self.processes:
            p.stdin.write(f"{steps}\n")
            p.stdin.flush()
        answers = [p.stdout.readline() for p in self.processes]
        if not all(answers):
            raise RuntimeError("PyTorch's side ended; run pytorch_peer.py by hand to see why")
        slowest = [max(step) for step in zip(*map(json.loads, answers))]
        return statistics.median(slowest)

    def close(self):
        for p in self.processes:
            p.stdin.close()
            p.wait()


class Bench:
    def __init__(self, tools, scratch):
        self.tools, self.scratch = pathlib.Path(tools).resolve(), pathlib.Path(scratch)
        self.plans = {}

    def tool(self, name, *args):
        done = subprocess.run([self.tools / name, *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def plan(self, setting):
        if setting not in self.plans:
            path = self.scratch / f"{'-'.join(map(str, (setting.model, setting.ranks, setting.zero, setting.batch, *setting.options)))}.plan"
            self.tool("sheaf", "compile", ROOT / f"test/models/{setting.model}.onnx", "-o", path, "--ranks", setting.ranks,
                      "--zero", setting.zero, "--batch", setting.batch, "--optimizer", OPTIMIZER, *setting.options)
            self.plans[setting] = path
        return self.plans[setting]

    def weights(self, setting):
        path = self.scratch / f"{setting.model}.safetensors"
        if not path.exists():
            self.tool("sheaf", "init", self.plan(setting), "--scheme", "normal:std=0.02", "--seed", 1, "-o", path)
        return path

    def tokens(self, model):
        """Pseudo-random tokens below 256, which both vocabularies have."""
        width = MODELS[model][1]
        path = self.scratch / f"tokens.u{8 * width}"
        if not path.exists():
            state, out = 1, bytearray()
            for _ in range(1 << 18):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                out += (state >> 16 & 0xFF).to_bytes(width, "little")
            path.write_bytes(out)
        return path

    def run(self, setting, steps, *options):
        self.tool("sheaf-run", self.plan(setting), "--weights", self.weights(setting), "--data",
                  f"input_ids,labels={self.tokens(setting.model)}", "--steps", steps, "--threads-per-rank", setting.threads, *options)

    def bound(self, setting):
        """What the machine allows for the plan's step: seconds, and the rates they were counted at."""
        threads = setting.ranks * setting.threads
        return json.loads(self.tool("../test/bin/sheaf-bound", self.plan(setting), min(threads, os.cpu_count())))


def compare(bench, comparison, python):
    other = comparison.other
    right = Peer(python, comparison.ours, other) if isinstance(other, str) else Ours(bench, other)
    left = Ours(bench, comparison.ours)
    try:
        pairs = [(left.seconds(comparison.steps), right.seconds(comparison.steps)) for _ in range(comparison.pairs)]
    finally:
        right.close()
    return {
        "ours": statistics.median(a for a, _ in pairs),
        "other": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--pytorch", help="a Python that has torch and transformers")
    parser.add_argument("--only", help="run the comparisons whose names match")
    parser.add_argument("--pairs", type=int, help="instead of nine, and five on the large model")
    parser.add_argument("--json", help="write the figures there as well")
    args = parser.parse_args()
    if not args.pytorch:
        print("PyTorch is left out: PYTORCH=/path/to/venv/bin/python names a Python that has torch and transformers.\n")

    results, bounds = [], {}
    with tempfile.TemporaryDirectory(prefix="sheaf-bench-") as scratch:
        bench = Bench(args.tools, scratch)
        print(f"{'ours':44} {'tokens/s':>9}   {'against':30} {'tokens/s':>9} {'ratio':>6}  goal", flush=True)
        for comparison in COMPARISONS:
            theirs = f"PyTorch {comparison.other}" if isinstance(comparison.other, str) else f"ours, {str(comparison.other).split(', ', 2)[2]}"
            title = f"{comparison.ours} against {theirs}"
            if (isinstance(comparison.other, str) and not args.pytorch) or (args.only and not re.search(args.only, title)):
                continue
            if args.pairs:
                comparison = dataclasses.replace(comparison, pairs=args.pairs)
            told = compare(bench, comparison, args.pytorch)
            tokens, goal = comparison.ours.tokens, comparison.goal
            verdict = f">= {goal:.2f} {'reached' if told['ratio'] >= goal else 'MISSED'}" if goal else "-"
            print(f"{str(comparison.ours):44} {tokens / told['ours']:9,.0f}   {theirs:30} {tokens / told['other']:9,.0f} "
                  f"{told['ratio']:6.2f}  {verdict}", flush=True)
            results.append({"ours": str(comparison.ours), "against": theirs, "pairs": comparison.pairs, **told, "goal": goal})
            bounds.setdefault(comparison.ours, []).append(told["ours"])

        print("\nDistance to the bound (GEMM flops at oneDNN's measured rate + bytes at measured bandwidth), goal <= 1.5:")
        for setting, seconds in bounds.items():
            if "bf16" in setting.options:
                continue  # the rate is that of f32
            bound = bench.bound(setting)
            measured = statistics.median(seconds)
            print(f"{str(setting):44} step {measured:.3f} s, bound {bound['seconds']:.3f} s = {bound['gemm_flops'] / 1e9:,.0f} GFLOP at "
                  f"{bound['flops_per_second'] / 1e9:,.0f}/s + {bound['bytes'] / 1e9:,.2f} GB at {bound['bytes_per_second'] / 1e9:,.0f}/s; "
                  f"distance {measured / bound['seconds']:.2f}", flush=True)
            # Ranks that share a core take turns, so a rank's part lasts as long as all ranks' part on all cores: the floor.
            parts = Ours(bench, setting).parts()
            whole = sum(parts.values())
            for kind, part in sorted(parts.items(), key=lambda p: -p[1]):
                if part >= 0.01 * whole:
                    floor = bound["parts"].get(kind, 0)
                    print(f"    {kind:20} {100 * part / whole:5.1f} % of the step" + (f", {part / floor:.2f} x its floor" if floor else ""))
            results.append({"ours": str(setting), "step": measured, "bound": bound, "parts": parts})
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as e:
        sys.exit(f"bench: {e}")
