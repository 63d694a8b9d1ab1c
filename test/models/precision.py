#!/usr/bin/env python3
"""Trains small models in bf16 by PyTorch's autocast on the CPU and by Sheaf, and prints the table of docs/precision.md.

    python precision.py --tools build/bin [--tools before=OTHER/bin] [--only REGEX] [--steps 150] [--operators]
    python precision.py --store            precision/NAME.tar.xz: the models that the tests train, their data and PyTorch's runs
    python precision.py --into FOLDER      every model and its data
    python precision.py --operators        the operators that autocast treats on a CPU and on CUDA

Needs torch 2.15, onnx, onnxscript and transformers 5.24. Every run starts from the same weights and reads the same rows. A cell of
the table is the mean loss of the last tenth of the steps, and behind it the largest difference from PyTorch's losses in f32 at any step.
"""
import argparse
import contextlib
import copy
import dataclasses
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings
from typing import Callable

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
BATCHES = 8  # the rows are read again from the start after so many steps
STORED = ("time steps", "learned frequencies", "rotary")


@dataclasses.dataclass
class Model:
    """build: the module, whose output is the loss. data: arrays by input name, from a NumPy generator and a number of rows."""
    build: Callable
    data: Callable
    batch: int = 8
    lr: float = 3e-3


def models():
    import torch
    import transformers as T
    from torch import nn
    from torch.nn.functional import cross_entropy, mse_loss

    sys.path.append(str(HERE / "families"))
    from family import Own, without_dropout

    sizes = dict(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    rotary = dict(sizes, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=1, max_position_embeddings=4096)

    class Run(nn.Module):
        def __init__(self, function, **parts):
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                    self.register_buffer(name, part)
                else:
                    setattr(self, name, part)
            self.function = function

        def forward(self, *values):
            return self.function(self, *values)

    def repeated(rng, rows, length=32):
        """Tokens of which the second half repeats the first."""
        half = rng.integers(2, 64, (rows, length // 2))
        return np.concatenate([half, half], 1)

    def text(rng, rows):
        ids = repeated(rng, rows)
        return {"input_ids": ids, "labels": ids.copy()}

    def placed_text(rng, rows):
        """Rows that begin anywhere in a long document; a label is the token three places before."""
        ids = rng.integers(2, 64, (rows, 32))
        return {"input_ids": ids, "position_ids": rng.integers(0, 3000, (rows, 1)) + np.arange(32), "labels": np.roll(ids, 4, 1)}

    def masked_text(rng, rows):
        ids = repeated(rng, rows)
        valid = np.arange(32) < rng.integers(16, 33, (rows, 1))
        labels = np.where((rng.random(ids.shape) < 0.3) & valid, ids, -100)
        labels[:, 0] = ids[:, 0]
        return {"input_ids": np.where(labels >= 0, 2, np.where(valid, ids, 0)), "attention_mask": valid.astype(np.int64), "labels": labels}

    def translation(rng, rows):
        ids = rng.integers(2, 64, (rows, 16))
        return {"input_ids": ids, "decoder_input_ids": np.roll(ids[:, ::-1], 1, 1).copy(), "labels": ids[:, ::-1].copy()}

    def images(rng, rows):
        labels = rng.integers(0, 10, rows)
        x = rng.normal(size=(10, 3, 16, 16))[labels] + rng.normal(size=(rows, 3, 16, 16))
        return {"x": x.astype(np.float32), "labels": labels}

    def causal(kind, config):
        return Own(kind(without_dropout(config)), "input_ids", "labels", use_cache=False)

    frequencies = torch.exp(-torch.arange(16) * (np.log(1e4) / 16))

    def waves(m, t):
        angles = t.float()[:, None] * m.f
        return torch.cat([angles.sin(), angles.cos()], -1)

    def time_steps():
        return Run(lambda m, t, y: mse_loss(m.h(waves(m, t))[:, 0], y), f=frequencies, h=nn.Linear(32, 1))

    def times(rng, rows):
        t = rng.integers(0, 1000, rows)
        y = np.sin(t[:, None] * np.float64(frequencies.numpy())) @ rng.normal(size=16)
        return {"t": t, "y": y.astype(np.float32)}

    def denoiser():
        net = nn.Sequential(nn.Linear(2 + 32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
        return Run(lambda m, x, t, noise: mse_loss(m.net(torch.cat([x, m.time(waves(m, t))], -1)), noise), f=frequencies,
                   time=nn.Linear(32, 32), net=net)

    def noisy(rng, rows):
        t = rng.integers(0, 1000, rows)
        angle = rng.uniform(0, 4 * np.pi, rows)
        x = np.stack([angle * np.cos(angle), angle * np.sin(angle)], 1) / 8
        noise, kept = rng.normal(size=(rows, 2)), np.cos(t / 1000 * np.pi / 2)[:, None]
        return {"x": (kept * x + np.sqrt(1 - kept**2) * noise).astype(np.float32), "t": t, "noise": noise.astype(np.float32)}

    def fourier(learned):
        b = 10 * torch.randn(2, 32)
        # Written as broadcast products, so that autocast leaves the angles alone as well.
        def loss(m, x, y):
            angle = x[:, :1] * m.b[0] + x[:, 1:] * m.b[1]
            return mse_loss(m.net(torch.cat([angle.sin(), angle.cos()], -1))[:, 0], y)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        return Run(loss, b=nn.Parameter(b.clone()) if learned else b.clone(), net=net)

    def surface(rng, rows):
        x = rng.uniform(0, 10, (rows, 2))
        return {"x": x.astype(np.float32), "y": (np.sin(7 * x[:, 0]) * np.cos(5 * x[:, 1])).astype(np.float32)}

    def weighted():
        """Label smoothing is written out: the exporter drops that of cross_entropy."""
        def loss(m, x, labels, mask):
            logs = m.net(x).log_softmax(-1)
            smooth = 0.9 * torch.nn.functional.one_hot(labels, 10).float() + 0.01
            weight = m.weights[labels] * mask.float()
            return -((smooth * logs).sum(-1) * weight).sum() / weight.sum()
        net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10))
        return Run(loss, net=net, weights=torch.linspace(0.55, 1.45, 10))

    def weighted_rows(rng, rows):
        x = rng.normal(size=(rows, 16)).astype(np.float32)
        return {"x": x, "labels": x[:, :10].argmax(1), "mask": rng.integers(0, 2, rows)}

    def cnn():
        net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
                            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))
        return Run(lambda m, x, labels: cross_entropy(m.net(x), labels), net=net)

    def vit():
        config = without_dropout(T.ViTConfig(image_size=16, patch_size=4, num_channels=3, hidden_size=64, num_hidden_layers=2,
                                             num_attention_heads=4, intermediate_size=128, num_labels=10))
        return Run(lambda m, x, labels: cross_entropy(m.net(x).logits, labels), net=T.ViTForImageClassification(config))

    def t5():
        config = T.T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, relative_attention_num_buckets=16,
                            relative_attention_max_distance=32, decoder_start_token_id=0, attn_implementation="eager")
        return Own(T.T5ForConditionalGeneration(without_dropout(config)), "input_ids", "decoder_input_ids", "labels", use_cache=False)

    def llama():
        return Own(T.LlamaForCausalLM(without_dropout(T.LlamaConfig(**rotary))), "input_ids", "position_ids", "labels", use_cache=False)

    def rotary_tiny():
        """Llama with position_ids as an input, as small as its weights may be stored."""
        config = dict(rotary, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32)
        return Own(T.LlamaForCausalLM(without_dropout(T.LlamaConfig(**config))), "input_ids", "position_ids", "labels", use_cache=False)

    def roberta():
        config = T.RobertaConfig(**sizes, max_position_embeddings=40, pad_token_id=0)
        return Own(T.RobertaForMaskedLM(without_dropout(config)), "input_ids", "attention_mask", "labels")

    gpt2 = T.GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=4)
    return {
        "time steps": Model(time_steps, times, 64, 0.02),
        "rotary": Model(rotary_tiny, placed_text),
        "llama with position_ids": Model(llama, placed_text),
        "diffusion MLP, sinusoidal time": Model(denoiser, noisy, 64),
        "RoBERTa, positions from the mask": Model(roberta, masked_text),
        "T5, relative buckets": Model(t5, translation),
        "BLOOM, ALiBi": Model(lambda: causal(T.BloomForCausalLM, T.BloomConfig(vocab_size=64, hidden_size=64, n_layer=2, n_head=4)), text),
        "GPT-2": Model(lambda: causal(T.GPT2LMHeadModel, gpt2), text),
        "Qwen2": Model(lambda: causal(T.Qwen2ForCausalLM, T.Qwen2Config(**rotary)), text),
        "Mamba": Model(lambda: causal(T.MambaForCausalLM, T.MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2,
                                                                        conv_kernel=3, time_step_rank=4)),
                       lambda rng, rows: {k: v[:, :8].copy() for k, v in text(rng, rows).items()}),
        "ViT": Model(vit, images, 16),
        "CNN": Model(cnn, images, 16),
        "loss weighted by a mask, 1024 rows": Model(weighted, weighted_rows, 1024),
        "Fourier features": Model(lambda: fourier(False), surface, 64),
        "learned frequencies": Model(lambda: fourier(True), surface, 64),
    }


