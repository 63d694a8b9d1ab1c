#!/usr/bin/env python3
"""Makes the seeds that sheaf-fuzz mutates: small, so that a mutation hits what matters.

    python3 test/fuzz/corpus.py --tools build/bin --out build/fuzz
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "e2e"))
sys.path.append(str(ROOT / "test" / "models"))

import onnxwriter  # noqa: E402
import unpack  # noqa: E402
from formats import Tensor, read_safetensors, write_npy, write_safetensors  # noqa: E402
from harness import for_processor  # noqa: E402
from onnxwriter import FLOAT, INT64, encode, fields, function, graph, inlined, node, rewritten, value, weight, with_initializers  # noqa: E402

MODELS = unpack.FOLDER
BOOL = 9
LARGEST_NODE, LARGEST_FAMILY = 8 << 10, 300 << 10  # bytes of a seed: small ones are mutated more often


def with_weights(path):
    """The model at a path with all its initializers in itself."""
    return with_initializers(path.read_bytes(), lambda tensor: inlined(tensor, path.parent))


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


def node_models():
    """ONNX's node tests: (name, a model whose floating-point inputs are its parameters)."""
    raw = (MODELS / "onnx-node-tests").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    entries, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    for name, entry in entries.items():
        if "graph" not in entry:
            continue
        floats = {n: (shape, begin, end) for n, (kind, shape, begin, end) in entry["inputs"].items() if kind == "f4"}
        body = b"".join(encode(*f) for f in fields(data[slice(*entry["graph"])]) if not (f[0] == 11 and input_name(f[2]) in floats))
        for n, (shape, begin, end) in floats.items():
            body += encode(5, 2, weight(n, shape, struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])))
        body += encode(11, 2, value("one", FLOAT, [1])) + encode(1, 2, node("Mul", ["one", name.removeprefix("test_") + "/.total"], ["scaled"]))
        model = onnxwriter.summed(body, ["scaled"], entry["opset"])
        if len(model) <= LARGEST_NODE:
            yield name, model


def input_name(info):
    return next(v for n, _, v in fields(info) if n == 1).decode()


def families():
    """(name, model) of the families' graphs."""
    for path in sorted((MODELS / "families").glob("*/*.onnx")):
        model = without_weights(path.read_bytes())
        if len(model) <= LARGEST_FAMILY:
            yield f"{path.parent.name}-{path.stem}", model


def one(name, number, dtype=INT64):
    return weight(name, [], [number], dtype)


def flag(name):
    return encode(2, 0, BOOL) + encode(8, 2, name.encode()) + encode(9, 2, b"\1")


