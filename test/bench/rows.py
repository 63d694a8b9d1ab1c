#!/usr/bin/env python3
"""The cost of reading rows for a tiny model: the time of a step of two builds, in turn.

    python3 test/bench/rows.py --tools build/bin --before OTHER/bin [--pairs 9]

A pair is a run of each; its figure is the mean time of a step of the new build over that of the other. The result is the
median of the pairs. The model is README's (64-64-10), whose step is so short that reading rows counts. Nothing else should
run meanwhile.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "test" / "e2e"))

from formats import write_npy  # noqa: E402

# Rows of the file, batch, ranks, options. Files of 16 MiB and less are held in memory (DataSource.cpp).
CASES = [(5000, 64, 1, ("--shuffle", 1)), (5000, 64, 4, ("--shuffle", 1)), (5000, 512, 4, ("--shuffle", 1)), (5000, 512, 4, ()),
         (200_000, 64, 1, ("--shuffle", 1)), (200_000, 64, 4, ("--shuffle", 1)), (200_000, 512, 4, ("--shuffle", 1)), (200_000, 512, 4, ())]


def step_seconds(tools, plan, data, steps, options, log):
    log.unlink(missing_ok=True)
    subprocess.run([tools / "sheaf-run", plan, *data, "--steps", str(steps), "--log", log, *map(str, options)], check=True, stderr=subprocess.DEVNULL)
    times = [r["seconds"] for r in map(json.loads, log.read_text().splitlines()) if r.get("event") == "step" or "loss" in r]
    return statistics.fmean(times[len(times) // 10:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a run, about")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where, random_bytes, plans = pathlib.Path(folder), random.Random(1).randbytes, {}
        for rows in sorted({case[0] for case in CASES}):
            # Halves of floats between 1 and 2, so that no number is special.
            noise = bytearray(random_bytes(4 * 64 * rows))
            noise[3::4] = bytes([0x3F]) * (64 * rows)
            write_npy(where / f"x{rows}.npy", "<f4", (rows, 64), bytes(noise))
            labels = bytearray(8 * rows)
            labels[0::8] = bytes(b % 10 for b in random_bytes(rows))
            write_npy(where / f"labels{rows}.npy", "<i8", (rows,), bytes(labels))
        for rows, batch, ranks, options in CASES:
            if (batch, ranks) not in plans:
                plans[batch, ranks] = where / f"{batch}-{ranks}.plan"
                subprocess.run([args.before / "sheaf", "compile", ROOT / "build" / "models" / "readme.onnx", "-o", plans[batch, ranks], "--ranks",
                                str(ranks), "--batch", str(batch), "--zero", "0", "--optimizer", "sgd:lr=1e-3"], check=True, stdout=subprocess.DEVNULL)
            data = ["--data", f"x={where / f'x{rows}.npy'}", "--data", f"labels={where / f'labels{rows}.npy'}"]
            run = lambda tools, steps: step_seconds(tools, plans[batch, ranks], data, steps, options, where / "log")
            steps = max(200, int(args.seconds / run(args.before, 300)))
            ratios, times = [], []
            for pair in range(args.pairs):
                both = {}
                for tools in ((args.tools, args.before) if pair % 2 else (args.before, args.tools)):
                    both[tools] = run(tools, steps)
                times.append(both[args.before])
                ratios.append(both[args.tools] / both[args.before])
            print(f"{rows:,} rows, batch {batch}, {ranks} ranks{' shuffled' if options else ''}: {1e6 * statistics.median(times):.0f} us before, "
                  f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
