"""Writes gpt2-tiny-groups.json: runs of gpt2-tiny by PyTorch 2.15 in f64 with parameter groups.

    python groups.py

The model is transformers' with the weights of gpt2-tiny.onnx, and a run reads the rows of gpt2-tiny.*.npy in order. Each
run has the options of `sheaf compile` that say the same, loss and gradient norm of every step, and of every parameter
after the last step its norm and its product with the vector i mod 7 - 3.
"""
import json
import pathlib
import re

import numpy as np
import onnx
import torch
import transformers as T
from onnx import numpy_helper

from unpack import unpack

MODELS, HERE = unpack(), pathlib.Path(__file__).resolve().parent
STEPS, BATCH = 20, 8


def model():
    module = T.GPT2LMHeadModel(T.GPT2Config(n_layer=4, n_embd=128, n_head=4, n_positions=64, vocab_size=256, resid_pdrop=0,
                                            embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))
    values = {i.name: numpy_helper.to_array(i) for i in onnx.load(MODELS / "gpt2-tiny.onnx").graph.initializer}
    with torch.no_grad():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if f"m.{name}" in values:
                parameter.copy_(torch.from_numpy(values[f"m.{name}"].copy()))
    return module.double().train()


def named(module):
    """A tied weight goes by its last name, as in the exported graph."""
    return {p: f"m.{n}" for n, p in module.named_parameters(remove_duplicate=False)}


def groups(module, base, patterns, no_decay):
    """As a user of PyTorch builds them. Embeddings are the modules' of that type; the tied one is a product's weight, too."""
    names, made = named(module), []
    embeddings = {m.weight for m in module.modules() if isinstance(m, torch.nn.Embedding)} - {module.lm_head.weight}
    for p, name in names.items():
        group = dict(base)
        own = {}
        for pattern, settings in patterns:
            if re.search(pattern, name):
                own = settings
        if no_decay and (p.dim() == 1 or p in embeddings):
            group["weight_decay"] = 0
        made.append({"params": [p], **group, **own})
    return made


def run(optimizer, base, patterns, no_decay, clip=None, schedule=None):
    module = model()
    ids, labels = (torch.from_numpy(np.load(MODELS / f"gpt2-tiny.{n}.npy")) for n in ("input_ids", "labels"))
    step = optimizer(groups(module, base, patterns, no_decay))
    scheduler = torch.optim.lr_scheduler.LambdaLR(step, schedule or (lambda s: 1))
    losses, norms = [], []
    for s in range(STEPS):
        rows = slice(s * BATCH, (s + 1) * BATCH)
        step.zero_grad()
        logits = module(input_ids=ids[rows], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[rows].reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), clip or float("inf")).item())
        step.step()
        scheduler.step()
        losses.append(loss.item())
    final = {}
    for p, name in named(module).items():
        flat = p.detach().flatten()
        final[name] = [flat.norm().item(), (flat * (torch.arange(len(flat)) % 7 - 3)).sum().item()]
    return {"loss": losses, "grad_norm": norms, "weights": final}


def betas(a, b):
    return {"betas": (a, b)}


RUNS = {
    "adamw": (
        ["--optimizer", "adamw:lr=3e-4,beta1=0.9,beta2=0.99,weight_decay=1", "--no-decay",
         "--group", "mlp:lr=1e-4,beta2=0.95", "--group", r"h\.3\..*bias:lr=6e-4,weight_decay=5", "--clip-norm", "0.5",
         "--lr-schedule", "linear:warmup=5,start=0.2,steps=20,min=0.5"],
        lambda: run(torch.optim.AdamW, {"lr": 3e-4, "weight_decay": 1, **betas(0.9, 0.99)},
                    [("mlp", {"lr": 1e-4, **betas(0.9, 0.95)}), (r"h\.3\..*bias", {"lr": 6e-4, "weight_decay": 5})],
                    True, clip=0.5, schedule=lambda s: 0.2 + 0.8 * s / 5 if s < 5 else 1 - 0.5 * (s - 5) / 15)),
    "sgd": (
        ["--optimizer", "sgd:lr=0.05,momentum=0.9,weight_decay=0.1", "--no-decay",
         "--group", "attn:lr=0.02,momentum=0", "--group", "ln_:lr=0.1,nesterov=true"],
        lambda: run(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
                    [("attn", {"lr": 0.02, "momentum": 0}), ("ln_", {"lr": 0.1, "nesterov": True})], True)),
}


def main():
    runs = {name: {"options": options, **make()} for name, (options, make) in RUNS.items()}
    (HERE / "gpt2-tiny-groups.json").write_text(json.dumps({"model": "gpt2-tiny", "steps": STEPS, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
