"""Kernels for GPUs: those of whole models assemble without spilling registers, and fat plans are plans."""
import os
import re

from harness import Case, Skip, digest, expect, expect_short_error, plan_bytes
from training import CONFIGS, data_arguments, expect_reference, train

GPUS = "cuda:sm_80,cuda:sm_90,cuda:sm_100"
MACHINES = {"cuda:sm_80": "a100", "cuda:sm_89": "rtx4090", "cuda:sm_90": "h100", "cuda:sm_100": "gb200", "cuda:sm_120": "rtx4090"}
MODELS = {  # name: options
    "mlp": ["--batch", 16],
    "gpt2-tiny": ["--batch", 4],
    "llama-tiny": ["--batch", 4],
    "gpt2-124m": ["--batch", 8],
    "llama-3-8b": ["--batch", 8, "--ranks", 8, "--zero", 3],
}


def cases(session):
    for name in MODELS:
        for precision in ("f32", "bf16"):
            yield Case(f"kernels/{name}/{precision}", lambda n=name, p=precision: assembled(session, n, p))
    yield Case("kernels/fat-plan", lambda: fat(session))
    for name in ("gpt2-tiny", "llama-tiny"):
        for precision in ("f32", "bf16"):
            yield Case(f"kernels/fat-trains/{name}/{precision}", lambda n=name, p=precision: fat_trains(session, n, p))
    yield Case("kernels/same-bytes", lambda: same(session))
    yield Case("kernels/scratch", lambda: scratch(session))
    for target, machine in MACHINES.items():
        yield Case(f"kernels/machine-of/{target}", lambda t=target, m=machine: machine_of(session, t, m))
    yield Case("kernels/no-toolkit", lambda: without_toolkit(session))
    for name, (target, word) in ERRORS.items():
        yield Case(f"kernels/error/{name}", lambda t=target, w=word: error(session, t, w))


def assembled(session, name, precision):
    if session.quick and name in ("gpt2-124m", "llama-3-8b"):
        raise Skip("instrumented tools would take long")
    out = session.folder() / "out.plan"
    done = session.succeed("sheaf", "compile", session.graph(name), "-o", out, "--precision", precision, "--target", GPUS,
                           "--verbose", *MODELS[name])
    notes = re.findall(r"kernels for (cuda:sm_\d+): (\d+), .*at most (\d+) registers a thread, (\d+) bytes spilled", done.err)
    expect([note[0] for note in notes] == GPUS.split(","), f"notes on images:\n{done.err}")
    for target, kernels, registers, spilled in notes:
        expect(int(kernels) > 0 and 0 < int(registers) <= 255, f"{target}: {kernels} kernels, {registers} registers")
        expect(int(spilled) == 0, f"{target}: {spilled} bytes of registers are spilled")
    session.succeed("sheaf", "verify", out)


def fat_trains(session, name, precision):
    """What a cluster will run, scheduled for it, trains on CPU ranks to PyTorch's losses and to the CPU's own plan's bits."""
    config, options, steps = CONFIGS[name], ("--precision", precision, "--gemm-epilogues", "on"), min(session.steps, 30)
    plan = train(session, config, 2, 3, steps, (*options, "--target", "cuda:sm_90,cpu"), ("--device", "cpu"))
    own = train(session, config, 2, 3, steps, options)
    expect(digest(plan.weights) == digest(own.weights), "other weights than the CPU's own plan gives")
    if precision == "f32":
        expect_reference(config, plan.steps)


def machine_of(session, target, machine):
    """Without --profile the machine is that of the target, with as many nodes as it takes."""
    config, out = CONFIGS["gpt2-tiny"], session.folder() / "out.plan"
    session.succeed("sheaf", "compile", session.graph(config.model), "-o", out, "--batch", 144, "--ranks", 144, "--zero", 3,
                    "--target", target, *config.options)
    schedule = [d for d in session.inspect(out)["decisions"] if d.startswith("schedule: ")]
    expect(len(schedule) == 1 and f"predicted on {machine}: " in schedule[0], f"{schedule}")


