"""How the models and reference runs of this folder were made (PyTorch 2.15, onnx 1.23.2).

    python export.py        writes resnet.onnx, resnet-torchscript.onnx, resnet.json and resnet.*.safetensors

resnet: a residual network with batch norm over images and over vectors, on the images of ../cnn.x.npy. Its run: 50 steps of
16 rows by SGD, lr 0.05, momentum 0.9, weight decay 1e-4, in f64 from the f32 weights in the file:
- sync: model.train() on the whole batch;
- local: every rank of 2 normalizes its own 8 rows; gradients are averaged, and running statistics follow the mean of the ranks'
  moments. The rate is 0.01: at 0.05 PyTorch's own f32 run leaves its f64 run by 0.1, and with 4 rows a rank by 0.7;
- eval: model.eval(), trained.
"""
import copy
import json
import pathlib
import struct
import sys

import numpy as np
import onnx
import torch
from torch.nn.functional import cross_entropy, silu

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from pack import pack  # noqa: E402
from unpack import unpack  # noqa: E402
STEPS, BATCH, RANKS = 50, 16, 2


class Block(torch.nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outside)
        self.conv2 = torch.nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outside, momentum=0.2, eps=1e-3)
        self.down = None
        if stride > 1:
            self.down = torch.nn.Sequential(torch.nn.Conv2d(inside, outside, 1, stride, bias=False),
                                            torch.nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.bn2(self.conv2(silu(self.bn1(self.conv1(x)))))
        return silu(y + (x if self.down is None else self.down(x)))


class ResNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(2, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.block1, self.block2 = Block(8, 8, 1), Block(8, 16, 2)
        self.hidden = torch.nn.Linear(16, 24)
        self.vectors = torch.nn.BatchNorm1d(24)
        self.plain = torch.nn.BatchNorm1d(24, affine=False)
        self.head = torch.nn.Linear(24, 10)

    def forward(self, x, labels):
        # No ReLU anywhere: with so few elements, one that rounding moves over the kink shows in the loss.
        x = self.block2(self.block1(silu(self.norm(self.stem(x)))))
        x = torch.tanh(self.vectors(self.hidden(x.mean((2, 3)))))
        return cross_entropy(self.head(self.plain(x)), labels)


def build():
    """Scales, biases and statistics get noise, so that none equals another."""
    torch.manual_seed(2)
    model = ResNet()
    with torch.no_grad():
        for name, t in list(model.named_parameters()) + list(model.named_buffers()):
            if t.is_floating_point() and t.ndim == 1:
                t += 0.2 * torch.rand_like(t) - 0.1
    return model.train()


def statistics(model):
    return {n: t for n, t in model.named_buffers() if t.is_floating_point()}


def step_sync(model, x, labels):
    loss = model(x, labels)
    loss.backward()
    return loss.item()


def step_local(model, x, labels):
    before = {n: t.clone() for n, t in statistics(model).items()}
    moved, total = {n: torch.zeros_like(t) for n, t in before.items()}, 0
    for part, answers in zip(x.chunk(RANKS), labels.chunk(RANKS)):
        for n, t in statistics(model).items():
            t.copy_(before[n])
        loss = model(part, answers) / RANKS
        loss.backward()
        total += loss.item()
        for n, t in statistics(model).items():
            moved[n] += t / RANKS
    for n, t in statistics(model).items():
        t.copy_(moved[n])
    return total


def run(model, step, images, labels, rate=0.05):
    losses, norms = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    for s in range(STEPS):
        rows = slice(s * BATCH, (s + 1) * BATCH)
        optimizer.zero_grad()
        losses.append(step(model, images[rows], labels[rows]))
        norms.append(torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters())).item())
        optimizer.step()
    return {"loss": losses, "grad_norm": norms}


def save(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        raw = t.detach().to(torch.float32).numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(model, path, inputs, **options):
    initial = {n: t.clone() for n, t in statistics(model).items()}
    torch.onnx.export(model, inputs, path, input_names=["x", "labels"], output_names=["loss"], verbose=False, **options)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.name in initial:  # exporting to TorchScript runs the model in training mode, which moves its statistics
            tensor.raw_data = initial[tensor.name].numpy().tobytes()
    for node in proto.graph.node:
        for i in reversed(range(len(node.metadata_props))):
            if node.metadata_props[i].key == "pkg.torch.onnx.stack_trace":
                del node.metadata_props[i]
    onnx.save(proto, path)
    pack(path, HERE)


def main():
    data = unpack()
    images = torch.from_numpy(np.load(data / "cnn.x.npy"))
    labels = torch.from_numpy(np.load(data / "cnn.labels.npy"))
    model = build()
    inputs = (images[:4].clone(), labels[:4].clone())
    write(copy.deepcopy(model), HERE / "resnet.onnx", inputs, dynamo=True, optimize=False, external_data=False,
          dynamic_shapes=({0: "batch"}, {0: "batch"}))
    write(copy.deepcopy(model), HERE / "resnet-torchscript.onnx", inputs, dynamo=False,
          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
          dynamic_axes={"x": {0: "batch"}, "labels": {0: "batch"}})
    runs = {}
    for name, step, single in (("sync", step_sync, False), ("local", step_local, False), ("eval", step_sync, False),
                               ("sync-f32", step_sync, True), ("local-f32", step_local, True)):
        trained = copy.deepcopy(model).train(name != "eval")
        trained = trained if single else trained.double()
        runs[name] = run(trained, step, images if single else images.double(), labels, 0.01 if step == step_local else 0.05)
        if not single:
            tensors = dict(trained.named_parameters()) if name == "sync" else {}
            tensors |= statistics(trained) if name != "eval" else {}
            if tensors:
                save(HERE / f"resnet.{name}.safetensors", tensors)
    for name in ("sync", "local"):
        single = runs.pop(f"{name}-f32")["loss"]
        print(name, "in f32 differs by", max(abs(a - b) for a, b in zip(runs[name]["loss"], single)))
    (HERE / "resnet.json").write_text(json.dumps({"runs": runs}))


main()