def controlled():
    """Functions that call each other, loops in branches, scans, sequences, and what differs in training."""
    step = graph([node("Add", ["h", "x_t"], ["s"]), node("Tanh", ["s"], ["h2"]), node("Identity", ["h2"], ["y_t"])],
                 [value("h", FLOAT, [8, 4]), value("x_t", FLOAT, [8, 4])], [value("h2", FLOAT, [8, 4]), value("y_t", FLOAT, [8, 4])])
    body = graph([node("MatMul", ["v", "w"], ["v2"]), node("Gather", ["v2", "i"], ["row"], axis=0), node("Identity", ["go"], ["go2"])],
                 [value("i", INT64, []), value("go", BOOL, []), value("v", FLOAT, [8, 4])],
                 [value("go2", BOOL, []), value("v2", FLOAT, [8, 4]), value("row", FLOAT, [4])])
    then = graph([node("Loop", ["three", "yes", "d"], ["looped", "rows"], body=body)], [], [value("looped", FLOAT, [8, 4])])
    other = graph([node("Identity", ["d"], ["same"])], [], [value("same", FLOAT, [8, 4])])
    functions = [
        function("Outer", "local", ["a", "b"], ["c"], ["alpha"], [node("Inner", ["a"], ["t"], domain="local"), node("MatMul", ["t", "b"], ["c"])],
                 domains=("local",)),
        function("Inner", "local", ["a"], ["r"], [], [node("LeakyRelu", ["a"], ["r"], alpha=0.1)]),
    ]
    nodes = [
        node("Outer", ["x", "w"], ["m"], domain="local"),
        node("BatchNormalization", ["m", "scale", "bias", "mean", "var"], ["n", "mean2", "var2"], training_mode=1, momentum=0.9),
        node("Dropout", ["n", "ratio", "yes"], ["d", "mask"], seed=3),
        node("If", ["yes"], ["chosen"], then_branch=then, else_branch=other),
        node("SplitToSequence", ["chosen", "parts"], ["sequence"], axis=1),
        node("SequenceAt", ["sequence", "last"], ["part"]),
        node("SequenceInsert", ["sequence", "part"], ["longer"]),
        node("ConcatFromSequence", ["longer"], ["joined"], axis=1),
        node("Unsqueeze", ["chosen", "axes"], ["steps"]),
        node("Scan", ["chosen", "steps"], ["final", "all"], body=step, num_scan_inputs=1, scan_input_axes=[0]),
        node("Einsum", ["final", "joined"], ["products"], equation="bi,bj->bij"),
        node("Resize", ["products4", "", "", "sizes"], ["resized"], mode="cubic", coordinate_transformation_mode="align_corners"),
        node("ReduceMean", ["resized"], ["loss"], keepdims=0),
    ]
    nodes.insert(-2, node("Unsqueeze", ["products", "axes"], ["products4"]))
    weights = [weight("w", [4, 4], [0.1 * i for i in range(16)]), weight("ratio", [], [0.25])]
    weights += [weight(n, [4], [1.0] * 4) for n in ("scale", "bias", "mean", "var")]
    weights += [one("three", 3), one("last", -1), weight("parts", [2], [1, 3], INT64), weight("axes", [1], [0], INT64),
                weight("sizes", [4], [1, 8, 3, 7], INT64), flag("yes")]
    return onnxwriter.model(nodes, [value("x", FLOAT, ["N", 4])], [value("loss", FLOAT, [])], weights, domains=("local",), functions=functions)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    unpack.unpack()
    out = args.out
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("onnx", "onnx-nodes", "onnx-families", "onnx-artifacts", "export", "plan", "text", "data", "data-plan", "weights", "run", "profile"):
        (out / folder).mkdir(parents=True)

    def tool(name, *arguments):
        given = for_processor(os.environ.get("SHEAF_TEST_CPU"), name, list(map(str, arguments)))
        subprocess.run([args.tools / name, *given], check=True)

    for name in ("mlp", "mlp-training-info", "gpt2-tiny", "llama-tiny", "gpt2-tiny-optimized", "gpt2-tiny-logits"):
        (out / "onnx" / f"{name}.onnx").write_bytes(without_weights(with_weights(MODELS / f"{name}.onnx")))
    for profile in (ROOT / "passes" / "schedule" / "profiles").glob("*.json"):
        shutil.copy(profile, out / "profile" / profile.name)
    (out / "onnx" / "linear.onnx").write_bytes(onnxwriter.linear())
    (out / "onnx" / "controlled.onnx").write_bytes(controlled())
    for name, model in node_models():
        (out / "onnx-nodes" / f"{name}.onnx").write_bytes(model)
    for name, model in families():
        (out / "onnx-families" / f"{name}.onnx").write_bytes(model)
    for folder in (MODELS / "artifacts").iterdir():
        (out / "onnx-artifacts" / folder.name).mkdir()
        for name in ("training_model.onnx", "optimizer_model.onnx", "checkpoint"):
            shutil.copy(folder / name, out / "onnx-artifacts" / folder.name / name)

    for ranks, zero, more in ((1, 0, []), (2, 1, ["--on-nan", "skip"]), (2, 3, ["--clip-norm", "1"])):
        tool("sheaf", "compile", MODELS / "mlp.onnx", "-o", out / "plan" / f"mlp-{ranks}-{zero}.plan", "--ranks", ranks, "--zero", zero,
             "--batch", 8, *more)
    for name in ("mlp", "gpt2-tiny"):
        tool("sheaf", "compile", MODELS / f"{name}.onnx", "-o", out / "data-plan" / f"{name}.plan", "--ranks", 2, "--batch", 8)

    for name, more in (("plain", []), ("split", ["--micro-batches", 4, "--clip-norm", 1, "--eval"]),
                       ("nodes", ["--ranks", 4, "--ranks-per-node", 2, "--zero", 3, "--precision", "bf16"]),
                       ("scaled", ["--precision", "f16", "--loss-scale", "dynamic", "--lr-schedule", "cosine:warmup=2,steps=9"]),
                       ("files", ["--offload", "optimizer=file,parameters=file"])):
        plan = out / "run" / "text.plan"
        tool("sheaf", "compile", out / "onnx" / "linear.onnx", "-o", plan, "--batch", 8, *([] if "--ranks" in more else ["--ranks", 2]), *more)
        text = subprocess.run([args.tools / "sheaf", "inspect", plan, "--format", "text"], check=True, capture_output=True, text=True).stdout
        # Machine code is most of a text: one seed has it.
        (out / "text" / f"{name}.mlir").write_text(text if name == "plain" else re.sub(r' code "[^"]*"', ' code "90"', text))

    run = out / "run"
    tool("sheaf", "compile", MODELS / "mlp.onnx", "-o", run / "mlp.plan", "--ranks", 2, "--zero", 3, "--batch", 8)
    for name in ("x", "labels"):
        shutil.copy(MODELS / f"mlp.{name}.npy", run / f"{name}.npy")
    tool("sheaf-run", run / "mlp.plan", "--data", f"x={run / 'x.npy'}", "--data", f"labels={run / 'labels.npy'}", "--steps", 1,
         "--save", run / "w.safetensors", "--save-state", run / "state")

    for name, data, optimizer in (("mlp", {"x": "mlp.x", "labels": "mlp.labels"}, "sgd"),
                                  ("gpt2-tiny-optimized", {"input_ids": "gpt2-tiny.input_ids", "labels": "gpt2-tiny.labels"}, "sgd")):
        folder = out / "export" / name
        folder.mkdir()
        (folder / "model.onnx").write_bytes(with_weights(MODELS / f"{name}.onnx"))
        tool("sheaf", "compile", folder / "model.onnx", "-o", folder / "plan", "--ranks", 2, "--batch", 8, "--optimizer", optimizer)
        tool("sheaf-run", folder / "plan", *(a for key, file in data.items() for a in ("--data", f"{key}={MODELS / file}.npy")), "--steps", 1,
             "--save", folder / "weights.safetensors", "--save-state", folder / "state")

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