def batches(model, data, step):
    import torch
    at = step % BATCHES * model.batch
    return [torch.from_numpy(v[at:at + model.batch]) for v in data.values()]


def in_pytorch(model, module, data, steps, autocast):
    import torch
    module, losses = copy.deepcopy(module), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=model.lr)
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = module(*batches(model, data, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def export(model, module, data, path):
    import torch
    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in data),)
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(copy.deepcopy(module), tuple(batches(model, data, 0)), dynamo=True, optimize=False, external_data=False,
                                    input_names=list(data), output_names=["loss"], dynamic_shapes=shapes)
    program.save(path)


def write(model, module, data, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for key, value in data.items():
        np.save(folder / f"{key}.npy", value)
    export(model, module, data, folder / "model.onnx")


def in_sheaf(tools, model, folder, data, steps, precision):
    plan, log = folder / "plan", folder / "log"
    subprocess.run([tools / "sheaf", "compile", folder / "model.onnx", "-o", plan, "--batch", str(model.batch), "--ranks", "1", "--zero", "0",
                    "--optimizer", optimizer(model), "--precision", precision], check=True, stdout=subprocess.DEVNULL)
    rows = [a for name in data for a in ("--data", f"{name}={folder / name}.npy")]
    subprocess.run([tools / "sheaf-run", plan, *rows, "--steps", str(steps), "--log", log], check=True, stdout=subprocess.DEVNULL)
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "event" not in line]


