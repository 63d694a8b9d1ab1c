#!/usr/bin/env python3
"""Makes the seeds that sheaf-fuzz mutates: small, so that a mutation hits what matters.

    python3 test/fuzz/corpus.py --tools build/bin --out build/fuzz
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "test" / "models"
sys.path.insert(0, str(ROOT / "test" / "e2e"))

import onnxwriter  # noqa: E402
from formats import Tensor, read_safetensors, write_npy, write_safetensors  # noqa: E402


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """(number, wire type, value or bytes) of a message's fields."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(tag & 7) or read_varint(data, at)
            value, at = data[at:at + size], at + size
        yield tag >> 3, tag & 7, value


def encode(number, wire, value):
    head = onnxwriter.varint(number << 3 | wire)
    if wire == 0:
        return head + onnxwriter.varint(value)
    return head + (onnxwriter.varint(len(value)) if wire == 2 else b"") + value


def rewritten(data, change):
    return b"".join(encode(*f) for f in (change(*field) for field in fields(data)) if f)


def without_weights(model):
    """The model with initializers of more than 4 KiB in a file that does not exist, and without documentation."""

    def tensor(number, wire, value):
        if number == 9 and len(value) > 4096:
            return 13, 2, encode(1, 2, b"location") + encode(2, 2, b"weights.bin")
        return number, wire, value

    def initializer(value):
        large = any(n == 9 and len(v) > 4096 for n, _, v in fields(value))
        return rewritten(value, tensor) + (encode(14, 0, 1) if large else b"")

    def graph(number, wire, value):
        if number == 5:
            return number, wire, initializer(value)
        if number == 1:  # a node without its documentation and stack traces
            return number, wire, rewritten(value, lambda n, w, v: None if n in (6, 9) else (n, w, v))
        return number, wire, value

    return rewritten(model, lambda n, w, v: (n, w, rewritten(v, graph)) if n == 7 else (n, w, v))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    out = args.out
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("onnx", "plan", "data", "data-plan", "weights", "run", "profile"):
        (out / folder).mkdir(parents=True)

    def tool(name, *arguments):
        subprocess.run([args.tools / name, *map(str, arguments)], check=True)

    for name in ("mlp", "mlp-training-info", "gpt2-tiny", "llama-tiny", "gpt2-tiny-optimized", "gpt2-tiny-logits"):
        (out / "onnx" / f"{name}.onnx").write_bytes(without_weights((MODELS / f"{name}.onnx").read_bytes()))
    for profile in (ROOT / "passes" / "schedule" / "profiles").glob("*.json"):
        shutil.copy(profile, out / "profile" / profile.name)
    (out / "onnx" / "linear.onnx").write_bytes(onnxwriter.linear())

    for ranks, zero, more in ((1, 0, []), (2, 1, ["--on-nan", "skip"]), (2, 3, ["--clip-norm", "1"])):
        tool("sheaf", "compile", MODELS / "mlp.onnx", "-o", out / "plan" / f"mlp-{ranks}-{zero}.plan", "--ranks", ranks, "--zero", zero,
             "--batch", 8, *more)
    for name in ("mlp", "gpt2-tiny"):
        tool("sheaf", "compile", MODELS / f"{name}.onnx", "-o", out / "data-plan" / f"{name}.plan", "--ranks", 2, "--batch", 8)

    run = out / "run"
    tool("sheaf", "compile", MODELS / "mlp.onnx", "-o", run / "mlp.plan", "--ranks", 2, "--zero", 3, "--batch", 8)
    for name in ("x", "labels"):
        shutil.copy(MODELS / f"mlp.{name}.npy", run / f"{name}.npy")
    tool("sheaf-run", run / "mlp.plan", "--data", f"x={run / 'x.npy'}", "--data", f"labels={run / 'labels.npy'}", "--steps", 1,
         "--save", run / "w.safetensors", "--save-state", run / "state")

    shutil.copy(run / "w.safetensors", out / "weights" / "mlp.safetensors")
    whole = read_safetensors(run / "w.safetensors")
    write_safetensors(out / "weights" / "biases.safetensors", {n: t for n, t in whole.items() if len(t.shape) == 1})
    write_safetensors(out / "weights" / "empty.safetensors", {"none": Tensor("F32", (0, 3), whole[next(iter(whole))].values[:0])})

    write_npy(out / "data" / "x.npy", "<f4", (16, 64), bytes(16 * 64 * 4))
    write_npy(out / "data" / "ids.npy", "<i8", (9, 64), b"".join((i % 256).to_bytes(8, "little") for i in range(9 * 64)))
    for width in (1, 2, 4):
        (out / "data" / f"tokens.u{8 * width}").write_bytes(b"".join((i % 251).to_bytes(width, "little") for i in range(1000)))
    header = b"".join(n.to_bytes(4, "little") for n in (20240520, 1, 700)) + bytes(1024 - 12)
    (out / "data" / "llmc.bin").write_bytes(header + bytes(1400))


if __name__ == "__main__":
    main()
