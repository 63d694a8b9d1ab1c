#!/usr/bin/env python3
"""Predicted steps of large models on machines that are not present, compared with the bound, the floor and the schedules of other systems.

    python3 test/bench/schedules.py --tools build/bin [--only REGEX] [--precision bf16|f32] [--rows N] [--nodes 8,64]

Prints a table in Markdown: every figure comes from a plan that was
compiled and proved, and from the simulator. With --nodes: on so many nodes of 8 H100, with sums and gathers in hops and without, and what
other systems do on nodes.
"""
import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "models"))

import unpack  # noqa: E402

MODELS = ("gpt2-124m", "llama-3-8b", "gpt-7.5b", "llama-2-13b", "llama-2-70b")
MACHINES = (("h100", 8), ("h100", 64), ("rtx4090", 8), ("gb200", 72))  # profile, ranks


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def compared(report, model, machine):
    """The other systems' steps. Ends with an error if the simulator left them out: a row without them says nothing."""
    if report["baselines_left_out"] or "fsdp2" not in report["baselines"]:
        sys.exit(f"{model.stem} on {machine}: no other system to compare with: {report['baselines_left_out'] or 'a single rank'}; "
                 "choose another row with --only, or a larger --rows")
    return report["baselines"]


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
    others = compared(report, model, f"{ranks} {machine}")
    fitting = {n: p for n, p in others.items() if p["fits"]}
    best = min(fitting.items(), key=lambda p: p[1]["step_seconds"], default=None)
    fsdp2 = others["fsdp2"]
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


ON_NODES = ("fsdp2", "hsdp", "deepspeed", "mics", "hpz")


def row_on_nodes(tools, model, nodes, hops, precision, rows, folder):
    plan, ranks = pathlib.Path(folder) / "plan", 8 * nodes
    done = run(tools / "sheaf", "compile", model, "-o", plan, "--ranks", ranks, "--batch", ranks * rows, "--precision", precision,
               "--profile", "h100", *(("--ranks-per-node", 8) if hops else ()))
    name = f"| {model.stem} | {nodes} | {'yes' if hops else 'no'} |"
    if done.returncode:
        return f"{name} {done.stderr.strip()[:120]} |" + " |" * (5 + len(ON_NODES))
    report = json.loads(run(tools / "sheaf", "simulate", plan, "--profile", "h100", "--json").stdout)
    decisions = json.loads(run(tools / "sheaf", "inspect", plan, "--format", "json").stdout)["decisions"]
    chosen = next(d for d in decisions if d.startswith("schedule: "))[10:].split("; ")[0]
    step, gib, links = report["step_seconds"], 1 << 30, report["links"]
    others = compared(report, model, f"{nodes} nodes of h100")
    theirs = [others[n] for n in ON_NODES]
    return (f"{name} {chosen} | {step * 1e3:,.1f} | {report['bound_seconds'] * 1e3:,.1f} ({report['bound_by']}) "
            f"| {links['node']['seconds'] * 1e3:,.0f}, {links['node']['bytes'] / gib:.1f} | {links['network']['seconds'] * 1e3:,.0f}, "
            f"{links['network']['bytes'] / gib:.1f} | {report['peak_bytes'] / gib:.1f} | "
            + " | ".join(f"{t['step_seconds'] / step:.2f}, {t['peak_bytes'] / gib:.1f}{'' if t['fits'] else ', too many'}" for t in theirs) + " |")


def on_nodes(args, folder):
    print("| model | nodes | hops | chosen | step, ms | bound, ms | within nodes: ms, GiB | network: ms, GiB | arena, GiB | "
          + " | ".join(f"{n}: time, GiB" for n in ON_NODES) + " |\n|" + "---|" * (9 + len(ON_NODES)))
    for model in MODELS:
        for nodes in map(int, args.nodes.split(",")):
            path = unpack.FOLDER / f"{model}.onnx"
            if path.exists() and (not args.only or re.search(args.only, f"{model} {nodes} h100")):
                for hops in (False, True):
                    print(row_on_nodes(pathlib.Path(args.tools), path, nodes, hops, args.precision, args.rows, folder), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--only", help="run the rows whose names match")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rows", type=int, default=1, help="rows of the batch on each rank")
    parser.add_argument("--nodes", help="numbers of nodes of 8 H100, instead of the machines")
    args = parser.parse_args()
    unpack.unpack()
    if args.nodes:
        with tempfile.TemporaryDirectory(prefix="sheaf-schedules-") as folder:
            on_nodes(args, folder)
        return
    print("| model | machine | chosen | step, ms | bound, ms | gap | floor, ms | arena, GiB (times what is alive) | FSDP2: time, GiB | within its bytes: time, GiB | best other that fits | compile, CPU |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    kept = []
    with tempfile.TemporaryDirectory(prefix="sheaf-schedules-") as folder:
        for model in MODELS:
            for machine, ranks in MACHINES:
                if args.only and not re.search(args.only, f"{model} {ranks} {machine}"):
                    continue
                path = unpack.FOLDER / f"{model}.onnx"
                if path.exists():
                    print(row(pathlib.Path(args.tools), path, machine, ranks, args.precision, args.rows, folder, kept), flush=True)
    print(f"\nWithin the bytes of FSDP2's schedule the step is no slower than it: {sum(kept)} of {len(kept)}.")


if __name__ == "__main__":
    main()
