"""Writes scaled.json: runs of the perceptron with PyTorch's GradScaler, whose gradients overflow.

    python scaled.py

The model is mlp.onnx with its weights, in f64, and a run reads the rows of mlp.*.npy in order. What overflows is the
gradient of a parameter: it is rounded to f16 before the scaler sees it. Each run has the options of `sheaf compile` that
say the same, and of every step the loss, the loss scale and whether the step was skipped.
"""
import json
import pathlib

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from unpack import unpack

MODELS, HERE = unpack(), pathlib.Path(__file__).resolve().parent
STEPS, BATCH = 40, 8


def model():
    values = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in onnx.load(MODELS / "mlp.onnx").graph.initializer}
    layers = [torch.nn.Linear(64, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 10)]
    with torch.no_grad():
        for i, layer in enumerate(layers, 1):
            layer.weight.copy_(values[f"fc{i}.weight"])
            layer.bias.copy_(values[f"fc{i}.bias"])
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.Tanh(), layers[2]).double()


def run(optimizer, init, growth, interval, backoff):
    module = model()
    step = optimizer(module.parameters())
    x, labels = (torch.from_numpy(np.load(MODELS / f"mlp.{n}.npy")) for n in ("x", "labels"))
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, growth_interval=interval, backoff_factor=backoff)
    losses, scales, skipped = [], [], []
    for s in range(STEPS):
        rows = slice(s * BATCH, (s + 1) * BATCH)
        step.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x[rows].double()), labels[rows])
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        for p in module.parameters():
            p.grad = p.grad.half().double()
        before = [p.detach().clone() for p in module.parameters()]
        scaler.step(step)
        scaler.update()
        losses.append(loss.item())
        scales.append(scale)
        skipped.append(all(torch.equal(a, p) for a, p in zip(before, module.parameters())))
    return {"loss": losses, "loss_scale": scales, "skipped": skipped}


RUNS = {
    # Too large at first; then it grows every six good steps, and overflows again. Gradients overflow from about 2^18 on:
    # the factors are large so that no scale is near that, where rounding would decide.
    "adamw": (["--optimizer", "adamw:lr=1e-3,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01",
               "--loss-scale", "dynamic:init=268435456,growth=64,interval=6,backoff=0.015625"],
              lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01), (2.0**28, 64.0, 6, 2.0**-6)),
    # Scales that are not powers of two.
    "momentum": (["--optimizer", "sgd:lr=0.05,momentum=0.9,weight_decay=1e-4",
                  "--loss-scale", "dynamic:init=1e8,growth=30,interval=4,backoff=0.03"],
                 lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4), (1e8, 30.0, 4, 0.03)),
}

if __name__ == "__main__":
    runs = {name: {"options": options, **run(optimizer, *scale)} for name, (options, optimizer, scale) in RUNS.items()}
    (HERE / "scaled.json").write_text(json.dumps({"steps": STEPS, "batch": BATCH, "runs": runs}) + "\n")
    for name, r in runs.items():
        print(name, [f"{s:g}{'!' if k else ''}" for s, k in zip(r["loss_scale"], r["skipped"])])
