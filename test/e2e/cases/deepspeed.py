"""Configurations of DeepSpeed's: every key is accounted for, and the plan is that of the options that they stand for."""
import json

from harness import Case, digest, expect, expect_short_error

MODEL, RANKS = "mlp", 4
ADAM = {"type": "Adam", "params": {"lr": 0.00015}}
ADAMW = {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}
AUTO_ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}}
FP16 = {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 1, "min_loss_scale": 1}
ADAM_OPTIONS = ["--optimizer", "adamw:lr=0.00015,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0"]
ADAMW_OPTIONS = ["--optimizer", "adamw:lr=3e-05,beta1=0.8,beta2=0.999,eps=1e-08,weight_decay=3e-07"]
F16_OPTIONS = ["--precision", "f16", "--loss-scale", "dynamic:init=65536,interval=1000,floor=1"]
BATCH = {"train_batch_size": 16}
BATCH_OPTION = ["--batch", 16]

# Name: configuration, options that make the same plan, other options of the command line. In the shape of DeepSpeed's
# tutorials and of transformers' documentation.
SAME = {
    "getting-started": ({**BATCH, "gradient_accumulation_steps": 1, "optimizer": ADAM, "fp16": {**FP16}, "zero_optimization": {"stage": 0}},
                        [*BATCH_OPTION, "--micro-batches", 1, *ADAM_OPTIONS, *F16_OPTIONS, "--zero", 0], []),
    "cifar-10": ({**BATCH, "steps_per_print": 2000, "optimizer": {"type": "Adam", "params": {
                      "lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
                  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
                  "gradient_clipping": 1.0, "prescale_gradients": False, "bf16": {"enabled": True}, "wall_clock_breakdown": False,
                  "zero_optimization": {"stage": 2, "allgather_partitions": True, "reduce_scatter": True, "allgather_bucket_size": 50000000,
                                        "reduce_bucket_size": 50000000, "overlap_comm": True, "contiguous_gradients": True,
                                        "cpu_offload": False}},
                 [*BATCH_OPTION, "--optimizer", "adamw:lr=0.001,beta1=0.8,beta2=0.999,eps=1e-08,weight_decay=3e-07",
                  "--lr-schedule", "constant:warmup=1000,start=0,rise=log,delay=1", "--clip-norm", 1, "--precision", "bf16", "--on-nan", "skip",
                  "--zero", 2], []),
    "megatron": ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": ADAM, "gradient_clipping": 1.0,
                  "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False, "profile": True}},
                 [*BATCH_OPTION, "--micro-batches", 2, *ADAM_OPTIONS, "--clip-norm", 1], []),
    "zero-1": ({**BATCH, "optimizer": ADAMW, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}},
               [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 1], []),
    "zero-2-offload": ({**BATCH, "optimizer": ADAMW, "zero_optimization": {
                            "stage": 2, "contiguous_gradients": True, "overlap_comm": True, "reduce_scatter": True,
                            "offload_optimizer": {"device": "cpu"}}},
                       [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 2], []),
    "zero-3": ({**BATCH, "optimizer": ADAMW, "zero_optimization": {
                    "stage": 3, "contiguous_gradients": True, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
                    "stage3_prefetch_bucket_size": 1e7, "stage3_param_persistence_threshold": 1e5, "reduce_bucket_size": 1e7,
                    "sub_group_size": 1e9, "stage3_gather_16bit_weights_on_model_save": True}},
               [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 3], []),
    "zero-infinity": ({**BATCH, "optimizer": ADAMW, "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1},
                       "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_count": 5},
                                             "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pipeline_read": True,
                                                                   "fast_init": False, "ratio": 0.3}}},
                      [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 3], []),
    "zero-plus-plus-hpz": ({**BATCH, "optimizer": ADAMW, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8,
                                                                               "zero_quantized_weights": False}},
                           [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 3], []),
    "mics": ({**BATCH, "optimizer": ADAMW, "zero_optimization": {"stage": 3, "mics_shard_size": 4, "mics_hierarchical_params_gather": True}},
             [*BATCH_OPTION, *ADAMW_OPTIONS, "--zero", 3], []),
    "transformers-zero-3-auto": (
        {"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
                  "min_loss_scale": 1},
         "optimizer": AUTO_ADAMW, "scheduler": {"type": "WarmupDecayLR", "params": {
             "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
         "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                               "stage3_param_persistence_threshold": "auto", "sub_group_size": 1e9},
         "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000, "train_batch_size": "auto",
         "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False},
        ["--zero", 3], ["--batch", 16, "--optimizer", "adamw:lr=5e-5,weight_decay=0", "--lr-schedule", "linear", "--clip-norm", 1,
                        "--precision", "f32"]),
    "warm-up-by-hand": ({**BATCH, "optimizer": AUTO_ADAMW | {"params": {"lr": 1e-4, "weight_decay": 0.01}}, "scheduler": {
                             "type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-5, "warmup_max_lr": 1e-4, "warmup_num_steps": 10,
                                                                 "warmup_type": "linear", "total_num_steps": 200}}},
                        [*BATCH_OPTION, "--optimizer", "adamw:lr=1e-04,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.01", "--lr-schedule",
                         "linear:steps=200,min=0.1,warmup=10,start=0.1,delay=1"], []),
    "adam-without-decoupling": ({**BATCH, "optimizer": {"type": "Adam", "params": {
                                     "lr": 0.002, "adam_w_mode": False, "torch_adam": True, "weight_decay": 0.1, "amsgrad": False}}},
                                [*BATCH_OPTION, "--optimizer", "adam:lr=0.002,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.1"], []),
    "lion": ({**BATCH, "optimizer": {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}},
             [*BATCH_OPTION, "--optimizer", "lion:lr=1e-04,beta1=0.9,beta2=0.95,weight_decay=0"], []),
    "sgd": ({**BATCH, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": True}}},
            [*BATCH_OPTION, "--optimizer", "sgd:lr=0.1,momentum=0.9,dampening=0,weight_decay=0,nesterov=true"], []),
    "fixed-loss-scale": ({**BATCH, "optimizer": ADAM, "fp16": {"enabled": True, "loss_scale": 128}},
                         [*BATCH_OPTION, *ADAM_OPTIONS, "--precision", "f16", "--loss-scale", 128], []),
    "sums-in-f32": ({**BATCH, "optimizer": ADAM, "bf16": {"enabled": True, "check_grad_overflow": False},
                     "communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}},
                    [*BATCH_OPTION, *ADAM_OPTIONS, "--precision", "bf16", "--reduce-precision", "f32"], []),
    "monitors": ({**BATCH, "optimizer": ADAM, "tensorboard": {"enabled": True, "output_path": "runs", "job_name": "a"},
                  "wandb": {"enabled": False}, "csv_monitor": {"enabled": True}, "flops_profiler": {"enabled": True, "profile_step": 1},
                  "comms_logger": {"enabled": True, "verbose": False}, "memory_breakdown": True, "dump_state": True},
                 [*BATCH_OPTION, *ADAM_OPTIONS], []),
    "rate-of-the-command-line": (
        {**BATCH, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_num_steps": 10, "warmup_type": "linear"}}},
        [*BATCH_OPTION, "--lr-schedule", "constant:warmup=10,start=0.01,delay=1"], ["--optimizer", "adamw:lr=0.01"]),
    "precision-of-the-command-line": ({**BATCH, "optimizer": ADAM, "fp16": {"enabled": True}},
                                      [*BATCH_OPTION, *ADAM_OPTIONS], ["--precision", "bf16"]),
    "overflow-is-of-bf16": ({**BATCH, "optimizer": ADAM, "bf16": {"enabled": True}}, [*BATCH_OPTION, *ADAM_OPTIONS], ["--precision", "f32"]),
    "torch-adam": ({**BATCH, "optimizer": {"type": "adamw", "params": {"lr": 0.002, "torch_adam": True}}},
                   [*BATCH_OPTION, "--optimizer", "adamw:lr=0.002,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.01"], []),
    "steps-of-the-command-line": ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "optimizer": ADAM},
                                  [*BATCH_OPTION, *ADAM_OPTIONS], ["--micro-batches", 2]),
    "empty": ({**BATCH, "fp16": None, "bf16": {}, "zero_optimization": {}, "communication_data_type": None, "optimizer": ADAM},
              [*BATCH_OPTION, *ADAM_OPTIONS], []),
    # DeepSpeed 0.19 clips to a norm of 1 unless the configuration says something else.
    "no-clipping": ({**BATCH, "optimizer": ADAM, "gradient_clipping": 0}, [*BATCH_OPTION, *ADAM_OPTIONS], []),
    "clipping-by-default": ({**BATCH, "optimizer": ADAM}, [*BATCH_OPTION, *ADAM_OPTIONS, "--clip-norm", 1], []),
    "clipping-of-the-command-line": ({**BATCH, "optimizer": ADAM}, [*BATCH_OPTION, *ADAM_OPTIONS], ["--clip-norm", 3]),
    "warm-up-cosine": ({**BATCH, "optimizer": ADAM, "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 2000}}},
                       [*BATCH_OPTION, *ADAM_OPTIONS, "--lr-schedule",
                        "cosine:steps=2000,min=1e-04,warmup=1000,start=0,rise=log,delay=1,idle=0,ahead=1"], []),
    "warm-up-cosine-linear": ({**BATCH, "optimizer": ADAM, "scheduler": {"type": "WarmupCosineLR", "params": {
                                   "total_num_steps": 100, "warmup_min_ratio": 0.1, "warmup_num_steps": 1, "cos_min_ratio": 0.05,
                                   "warmup_type": "linear"}}},
                              [*BATCH_OPTION, *ADAM_OPTIONS, "--lr-schedule",
                               "cosine:steps=100,min=0.05,warmup=2,start=0.1,delay=1,idle=0,ahead=1"], []),
    # WarmupDecayLR has a rate of its own, WarmupLR only where the configuration gives it one.
    "rate-of-the-scheduler": ({**BATCH, "optimizer": {"type": "Adam", "params": {"lr": 0.02}}, "scheduler": {
                                   "type": "WarmupDecayLR", "params": {"total_num_steps": 200, "warmup_num_steps": 10}}},
                              [*BATCH_OPTION, "--optimizer", "adamw:lr=0.001,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0", "--lr-schedule",
                               "linear:steps=200,warmup=10,start=0,rise=log,delay=1"], []),
    "rate-of-the-optimizer": ({**BATCH, "optimizer": {"type": "Adam", "params": {"lr": 0.02}}, "scheduler": {
                                   "type": "WarmupLR", "params": {"warmup_num_steps": 10}}},
                              [*BATCH_OPTION, "--optimizer", "adamw:lr=0.02,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0", "--lr-schedule",
                               "constant:warmup=10,start=0,rise=log,delay=1"], []),
    "command-line-wins": ({**BATCH, "optimizer": ADAM, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}},
                          ["--batch", 16], ["--zero", 1, "--clip-norm", 0.5, "--optimizer", "sgd:lr=0.1"]),
}
# Name: configuration, and what is refused.
REFUSED = {
    "transformers-auto": ({"train_batch_size": "auto", "optimizer": AUTO_ADAMW, "gradient_clipping": "auto", "bf16": {"enabled": "auto"}},
                          ["optimizer.params.lr", "optimizer.params.weight_decay", "gradient_clipping", "bf16.enabled"]),
    "steps-auto": ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "optimizer": ADAM},
                   ["gradient_accumulation_steps"]),
    "states-of-another-type": ({**BATCH, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "fp32_optimizer_states": False}}},
                               ["optimizer.params.fp32_optimizer_states"]),
    "dotted": ({**BATCH, "optimizer": ADAM, "zero_optimization.stage": 1}, ["[zero_optimization.stage]"]),
    "hysteresis-by-default": ({**BATCH, "optimizer": ADAM, "fp16": {"enabled": True}}, ["fp16.hysteresis"]),
    "zero-plus-plus": ({**BATCH, "optimizer": ADAM, "zero_optimization": {"stage": 3, "zero_quantized_weights": True,
                                                                           "zero_quantized_gradients": True}},
                       ["zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_gradients"]),
    "one-cycle": ({**BATCH, "optimizer": ADAM, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-4}}},
                  ["scheduler.type"]),
    "warm-up-of-another-type": ({**BATCH, "optimizer": ADAM, "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-5}}},
                                ["scheduler.type"]),
    "one-bit-adam": ({**BATCH, "optimizer": {"type": "OneBitAdam", "params": {"lr": 2e-4, "freeze_step": 400}}}, ["optimizer.type"]),
    "curriculum": ({**BATCH, "optimizer": ADAM, "curriculum_learning": {"enabled": True, "curriculum_type": "seqlen"}},
                   ["curriculum_learning.enabled"]),
    "compression": ({**BATCH, "optimizer": ADAM, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}}},
                    ["compression_training.weight_quantization.shared_parameters.enabled"]),
    "elasticity": ({**BATCH, "optimizer": ADAM, "elasticity": {"enabled": True, "max_train_batch_size": 2000}}, ["elasticity.enabled"]),
    "not-a-key": ({**BATCH, "optimizer": ADAM, "gradient_cliping": 1.0}, ["gradient_cliping"]),
}


