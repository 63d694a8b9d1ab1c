"""What a family is: a tiny model, its data, its optimizer, and what the tools are told about it."""
import dataclasses
from typing import Callable

import numpy as np
import torch

BATCH, BATCHES, STEPS = 8, 5, 50  # the data are read again from the start after 5 steps
ROWS = BATCH * BATCHES

OPTIMIZERS = {
    "adamw": ("adamw:lr=1e-3,beta1=0.9,beta2=0.999,eps=1e-8,weight_decay=0.01",
              lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)),
    "sgd": ("sgd:lr=0.02,momentum=0.9,weight_decay=1e-4",
            lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-4)),
}


@dataclasses.dataclass
class Family:
    """build: the module, whose output is the loss, or the logits where `loss` is given.
    data: arrays of ROWS rows by input name, from a NumPy generator.
    loss: `sheaf compile --loss` and the same as a function of the output and the labels, which are the last input.
    freeze: a regular expression of parameters that are not trained.
    options: further options of `sheaf compile`. exporters: those that are known to take the model.
    ranks: the numbers of ranks it is run on."""
    name: str
    build: Callable
    data: Callable
    optimizer: str = "adamw"
    loss: tuple | None = None
    freeze: str | None = None
    options: tuple = ()
    exporters: tuple = ("raw", "optimized", "torchscript")
    ranks: tuple = (1, 4)
    tolerance: float = 5e-5


FAMILIES = {}


def family(data, **options):
    """Registers the function as the builder of the family of its name."""
    def register(build):
        name = build.__name__.replace("_", "-")
        FAMILIES[name] = Family(name, build, data, **options)
        return build
    return register


class Own(torch.nn.Module):
    """A model of `transformers` with its own loss."""

    def __init__(self, net, *names, **fixed):
        super().__init__()
        self.net, self.names, self.fixed = net, names, fixed

    def forward(self, *values):
        return self.net(**dict(zip(self.names, values)), **self.fixed).loss


class Run(torch.nn.Module):
    """The inputs through some layers, and a function of the result."""

    def __init__(self, net, function):
        super().__init__()
        self.net, self.function = net, function

    def forward(self, *values):
        return self.function(self.net, *values)


def without_dropout(config):
    for key, value in config.to_dict().items():
        if ("drop" in key or key.startswith("mask_")) and isinstance(value, float):
            setattr(config, key, 0.0)
    for key in ("text_config", "vision_config"):
        if hasattr(config, key):
            without_dropout(getattr(config, key))
    return config


def noise(rng, *shape):
    """Normal values in steps of 1/16, which compress."""
    return (np.round(16 * rng.normal(size=(ROWS, *shape))) / 16).astype(np.float32)


def classed(rng, classes, *shape):
    """Points around one centre a class, and the classes."""
    labels = rng.integers(0, classes, ROWS)
    centres = np.round(16 * rng.normal(size=(classes, *shape))) / 16
    return {"x": (centres[labels] + noise(rng, *shape)).astype(np.float32), "labels": labels}


def images(rng, size=16, channels=3, classes=4):
    return classed(rng, classes, channels, size, size)


def tokens(rng, length=16, vocabulary=64):
    """Rows of a random walk, so that the next token can be learnt."""
    steps = rng.integers(1, 4, (ROWS, length))
    return (rng.integers(3, vocabulary, (ROWS, 1)) + np.cumsum(steps, 1)) % (vocabulary - 3) + 3


def text(rng, length=16, vocabulary=64):
    ids = tokens(rng, length, vocabulary)
    return {"input_ids": ids, "labels": ids.copy()}


def masked_text(rng, length=16, vocabulary=64):
    """Masked tokens are 2 and padding is 0; what is not masked has the label -100."""
    ids = tokens(rng, length, vocabulary)
    valid = np.arange(length) < rng.integers(length // 2, length + 1, (ROWS, 1))
    hidden = (rng.random((ROWS, length)) < 0.3) & valid
    hidden[:, 0] = True
    labels = np.where(hidden, ids, -100)
    ids = np.where(hidden, 2, np.where(valid, ids, 0))
    return {"input_ids": ids, "attention_mask": valid.astype(np.int64), "labels": labels}


def text_classes(rng, length=16, vocabulary=64, classes=4):
    masked = masked_text(rng, length, vocabulary)
    return {"input_ids": masked["input_ids"], "attention_mask": masked["attention_mask"],
            "labels": masked["input_ids"][:, 1] % classes}


def translation(rng, length=12, vocabulary=64):
    ids = tokens(rng, length, vocabulary)
    return {"input_ids": ids, "decoder_input_ids": np.roll(ids[:, ::-1], 1, 1)[:, :8].copy(), "labels": ids[:, ::-1][:, :8].copy()}
