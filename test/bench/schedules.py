#!/usr/bin/env python3
"""Predicted steps of large models on machines that are not present, compared with the bound, the floor and the schedules of other systems.

    python3 test/bench/schedules.py --tools build/bin --models FOLDER [--only REGEX] [--precision bf16|f32] [--rows N]

FOLDER has the ONNX graphs, whose weights are not needed. Prints a table in Markdown: every figure comes from a plan that was
compiled and proved, and from the simulator.
"""
import argparse
import json
import pathlib
import re
import resource
import subprocess
import tempfile

MODELS = ("gpt2-124m", "llama-3-8b", "gpt-7.5b", "llama-2-13b", "llama-2-70b")
MACHINES = (("h100", 8), ("h100", 64), ("rtx4090", 8), ("gb200", 72))  # profile, ranks


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def row(tools, model, machine, ranks, precision, rows, folder, kept):
    plan = pathlib.Path(folder) / "plan"
    compiler = (tools / "sheaf", "compile", model, "-o", plan, "--ranks", ranks, "--batch", ranks * rows, "--precision", precision,
                "--profile", machine)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = run(*compiler)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode:
        short = re.search(r"([\d.]+ \w+) \(\d+ bytes\) too much", done.stderr)
        return f"| {model.stem} | {ranks} {machine} | does not fit: {short[1] if short else done.stderr.strip()[:80]} too much | | | | | | | | | {seconds:.1f} s |"
    report = json.loads(run(tools / "sheaf", "simulate", plan, "--profile", machine, "--json").stdout)
    chosen = next(d for d in json.loads(run(tools / "sheaf", "inspect", plan, "--format", "json").stdout)["decisions"] if d.startswith("schedule: "))
    fitting = {n: p for n, p in report["baselines"].items() if p["fits"]}
    best = min(fitting.items(), key=lambda p: p[1]["step_seconds"], default=None)
    fsdp2 = report["baselines"]["fsdp2"]
    best_baseline = f"{best[0]} {best[1]['step_seconds'] / report['step_seconds']:.2f}" if best else "none fits"
    step, gib = report["step_seconds"], 1 << 30
    # As fast as FSDP2 with no more bytes: the plan itself, or the best one that its bytes allow, if the machine has them or not.
    within = report
    if report["peak_bytes"] > fsdp2["peak_bytes"] or not fsdp2["fits"]:
        limited = run(*compiler, "--memory-limit", fsdp2["peak_bytes"])
        within = json.loads(run(tools / "sheaf", "simulate", plan, "--profile", machine, "--json").stdout) if limited.returncode == 0 else None
    faster = fsdp2["step_seconds"] / within["step_seconds"] if within else 0
    kept.append(faster >= 1 / 1.001)
    equal = f"{faster:.2f}, {within['peak_bytes'] / gib:.1f}" if within else "does not fit"
    return (f"| {model.stem} | {ranks} {machine} | {chosen[10:].split('; ')[0]} | {step * 1e3:,.1f} | {report['bound_seconds'] * 1e3:,.1f} ({report['bound_by']}) "
            f"| {100 * (step / report['bound_seconds'] - 1):.1f} % | {report['floor_seconds'] * 1e3:,.1f} ({report['floor_by']}) "
            f"| {report['peak_bytes'] / gib:.1f} ({report['peak_bytes'] / report['live_bytes']:.3f}) "
            f"| {fsdp2['step_seconds'] / step:.2f}, {fsdp2['peak_bytes'] / gib:.1f}{'' if fsdp2['fits'] else ', too many'} "
            f"| {equal} | {best_baseline} | {seconds:.1f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--only", help="run the rows whose names match")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rows", type=int, default=1, help="rows of the batch on each rank")
    args = parser.parse_args()
    print("| model | machine | chosen | step, ms | bound, ms | gap | floor, ms | arena, GiB (times what is alive) | FSDP2: time, GiB | within its bytes: time, GiB | best other that fits | compile, CPU |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    kept = []
    with tempfile.TemporaryDirectory(prefix="sheaf-schedules-") as folder:
        for model in MODELS:
            for machine, ranks in MACHINES:
                if args.only and not re.search(args.only, f"{model} {ranks} {machine}"):
                    continue
                path = pathlib.Path(args.models) / f"{model}.onnx"
                if path.exists():
                    print(row(pathlib.Path(args.tools), path, machine, ranks, args.precision, args.rows, folder, kept), flush=True)
    print(f"\nWithin the bytes of FSDP2's schedule the step is no slower than it: {sum(kept)} of {len(kept)}.")


if __name__ == "__main__":
    main()
