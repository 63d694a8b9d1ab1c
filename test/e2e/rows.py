"""Losses in which rows of the batch meet, exported by PyTorch's two exporters and trained however the batch is divided, against PyTorch in f64.

    python3 test/e2e/rows.py --tools build/release/bin [--only REGEX]     # in a Python with torch, onnx and onnxscript

Every model of test/models/crossing.py is exported by dynamo and by TorchScript, and trained for 20 steps on 1, 2, 4 and 8 ranks at stages 0 and 3:
each loss to 5e-5 of PyTorch's. With 8 leaves, ranks 1, 2, 4 and 8 have the same losses to the last bit. With 2 and 4 micro-batches on 1 and 2 ranks
the losses are as right, or the error names the node and the remedy. Prints a line for each model and exporter, and exits with 1 if one is wrong.
"""
import argparse
import contextlib
import io
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "models")]

import numpy
import onnx
import torch

import crossing
from formats import read_log

ALLOWED = 5e-5
DIVISIONS = [("--ranks", n, "--zero", z) for n in (1, 2, 4, 8) for z in (0, 3)]
LEAVES = [("--ranks", n, "--leaves", 8, "--zero", z) for n, z in ((1, 0), (2, 3), (4, 0), (8, 3))]
MICRO_BATCHES = [("--ranks", n, "--micro-batches", m) for n in (1, 2) for m in (2, 4)]
REMEDY = "leave out --micro-batches"


class Refused(Exception):
    pass


def export(name, exporter, path):
    x, y = crossing.inputs()
    rows, model = crossing.rows_of(name), crossing.Model(crossing.MODELS[name])
    names = dict(input_names=["x", "y"], output_names=["loss"])
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            torch.onnx.export(model, (x, y), path, dynamo=True, optimize=False, external_data=False, dynamic_shapes=rows and {"x": {0: rows}, "y": {0: rows}}, **names)
        else:
            torch.onnx.export(model, (x, y), path, dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                              dynamic_axes=rows and {"x": {0: "B"}, "y": {0: "B"}}, **names)


class Runs:
    def __init__(self, tools, folder, model):
        self.tools, self.folder, self.model, self.data = tools, folder, model, []
        # TorchScript drops an input that the loss does not read.
        names = [value.name for value in onnx.load(model).graph.input]
        for name, rows in zip("xy", crossing.inputs()):
            numpy.save(folder / f"{name}.npy", rows.numpy())
            if name in names:
                self.data += ["--data", f"{name}={folder / name}.npy"]

    def call(self, tool, *arguments):
        return subprocess.run([str(self.tools / tool), *map(str, arguments)], capture_output=True, text=True, timeout=300)

    def losses(self, options):
        plan, log = self.folder / "model.plan", self.folder / "log"
        done = self.call("sheaf", "compile", self.model, "-o", plan, "--batch", crossing.BATCH, "--optimizer", f"sgd:lr={crossing.RATE}", *options)
        if done.returncode:
            raise Refused(done.stderr.strip())
        done = self.call("sheaf-run", plan, *self.data, "--steps", crossing.STEPS, "--log", log)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return [step["loss"] for step in read_log(log)[0]]


def error(found, wanted):
    return max((abs(a - b) / max(1, abs(b)) for a, b in zip(found, wanted)), default=1) if len(found) == len(wanted) else 1


def judge(runs, wanted):
    """The largest error, and what is wrong."""
    worst, wrong, refused = 0, [], 0
    for options in DIVISIONS + LEAVES + MICRO_BATCHES:
        try:
            found = runs.losses(options)
        except Refused as reason:
            refused += 1
            if options not in MICRO_BATCHES or REMEDY not in str(reason):
                wrong.append(f"{' '.join(map(str, options))}: {reason}")
            continue
        worst = max(worst, error(found, wanted))
        if error(found, wanted) > ALLOWED:
            wrong.append(f"{' '.join(map(str, options))}: an error of {error(found, wanted):.1e}")
        if options == LEAVES[0]:
            first = found
        elif options in LEAVES and found != first:
            wrong.append(f"{' '.join(map(str, options))}: other bits than on one rank")
    return worst, refused, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    failed = total = 0
    for name in filter(lambda n: re.search(arguments.only, n), crossing.MODELS):
        wanted = crossing.losses(crossing.MODELS[name])
        for exporter in ("dynamo", "torchscript"):
            with tempfile.TemporaryDirectory() as scratch:
                path = pathlib.Path(scratch, f"{name}.onnx")
                try:
                    export(name, exporter, path)
                except Exception as reason:
                    print(f"{name:22} {exporter:12} PyTorch does not export it: {str(reason).splitlines()[0][:100]}", flush=True)
                    continue
                worst, refused, wrong = judge(Runs(arguments.tools, pathlib.Path(scratch), path), wanted)
            total += 1
            failed += bool(wrong)
            print(f"{name:22} {exporter:12} {'WRONG' if wrong else 'right'}, error at most {worst:.1e}" +
                  (f", {refused} of {len(MICRO_BATCHES)} divisions into micro-batches are refused" if refused else ""), *wrong, sep="\n    ", flush=True)
    print(f"{total - failed} of {total} graphs are right on all of {len(DIVISIONS + LEAVES + MICRO_BATCHES)} divisions")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
