#!/usr/bin/env python3
"""PyTorch's side of the benchmarks: trains one of the models and answers on stdout. Needs torch and transformers; `deepspeed`
needs DeepSpeed and ninja as well.

Started once per rank, with torchrun's environment variables. It reads lines from stdin: a number asks for that many steps
and is answered with one JSON line of their seconds; an empty line or the end of input ends it. On a GPU the line is an object
that also has the peak of memory.

    python pytorch_baseline.py MODEL WAY ROWS_PER_RANK THREADS [--precision f32|bf16] [--device cuda] [--deepspeed JSON]

WAY is eager, compile or max-autotune on one rank, for images also with +channels-last; ddp, ddp+compile, fsdp2, fsdp2+compile or deepspeed (ZeRO-3) on several. In
bf16, master weights and optimizer state stay f32: autocast, FSDP2's MixedPrecisionPolicy, DeepSpeed's bf16 section.
"""
import argparse
import contextlib
import importlib
import json
import os
import pathlib
import sys
import time

# Libraries print to stdout; the answers keep the original one for themselves.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch
import torch.distributed as dist
import transformers
from torch.nn.functional import cross_entropy

SHAPES = {  # layers, width, heads, context, vocabulary: as test/models was exported
    "gpt2-tiny": (4, 128, 4, 64, 256),
    "gpt2-mini": (6, 384, 6, 256, 256),
    "gpt2-124m": (12, 768, 12, 1024, 50257),
    "gpt2-1.5b": (48, 1600, 25, 1024, 50257),
}
IMAGES = {"resnet-18": ("resnet18", "ResNet18"), "vit": ("vit", "ViT")}  # module of test/models, class
WAYS = ("eager", "compile", "max-autotune", "eager+channels-last", "compile+channels-last", "max-autotune+channels-last", "ddp", "ddp+compile", "fsdp2", "fsdp2+compile", "deepspeed")


def build_images(name):
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "models"))
    module, of = IMAGES[name]
    module = importlib.import_module(module)
    torch.manual_seed(0)
    return getattr(module, of)().train(), module.SIDE, module.CLASSES


def build(name):
    layers, width, heads, context, vocabulary = SHAPES[name]
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=context, vocab_size=vocabulary,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config).train(), context, vocabulary


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)


def distribute(model, way, bf16):
    """The model as it runs on one of several ranks; FSDP2 takes one bucket a block, as its documentation recommends."""
    if way.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if way.startswith("fsdp2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        # Gradients are reduced in bf16, as by ours; PyTorch 2.15 would reduce them in f32.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if bf16 else MixedPrecisionPolicy()
        for block in model.transformer.h:
            if way.endswith("+compile"):
                block.compile()
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    return model


def deepspeed_engine(model, rows, bf16, more):
    """DeepSpeed with ZeRO-3 and PyTorch's fused AdamW, faster on a CPU than DeepSpeed's own choice there. `more`: sections of its
    configuration; `cpu_adam` there asks for DeepSpeed's own Adam of the host, `zero_optimization` is merged into ours."""
    import deepspeed
    more = dict(more)
    if more.pop("cpu_adam", False):
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        optimizer = DeepSpeedCPUAdam(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, adamw_mode=True)
    else:
        optimizer = adamw(model.parameters())
    zero = {"stage": 3, "overlap_comm": False, **more.pop("zero_optimization", {})}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, dist_init_required=False, config={
        "train_micro_batch_size_per_gpu": rows, "zero_optimization": zero,
        "bf16": {"enabled": bf16}, "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30,
        "gradient_clipping": 0.0, **more})  # ours does not clip; DeepSpeed's default is a norm of 1
    return engine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*SHAPES, *IMAGES])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("rows", type=int, help="rows of a rank")
    parser.add_argument("threads", type=int, help="of a rank; 0: PyTorch's own choice")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--deepspeed", type=json.loads, default={}, help="more of its configuration, as JSON")
    args = parser.parse_args()
    way, bf16, device = args.way, args.precision == "bf16", args.device
    if args.threads:
        torch.set_num_threads(args.threads)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if way == "deepspeed":
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    elif ranks > 1:
        dist.init_process_group("gloo")
    images = args.model in IMAGES
    model, context, vocabulary = build_images(args.model) if images else build(args.model)
    layout = torch.channels_last if way.endswith("+channels-last") else torch.contiguous_format
    if images:
        model = model.to(memory_format=layout)
    if way == "deepspeed":
        model = deepspeed_engine(model, args.rows, bf16, args.deepspeed)
    else:
        model = distribute(model.to(device), way, bf16)
        optimizer = adamw(model.parameters())
    generator = torch.Generator().manual_seed(rank)

    def loss_of(tokens, labels=None):
        if images:
            return model(tokens, labels)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return criterion(logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))

    # The loss too: its kernels read logits that nothing else uses. FSDP2's blocks are compiled one by one.
    criterion = torch.compile(cross_entropy) if way == "fsdp2+compile" else cross_entropy
    if way in ("compile", "compile+channels-last", "ddp+compile"):
        loss_of = torch.compile(loss_of)
    if way.startswith("max-autotune"):
        loss_of = torch.compile(loss_of, mode="max-autotune")
    autocast = bf16 and (ranks == 1 or way in ("ddp", "ddp+compile"))

    def batch():  # as ours
        if images:
            return torch.randn(args.rows, 3, context, context, generator=generator), torch.randint(0, vocabulary, (args.rows,), generator=generator)
        return torch.randint(0, 256, (args.rows, context + 1), generator=generator),

    def step():
        data = batch()
        begin = time.perf_counter()
        data = [tensor.to(device) for tensor in data]
        if images:
            data[0] = data[0].contiguous(memory_format=layout)
        with torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = loss_of(*data)
        if way == "deepspeed":
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for line in sys.stdin:
        if not line.strip():
            break
        if ranks > 1:
            dist.barrier()
        seconds = [step() for _ in range(int(line))]
        if device == "cuda":
            seconds = {"seconds": seconds, "peak_bytes": torch.cuda.max_memory_reserved()}
        print(json.dumps(seconds), file=ANSWERS, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