def optimizer(model):
    return f"adamw:lr={model.lr},weight_decay=0.01"


def slug(name):
    return re.sub("[^a-z0-9]+", "-", name.lower())


def cell(losses, single=None):
    last = np.mean(losses[-max(1, len(losses) // 10):])
    return f"{last:.4f}" + (f" ({np.max(np.abs(np.subtract(losses, single))):.4f})" if single else "")


def prepared(name, model):
    import torch
    torch.manual_seed(0)
    module = model.build().train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16().float())  # it compresses
    return module, model.data(np.random.default_rng(7), model.batch * BATCHES)


def store(name, model, steps):
    from export import pack, stripped
    import onnx
    module, data = prepared(name, model)
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where)
        write(model, module, data, folder)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["model.onnx"] = stripped(onnx.load_from_string(files["model.onnx"])).SerializeToString(deterministic=True)
    single, half = (in_pytorch(model, module, data, steps, a) for a in (False, True))
    files["run.json"] = json.dumps({"options": ["--batch", model.batch, "--optimizer", optimizer(model)],
                                    "f32": [float(f"{x:.7g}") for x in single], "autocast": [float(f"{x:.7g}") for x in half]}).encode()
    (HERE / "precision").mkdir(exist_ok=True)
    pack(HERE / "precision" / f"{slug(name)}.tar.xz", files)


def operators():
    import torch
    found = {}
    for key in ("AutocastCPU", "AutocastCUDA"):
        found[key] = {n.removeprefix("aten::").split(".")[0] for n in torch._C._dispatch_get_all_op_names()
                      if n.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(n, key)}
    cpu, cuda = found["AutocastCPU"], found["AutocastCUDA"]
    for what, listed in (("both", cpu & cuda), ("CPU only", cpu - cuda), ("CUDA only", cuda - cpu)):
        print(f"{what}: {', '.join(sorted(listed))}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", action="append", default=[], help="a folder with sheaf and sheaf-run, or NAME=FOLDER; several are compared")
    parser.add_argument("--only", default="", help="models whose names match")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--into", type=pathlib.Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.operators:
        return operators()
    import torch
    torch.set_num_threads(1)
    tools = [(t.partition("=")[0], pathlib.Path(t.partition("=")[2])) if "=" in t else ("Sheaf", pathlib.Path(t)) for t in args.tools]
    if not args.store and not args.into:
        print("| model | PyTorch f32 | autocast | " + "".join(f"{n} f32 | {n} bf16 | " for n, _ in tools))
    for name, model in models().items():
        if not re.search(args.only, name) or (args.store and name not in STORED):
            continue
        if args.store:
            store(name, model, args.steps)
            continue
        module, data = prepared(name, model)
        if args.into:
            write(model, module, data, args.into / slug(name))
            continue
        single, half = (in_pytorch(model, module, data, args.steps, a) for a in (False, True))
        row = [cell(single), cell(half, single)]
        with tempfile.TemporaryDirectory() as where:
            folder = pathlib.Path(where)
            write(model, module, data, folder)
            for _, bin in tools:
                for precision in ("f32", "bf16"):
                    try:
                        row.append(cell(in_sheaf(bin, model, folder, data, args.steps, precision), single))
                    except subprocess.CalledProcessError as e:
                        row.append(f"failed: {e}")
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
