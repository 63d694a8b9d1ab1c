#!/usr/bin/env python3
"""What saving a state every few steps costs: speed and processor time of runs with saves, compared with runs without.

    cmake --build build/release --target sheaf sheaf-run sheaf_cpu
    python3 test/bench/saves.py --tools build/release/bin [--steps 200] [--every 10] [--pairs 9] [--models gpt2-mini] [--out FOLDER]

A pair is a run without saves, one that saves through host memory while it goes on (--save-staging auto), and one that waits for
every save; the order turns from pair to pair. All runs save their last state, so that it cancels out, and so does the start, which a
run of WARM steps measures in every pair: a figure is the wall or processor time of the steps after those. Results are medians of the
pairs' ratios. Of memory it prints the largest resident set, also of a run without saves, and the staging that `sheaf inspect`
announces. Nothing else should run meanwhile; states are written to --out, which should be on the disk in question.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from sides import Bench, Setting, machine

WARM = 10
WAYS = {"staged": ("--save-staging", "auto"), "waiting": ()}


@dataclasses.dataclass
class Taken:
    """Of one run."""
    wall: float
    cpu: float
    resident: int = 0
    stalled: float = 0  # in each save but the last, in the median
    seconds: float = 0  # until a state is whole

    def __sub__(self, other):
        return Taken(self.wall - other.wall, self.cpu - other.cpu)


def run(bench, setting, steps, folder, options=()):
    shutil.rmtree(folder, ignore_errors=True)
    log = bench.scratch / "run.jsonl"
    command = [bench.tools / "sheaf-run", bench.plan(setting), "--weights", bench.weights(setting), *bench.data(setting.model), "--steps", steps,
               "--threads-per-rank", setting.threads, "--save-state", folder, "--keep-saves", 2, "--log", log, *options]
    os.sync()  # what earlier runs have written is not this one's
    begin = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"sheaf-run ended with {process.returncode}:\n{error.decode()}")
    events = [e for e in map(json.loads, log.read_text().splitlines()) if "event" in e]
    saves = [e for e in events if e["event"] == "saved_state"][:-1]
    return Taken(wall, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss,
                 statistics.median(e["stalled_seconds"] for e in saves) if saves else 0,
                 statistics.median(e["seconds"] for e in saves) if saves else 0)


def measure(bench, setting, args):
    folder = bench.scratch / "state"
    staging = json.loads(bench.tool("sheaf", "inspect", bench.plan(setting), "--format", "json"))["memory"]["save_staging_bytes"]
    ratios = {way: ([], []) for way in WAYS}
    print(f"\n{setting}: a save every {args.every} of {args.steps} steps, {args.pairs} pairs; staging {staging:,} bytes a rank, {setting.ranks * staging:,} in all")
    for pair in range(args.pairs):
        ways = ["none", *WAYS]
        ways = ways[pair % len(ways):] + ways[:pair % len(ways)]
        start = run(bench, setting, WARM, folder)
        taken = {way: run(bench, setting, args.steps, folder, ("--save-every", args.every, *WAYS[way]) if way in WAYS else ()) for way in ways}
        plain = taken["none"] - start
        for way in WAYS:
            steps = taken[way] - start
            ratios[way][0].append(plain.wall / steps.wall)
            ratios[way][1].append(steps.cpu / plain.cpu)
            print(f"  pair {pair + 1}, {way:8} {1000 * steps.wall / (args.steps - WARM):8.2f} ms a step, {1000 * plain.wall / (args.steps - WARM):8.2f} without; "
                  f"speed {ratios[way][0][-1]:.4f}, processor time {ratios[way][1][-1]:.4f}; stands still for {1000 * taken[way].stalled:.1f} ms, "
                  f"whole after {1000 * taken[way].seconds:.1f} ms; resident {taken[way].resident:,}, {taken['none'].resident:,} without", flush=True)
    for way, (speed, cpu) in ratios.items():
        print(f"  {way:8} speed {statistics.median(speed):.4f} of that without saves ({min(speed):.4f} to {max(speed):.4f}), "
              f"processor time {statistics.median(cpu):.4f} ({min(cpu):.4f} to {max(cpu):.4f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="scratch folder (a temporary one)")
    parser.add_argument("--models", nargs="+", default=["gpt2-mini"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--zero", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.out or pathlib.Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        bench = Bench(args.tools, scratch)
        print(machine())
        for model in args.models:
            measure(bench, Setting(model, args.ranks, args.zero, args.batch, max(1, os.cpu_count() // args.ranks)), args)


if __name__ == "__main__":
    main()
