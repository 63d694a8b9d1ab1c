"""Writes micro-batches.*.npy and micro-batches.json: gpt2-tiny by PyTorch 2.15 in f64, accumulating gradients.

    python micro_batches.py

The data are the first 80 rows of gpt2-tiny.*.npy with labels that are ignored, in some rows none, in others all, so that
each micro-batch of a step has another number that count. A step of 8 rows is 4 micro-batches of 2: each adds the gradient
of its own sum of losses divided by the number of labels that count in the whole step. A second run has steps of 128 rows of
gpt2-tiny.*.npy as they are, a third one steps of 12 of the first 72 rows in 3 micro-batches.
"""
import json

import numpy as np
import torch

from groups import HERE, MODELS, model
from pack import pack

STEPS, BATCH, MICRO_BATCHES = 10, 8, 4


def data():
    ids, labels = (np.load(MODELS / f"gpt2-tiny.{n}.npy")[:STEPS * BATCH] for n in ("input_ids", "labels"))
    row, column = np.indices(labels.shape)
    labels[(column * (row % 7) + row * row) % 9 < row % 5 * 2] = -100
    labels[row % 8 == 5] = -100
    return ids.astype(np.int16), labels.astype(np.int16)


def train(ids, labels, steps, batch, micro_batches=MICRO_BATCHES):
    module = model()
    step = torch.optim.AdamW(module.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for s in range(steps):
        rows = slice(s * batch, (s + 1) * batch)
        x, y = (torch.from_numpy(a[rows].astype(np.int64)) for a in (ids, labels))
        count, loss = (y != -100).sum(), 0.0
        step.zero_grad()
        for x, y in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
            logits = module(input_ids=x).logits
            part = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / count
            part.backward()
            loss += part.item()
        losses.append(loss)
        norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), float("inf")).item())
        step.step()
    return {"loss": losses, "grad_norm": norms}


def main():
    ids, labels = data()
    for name, rows in (("input_ids", ids), ("labels", labels)):
        np.save(HERE / f"micro-batches.{name}.npy", rows)
        pack(HERE / f"micro-batches.{name}.npy", HERE)
    whole = (np.load(MODELS / f"gpt2-tiny.{n}.npy") for n in ("input_ids", "labels"))
    runs = {"adamw-lm.f64": train(ids, labels, STEPS, BATCH), "adamw-lm.f64.128-rows": train(*whole, 6, 128),
            "adamw-lm.f64.12-rows": train(ids, labels, 6, 12, 3)}
    (HERE / "micro-batches.json").write_text(json.dumps({"runs": runs}) + "\n")


if __name__ == "__main__":
    main()
