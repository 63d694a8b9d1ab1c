#!/usr/bin/env python3
"""From PyTorch to a plan and back: every family here is trained on 4 ranks at ZeRO-3, the trained weights are exported into
the model that PyTorch exports for inference (`sheaf export`), and ONNX Runtime's outputs are compared with those of the
plan's own evaluation (`sheaf-run --eval --outputs`).

    python roundtrip.py --tools BUILD/bin [--only REGEX] [--steps 20] [--exporter raw]

The inference model has other weights: what agrees was put there by the export. Needs PyTorch and onnxruntime, as
export.py; exits with 1 where an output differs by more than 1e-5, relative to the largest one if that is above 1.
"""
import argparse
import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnxruntime
import torch

import export
from family import BATCH, FAMILIES, OPTIMIZERS

TOLERANCE = 1e-5


def inference_model(family, data, path):
    """What a user deploys: dropout off, running statistics used, and other weights than those that are trained."""
    module, inputs = export.build(family), export.row_inputs(family, data, 0)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.dim() > 0 and (tensor.requires_grad or "running_" in name):
                tensor.mul_(0.5)
    names = list(data)
    if family.loss:
        inputs, names = inputs[:-1], names[:-1]
    variadic = "values" in type(module).forward.__code__.co_varnames
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in names)
    program = torch.onnx.export(module.eval(), tuple(inputs), dynamo=True, optimize=False, external_data=False, input_names=names,
                                output_names=["logits" if family.loss else "loss"],
                                dynamic_shapes=(shapes,) if variadic else shapes)
    program.save(path)
    return names


def run(tool, *arguments):
    done = subprocess.run([str(a) for a in (tool, *arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[-600:])


def round_trip(family, exporter, tools, where, steps):
    """(largest difference, largest output) over all rows that both see."""
    data = family.data(np.random.default_rng(7))
    (where / "train.onnx").write_bytes(export.export(family, exporter, data))
    for name, value in data.items():
        np.save(where / f"{name}.npy", value)
    names = inference_model(family, data, where / "inference.onnx")
    options = ["--optimizer", OPTIMIZERS[family.optimizer][0], *family.options]
    options += ["--freeze", family.freeze] if family.freeze else []
    loss = ["--loss", family.loss[0]] if family.loss else []
    run(tools / "sheaf", "compile", where / "train.onnx", "-o", where / "model.plan", "--ranks", 4, "--zero", 3, "--batch", BATCH,
        "--eval", *options, *loss)
    files = [a for name in data for a in ("--data", f"{name}={where / name}.npy")]
    run(tools / "sheaf-run", where / "model.plan", *files, "--steps", steps, "--save", where / "trained.safetensors")
    run(tools / "sheaf", "export", where / "model.plan", "--weights", where / "trained.safetensors", "--model",
        where / "inference.onnx", "-o", where / "trained.onnx")
    first = {name: value[:BATCH] for name, value in data.items()}  # a loss is of one batch
    for name, value in first.items():
        np.save(where / f"first-{name}.npy", value)
    outputs = ["--outputs", where / "outputs"] if family.loss else []  # else the loss is all that the model puts out
    run(tools / "sheaf-run", where / "model.plan", "--eval", "--weights", where / "trained.safetensors", *outputs,
        "--log", where / "run.jsonl", *[a for name in data for a in ("--eval-data", f"{name}={where / f'first-{name}.npy'}")])
    session = onnxruntime.InferenceSession(str(where / "trained.onnx"), providers=["CPUExecutionProvider"])
    taken = {i.name for i in session.get_inputs()}
    expected = session.run(None, {name: first[name] for name in names if name in taken})[0]
    if family.loss:
        found = np.load(where / "outputs" / "logits.npy")
    else:
        events = [json.loads(line) for line in (where / "run.jsonl").read_text().splitlines()]
        found = np.array(next(e["loss"] for e in events if e.get("event") == "eval"))
    if found.shape != expected.shape:
        raise RuntimeError(f"the evaluation's output has the shape {found.shape}, ONNX Runtime's {expected.shape}")
    return float(np.abs(found - expected).max()), float(np.abs(expected).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--exporter", default="raw")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    good = seen = 0
    for family in FAMILIES.values():
        if not re.search(args.only, family.name) or 4 not in family.ranks:
            continue
        seen += 1
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                difference, largest = round_trip(family, args.exporter, args.tools.resolve(), pathlib.Path(folder), args.steps)
            holds = difference <= TOLERANCE * max(1.0, largest)
            print(f"{family.name}: {difference:.1e} of {largest:.2g}{'' if holds else '  DIFFERS'}", flush=True)
            good += holds
        except Exception as e:
            print(f"{family.name}: {' '.join(str(e).split())[-400:]}", flush=True)
    print(f"{good} of {seen} families come back with the outputs of the plan's evaluation")
    return good != seen


if __name__ == "__main__":
    sys.exit(main())
