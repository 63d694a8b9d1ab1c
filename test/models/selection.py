#!/usr/bin/env python3
"""Makes moe.onnx, unet.onnx and PyTorch's runs of them: python3 test/models/selection.py FOLDER

`python3 test/models/pack.py FOLDER/*` stores them here.

moe: a mixture of four experts on vectors of 64, of which each row takes two; the router's weights are scattered into a
dense matrix of gates, as PyTorch exports it. unet: a block that halves images of 8 x 8 twice and enlarges them again by
transposed convolutions, with a skip connection. Both end in ten classes. Takes PyTorch 2.15 with onnxscript, onnx and
safetensors; data are those of mlp and cnn.
"""
import json
import pathlib
import sys

import numpy
import onnx
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

from unpack import unpack

MODELS = unpack()
STEPS, BATCH = 100, 8
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


class Moe(nn.Module):
    def __init__(self, width=64, inner=16, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.ModuleList(nn.Linear(width, inner) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(inner, width) for _ in range(experts))
        self.head = nn.Linear(width, 10)

    def forward(self, x, labels):
        logits = self.router(x)
        best, which = torch.topk(logits, 2, dim=-1)
        gates = torch.zeros_like(logits).scatter(1, which, torch.softmax(best, dim=-1))
        experts = [down(F.silu(up(x))) for up, down in zip(self.up, self.down)]
        mixed = sum(gates[:, i:i + 1] * expert for i, expert in enumerate(experts))
        # How often an expert is the first, times its mean probability: keeps the experts equally busy.
        first = F.one_hot(torch.argmax(logits, dim=-1), logits.shape[1]).to(x.dtype).mean(0)
        balance = (first * torch.softmax(logits, dim=-1).mean(0)).sum()
        return F.cross_entropy(self.head(x + mixed), labels) + 0.1 * balance


class UNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.first = nn.Conv2d(2, channels, 3, padding=1)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.wide = nn.ConvTranspose2d(channels, channels, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)
        self.far = nn.ConvTranspose2d(channels, channels, 5, stride=4, padding=1, output_padding=1)
        self.last = nn.Conv2d(4 * channels, channels, 1)
        self.head = nn.Linear(channels, 10)

    def forward(self, x, labels):
        skip = F.silu(self.first(x))
        middle = F.silu(self.inner(F.max_pool2d(skip, 2)))
        coarse = F.avg_pool2d(middle, 2)
        both = torch.cat([skip, self.up(middle), self.wide(middle), self.far(coarse)], dim=1)
        return F.cross_entropy(self.head(F.silu(self.last(both)).mean((2, 3))), labels)


def export(model, inputs, path):
    batch = torch.export.Dim("batch", min=2)
    program = torch.onnx.export(model.train(), inputs, dynamo=True, optimize=False, input_names=["x", "labels"],
                                output_names=["loss"], dynamic_shapes=({0: batch}, {0: batch}))
    proto = program.model_proto
    for holder in [*proto.graph.node, *(n for f in proto.functions for n in f.node)]:
        kept = [p for p in holder.metadata_props if p.key != "pkg.torch.onnx.stack_trace"]
        del holder.metadata_props[:]
        holder.metadata_props.extend(kept)
    onnx.save(proto, path)


def run(model, x, labels, into):
    """Losses and gradient norms of all steps; the first gradients go to `into`."""
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    result = {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        rows = slice(step * BATCH % len(x), step * BATCH % len(x) + BATCH)
        optimizer.zero_grad()
        loss = model(x[rows], labels[rows])
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        if step == 0 and into:
            safetensors.torch.save_file({n: g.float().contiguous() for n, g in gradients.items()}, into)
        result["loss"].append(loss.item())
        result["grad_norm"].append(torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values())).item())
        optimizer.step()
    return result


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, make, data in (("moe", Moe, "mlp"), ("unet", UNet, "cnn")):
        torch.manual_seed(7)
        model = make()
        x, labels = (torch.from_numpy(numpy.load(MODELS / f"{data}.{part}.npy")) for part in ("x", "labels"))
        export(model, (x[:BATCH], labels[:BATCH]), folder / f"{name}.onnx")
        state = {k: v.clone() for k, v in model.state_dict().items()}
        runs = {}
        for kind in (torch.float64, torch.float32):
            again = make().to(kind)
            again.load_state_dict(state)
            double = kind == torch.float64
            runs["adamw.f64" if double else "adamw.f32"] = run(
                again, x.to(kind), labels, folder / f"{name}.grad0.safetensors" if double else None)
        (folder / f"{name}.json").write_text(
            json.dumps({"model": name, "steps": STEPS, "global_batch": BATCH, "runs": runs}) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
