#!/usr/bin/env python3
"""The tracked files have at most LIMIT MiB: tree and kit for GPUs (test/gpu/kit.py) are copied together to machines that take 64 MiB.

    python3 test/structure/size.py [FOLDER [MIB]]
"""
import pathlib
import subprocess
import sys

LIMIT, LISTED = 25, 10


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else LIMIT
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    sizes = {name: (root / name).stat().st_size for name in listed.split("\0") if name and (root / name).is_file()}
    mib = sum(sizes.values()) / 2**20
    if sizes and mib <= limit:
        print(f"{len(sizes)} files, {mib:.1f} MiB: within {limit:g} MiB")
        return 0
    print(f"The tracked files have {mib:.1f} MiB; the limit is {limit:g} MiB. Store models with test/models/pack.py. The largest files:")
    for name in sorted(sizes, key=sizes.get, reverse=True)[:LISTED]:
        print(f"{sizes[name] / 2**20:8.2f} MiB  {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
