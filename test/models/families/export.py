#!/usr/bin/env python3
"""Exports the families of models here and stores PyTorch's runs of them (PyTorch 2.15, transformers 5.23, onnx 1.23).

    python export.py [--only REGEX] [--exporters raw,optimized,torchscript] [--into FOLDER] [--list] [--unpacked]

NAME.tar.xz holds one graph an exporter (raw: the dynamo exporter without its optimizer, optimized: with it, torchscript),
INPUT.npy, and run.json: the loss of every step in f64, the optimizer and the other options of `sheaf compile`.
"""
import argparse
import contextlib
import io
import json
import pathlib
import re
import sys
import tarfile
import traceback
import warnings

import numpy as np
import onnx
import torch

import tables  # noqa: F401
import text  # noqa: F401
import vision  # noqa: F401
from family import BATCH, BATCHES, FAMILIES, OPTIMIZERS, STEPS

HERE = pathlib.Path(__file__).resolve().parent


def build(family):
    """The model from seed 0. Biases and scales get noise: from zeros and ones the exporter's optimizer drops biases and
    merges scales. Weights have 8 bits of mantissa, which compress."""
    torch.manual_seed(0)
    module = family.build().train()
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.numel() > 1 and (p.dim() == 1 or p.std() == 0):
                p += 0.02 * torch.randn_like(p)
            p.copy_(p.bfloat16().float())
            if family.freeze and re.search(family.freeze, name):
                p.requires_grad_(False)
    return module


def row_inputs(family, data, step, dtype=torch.float32):
    at = step % BATCHES * BATCH
    rows = [torch.from_numpy(v[at:at + BATCH]) for v in data.values()]
    return [r.to(dtype) if r.is_floating_point() else r for r in rows]


def loss_of(family, module, inputs):
    return family.loss[1](module(*inputs[:-1]), inputs[-1]) if family.loss else module(*inputs)


def reference(family, data, dtype):
    module, losses = build(family).to(dtype), []
    optimizer = OPTIMIZERS[family.optimizer][1]([p for p in module.parameters() if p.requires_grad])
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(family, module, row_inputs(family, data, step, dtype))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def stripped(model):
    """Without the places of the machine that exported."""
    def strip(graph):
        for node in graph.node:
            node.ClearField("doc_string")
            kept = [m for m in node.metadata_props if m.key != "pkg.torch.onnx.stack_trace"]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    strip(attribute.g)
    for function in model.functions:
        strip(function)
    strip(model.graph)
    del model.metadata_props[:]
    return model


def export(family, exporter, data):
    """The bytes of the model."""
    module, inputs = build(family), row_inputs(family, data, 0)
    names, output = list(data), "loss"
    if family.loss:
        inputs, names, output = inputs[:-1], names[:-1], "logits"
    where = io.BytesIO()
    if exporter == "torchscript":
        torch.onnx.export(module, tuple(inputs), where, dynamo=False, input_names=names, output_names=[output], opset_version=18,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          dynamic_axes={n: {0: "batch"} for n in names})
    else:
        variadic = "values" in type(module).forward.__code__.co_varnames
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in names)
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, optimize=exporter == "optimized", external_data=False,
                                    input_names=names, output_names=[output], dynamic_shapes=(shapes,) if variadic else shapes)
        program.save(where)
    return stripped(onnx.load_from_string(where.getvalue())).SerializeToString(deterministic=True)


def npy(array):
    where = io.BytesIO()
    np.save(where, array)
    return where.getvalue()


def make(family, exporters):
    """{file name: bytes}, and {exporter: why it does not take the model}."""
    data = family.data(np.random.default_rng(7))
    files, refusals = {}, {}
    for exporter in exporters or family.exporters:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # both exporters print much
                files[f"{exporter}.onnx"] = export(family, exporter, data)
        except Exception as e:
            while e.__cause__:
                e = e.__cause__
            refusals[exporter] = (str(e) or traceback.format_exc()).strip()
    files |= {f"{name}.npy": npy(value) for name, value in data.items()}
    losses, single = reference(family, data, torch.float64), reference(family, data, torch.float32)
    options = ["--optimizer", OPTIMIZERS[family.optimizer][0], *family.options]
    options += ["--freeze", family.freeze] if family.freeze else []
    options += ["--loss", family.loss[0]] if family.loss else []
    files["run.json"] = json.dumps({
        "options": options, "batch": BATCH, "ranks": family.ranks, "tolerance": family.tolerance,
        "f32_difference": float(f"{max(abs(a - b) for a, b in zip(losses, single)):.1e}"),
        "loss": [float(f"{loss:.9g}") for loss in losses]}).encode()
    return files, refusals


def pack(path, files):
    with tarfile.open(path, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families whose names match")
    parser.add_argument("--exporters", help="these, also where a family does not name them")
    parser.add_argument("--into", type=pathlib.Path, default=HERE)
    parser.add_argument("--unpacked", action="store_true", help="folders instead of archives")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    args.into.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES.values():
        if not re.search(args.only, family.name):
            continue
        if args.list:
            print(family.name)
            continue
        try:
            files, refusals = make(family, args.exporters and args.exporters.split(","))
        except Exception:
            print(f"{family.name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        parameters = sum(p.numel() for p in build(family).parameters())
        run = json.loads(files["run.json"])
        print(f"{family.name}: {parameters} parameters, loss {run['loss'][0]:.4f} to {run['loss'][-1]:.4f}, "
              f"f32 differs by {run['f32_difference']}", flush=True)
        for exporter, why in refusals.items():
            reason = " ".join(why.split())[:300]
            print(f"  {exporter} does not take it: {reason}", flush=True)
        if args.unpacked:
            (args.into / family.name).mkdir(exist_ok=True)
            for name, content in files.items():
                (args.into / family.name / name).write_bytes(content)
        else:
            pack(args.into / f"{family.name}.tar.xz", files)


if __name__ == "__main__":
    main()
