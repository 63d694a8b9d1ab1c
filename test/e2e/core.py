"""Which end-to-end cases `make quick` and `make test` run. The core are those of `make quick`: at least one of every group that a change in our code can break, about a minute on two cores.

A case is here if it is quick and fails for many reasons: whole runs that are compared with PyTorch's, with each other bit by bit, or with
what a plan says. It leaves out other models, ranks, stages and settings of the same kind, long waits, and packing.
"""
import re
import subprocess
import zlib

# `make test` runs the core, and of the other cases one share in so many: the revision decides which one. All of them take more than an hour on two cores.
SHARES = 3

# Patterns of whole names. Each must match a case (run.py).
CORE = (
    # Losses, gradients and weights of whole runs.
    r"numerics/(mlp-momentum|cnn-adamw|gpt2-tiny)/ranks-4/zero-3", r"numerics/(llama-tiny|moe-adamw)/ranks-2/zero-0",
    r"numerics/batch-second/variance", r"numerics/zeros/norm", r"artifacts/mlp/ranks-2-zero-2", r"families/(bert|resnet|lstm)/leaves", r"groups/sgd/ranks-4/zero-3",
    r"norms/sync/ranks-4/zero-0", r"losses/label_smoothing", r"gemm-epilogues/off", r"precision/loss/mlp-adamw/ranks-2",
    r"precision/(model-in-bf16|angles/time-steps/bf16)", r"f16/overflow/adamw/ranks-4", r"micro-batches/(ignored-labels|dropout)", r"micro-batch-groups/(reference|class-weights)", r"leaves/one-row/moved-batch",
    r"products/.*",
    r"operators/(opset-18/0|registry)", r"special-points/(torchscript|onnx)-20/0",
    # The same bits in every way.
    r"bits/(mlp-adamw|cnn-adamw)/ranks-4/(stages|threads|schedules)", r"bits/gpt2-tiny/ranks-2/(idle-clipping|resumed)", r"bits/padding/schedules",
    r"divisions/mlp-adamw/(f32|bf16)", r"nodes/cnn-adamw/bf16", r"same/divisions/mlp-adamw/8", r"same/differs/(seed|precision)", r"same/options",
    # State, on ranks, in files, on GPUs.
    r"state/(mlp-momentum/ranks-4-zero-3-to-ranks-2-zero-1|frozen/f32|damaged)", r"saves/(kept|staged/bf16)", r"epochs/resumed", r"pipes/weights/2-3-2",
    r"resume/(interrupted/(cosine|processes)|again)",
    r"offload/with/micro-batches", r"update-on/(with/clipped|text)", r"durable/resumed/plain", r"cuda/(mlp|errors)", r"gpu-offload/evaluation",
    r"gpu-durable/saved", r"processes/(4-by-torchrun|killed-2|one-fails)", r"transports/mpirun\.openmpi/mpi/2-processes-apart",
    r"network/bytes/2x4/zero-3", r"launchers/mpirun\.mpich/2", r"unrelated/(first-process-fails|names-are-shown)", r"gpu-processes/one-gpu-for-two",
    # Evaluation and export.
    r"evaluation/(mlp/ranks-4/zero-3|every/ranks-4/zero-3|ignored-labels|refused)", r"evaluation-batches/rows/ranks-2", r"export/mlp-momentum",
    # Proofs, predictions and printed texts.
    r"proof/(attacks|run-refuses|mutants/mlp-adamw/zero-3)", r"fuzzing/(plan|state)", r"memory/(shares/gpt2-tiny/zero-3|communication)",
    r"memory/touched/gpt2-tiny/ranks-4/zero-3", r"simulating/(h100/ranks-4/zero-3|text)", r"choosing/fit-one-node", r"checking/the-fixed-batch",
    r"diff/zero", r"trying/(counts/size|sums/expanded-parameter|groups/of-four|different)", r"report/(contents|perfetto)/mlp", r"deepspeed/same/zero-3", r"deepspeed/errors", r"watching/(events|metrics)", r"measuring/refused",
    r"compiling/processor", r"kernels/(fat-plan|machine-of/cuda:sm_90)", r"installing/man-pages",
    r"(comparison|unpacking)/.*", r"compatibility/.*", r"readme/(text|labels|failures)",
    r"cut-files/((compile|check|fit)/weight/pointer|compile/constant/empty|run/pages|pointers)",
    r"output-files/(replaced/sheaf-compile|links|run|folders|endings)", r"written-files/(two-runs/index|modes|without-state/processes-2/last)", r"weights/(in-part|tied/torchscript|copied/raw)",
    r"crossing/(negatives|groups-of-4|lengths|with/nodes|evaluation|gathers|zeros)", r"rows-elsewhere/.*", r"losses/one-hot-OneHot", r"artifacts/clipped",
    r"trained/(gradients/(straight-through/(raw|optimized)|padding/raw|buffers/torchscript)|doubts|constants)",
    r"readers/(sheaf-(check|export)|sheaf-run|links)", r"long-models/(operands|calls|texts|sums)",
    r"bad-steps/(ignored-labels/(skip/ranks-2|f16/micro-batches)|nan/stop)", r"inputs/(unneeded|shifted|ids/plain)",
    r"endings/(shorter-data/read|threads|memory|file-sizes)",
    r"mistakes/.*", r"terminal/.*", r"demo/sample",
    r"commands/(compile-to/zero|text-round-trip/gpt2-tiny|defaults|schedule|freeze|summary|help|on-nan/skip)", r"errors/.*",
)
# Groups without a case above, and why.
LEFT_OUT = {
    "dist": "packs the runtime, which takes longer than all it could find in an edit",
    "kit": "packs plans for GPU machines",
    "tutorial": "trains for hundreds of steps",
    "wheel": "needs a Python with torch",
}


def share_of(revision):
    """The share, from 1 to SHARES, that belongs to a revision (a hexadecimal text); 1 without one."""
    return int(revision[:8] or "0", 16) % SHARES + 1


def revision(folder):
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def in_share(name, share):
    return zlib.crc32(name.encode()) % SHARES + 1 == share


def core(names):
    """The names of the core among all, or a ValueError that says what does not fit."""
    chosen = {name for name in names for pattern in CORE if re.fullmatch(pattern, name)}
    unused = [pattern for pattern in CORE if not any(re.fullmatch(pattern, name) for name in names)]
    if unused:
        raise ValueError(f"CORE: no case matches {unused[0]}")
    groups, covered = ({name.split("/")[0] for name in some} for some in (names, chosen))
    if groups - covered != set(LEFT_OUT):
        raise ValueError(f"each group of cases must be in CORE or in LEFT_OUT, not in both; wrong: {sorted((groups - covered) ^ set(LEFT_OUT))}")
    return chosen