def scratch(session):
    """What calls need on the CPU's threads is reserved for the CPU alone, and the CPU refuses plans without it."""
    config, folder, peaks = CONFIGS["gpt2-tiny"], session.folder(), {}
    for target in ("cuda:sm_90", "cuda:sm_90,cpu"):
        for threads in (1, 256):
            plan = folder / f"{len(peaks)}.plan"
            session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", plan, "--batch", 8, "--target", target,
                            "--max-threads-per-rank", threads)
            session.succeed("sheaf", "verify", plan)
            peaks[target, threads] = session.inspect(plan)["memory"]["peak_bytes"]
    expect(peaks["cuda:sm_90", 1] == peaks["cuda:sm_90", 256], f"a GPU's plan has scratch for CPU threads: {peaks}")
    expect(peaks["cuda:sm_90", 256] < peaks["cuda:sm_90,cpu", 256], f"a plan for both has no scratch for threads: {peaks}")
    done = session.call("sheaf-run", folder / "0.plan", "--device", "cpu", *data_arguments(config), "--steps", 1)
    expect_short_error(done, ["none for the CPU", "--target cpu"])


def fat(session):
    """Plans for several devices round-trip through text, verify, and train on the CPU with the same bits."""
    folder = session.folder()
    for name, target in (("fat", "cuda:sm_90,cpu"), ("cpu", "cpu")):
        session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", folder / f"{name}.plan", "--batch", 4, "--ranks", 2,
                        "--zero", 2, "--profile", "cpu", "--gemm-epilogues", "on", "--target", target)
        session.succeed("sheaf-run", folder / f"{name}.plan", "--device", "cpu", *data_arguments(CONFIGS["gpt2-tiny"]), "--steps", 3,
                        "--save", folder / f"{name}.safetensors")
    expect(digest(folder / "fat.safetensors") == digest(folder / "cpu.safetensors"), "other weights than the CPU's own plan gives")
    text = folder / "fat.mlir"
    text.write_text(session.succeed("sheaf", "inspect", folder / "fat.plan", "--format", "text").out)
    # The magic number of a fat binary, 0xBA55ED50.
    expect(re.search(r'plan.image "cuda:sm_90" .* code "P\\EDU\\BA', text.read_text()), "the image for GPUs is not a fat binary")
    session.succeed("sheaf", "assemble", text, "-o", folder / "again.plan")
    expect(plan_bytes(folder / "again.plan") == plan_bytes(folder / "fat.plan"), "text and back are other bytes")
    session.succeed("sheaf", "verify", folder / "fat.plan")


def same(session):
    """The same input compiles to the same bytes."""
    folder = session.folder()
    for name in ("a", "b"):
        session.succeed("sheaf", "compile", session.graph("mlp"), "-o", folder / name, "--batch", 16, "--target", GPUS)
    expect((folder / "a").read_bytes() == (folder / "b").read_bytes(), "two compilations differ")


def without_toolkit(session):
    done = session.call("sheaf", "compile", session.graph("mlp"), "-o", session.folder() / "out", "--batch", 16,
                        "--target", "cuda:sm_90", env={**os.environ, "CUDA_HOME": "/nowhere"})
    expect_short_error(done, ["needs ptxas of the CUDA toolkit 12.8 or newer", "/nowhere"])


ERRORS = {
    "too-old": ("cuda:sm_70", "sm_80"),
    "unknown-gpu": ("cuda:sm_123", "sm_123"),
    "no-architecture": ("cuda", "cuda:sm_NN"),
    "twice": ("cpu,cpu", "twice"),
    "empty": ("cpu,", "expected cpu"),
}


def error(session, target, word):
    done = session.call("sheaf", "compile", session.graph("mlp"), "-o", session.folder() / "out", "--batch", 16,
                        "--target", target)
    expect_short_error(done, ["--target", word], 2)
