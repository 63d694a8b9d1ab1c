#!/usr/bin/env python3
"""Training artifacts of ONNX Runtime and its own runs of them: the files of test/models/artifacts.

    python3 test/models/artifacts.py FOLDER        # needs onnxruntime-training 1.19.2 (Python 3.11), torch, onnx, safetensors

For each model: training_model.onnx, optimizer_model.onnx and checkpoint as generate_artifacts makes them, the data, and what
ONNX Runtime itself makes of them in STEPS steps of ROWS rows: losses (run.json) and weights (trained.safetensors).
"""
import json
import pathlib
import sys
import tempfile

import numpy as np
import onnx
import torch
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer
from safetensors.numpy import save_file

STEPS, ROWS, RATE = 12, 8, 1e-2


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(16, 24), torch.nn.Linear(24, 5)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.second = torch.nn.Conv2d(4, 6, 3, stride=2)
        self.head = torch.nn.Linear(6 * 2 * 2, 5)

    def forward(self, x):
        h = torch.max_pool2d(torch.relu(self.first(x)), 2)
        return self.head(torch.relu(self.second(h)).flatten(1))


class Block(torch.nn.Module):
    """A transformer's block: embedding, layer norms, attention written out, GELU."""

    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.table = torch.nn.Embedding(20, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 32), torch.nn.Linear(32, width)
        self.head = torch.nn.Linear(width, 5)

    def forward(self, x):
        h = self.table(x)
        q, k, v = self.qkv(self.norm1(h)).split(self.width, -1)
        h = h + self.out(torch.softmax(q @ k.transpose(1, 2) * 0.25, -1) @ v)
        h = h + self.down(torch.nn.functional.gelu(self.up(self.norm2(h))))
        return self.head(h.mean(1))


def make(folder, model, data, labels, optimizer):
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in model.named_parameters()]
    with tempfile.TemporaryDirectory() as scratch:
        forward = f"{scratch}/forward.onnx"
        torch.onnx.export(model, (torch.tensor(data[:ROWS]),), forward, input_names=["x"], output_names=["logits"],
                          dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, opset_version=14, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        artifacts.generate_artifacts(onnx.load(forward), requires_grad=names, frozen_params=[], optimizer=optimizer,
                                     loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=str(folder))
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    update = Optimizer(str(folder / "optimizer_model.onnx"), module)
    update.set_learning_rate(RATE)
    losses = []
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        module.train()
        losses.append(float(module(data[rows], labels[rows])))
        update.step()
        module.lazy_reset_grad()
    save_file({name: np.ascontiguousarray(state.parameters[name].data) for name in names}, folder / "trained.safetensors")
    (folder / "run.json").write_text(json.dumps({"learning_rate": RATE, "losses": losses}) + "\n")
    (folder / "eval_model.onnx").unlink()
    np.save(folder / "x.npy", data)
    np.save(folder / "labels.npy", labels)


def main():
    out, random = pathlib.Path(sys.argv[1]), np.random.default_rng(0)
    torch.manual_seed(0)
    rows = STEPS * ROWS
    labels = random.integers(0, 5, rows)
    make(out / "mlp", Mlp(), random.standard_normal((rows, 16), "f4"), labels, artifacts.OptimType.AdamW)
    make(out / "mlp-sgd", Mlp(), random.standard_normal((rows, 16), "f4"), labels, artifacts.OptimType.SGD)
    make(out / "cnn", Cnn(), random.standard_normal((rows, 1, 10, 10), "f4"), labels, artifacts.OptimType.AdamW)
    make(out / "block", Block(), random.integers(0, 20, (rows, 6)), labels, artifacts.OptimType.AdamW)


if __name__ == "__main__":
    main()
