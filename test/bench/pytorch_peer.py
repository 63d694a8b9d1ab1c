#!/usr/bin/env python3
"""PyTorch's side of the benchmark: trains one of the models and answers on stdout. Needs torch and transformers.

Started by bench.py, once per rank, with torchrun's environment variables. It reads lines from stdin: a number asks for
that many steps and is answered with one JSON line of their seconds; an empty line or the end of input ends it. On a GPU
it trains in bf16 under autocast, and the line is an object that also has the peak of memory.

    python pytorch_peer.py MODEL eager|compile|ddp|fsdp2 BATCH_PER_RANK THREADS [cuda]
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import transformers
from torch.nn.functional import cross_entropy

SHAPES = {  # layers, width, heads, context, vocabulary: as test/models was exported
    "gpt2-mini": (6, 384, 6, 256, 256),
    "gpt2-124m": (12, 768, 12, 1024, 50257),
    "gpt2-1.5b": (48, 1600, 25, 1024, 50257),
}


def build(name):
    layers, width, heads, context, vocabulary = SHAPES[name]
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=context, vocab_size=vocabulary,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config).train(), context, vocabulary


def distribute(model, how):
    """The model as it runs on one of several ranks; FSDP2 takes one bucket a block, as its documentation recommends."""
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        for block in model.transformer.h:
            fully_shard(block)
        return fully_shard(model)
    return model


def main():
    name, how, batch, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    device = sys.argv[5] if len(sys.argv) > 5 else "cpu"
    if threads:
        torch.set_num_threads(threads)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    model, context, vocabulary = build(name)
    model = distribute(model.to(device), how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))

    def loss_of(tokens):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return cross_entropy(logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))

    if how == "compile":  # the loss too: its kernels read logits that nobody else wants
        loss_of = torch.compile(loss_of)

    def step():
        tokens = torch.randint(0, vocabulary, (batch, context + 1), generator=generator)
        begin = time.perf_counter()
        tokens = tokens.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(tokens)
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
        print(json.dumps(seconds), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
