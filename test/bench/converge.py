#!/usr/bin/env python3
"""Trainings to their end, by Sheaf and by PyTorch: validation loss and accuracy over several seeds.

    python3 test/bench/converge.py --tools build/bin [--out build/converge] [--only REGEX] [--seeds 5] [--list]     # in a Python with torch, onnxscript and scikit-learn

Each cell is a task, a side, a precision, a number of ranks and a seed. Both sides begin with the weights that PyTorch makes with that seed, and read the
same batches in the same order. A cell's result is kept in OUT/cells, and a second call goes on with what is missing; --list says what that is, and how long
it takes by the cells that are done. The table and a plot are OUT/converge.md and OUT/converge.svg.

Tasks: `text`, a GPT of 0.8 million parameters on tiny Shakespeare (5,000 steps; the last tenth of the text is held out); `digits`, a small residual network
on scikit-learn's digits (30 epochs, the best epoch); `adapters`, the same network trained on the digits 0 to 4 and frozen, with adapters of rank 4 (LoRA,
arXiv:2106.09685) and a new head that learn 5 to 9. Where the processor has no instructions for bf16, `text` takes 1,000 steps in bf16 on both sides.
"""
import argparse
import array
import dataclasses
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import time
import warnings

import numpy
import torch
from torch.nn.functional import cross_entropy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "models"), str(ROOT / "test" / "e2e")]

import shakespeare
import unpack
from formats import Tensor, write_safetensors

HAS_BF16 = "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()


class Residual(torch.nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outputs)
        self.skip = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else torch.nn.Identity()

    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.skip(x))


class Features(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = torch.nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))

    def forward(self, x):
        return self.blocks(torch.relu(self.stem(x))).mean((2, 3))


class Digits(torch.nn.Module):
    """Loss and logits of images [rows, 1, 8, 8]."""
    def __init__(self, classes=10):
        super().__init__()
        self.features, self.head = Features(), torch.nn.Linear(64, classes)

    def forward(self, x, labels):
        logits = self.head(self.features(x))
        return cross_entropy(logits, labels), logits


class Adapters(torch.nn.Module):
    """A frozen network with an adapter of rank 4 on its features, and a new head."""
    def __init__(self, base):
        super().__init__()
        self.features = base.features
        self.features.requires_grad_(False).eval()
        self.down, self.up = torch.nn.Linear(64, 4, bias=False), torch.nn.Linear(4, 64, bias=False)
        torch.nn.init.zeros_(self.up.weight)
        self.head = torch.nn.Linear(64, 5)

    def train(self, mode=True):
        super().train(mode)
        self.features.eval()
        return self

    def forward(self, x, labels):
        features = self.features(x)
        logits = self.head(torch.relu(features + self.up(self.down(features))))
        return cross_entropy(logits, labels), logits


@dataclasses.dataclass
class Data:
    """Training rows in the order in which both sides read them, and held-out rows, by input."""
    train: dict
    held_out: dict


def text_data(seed, steps, batch):
    text = numpy.frombuffer((unpack.unpack() / "shakespeare.txt").read_bytes(), dtype=numpy.uint8)
    context, split = shakespeare.CONTEXT, len(text) * 9 // 10

    def rows(starts):
        places = starts[:, None] + numpy.arange(context)
        return {"input_ids": text[places].astype(numpy.int64), "labels": text[places + 1].astype(numpy.int64)}

    starts = numpy.random.default_rng(seed).integers(0, split - context - 1, steps * batch)
    return Data(rows(starts), rows(numpy.arange(split, len(text) - context - 1, context)))


def digit_rows(digits):
    from sklearn.datasets import load_digits
    found = load_digits()
    chosen = numpy.isin(found.target, digits)
    order = numpy.random.default_rng(0).permutation(int(chosen.sum()))
    x = (found.images[chosen][order] / 8 - 1).astype(numpy.float32)[:, None]
    labels = (found.target[chosen][order] - digits[0]).astype(numpy.int64)
    split = len(x) * 4 // 5
    return {"x": x[:split], "labels": labels[:split]}, {"x": x[split:], "labels": labels[split:]}


