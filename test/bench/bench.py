#!/usr/bin/env python3
"""Training speed and memory against PyTorch, FSDP2, DDP and DeepSpeed, and the distance to what the machine can do.

    python3 test/bench/bench.py --tools build/bin [--pytorch VENV/bin/python] [--only REGEX] [--pairs N] [--out FOLDER]

Every comparison is made of interleaved pairs: some steps of ours, some of the other side, again and again, so that both see
the same machine; a pair's figure is the median of its steps, the result the median of the pairs. A baseline is shown twice:
as shipped, and at its best, which is found first among its ways (eager, compiled, autotuned), memory allocators, and MKL
with AVX-512 allowed. Nothing else should run meanwhile.

Results are kept in FOLDER/results.jsonl as they come, and a second call continues where the first one ended; --fresh begins
again. The tables are written to FOLDER/benchmarks.md. A part of a step that is faster than its floor is an error: then the
floor is wrong.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from sides import ROOT, Baseline, Bench, Setting, allocators, machine

TRIAL_STEPS = 5  # of each way and allocator when the best is looked for


@dataclasses.dataclass(frozen=True)
class Race:
    """Ours against a baseline. shipped: its ways as they come; best: those tried at its best. goal: the least ratio of its
    time at its best to ours. ranks and threads: the baseline's, if they are not ours."""
    ours: Setting
    system: str
    shipped: tuple
    best: tuple
    pairs: int
    steps: int
    goal: float = 0.0
    ranks: int = 0
    threads: int = 0

    def baseline(self, way, allocator=""):
        return Baseline(self.ours.model, way, self.ranks or self.ours.ranks, self.ours.batch, self.threads or self.ours.threads,
                        self.ours.precision, allocator)

    def __str__(self):
        return f"{self.ours} against {self.system}"


@dataclasses.dataclass(frozen=True)
class Duel:
    """Two settings of ours. most: the largest allowed ratio of the first one's time to the second's; 0: none."""
    ours: Setting
    other: Setting
    pairs: int
    steps: int
    most: float = 0.0

    def __str__(self):
        return f"{self.ours} against {self.other}"


@dataclasses.dataclass(frozen=True)
class Floor:
    """A setting of ours against what the machine allows. most: the largest allowed ratio of the step to it; 0: none."""
    setting: Setting
    most: float = 0.0

    def __str__(self):
        return f"floor: {self.setting}"


def bf16(setting):
    return dataclasses.replace(setting, precision="bf16")


def by_processes(setting):
    return dataclasses.replace(setting, processes=setting.ranks)


