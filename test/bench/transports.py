#!/usr/bin/env python3
"""Bandwidth between two processes of this machine: sockets and MPI as `sheaf-run` uses them, and PyPI's mpi4py on the same MPI.

    cmake --build build/release --target transport_bench
    python3 test/bench/transports.py --bin build/release/test/bin --mpi4py VENV/bin/python [--repeat N]

Messages go to and fro; the figure is bytes over the time of one way, the median of several rounds, and the best of N repetitions,
which alternate. mpi4py: `python -m mpi4py.bench pingpong` with NumPy arrays, which it never writes to, so that all that is sent is
the kernel's one page of zeros; and the same messages from arrays that have been written, as ours have.
"""
import argparse
import collections
import os
import pathlib
import subprocess
import tempfile

SIZES = (1, 1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
# What mpi4py loads; Debian's MPICH has another name for the library of MPICH's ABI.
LIBRARIES = {"openmpi": ("libmpi.so.40", "libmpi.so.40"), "mpich": ("libmpich.so.12", "libmpi.so.12")}
FOLDER = pathlib.Path("/usr/lib/x86_64-linux-gnu")


WRITTEN = """
import statistics
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
for size in SIZES:
    out, received, taken = numpy.ones(size, "B"), numpy.ones(size, "B"), []
    rounds = 500 if size <= 1 << 16 else 60 if size <= 1 << 22 else 12
    for i in range(-max(rounds // 10, 2), rounds):
        begin = MPI.Wtime()
        for turn in (0, 1):
            if turn == world.rank:
                world.Send([out, size, MPI.BYTE], 1 - turn)
            else:
                world.Recv([received, size, MPI.BYTE], turn)
        if i >= 0:
            taken.append((MPI.Wtime() - begin) / 2)
    if world.rank == 0:
        print(size, size / statistics.median(taken) / 1e6, flush=True)
"""


def rows(text):
    """bytes -> MB/s of the lines of figures."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0].isdigit():
            found[int(words[0])] = words
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--mpi4py", help="a Python that has mpi4py and numpy")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    best = collections.defaultdict(lambda: collections.defaultdict(float))

    def note(way, size, rate):
        best[way][size] = max(best[way][size], rate)

    with tempfile.TemporaryDirectory() as names:
        for ours, theirs in LIBRARIES.values():
            (pathlib.Path(names) / theirs).symlink_to(FOLDER / ours)
        for _ in range(args.repeat):
            measure(args, names, note)
    print("MB/s".ljust(30) + "".join(f"{size:>12}" for size in SIZES))
    for way, rates in best.items():
        print(" ".join(way).ljust(30) + "".join(f"{rates.get(size, float('nan')):12.1f}" for size in SIZES))


def measure(args, names, note):
    for mpi, (_, library) in LIBRARIES.items():
        root = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if mpi == "openmpi" else []
        launcher = [f"mpirun.{mpi}", *root, "-np", "2"]
        for transport in ("sockets", "mpi"):
            out = run([*launcher, args.bin / "transport_bench", transport])
            for size, words in rows(out).items():
                note((mpi, transport, "one way"), size, float(words[2]))
                note((mpi, transport, "both ways"), size, float(words[3]))
        if args.mpi4py:
            out = run([*launcher, args.mpi4py, "-m", "mpi4py.bench", "pingpong", "-a", "numpy", "--min-size", "1", "--max-size",
                       str(SIZES[-1]), "--no-stats"], MPI4PY_LIBMPI=f"{names}/{library}", LD_LIBRARY_PATH=names)
            for size, words in rows(out).items():
                note((mpi, "mpi4py.bench", "one way"), size, float(words[1]))
            out = run([*launcher, args.mpi4py, "-c", f"SIZES = {SIZES}{WRITTEN}"], MPI4PY_LIBMPI=f"{names}/{library}", LD_LIBRARY_PATH=names)
            for size, words in rows(out).items():
                note((mpi, "mpi4py, written", "one way"), size, float(words[1]))


def run(command, **environment):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
