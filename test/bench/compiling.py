#!/usr/bin/env python3
"""How long `sheaf compile` takes, and that the number of ranks does not matter.

    python3 test/bench/compiling.py --tools build/bin [--only REGEX] [--runs N] [--json FILE]

Every model is compiled at ZeRO-3 for few and for many ranks in turn, N times; prints the medians of the wall and processor
seconds, the largest resident memory, and the processor time of many ranks over that of few (median of the pairs).
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "models"))

import unpack  # noqa: E402

ROWS = {"gpt2-124m": (8, 64), "llama-3-8b": (64, 4096), "gpt-7.5b": (64, 4096), "llama-2-13b": (64, 4096), "llama-2-70b": (64, 4096)}
FORMS = {"zero": ("--compile-to", "zero"), "plan": ()}


def compile_once(tool, graph, ranks, batch, options, out):
    """Wall seconds, processor seconds, MiB."""
    begin = time.monotonic()
    process = subprocess.Popen([tool, "compile", graph, "-o", out, "--ranks", str(ranks), "--zero", "3", "--batch", str(batch), *options])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"sheaf compile ended with {process.returncode}")
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--only", help="run the rows whose names match")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="write the figures there as well")
    args = parser.parse_args()
    tool, models, results = pathlib.Path(args.tools) / "sheaf", unpack.unpack(), []
    print("| model | to | ranks | seconds | CPU | MiB | CPU, many over few |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="sheaf-compiling-") as folder:
        for model, ranks in ROWS.items():
            for form, options in FORMS.items():
                if args.only and not re.search(args.only, f"{model} {form}"):
                    continue
                pairs = [[compile_once(tool, models / f"{model}.onnx", n, max(ranks), options, pathlib.Path(folder) / "out") for n in ranks]
                         for _ in range(args.runs)]
                ratio = statistics.median(many[1] / few[1] for few, many in pairs)
                for i, n in enumerate(ranks):
                    wall, cpu = (statistics.median(pair[i][k] for pair in pairs) for k in (0, 1))
                    peak = max(pair[i][2] for pair in pairs)
                    last = f"{ratio:.2f}" if n == max(ranks) else ""
                    print(f"| {model} | {form} | {n:,} | {wall:.2f} | {cpu:.2f} | {peak:,.0f} | {last} |", flush=True)
                    results.append({"model": model, "form": form, "ranks": n, "seconds": wall, "cpu_seconds": cpu, "peak_mib": peak})
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
