#!/usr/bin/env python3
"""Prints text that a trained language model over bytes writes after a prompt: one `sheaf-run --eval --outputs` for each byte.

    python3 tools/demo/sample.py sample.plan trained.safetensors --prompt "ROMEO:" [--characters 300] [--temperature 0.8] [--seed 1]

The plan is compiled with --eval, --ranks 1 and --batch 1 from a graph with the inputs `input_ids` and `labels` [rows, 128] and the output `logits`
[rows, 128, 256], such as test/models/shakespeare.py's.
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


def logits_after(text, run, folder):
    """The logits of the byte that follows, by an evaluation of the last CONTEXT bytes. Attention is causal, so the zeros after them do not matter."""
    context = text[-CONTEXT:]
    rows, outputs = pathlib.Path(folder) / "rows.u8", pathlib.Path(folder) / "outputs"
    rows.write_bytes(context.ljust(CONTEXT + 1, b"\0"))
    subprocess.run([*run, "--eval", "--eval-data", f"input_ids,labels={rows}", "--outputs", outputs, "--quiet"], check=True)
    data = (outputs / "logits.npy").read_bytes()
    header = 10 + struct.unpack_from("<H", data, 8)[0]  # numpy.lib.format, version 1.0
    return array.array("f", data[header:])[256 * (len(context) - 1):256 * len(context)]


def continued(text, characters, run, temperature, draw):
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(characters):
            logits = logits_after(text, run, folder)
            text += bytes(draw.choices(range(256), [math.exp((logit - max(logits)) / temperature) for logit in logits]))
    return text


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
    run = [pathlib.Path(args.tools) / "sheaf-run", args.plan, "--weights", args.weights]
    print(continued(args.prompt.encode(), args.characters, run, args.temperature, random.Random(args.seed)).decode(errors="replace"))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as e:
        sys.exit(f"sample: sheaf-run ended with {e.returncode}")
