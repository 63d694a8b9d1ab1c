#!/usr/bin/env python3
"""Fetches the header of the oldest and of the newest NCCL that Sheaf is compiled with, for CI: FOLDER/VERSION/nccl.h.

    python3 tools/nccl_headers.py build/third_party/nccl
    cmake --preset release -DSHEAF_NCCL_HEADERS=build/third_party/nccl

They come from PyPI's nvidia-nccl-cu12, whose packages have the library as well (0.2 to 0.3 GB each, removed when the header is
out). A version that is there is not fetched again.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# The oldest has windows, the newest is that of this writing. NCCL itself may be older: docs/cuda-runtime.md.
VERSIONS = ("2.27.3", "2.32.3")


def fetch(version, folder):
    header = folder / version / "nccl.h"
    if header.exists():
        return
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--no-cache-dir", "--dest", wheels, f"nvidia-nccl-cu12=={version}"], check=True)
        with zipfile.ZipFile(next(pathlib.Path(wheels).glob("*.whl"))) as wheel:
            text = wheel.read("nvidia/nccl/include/nccl.h")
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_bytes(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    for version in VERSIONS:
        fetch(version, parser.parse_args().folder)


if __name__ == "__main__":
    main()
