#!/usr/bin/env python3
"""A measured step of a GPU compared with the GPU's limits: time by kind of instruction, and the part of the roofline it reaches.

    sheaf simulate OUT.plan --profile h100 --trace predicted.json     on the machine with the compiler
    sheaf-run OUT.plan --device cuda ... --trace measured.json          on the GPU
    python3 test/bench/roofline.py predicted.json measured.json --gpu H100

The floor of an instruction is the longer of its flops at the GPU's peak and its bytes at the memory's bandwidth (each
operand once); its share of the roofline is the floor's part of the time. Instructions of equal kind, size and label but
for numbers (of layers) are counted together. A traced step is issued without a CUDA graph.
"""
import argparse
import collections
import json
import re
import statistics

# Flops a second by type (dense tensor cores; f32 outside of them) and bytes a second: NVIDIA's data sheets.
GPUS = {
    "H200": {"bf16": 989.4e12, "tf32": 494.7e12, "f32": 66.9e12, "bandwidth": 4.8e12},
    "H100": {"bf16": 989.4e12, "tf32": 494.7e12, "f32": 66.9e12, "bandwidth": 3.35e12},
    "A100": {"bf16": 312e12, "tf32": 156e12, "f32": 19.5e12, "bandwidth": 2.039e12},
}


def gpu_named(text):
    """The limits of the GPU that the text names, or none."""
    return next((limits for name, limits in GPUS.items() if name in text), None)


def events(path):
    with open(path) as file:
        trace = json.load(file)
    return [e for e in (trace["traceEvents"] if isinstance(trace, dict) else trace) if e["ph"] == "X"]


def table(predicted, measured, limits, skip=2):
    """Rows (name, count, seconds, floor, predicted seconds) of a step, the longest first. Of each instruction the median over
    the traced steps, the first `skip` left out."""
    seconds = collections.defaultdict(list)
    for event in events(measured):
        if event["args"].get("step", -1) >= skip and event["pid"] == 0:
            seconds[event["args"]["instruction"]].append(event["dur"] * 1e-6)
    rows = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for event in events(predicted):
        args = event["args"]
        if args["instruction"] not in seconds:
            continue
        # A fused kernel does not use the tensor cores.
        peak = limits.get(args["type"], limits["f32"]) if event["cat"] != "kernel" else limits["f32"]
        size = f"{args['flops'] / 1e9:.1f} GFLOP" if args["flops"] > 1e9 else f"{args['bytes'] / 1e6:.1f} MB"
        row = rows[f"{event['cat']} {re.sub(r'[0-9]+', '*', event['name'])}, {size}"]
        row[0] += 1
        row[1] += statistics.median(seconds[args["instruction"]])
        row[2] += max(args["flops"] / peak, args["bytes"] / limits["bandwidth"])
        row[3] += args["alone"] * 1e-6
    return sorted(((name, *row) for name, row in rows.items()), key=lambda row: -row[2])


def print_table(rows, most=30):
    whole = sum(row[2] for row in rows) or 1
    print(f"{'ms':>9} {'of all':>7} {'roofline':>8} {'predicted':>9} {'count':>6}  instruction")
    for name, count, seconds, floor, predicted in rows[:most]:
        print(f"{seconds * 1e3:9.3f} {100 * seconds / whole:6.1f}% {100 * floor / seconds if seconds else 0:7.1f}% "
              f"{predicted * 1e3:9.3f} {count:6}  {name[:90]}")
    floor, predicted = (sum(row[i] for row in rows) for i in (3, 4))
    print(f"{whole * 1e3:9.3f}  100.0% {100 * floor / whole:7.1f}% {predicted * 1e3:9.3f} {sum(r[1] for r in rows):6}  all")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predicted")
    parser.add_argument("measured")
    parser.add_argument("--gpu", required=True, help=", ".join(GPUS))
    args = parser.parse_args()
    limits = gpu_named(args.gpu)
    if not limits:
        parser.error(f"--gpu {args.gpu}: known are {', '.join(GPUS)}")
    rows = table(args.predicted, args.measured, limits)
    if not rows:
        parser.error(f"{args.measured} has no instruction of {args.predicted}: are they of one plan?")
    print_table(rows)


if __name__ == "__main__":
    main()
