"""Writes schedules.json: learning rates of PyTorch 2.15's schedulers, of transformers' for wsd and of DeepSpeed 0.19's for
delay=1, step by step in f64.

    python schedules.py

Each case names the schedule as `--lr-schedule` takes it, the learning rate, and the rates of the steps from 0 on. A
warm-up is LinearLR before the schedule, joined by SequentialLR at step `warmup`.
"""
import json
import pathlib

import torch
from deepspeed.runtime import lr_schedules as D
from torch.optim import lr_scheduler as S
from transformers import get_wsd_schedule


def rates(lr, count, make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=lr)
    scheduler, values = make(optimizer), []
    for _ in range(count):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def after_warmup(warmup, start, make):
    """`make(optimizer)` from step `warmup` on. Without a start, step s of the warm-up has (s + 1) / warmup."""
    def joined(optimizer):
        rise = (S.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1) if start is None else
                S.LinearLR(optimizer, start_factor=start, total_iters=warmup))
        return S.SequentialLR(optimizer, [rise, make(optimizer)], milestones=[warmup])
    return joined


LR = 0.02
CASES = [
    ("constant:warmup=5", 12, after_warmup(5, None, lambda o: S.ConstantLR(o, factor=1, total_iters=1))),
    ("constant:warmup=6,start=0.25", 12, after_warmup(6, 0.25, lambda o: S.ConstantLR(o, factor=1, total_iters=1))),
    ("cosine:steps=30,min=0.1", 31, lambda o: S.CosineAnnealingLR(o, T_max=30, eta_min=0.1 * LR)),
    ("cosine:warmup=4,steps=24,min=0.05", 25, after_warmup(4, None, lambda o: S.CosineAnnealingLR(o, T_max=20, eta_min=0.05 * LR))),
    ("linear:steps=20", 25, lambda o: S.LinearLR(o, start_factor=1, end_factor=0, total_iters=20)),
    ("linear:steps=20,min=0.2", 25, lambda o: S.LinearLR(o, start_factor=1, end_factor=0.2, total_iters=20)),
    ("linear:warmup=7,steps=27,min=0.1", 33, after_warmup(7, None, lambda o: S.LinearLR(o, 1, 0.1, 20))),
    ("linear:warmup=7,start=0.01,steps=27", 33, after_warmup(7, 0.01, lambda o: S.LinearLR(o, 1, 0, 20))),
    ("polynomial:steps=15", 20, lambda o: S.PolynomialLR(o, total_iters=15)),
    ("polynomial:steps=15,power=2.5", 20, lambda o: S.PolynomialLR(o, total_iters=15, power=2.5)),
    ("polynomial:warmup=3,steps=18,power=0.5", 22, after_warmup(3, None, lambda o: S.PolynomialLR(o, 15, power=0.5))),
    ("step:step_size=6", 40, lambda o: S.StepLR(o, step_size=6)),
    ("step:step_size=4,gamma=0.7", 40, lambda o: S.StepLR(o, step_size=4, gamma=0.7)),
    ("step:warmup=5,step_size=8,gamma=0.5", 40, after_warmup(5, None, lambda o: S.StepLR(o, step_size=8, gamma=0.5))),
    ("wsd:start=0,warmup=5,decay=10,steps=30", 35, lambda o: get_wsd_schedule(o, 5, 10, num_training_steps=30)),
    ("wsd:start=0,warmup=5,decay=10,steps=30,anneal=linear", 35,
     lambda o: get_wsd_schedule(o, 5, 10, num_training_steps=30, decay_type="linear")),
    ("wsd:start=0.1,min=0.1,warmup=4,decay=12,steps=26,anneal=1-sqrt", 30,
     lambda o: get_wsd_schedule(o, 4, 12, num_training_steps=26, decay_type="1-sqrt", min_lr_ratio=0.1)),
    ("wsd:decay=8,steps=20,min=0.3", 24, lambda o: get_wsd_schedule(o, 0, 8, num_training_steps=20, min_lr_ratio=0.3)),
    ("constant:warmup=6,start=0,rise=log,delay=1", 12, lambda o: D.WarmupLR(o, warmup_num_steps=6)),
    ("constant:warmup=6,start=0.25,delay=1", 12,
     lambda o: D.WarmupLR(o, warmup_min_lr=0.25 * LR, warmup_num_steps=6, warmup_type="linear")),
    ("linear:steps=20,warmup=5,start=0,rise=log,delay=1", 25,
     lambda o: D.WarmupDecayLR(o, 20, warmup_max_lr=LR, warmup_num_steps=5)),
    ("linear:steps=20,min=0.1,warmup=5,start=0.1,delay=1", 25,
     lambda o: D.WarmupDecayLR(o, 20, warmup_min_lr=0.1 * LR, warmup_max_lr=LR, warmup_num_steps=5, warmup_type="linear")),
    ("cosine:steps=50,min=0.0001,warmup=10,start=0,rise=log,delay=1,idle=0,ahead=1", 60,
     lambda o: D.WarmupCosineLR(o, 50, warmup_num_steps=10)),
    ("cosine:steps=40,min=0.05,warmup=8,start=0.2,delay=1,idle=0,ahead=1", 50,
     lambda o: D.WarmupCosineLR(o, 40, warmup_min_ratio=0.2, warmup_num_steps=8, cos_min_ratio=0.05, warmup_type="linear")),
    ("cosine:steps=33,min=0.3,warmup=2,start=0.5,rise=log,delay=1,idle=0,ahead=1", 50,
     lambda o: D.WarmupCosineLR(o, 33, warmup_min_ratio=0.5, warmup_num_steps=1, cos_min_ratio=0.3)),
    ("one-cycle:steps=40", 40, lambda o: S.OneCycleLR(o, max_lr=LR, total_steps=40, cycle_momentum=False)),
    ("one-cycle:steps=40,anneal=linear", 40,
     lambda o: S.OneCycleLR(o, max_lr=LR, total_steps=40, anneal_strategy="linear", cycle_momentum=False)),
    ("one-cycle:steps=33,pct_start=0.2,div_factor=10,final_div_factor=100", 33,
     lambda o: S.OneCycleLR(o, max_lr=LR, total_steps=33, pct_start=0.2, div_factor=10, final_div_factor=100, cycle_momentum=False)),
    ("one-cycle:steps=50,pct_start=0.35,three_phase=true", 50,
     lambda o: S.OneCycleLR(o, max_lr=LR, total_steps=50, pct_start=0.35, three_phase=True, cycle_momentum=False)),
    ("one-cycle:steps=50,three_phase=true,anneal=linear", 50,
     lambda o: S.OneCycleLR(o, max_lr=LR, total_steps=50, three_phase=True, anneal_strategy="linear", cycle_momentum=False)),
]


def main():
    cases = [{"schedule": text, "learning_rate": LR, "rates": rates(LR, count, make)} for text, count, make in CASES]
    path = pathlib.Path(__file__).resolve().parent / "schedules.json"
    path.write_text('{"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
