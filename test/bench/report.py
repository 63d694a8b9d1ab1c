#!/usr/bin/env python3
"""Sizes and times of `sheaf report` on plans up to 70 billion parameters, and of its pages in Chromium: the table of docs/report.md.

    python3 test/bench/report.py --tools build/bin --browser VENV/bin/python [--out build/report]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "test" / "models"))

import unpack  # noqa: E402

# Model, and options of `sheaf compile`.
PLANS = {
    "gpt2-124m": ("--ranks", "4", "--batch", "8", "--zero", "3", "--optimizer", "adamw:lr=1e-3"),
    "llama-3-8b": ("--ranks", "8", "--batch", "8", "--zero", "3", "--optimizer", "adamw:lr=1e-4", "--precision", "bf16", "--profile", "h100"),
    "llama-2-70b": ("--ranks", "64", "--ranks-per-node", "8", "--batch", "64", "--zero", "3", "--optimizer", "adamw:lr=1e-4", "--precision", "bf16",
                    "--profile", "h100"),
}


def timed(*command):
    begin = time.monotonic()
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return time.monotonic() - begin, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True, type=pathlib.Path)
    parser.add_argument("--browser", required=True, help="a Python with Selenium: see `make test-browser`")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "report")
    parser.add_argument("--only", help="one of the plans")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    models = unpack.unpack()
    print("| plan | instructions | buffers | plan | of it the graph | page | `sheaf report` | first paint | plan painted | frame, median | frame, 95 % | drawing, median |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, options in PLANS.items():
        if args.only and name != args.only:
            continue
        plan, page = args.out / f"{name}.plan", args.out / f"{name}.html"
        timed(args.tools / "sheaf", "compile", models / f"{name}.onnx", "-o", plan, "--no-weight-hashes", *options)
        header = plan.read_bytes()[:32]
        graph_bytes = plan.stat().st_size - 32 - int.from_bytes(header[16:24], "little")
        seconds, _ = timed(args.tools / "sheaf", "report", plan, "-o", page)
        timed(args.tools / "sheaf", "report", plan, "-o", args.out / "data.json", "--json")
        data = json.loads((args.out / "data.json").read_text())
        found = json.loads(timed(args.browser, ROOT / "test" / "browser" / "check_page.py", page, "--timings")[1])
        print(f"| {name} | {len(data['ops']['label']):,} | {len(data['buffers']['name']):,} | {plan.stat().st_size / 2**20:.1f} MiB | {graph_bytes / 2**20:.1f} MiB "
              f"| {page.stat().st_size / 2**20:.1f} MiB | {seconds:.1f} s | {found['first_paint_ms']} ms | {found['plan_painted_ms']} ms "
              f"| {found['frame_ms_median']} ms | {found['frame_ms_p95']} ms | {found['draw_ms_median']} ms |", flush=True)


if __name__ == "__main__":
    main()
