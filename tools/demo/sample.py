#!/usr/bin/env python3
"""Prints text that a trained language model over bytes continues, one `sheaf-run --eval --outputs` for each byte.

    python3 tools/demo/sample.py sample.plan trained.safetensors --prompt "ROMEO:" [--characters 300] [--temperature 0.8] [--seed 1]

The plan is compiled with --eval, --ranks 1 and --batch 1 from a graph that has the inputs `input_ids` and `labels` [1, context] and the output `logits`
[1, context, 256].
"""
import argparse
import array
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

CONTEXT = 128


def read_npy(path):
    """The numbers of a .npy file of f32 (numpy.lib.format, version 1.0)."""
    data = path.read_bytes()
    return array.array("f", data[10 + struct.unpack_from("<H", data, 8)[0]:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("weights")
    parser.add_argument("--tools", default="build/bin", help="folder of sheaf-run (default: %(default)s)")
    parser.add_argument("--prompt", default="\n")
    parser.add_argument("--characters", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    text, draw = args.prompt.encode(), random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        rows, outputs = pathlib.Path(folder) / "rows.u8", pathlib.Path(folder) / "outputs"
        command = [pathlib.Path(args.tools) / "sheaf-run", args.plan, "--eval", "--weights", args.weights, "--eval-data", f"input_ids,labels={rows}",
                   "--outputs", outputs, "--quiet"]
        for _ in range(args.characters):
            context = text[-CONTEXT:]
            rows.write_bytes(context.ljust(CONTEXT + 1, b"\0"))  # attention is causal, so what follows does not matter
            subprocess.run(command, check=True)
            logits = read_npy(outputs / "logits.npy")[256 * (len(context) - 1):256 * len(context)]
            weights = [math.exp((logit - max(logits)) / args.temperature) for logit in logits]
            text += bytes(draw.choices(range(256), weights))
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(f"sample: sheaf-run ended with {e.returncode}")