SMALL, LARGE = Setting("gpt2-mini", 1, 0, 8, 2), Setting("gpt2-124m", 1, 0, 1, 2)
SMALL_16 = dataclasses.replace(SMALL, batch=16)
SMALL_4, LARGE_4 = Setting("gpt2-mini", 4, 3, 8, 1), Setting("gpt2-124m", 4, 3, 4, 1)
TINY_4 = Setting("gpt2-tiny", 4, 3, 8, 1)
IMAGES, VIT = Setting("resnet-18", 1, 0, 32, 2), Setting("vit", 1, 0, 32, 2)
ONE = ("PyTorch", ("eager", "compile"), ("eager", "compile", "max-autotune"))
OF_IMAGES = ("PyTorch", ("eager", "compile"), (*ONE[2], *(f"{way}+channels-last" for way in ONE[2])))
FSDP2 = ("FSDP2", ("fsdp2",), ("fsdp2", "fsdp2+compile"))
DDP = ("DDP", ("ddp",), ("ddp", "ddp+compile"))
DEEPSPEED = ("DeepSpeed ZeRO-3", ("deepspeed",), ("deepspeed",))
RACES = (
    Race(SMALL, *ONE, 9, 3, 1.20),
    Race(LARGE, *ONE, 5, 2, 1.20),
    Race(bf16(SMALL), *ONE, 9, 3, 1.15),
    Race(bf16(LARGE), *ONE, 5, 2, 1.00),
    Race(SMALL_4, *FSDP2, 9, 3, 2.1),
    Race(LARGE_4, *FSDP2, 5, 1, 1.6),
    Race(bf16(SMALL_4), *FSDP2, 9, 3),
    Race(SMALL_4, *DEEPSPEED, 9, 3, 2.5),
    Race(SMALL_4, *DDP, 9, 3),
    Race(by_processes(SMALL_4), *FSDP2, 9, 3),
    Race(TINY_4, *ONE, 9, 100, 1.0, ranks=1, threads=2),
    Race(IMAGES, *OF_IMAGES, 9, 10, 1.0),
    Race(VIT, *ONE, 9, 5, 1.0),
)
DUELS = (
    Duel(by_processes(SMALL_4), SMALL_4, 9, 5, 1.08),
    Duel(by_processes(LARGE_4), LARGE_4, 5, 2, 1.08),
    Duel(SMALL_4, SMALL, 9, 5, 1.05),
    Duel(SMALL_4, dataclasses.replace(SMALL_4, zero=0), 9, 5, 1.08),
    Duel(LARGE_4, dataclasses.replace(LARGE_4, zero=0), 5, 2, 1.08),
    Duel(dataclasses.replace(SMALL_4, options=("--recompute", "all")), SMALL_4, 9, 5),
    Duel(dataclasses.replace(SMALL_16, options=("--leaves", "8")), SMALL_16, 9, 5, 1.10),
    Duel(dataclasses.replace(SMALL, options=("--micro-batches", "4")), SMALL, 9, 5),
    Duel(dataclasses.replace(SMALL, options=("--micro-batches", "4")), dataclasses.replace(SMALL, options=("--leaves", "4")), 9, 5),
    Duel(bf16(SMALL_4), SMALL_4, 9, 5),
    Duel(bf16(SMALL), SMALL, 9, 5),
)
FLOORS = (Floor(SMALL, 1.12), Floor(LARGE, 1.12), Floor(bf16(SMALL), 1.25), Floor(bf16(LARGE), 1.25), Floor(SMALL_4), Floor(LARGE_4))
FLOOR_ROUNDS = 5
PART_GOALS = {"attention_grad": 1.6}


class Results:
    """What is measured already, by name: a line of the file each. Another revision's results do not count."""

    def __init__(self, path, fresh):
        self.path = path
        self.revision = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
        self.known = {}
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            for entry in map(json.loads, path.read_text().splitlines()):
                if entry["revision"] == self.revision and not self.revision.endswith("-dirty"):
                    self.known[entry["name"]] = entry["value"]

    def get(self, name, measure):
        if name not in self.known:
            value = measure()
            if "error" in value:  # it may run the next time
                return value
            with open(self.path, "a") as file:
                file.write(json.dumps({"name": name, "revision": self.revision, "time": int(time.time()), "value": value}) + "\n")
            self.known[name] = value
        return self.known[name]


def say(text):
    print(text, flush=True)


def trial(bench, results, baseline):
    """Seconds of a step; infinite if this way does not work here, with the reason in the results."""
    def measure():
        try:
            side = bench.side(baseline)
        except RuntimeError as e:
            return {"error": str(e)[-500:]}
        try:
            return {"seconds": side.seconds(TRIAL_STEPS)}
        finally:
            side.close()
    result = results.get(f"trial: {baseline}, {baseline.model}, {baseline.batch} rows", measure)
    say(f"    trial: {baseline}: " + (f"{result['seconds']:.4f} s" if "seconds" in result else "does not run: " + result["error"].splitlines()[-1]))
    return result.get("seconds", float("inf"))


def fastest(bench, results, candidates):
    seconds = {candidate: trial(bench, results, candidate) for candidate in candidates}
    best = min(seconds, key=seconds.get)
    if seconds[best] == float("inf"):
        raise RuntimeError(f"no way of {best} runs; see {results.path}")
    return best


def best_baseline(bench, results, race):
    """The allocator first, with the plainest way, then the way. What comes as shipped may be the best one."""
    allocator = fastest(bench, results, [race.baseline(race.best[0], name) for name in allocators()]).allocator
    return fastest(bench, results, [race.baseline(way, allocator) for way in race.best] + [race.baseline(way) for way in race.shipped])


def pairs_of(bench, left, right, pairs, steps):
    theirs = bench.side(right)  # first, because it may take long to start
    ours = bench.side(left)
    try:
        taken = [(ours.seconds(steps), theirs.seconds(steps)) for _ in range(pairs)]
        memory = ours.memory(), theirs.memory()
    finally:
        theirs.close()
    return {"ours": statistics.median(a for a, _ in taken), "other": statistics.median(b for _, b in taken),
            "ratio": statistics.median(b / a for a, b in taken), "pairs": taken, "memory": memory}


