#!/usr/bin/env python3
"""How far `sheaf simulate` is from what `sheaf-run` takes, on this machine.

    python3 test/bench/predict.py --tools build/bin [--profile P.json] [--only REGEX] [--runs N] [--json FILE]
    python3 test/bench/predict.py --tools build/bin --kit FOLDER [--json FILE]

Every setting is compiled, predicted with the profile (measured first if none is given), and run N times, interleaved with
the others; its figure is the median of the runs' median steps. Nothing else should run meanwhile.

--kit takes the results of gpu-kit/run.py on a machine with a GPU: the card's profile, and the steps it measured.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

import sides as b

b.MODELS["llama-tiny"] = (64, 1)
STEPS = {"gpt2-mini": 6, "llama-tiny": 60}  # after two that warm up
GOAL = 0.10  # of the median error
KIT_GOAL = 0.05  # on a GPU, with a profile of it


def settings(cores):
    for model in STEPS:
        for ranks in (1, 2, 4):
            for zero in range(4):
                yield b.Setting(model, ranks, zero, 8, max(cores // ranks, 1))


def measured(bench, setting):
    return b.OurSide(bench, setting).seconds(STEPS[setting.model])


def report(rows, goal, file):
    """Rows of name, prediction, measured step."""
    print(f"{'':44} {'predicted':>10} {'measured':>10} {'error':>8}")
    for name, prediction, taken in rows:
        predicted = prediction["step_seconds"]
        print(f"{name:44} {predicted * 1e3:7.2f} ms {taken * 1e3:7.2f} ms {100 * (predicted / taken - 1):+7.1f} %")
    errors = [abs(prediction["step_seconds"] / taken - 1) for _, prediction, taken in rows]
    median = statistics.median(errors)
    print(f"\nmedian error {100 * median:.1f} %, largest {100 * max(errors):.1f} %, goal {100 * goal:.0f} % in the median: "
          f"{'reached' if median <= goal else 'MISSED'}")
    if file:
        results = [{"setting": name, "predicted": prediction["step_seconds"], "measured": taken, "simulated": prediction}
                   for name, prediction, taken in rows]
        pathlib.Path(file).write_text(json.dumps(results, indent=1) + "\n")


def predict_kit(bench, folder, file):
    steps = folder / "steps.json"
    if not steps.exists() or not (folder / "card.json").exists():
        raise RuntimeError(f"{folder} has no card.json and steps.json: gpu-kit/run.py --out FOLDER makes them")
    rows = []
    for step in json.loads(steps.read_text()):
        prediction = json.loads(bench.tool("sheaf", "simulate", folder / step["plan"], "--profile", folder / "card.json", "--json"))
        rows.append((step["name"], prediction, step["step_seconds"]))
    if not rows:
        raise RuntimeError(f"{steps} has no step")
    report(rows, KIT_GOAL, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--profile", help="instead of one measured now")
    parser.add_argument("--only", help="the settings whose names match")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="write the figures there as well")
    parser.add_argument("--kit", type=pathlib.Path, help="a folder that gpu-kit/run.py has written, instead of this machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sheaf-predict-") as scratch:
        bench = b.Bench(args.tools, scratch)
        if args.kit:
            predict_kit(bench, args.kit, args.json)
            return 0
        profile = args.profile
        if not profile:
            profile = pathlib.Path(scratch) / "this.json"
            bench.tool("sheaf", "profile", "-o", profile, "--ranks", 4)
        cores = json.loads(pathlib.Path(profile).read_text())["cores"]
        chosen = [s for s in settings(cores) if not args.only or re.search(args.only, str(s))]
        prediction = {s: json.loads(bench.tool("sheaf", "simulate", bench.plan(s), "--profile", profile, "--json")) for s in chosen}
        runs = [{s: measured(bench, s) for s in chosen} for _ in range(args.runs)]
        report([(str(s) + ("" if s.ranks > 1 else f", ZeRO-{s.zero}"), prediction[s], statistics.median(run[s] for run in runs))
                for s in chosen], GOAL, args.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as e:
        sys.exit(f"predict: {e}")
