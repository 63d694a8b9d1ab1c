#!/usr/bin/env python3
"""How far `sheaf simulate` is from what `sheaf-run` takes, on this machine.

    python3 test/bench/predict.py --tools build/bin [--profile P.json] [--only REGEX] [--runs N] [--json FILE]

Every setting is compiled, predicted with the profile (measured first if none is given), and run N times, interleaved with
the others; its figure is the median of the runs' median steps. Nothing else should run meanwhile.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

import bench as b

b.MODELS["llama-tiny"] = (64, 1)
STEPS = {"gpt2-mini": 6, "llama-tiny": 60}  # after two that warm up
GOAL = 0.10  # of the median error


def settings(cores):
    for model in STEPS:
        for ranks in (1, 2, 4):
            for zero in range(4):
                yield b.Setting(model, ranks, zero, 8, max(cores // ranks, 1))


def measured(bench, setting):
    log = bench.scratch / "run.jsonl"
    bench.run(setting, STEPS[setting.model] + 2, "--log", log)
    taken = [o["seconds"] for o in map(json.loads, log.read_text().splitlines()) if "event" not in o]
    return statistics.median(taken[2:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--profile", help="instead of one measured now")
    parser.add_argument("--only", help="the settings whose names match")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="write the figures there as well")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sheaf-predict-") as scratch:
        bench = b.Bench(args.tools, scratch)
        profile = args.profile
        if not profile:
            profile = pathlib.Path(scratch) / "this.json"
            bench.tool("sheaf", "profile", "-o", profile, "--ranks", 4)
        cores = json.loads(pathlib.Path(profile).read_text())["cores"]
        chosen = [s for s in settings(cores) if not args.only or re.search(args.only, str(s))]
        told = {s: json.loads(bench.tool("sheaf", "simulate", bench.plan(s), "--profile", profile, "--json")) for s in chosen}
        runs = [{s: measured(bench, s) for s in chosen} for _ in range(args.runs)]
        errors, results = [], []
        print(f"{'':44} {'predicted':>10} {'measured':>10} {'error':>8}")
        for s in chosen:
            taken = statistics.median(run[s] for run in runs)
            predicted = told[s]["step_seconds"]
            errors.append(abs(predicted / taken - 1))
            results.append({"setting": str(s), "predicted": predicted, "measured": taken, "simulated": told[s]})
            print(f"{str(s) + ('' if s.ranks > 1 else f', ZeRO-{s.zero}'):44} {predicted * 1e3:7.2f} ms {taken * 1e3:7.2f} ms "
                  f"{100 * (predicted / taken - 1):+7.1f} %")
    median = statistics.median(errors)
    print(f"\nmedian error {100 * median:.1f} %, largest {100 * max(errors):.1f} %, goal {100 * GOAL:.0f} % in the median: "
          f"{'reached' if median <= GOAL else 'MISSED'}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as e:
        sys.exit(f"predict: {e}")