def race(bench, results, it):
    shipped = fastest(bench, results, [it.baseline(way) for way in it.shipped]) if len(it.shipped) > 1 else it.baseline(it.shipped[0])
    best = best_baseline(bench, results, it)
    result = {}
    for name, baseline in (("shipped", shipped), ("best", best)):
        result[name] = results.get(f"{it.ours} against {baseline}, {it.pairs} pairs",
                                 lambda: {"baseline": str(baseline), **pairs_of(bench, it.ours, baseline, it.pairs, it.steps)})
    return result


def gibibytes(count):
    return f"{count / 2**30:.2f}"


def verdict(value, goal, reached):
    return "" if not goal else f"{goal:.2f} {'reached' if reached else 'MISSED'}"


def race_table(rows):
    lines = ["| ours | tokens/s (images/s) | against | as shipped: tokens/s | ratio | at its best: tokens/s | ratio | goal | memory, GiB: ours | theirs |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for it, result in rows:
        tokens, shipped, best = it.ours.tokens, result["shipped"], result["best"]
        how = best["baseline"].split(", ", 1)[1].removeprefix(it.ours.precision + ", ")
        way = best["baseline"].split(", ")[0].removeprefix("PyTorch ")
        lines.append(f"| {it.ours} | {tokens / best['ours']:,.0f} | {it.system} ({way}; {how}) | {tokens / shipped['other']:,.0f} | "
                     f"{shipped['ratio']:.2f} | {tokens / best['other']:,.0f} | {best['ratio']:.2f} | "
                     f"{verdict(best['ratio'], it.goal, best['ratio'] >= it.goal)} | {gibibytes(best['memory'][0])} | {gibibytes(best['memory'][1])} |")
    return lines


def duel_table(rows):
    lines = ["| ours | step, ms | against | step, ms | times | goal: at most | memory, GiB | against |", "|---|---|---|---|---|---|---|---|"]
    for it, result in rows:
        times = 1 / result["ratio"]
        lines.append(f"| {it.ours} | {1e3 * result['ours']:.1f} | {it.other} | {1e3 * result['other']:.1f} | {times:.3f} | "
                     f"{verdict(times, it.most, times <= it.most)} | {gibibytes(result['memory'][0])} | {gibibytes(result['memory'][1])} |")
    return lines


def measure_floor(bench, setting):
    """Rounds of steps, a traced run and a calibration of the machine, one after the other. Ranks that share a core take turns,
    so that a rank's part lasts as long as all ranks' part on all cores."""
    ours, steps, rounds, rates = bench.side(setting), [], [], []
    cores = min(setting.ranks * setting.threads, os.cpu_count())
    for _ in range(FLOOR_ROUNDS):
        steps.append(ours.seconds(3))
        result = json.loads(bench.tool("../test/bin/sheaf-floor", bench.plan(setting), cores))
        rates.append(result["rates"])
        parts, collectives = {}, 0
        for (index, computes), seconds in ours.instructions(3).items():
            if computes:
                part = result["demand"][index][0]
                parts[part] = parts.get(part, 0) + seconds
            else:
                collectives += seconds
        rounds.append({**parts, "collectives": collectives})
    return {"step": statistics.median(steps), "demand": result["demand"],
            "parts": {part: statistics.median(r.get(part, 0) for r in rounds) for part in rounds[0]},
            "rates": {unit: max(r[unit] for r in rates) for unit in rates[0]}}


def floors_of(demand, rates):
    """Seconds of each part, at least."""
    floors = {}
    for part, flops, kind, count in demand:
        floors[part] = floors.get(part, 0) + max(flops / rates[kind], count / rates["bytes"])
    return floors


def floor_table(rows):
    """The rates are the best of all calibrations, of any step, because all steps run on one machine. Collectives have a stream
    of their own, where they wait for other ranks most of the time: they are shown, but have no share. Where ranks share cores,
    a part may run while the others wait, with more than its share of cores, bandwidth and cache; then only the whole step has
    a floor that it cannot be below."""
    rates = {unit: max(result["rates"][unit] for _, _, result in rows) for unit in rows[0][2]["rates"]}
    below = []
    lines = [f"Rates: {rates['f32'] / 1e9:,.0f} GFLOP/s in f32, {rates['bf16'] / 1e9:,.0f} in bf16, {rates['bytes'] / 1e9:,.0f} GB/s.", "",
             "| | step, s | floor, s | distance | goal | parts: share of the step (times their own floor) |", "|---|---|---|---|---|---|"]
    for setting, most, result in rows:
        floors = floors_of(result["demand"], rates)
        floor, shares = sum(floors.values()), []
        whole = sum(seconds for part, seconds in result["parts"].items() if part != "collectives")
        for part, seconds in sorted(result["parts"].items(), key=lambda p: -p[1]):
            times = seconds / floors[part] if floors.get(part, 0) > 0 else 0
            if 0 < times < 1 and setting.ranks * setting.threads <= os.cpu_count():
                below.append(f"{setting}: {part} takes {seconds:.5f} s, its floor is {floors[part]:.5f} s")
            if seconds >= 0.01 * whole:
                goal = PART_GOALS.get(part, 0)
                missed = f", goal {goal:.1f} MISSED" if times > goal > 0 else ""
                share = f"{part} {100 * seconds / whole:.0f} %" if part != "collectives" else f"overlapping {part} {1e3 * seconds:.0f} ms"
                shares.append(share + (f" ({times:.2f}{missed})" if times else ""))
        distance = result["step"] / floor
        if distance < 1:
            below.append(f"{setting}: the step takes {result['step']:.5f} s, its floor is {floor:.5f} s")
        lines.append(f"| {setting} | {result['step']:.4f} | {floor:.4f} | {distance:.2f} | {verdict(distance, most, distance <= most)} | "
                     f"{', '.join(shares)} |")
    return lines, below


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--pytorch", help="a Python that has torch and transformers; DeepSpeed's rows need deepspeed and ninja, too")
    parser.add_argument("--only", help="run what matches")
    parser.add_argument("--pairs", type=int, help="instead of nine, and five on the large model")
    parser.add_argument("--out", default="build/bench", help="folder of the results")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--nice", type=int, default=0, help="priority of the measured processes, of both sides alike")
    args = parser.parse_args()
    if not args.pytorch:
        say("PyTorch is left out: PYTORCH=/path/to/venv/bin/python names a Python that has torch and transformers.\n")
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / "results.jsonl", args.fresh)
    chosen = lambda text: not args.only or re.search(args.only, str(text))
    adjusted = lambda it: dataclasses.replace(it, pairs=args.pairs) if args.pairs else it

    tables, failed, below = [], [], []
    with tempfile.TemporaryDirectory(prefix="sheaf-bench-") as scratch:
        bench = Bench(args.tools, scratch, args.pytorch, args.nice)

        def section(title, rows, table):
            if rows:
                tables.extend([f"### {title}", "", *table(rows), ""])

        def measured(items, measure):
            rows = []
            for it in filter(chosen, items):
                say(f"{it}")
                try:
                    rows.append((it, measure(it)))
                except RuntimeError as e:  # the others still count
                    failed.append(f"{it}: {e}")
                    say(f"    failed: {e}")
            return rows

        if args.pytorch:
            section("Against others", measured(map(adjusted, RACES), lambda it: race(bench, results, it)), race_table)
        section("Against our other settings", measured(map(adjusted, DUELS), lambda it: results.get(
            f"{it}, {it.pairs} pairs", lambda: pairs_of(bench, it.ours, it.other, it.pairs, it.steps))), duel_table)
        floors = measured(FLOORS, lambda it: results.get(str(it), lambda: measure_floor(bench, it.setting)))
        if floors:
            lines, below = floor_table([(it.setting, it.most, result) for it, result in floors])
            tables.extend(["### Distance to the floor", "", *lines, ""])
    text = "\n".join([f"{machine()}, revision {results.revision}", "", *tables])
    (out / "benchmarks.md").write_text(text)
    say("\n" + text)
    if below:
        failed.extend(f"below its floor: {line}" for line in below)
    if failed:
        raise RuntimeError("\n".join(failed))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as e:
        sys.exit(f"bench: {e}")
