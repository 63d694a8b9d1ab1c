#!/usr/bin/env python3
"""Makes test/emulation/Fragments.h again: where a warp's lanes hold the operands of matrix instructions, by CuTe.

    python3 test/emulation/fragments/fragments.py [--cuda /usr/local/cuda] [--check]

CuTe's headers come from PyPI's nvidia-cutlass 4.2 (6 MB); its layouts are evaluated by the host's compiler, with the headers
of a CUDA toolkit and without a GPU. The table is committed, so that tests need neither package nor network. --check compares
it with what is made now, and writes nothing.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "nvidia-cutlass==4.2.0.0"
HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE.parent / "Fragments.h"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", default="/usr/local/cuda", type=pathlib.Path, help="a CUDA toolkit, for its headers")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if "/include/" in name])
        include = next(folder.rglob("cute/layout.hpp")).parents[1]
        program = folder / "fragments"
        subprocess.run(["g++", "-std=c++17", "-w", f"-I{include}", f"-I{args.cuda}/include", f"-I{args.cuda}/include/cccl", HERE / "fragments.cpp", "-o", program],
                       check=True)
        made = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        made = subprocess.run(["clang-format-14", f"--assume-filename={TABLE}"], input=made, check=True, capture_output=True,
                              text=True).stdout
    if not args.check:
        TABLE.write_text(made)
    elif made != TABLE.read_text():
        sys.exit(f"{TABLE.name} is not what {PACKAGE} says")


if __name__ == "__main__":
    main()
