"""Makes trained.tar.xz: small modules by PyTorch's exporters, with PyTorch's own gradients (PyTorch 2.15, onnx 1.23.2).

    python trained.py        writes trained.tar.xz

MODEL.raw.onnx and MODEL.optimized.onnx are of the dynamo exporter without and with its optimizer, MODEL.torchscript.onnx of TorchScript's.
gradients.json has, by model, the inputs of one step and the gradient of every parameter, in f64 from the f32 weights in the files; null
where PyTorch computes none. What is not a parameter is a buffer.
"""
import copy
import io
import json
import lzma
import pathlib
import tarfile
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
ROWS, WIDTH = 4, 3


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


class Add(Two):
    def forward(self, x):
        return ((self.one(x).detach() + self.two(x)) ** 2).mean()


class Itself(Two):
    def forward(self, x):
        h = self.two(self.one(x))
        return (h * h.detach()).mean()


class Product(Two):
    def forward(self, x):
        h = self.one(x)
        return (h * (self.two(x) @ h.detach().mean(0))[:, None]).mean()


class Both(Two):
    def forward(self, x):
        h = self.one(x)
        return (h * (h.detach() * self.two(x).detach())).mean()


class Clone(Two):
    def forward(self, x):
        return (self.one(x).detach().clone() * self.two(x)).mean()


class Target(Two):
    def forward(self, x):
        return F.mse_loss(self.one(x), self.two(x).detach())


class StraightThrough(Two):
    """As in VQ-VAE: values of the quantized, gradients of what was quantized."""

    def forward(self, x):
        z = self.one(x)
        q = torch.round(z * 4) / 4
        return ((self.two(z + (q - z).detach()) - x) ** 2).mean() + 0.25 * F.mse_loss(z, q.detach())


class Padding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(8, WIDTH, padding_idx=1), nn.Embedding(8, WIDTH, padding_idx=2)
        with torch.no_grad():  # zeros would look like rows that are left out
            self.words.weight[1] = 0.5
            self.positions.weight[2] = 0.25
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        at = torch.arange(ids.shape[1]) + 1
        return (self.out(self.words(ids) + self.positions(at)) ** 2).mean()


class Buffers(nn.Module):
    """A number that is trained, in the outermost module; class weights and bounds that are not."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.logit_scale = nn.Parameter(torch.tensor(1.3))
        self.register_buffer("low", torch.tensor(-0.5))
        self.register_buffer("high", torch.tensor(0.5))
        self.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x, labels):
        return self.loss(torch.clamp(self.fc(x), self.low, self.high) * self.logit_scale, labels)


class Weighted(nn.Module):
    """A cross entropy with class weights that is written out."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("class_weights", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x, labels):
        chosen = F.log_softmax(self.fc(x), -1).gather(1, labels[:, None])[:, 0]
        weights = self.class_weights[labels]
        return -(weights * chosen).sum() / weights.sum()


def inputs(module):
    if isinstance(module, Padding):
        return {"ids": torch.tensor([[0, 1, 2], [1, 3, 1], [4, 5, 6], [7, 1, 0]])}
    x = {"x": torch.randn(ROWS, WIDTH)}
    if isinstance(module, (Buffers, Weighted)):
        x["labels"] = torch.tensor([0, 1, 2, 1])
    return x


def main():
    torch.manual_seed(7)
    modules = {"add": Add(), "itself": Itself(), "product": Product(), "both": Both(), "clone": Clone(), "target": Target(),
               "straight-through": StraightThrough(), "padding": Padding(), "buffers": Buffers(), "weighted": Weighted()}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        for name, module in modules.items():
            given = inputs(module)
            wide = copy.deepcopy(module).double()
            loss = wide(*(v.double() if v.is_floating_point() else v for v in given.values()))
            loss.backward()
            found[name] = {"inputs": {k: v.tolist() for k, v in given.items()}, "loss": loss.item(),
                           "gradients": {k: None if p.grad is None else p.grad.flatten().tolist() for k, p in wide.named_parameters()}}
            names = {"input_names": list(given), "output_names": ["loss"], "verbose": False}
            batch = torch.export.Dim("batch", min=2)
            for form, optimize in (("raw", False), ("optimized", True)):
                torch.onnx.export(module.train(), tuple(given.values()), where / f"{name}.{form}.onnx", dynamo=True, optimize=optimize,
                                  external_data=False, dynamic_shapes=tuple({0: batch} for _ in given), **names)
            torch.onnx.export(module, tuple(given.values()), where / f"{name}.torchscript.onnx", dynamo=False, do_constant_folding=False,
                              training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={k: {0: "batch"} for k in given}, **names)
        (where / "gradients.json").write_text(json.dumps(found))
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path in sorted(where.iterdir()):
                entry = tarfile.TarInfo(path.name)
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(entry, file)
        (HERE / "trained.tar.xz").write_bytes(lzma.compress(archive.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