def digits_data(seed, steps, batch, digits=range(10)):
    train, held_out = digit_rows(list(digits))
    draw, rows = numpy.random.default_rng(seed), len(train["x"])
    order = numpy.concatenate([draw.permutation(rows) for _ in range(-(-steps * batch // rows))])[:steps * batch]
    return Data({name: values[order] for name, values in train.items()}, held_out)


def frozen_base(out):
    """The network of `digits` on 0 to 4, trained by PyTorch once."""
    path = out / "base.pt"
    torch.manual_seed(0)
    base = Digits(5)
    if not path.exists():
        train_with_torch(base, digits_data(0, 400, 32, range(5)), dataclasses.replace(TASKS["digits"], steps=400), "f32")
        torch.save(base.state_dict(), path)
    base.load_state_dict(torch.load(path))
    return base


@dataclasses.dataclass(frozen=True)
class Task:
    model: object  # (out) -> module
    data: object  # (seed, steps, batch) -> Data
    steps: int
    batch: int
    rate: float
    every: int  # steps between evaluations
    best: bool  # the best evaluation, not the last one
    trained: str = ""  # a regular expression; empty: all parameters
    without_bf16: int = 0  # steps in bf16 where the processor has no instructions for it; 0: as many

    def length(self, precision):
        return self.without_bf16 if precision == "bf16" and self.without_bf16 and not HAS_BF16 else self.steps


TASKS = {
    "text": Task(lambda out: shakespeare.GPT(), text_data, 5000, 16, 1e-3, 1000, False, without_bf16=1000),
    "digits": Task(lambda out: Digits(), digits_data, 1350, 32, 2e-3, 45, True),
    "adapters": Task(lambda out: Adapters(frozen_base(out)), lambda seed, steps, batch: digits_data(seed, steps, batch, range(5, 10)), 690, 32, 2e-3, 23, True,
                     "^(down|up|head)[.]"),
}
SIDES = [("PyTorch", 1, "f32"), ("Sheaf", 1, "f32"), ("Sheaf", 4, "f32"), ("PyTorch", 1, "bf16"), ("Sheaf", 1, "bf16"), ("Sheaf", 4, "bf16")]
BETAS, DECAY, WARMUP = (0.9, 0.95), 0.1, 50


def factor(step, steps):
    """The schedule cosine:warmup=WARMUP,min=0.1 of docs/training.md."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))) / 2


def evaluated(module, held_out, bf16):
    """Mean loss and accuracy of the held-out rows. BatchNorm takes its running statistics."""
    module.eval()
    loss = right = count = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        for begin in range(0, len(held_out["labels"]), 64):
            rows = [torch.from_numpy(values[begin:begin + 64]) for values in held_out.values()]
            part, logits = module(*rows)
            labels = rows[-1].reshape(-1)
            loss += float(part) * len(labels)
            right += int((logits.reshape(len(labels), -1).argmax(1) == labels).sum())
            count += len(labels)
    module.train()
    return loss / count, right / count


def train_with_torch(module, data, task, precision):
    module.train()
    steps, bf16 = task.length(precision), precision == "bf16"
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=task.rate, betas=BETAS, weight_decay=DECAY)
    schedule, found = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps)), []
    for step in range(steps):
        rows = [torch.from_numpy(values[step * task.batch:(step + 1) * task.batch]) for values in data.train.values()]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = module(*rows)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % task.every == 0 or step + 1 == steps:
            found.append((step + 1, *evaluated(module, data.held_out, bf16)))
    return found


def call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")


def train_with_sheaf(tools, where, module, data, task, precision, ranks):
    names = list(data.train)
    example = tuple(torch.from_numpy(data.train[name][:4]) for name in names)
    module.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, example, where / "model.onnx", dynamo=True, optimize=False, external_data=False, verbose=False, input_names=names,
                          output_names=["loss", "logits"], dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in names))
    weights = {name: Tensor("F32", value.shape, array.array("f", value.flatten().tolist())) for name, value in module.state_dict().items() if value.dtype == torch.float32}
    write_safetensors(where / "initial.safetensors", weights)
    given = {}
    for kind, arrays in (("data", data.train), ("eval-data", data.held_out)):
        given[kind] = []
        for name, values in arrays.items():
            numpy.save(where / f"{kind}-{name}.npy", values)
            given[kind] += [f"--{kind}", f"{name}={where / f'{kind}-{name}.npy'}"]
    steps = task.length(precision)
    call(tools / "sheaf", "compile", where / "model.onnx", "-o", where / "step.plan", "--ranks", ranks, "--batch", task.batch, "--precision", precision, "--eval",
         "--optimizer", f"adamw:lr={task.rate},beta1={BETAS[0]},beta2={BETAS[1]},weight_decay={DECAY}", "--lr-schedule", f"cosine:warmup={WARMUP},steps={steps},min=0.1",
         *(["--train", task.trained] if task.trained else []))
    call(tools / "sheaf-run", where / "step.plan", "--weights", where / "initial.safetensors", "--weights-partial", *given["data"], *given["eval-data"], "--steps", steps,
         "--eval-every", task.every, "--log", where / "run.jsonl")
    return [(e["step"], e["loss"], e["accuracy"]) for e in map(json.loads, (where / "run.jsonl").read_text().splitlines()) if e.get("event") == "eval"]


class Cells:
    def __init__(self, out, seeds, only):
        self.out = out
        (out / "cells").mkdir(parents=True, exist_ok=True)
        every = [(name, *side, seed) for name in TASKS for side in SIDES for seed in range(1, seeds + 1)]
        self.all = [cell for cell in every if not only or re.search(only, self.name(*cell))]

    @staticmethod
    def name(task, side, ranks, precision, seed):
        return f"{task}-{side}-{precision}-ranks-{ranks}-seed-{seed}"

    def path(self, cell):
        return self.out / "cells" / f"{self.name(*cell)}.json"

    def result(self, cell):
        return json.loads(self.path(cell).read_text()) if self.path(cell).exists() else None

    def run(self, tools, cell):
        name, side, ranks, precision, seed = cell
        task, begin = TASKS[name], time.monotonic()
        torch.manual_seed(seed)
        module, data = task.model(self.out), task.data(seed, task.length(precision), task.batch)
        where = self.out / "run"
        where.mkdir(exist_ok=True)
        if side == "PyTorch":
            found = train_with_torch(module, data, task, precision)
        else:
            found = train_with_sheaf(tools, where, module, data, task, precision, ranks)
        chosen = min(found, key=lambda e: e[1]) if task.best else found[-1]
        result = {"evaluations": found, "step": chosen[0], "loss": chosen[1], "accuracy": max(e[2] for e in found) if task.best else chosen[2],
                  "seconds": time.monotonic() - begin}
        self.path(cell).write_text(json.dumps(result))
        return result

    def remaining(self):
        """Returns the missing cells, and how many hours they take by the cells of the same kind that are done."""
        missing = [cell for cell in self.all if not self.result(cell)]
        hours, unknown = 0, 0
        for cell in missing:
            known = [r["seconds"] for other in self.all if other[:4] == cell[:4] and (r := self.result(other))]
            hours += statistics.mean(known) / 3600 if known else 0
            unknown += not known
        return missing, f"{len(missing)} of {len(self.all)} cells are missing: {hours:.1f} hours, and {unknown} of unknown length"

    def table(self):
        lines = ["| task | side | precision | ranks | seeds | steps | validation loss | accuracy |", "|---|---|---|---|---|---|---|---|"]
        for name in TASKS:
            for side, ranks, precision in SIDES:
                found = [r for cell in self.all if cell[:4] == (name, side, ranks, precision) and (r := self.result(cell))]
                if not found:
                    continue
                both = []
                for key, scale, digits in (("loss", 1, 4), ("accuracy", 100, 2)):
                    values = [scale * r[key] for r in found]
                    both.append(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values) if len(values) > 1 else 0:.{digits}f}")
                lines.append(f"| {name} | {side} | {precision} | {ranks} | {len(found)} | {TASKS[name].length(precision)} | {both[0]} | {both[1]} % |")
        return "\n".join(lines) + "\n"

    def plot(self):
        """The mean of each side's validation losses by step, a panel for each task."""
        width, height, colours = 420, 260, {"PyTorch": "#c05621", "Sheaf": "#1f5fa8"}
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * len(TASKS)} {height}" font-family="sans-serif" font-size="12">'
                 f'<rect width="100%" height="100%" fill="#fff"/>']
        for panel, name in enumerate(TASKS):
            curves = {}
            for side, ranks, precision in SIDES:
                found = [r["evaluations"] for cell in self.all if cell[:4] == (name, side, ranks, precision) and (r := self.result(cell))]
                if found:
                    curves[side, ranks, precision] = [(e[0][0], statistics.mean(x[1] for x in e)) for e in zip(*found)]
            if not curves:
                continue
            high, last = max(y for c in curves.values() for _, y in c), max(x for c in curves.values() for x, _ in c)
            parts.append(f'<text x="{panel * width + 50}" y="18" font-weight="600">{name}: validation loss by step</text>')
            for (side, ranks, precision), curve in curves.items():
                points = " ".join(f"{panel * width + 50 + (width - 70) * x / last:.1f},{height - 30 - (height - 60) * y / high:.1f}" for x, y in curve)
                dash = ' stroke-dasharray="5 3"' if precision == "bf16" else ""
                parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[side]}" stroke-width="{1 if ranks > 1 else 2}"{dash}/>')
            parts.append(f'<text x="{panel * width + 8}" y="34">{high:.2f}</text><text x="{panel * width + 30}" y="{height - 26}">0</text>'
                         f'<text x="{panel * width + width - 50}" y="{height - 12}">{last}</text>')
        parts.append(f'<text x="50" y="{height - 4}">blue: Sheaf, orange: PyTorch; dashed: bf16; thin: four ranks</text></svg>')
        return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True, type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/converge"))
    parser.add_argument("--only", help="cells whose name matches, such as digits-Sheaf-f32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch; 1 on a machine that runs other programs, since its threads wait for each other")
    parser.add_argument("--list", action="store_true", help="say what is missing, and run nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cells = Cells(args.out, args.seeds, args.only)
    missing, text = cells.remaining()
    print(text, flush=True)
    for cell in [] if args.list else missing:
        result = cells.run(args.tools, cell)
        print(f"{cells.name(*cell)}: loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}, {result['seconds']:.0f} s", flush=True)
    (args.out / "converge.md").write_text(cells.table())
    (args.out / "converge.svg").write_text(cells.plot())
    print(cells.table())


if __name__ == "__main__":
    main()
