#!/usr/bin/env python3
"""Every option that the documentation mentions is in the table of options of `sheaf` or `sheaf-run`.

    python3 test/structure/options.py COMMANDS.md [FOLDER]

COMMANDS.md: what `sheaf --help=markdown` and `sheaf-run --help=markdown` print. Options of other programs are listed here.
"""
import pathlib
import re
import sys

# Program or script: its options that the documentation mentions.
OTHERS = {
    "torchrun": ("--nnodes", "--nproc-per-node", "--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--no-python", "--max-restarts"),
    "mpirun": ("--bind-to", "--hostfile", "--mca", "--allow-run-as-root", "--oversubscribe"),
    "srun": ("--nodes", "--ntasks", "--ntasks-per-node", "--kill-on-bad-exit", "--mpi", "--gpus-per-task"),
    "test/check.py": ("--build", "--only", "--slowest"),
    "test/structure/comments.py": ("--write",),
    "test/breaks/breaks.py": ("--build", "--seed", "--count"),
    "test/e2e/run.py": ("--tools",),
    "test/bench/*.py": ("--before", "--browser", "--pairs", "--fresh", "--nice", "--models", "--kit", "--bin", "--mpi4py", "--repeat", "--nodes", "--pytorch"),
    "gemm_bench": ("--packing", "--check"),
    "tools of the kit for GPU machines": ("--out", "--gpus", "--dry-run"),
    "tensorboard": ("--logdir",),
    "node exporter": ("--collector",),
    "mypy": ("--strict",),
    "sha256sum": ("--check",),
    "lit": ("--filter",),
    "GoogleTest": ("--gtest_filter",),
}


def main():
    table = set(re.findall(r"^\| `(--?[\w-]+)", pathlib.Path(sys.argv[1]).read_text(), re.MULTILINE))
    root = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).resolve().parents[2])
    if not {"--ranks", "--steps"} <= table:
        sys.exit(f"{sys.argv[1]} is not the options of both programs")
    known = table.union(*OTHERS.values())
    wrong, count = [], 0
    for page in sorted([root / "README.md", *(root / "docs").glob("*.md")]):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", line):
                count += 1
                if option not in known:
                    wrong.append(f"{page.relative_to(root)}:{number}: {option} is not an option of sheaf or sheaf-run")
    print("\n".join(wrong) or f"{count} options, all known")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