def cases(session):
    for name in SAME:
        yield Case(f"deepspeed/same/{name}", lambda n=name: same(session, *SAME[n]))
    for name in REFUSED:
        yield Case(f"deepspeed/refused/{name}", lambda n=name: refused(session, *REFUSED[n]))
    yield Case("deepspeed/rates", lambda: rates(session))
    yield Case("deepspeed/errors", lambda: errors(session))


def keys(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def compiled(session, *options):
    where = session.folder()
    done = session.call("sheaf", "compile", session.graph(MODEL), "-o", where / "x.plan", "--ranks", RANKS, "--quiet", *options)
    return done, where / "x.plan"


def written(session, config):
    path = session.folder() / "ds_config.json"
    path.write_text(json.dumps(config))
    return path


def outcomes(done):
    """{key: outcome}, as `sheaf: KEY: OUTCOME: WHY` says them."""
    return {line.split(": ")[1]: line.split(": ")[2] for line in done.err.splitlines()}


def same(session, config, options, others):
    done, plan = compiled(session, "--deepspeed", written(session, config), *others)
    expect(done.code == 0, done.err)
    found = outcomes(done)
    missing, more = set(keys(config)) - set(found), set(found) - set(keys(config))
    expect(not missing, f"nothing is said of {sorted(missing)}")
    expect(all(found[key] == "applied" for key in more), f"of defaults it says { {k: found[k] for k in more} }")
    expect(set(found.values()) <= {"applied", "equivalent", "no effect"}, str(found))
    # Every option that the plan was compiled with was typed, or is named by a line.
    typed = {a for a in map(str, others) if a.startswith("--")} | {"--ranks", "--cpu"}  # the harness may add --cpu
    for option in session.inspect(plan)["options"]:
        name = option.split("=")[0]
        expect(name in typed or f": applied: {name}" in done.err or f"default, {name}" in done.err, f"no line names {option}:\n{done.err}")
    if "gradient_clipping" not in config and "--clip-norm" not in [*options, *others]:
        options = [*options, "--clip-norm", 1]  # DeepSpeed's default
    plain, expected = compiled(session, *options, *others)
    expect(plain.code == 0, plain.err)
    expect(digest(plan) == digest(expected), f"another plan than that of {options} {others}")


def rates(session):
    """Whose learning rate counts is said: one that has no effect is not called applied."""
    for name, outcome in (("rate-of-the-scheduler", "no effect"), ("rate-of-the-optimizer", "applied"), ("cifar-10", "applied"),
                          ("warm-up-cosine", "applied")):
        done, _ = compiled(session, "--deepspeed", written(session, SAME[name][0]))
        expect(outcomes(done)["optimizer.params.lr"] == outcome, f"{name}:\n{done.err}")
    done, _ = compiled(session, "--deepspeed", written(session, SAME["rate-of-the-scheduler"][0]))
    expect("warmup_max_lr of the scheduler wins: 0.001, DeepSpeed's default" in done.err, done.err)


def refused(session, config, names):
    path = written(session, config)
    done, plan = compiled(session, "--deepspeed", path)
    expect_short_error(done, ["change results", "--ignore", *names])
    expect(not plan.exists() and done.err.count("\n  ") == len(names), done.err)
    # With --ignore for each there is a plan.
    ignored = [a for name in names for a in ("--ignore", name)]
    done, plan = compiled(session, "--deepspeed", path, *ignored, *(("--batch", 16) if config.get("train_batch_size") == "auto" else ()))
    expect(done.code == 0 and plan.exists(), done.err)
    expect({k for k, v in outcomes(done).items() if v == "ignored"} == set(names), done.err)


def errors(session):
    for config, words in ((BATCH | {"train_micro_batch_size_per_gpu": 3}, ["train_batch_size", "as DeepSpeed demands"]),
                          (BATCH | {"gradient_clipping": "a lot"}, ["gradient_clipping", "not a number"]),
                          (BATCH | {"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["both enabled"]),
                          (BATCH | {"optimizer": {"type": "AdamW", "params": {"lr": 1, "betas": [1]}}}, ["betas", "not two numbers"]),
                          (BATCH | {"zero_optimization": {"stage": 4}}, ["--zero 4"]),
                          (BATCH | {"zero_optimization": {"stage": True}}, ["zero_optimization.stage", "not a number"]),
                          (BATCH | {"fp16": {"enabled": "true"}}, ["fp16.enabled", '"true"', "not true or false"]),
                          (BATCH | {"fp16": {"enabled": True, "initial_scale_power": 1e9}}, ["initial_scale_power"]),
                          (BATCH | {"bf16": {"enabled": True}, "bfloat16": {"enabled": True}}, ["bf16.enabled", "given twice"]),
                          (BATCH | {"gradient_clipping": -1}, ["gradient_clipping", "below 0"]),
                          (BATCH | {"optimizer": ADAM, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
                           ["warmup_num_steps", "not a number of steps"]),
                          (BATCH | {"optimizer": {"type": "AdamW", "params": {"lr": -1}}}, ["lr"]),
                          ([], ["a JSON object"])):
        expect_short_error(compiled(session, "--deepspeed", written(session, config))[0], words)
    broken = session.folder() / "ds_config.json"
    broken.write_text('{"train_batch_size": 16,}')
    expect_short_error(compiled(session, "--deepspeed", broken)[0], ["ds_config.json"])
    expect_short_error(compiled(session, "--deepspeed", "none.json")[0], ["none.json"])
    expect_short_error(compiled(session, "--deepspeed", written(session, BATCH), "--ignore", "fp16.enabled")[0], ["--ignore fp16.enabled"])
    expect_short_error(compiled(session, "--batch", 16, "--ignore", "fp16.enabled")[0], ["--deepspeed"], 2)
