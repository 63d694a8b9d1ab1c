#!/usr/bin/env python3
"""Packs the runtime: sheaf-run, its device libraries and what they load that other systems may lack. The archive holds one
folder, to be unpacked anywhere.

    python3 tools/dist.py --build build/release --out build
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import tarfile


def install(build, folder):
    """Installs the runtime into a new folder, stripped."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["cmake", "--install", build, "--component", "dist", "--strip", "--prefix", folder], check=True,
                   stdout=subprocess.DEVNULL)


def write_archive(folder, archive, preset):
    """Packs a folder as .tar.xz. Neither owners nor times are kept, so that the same files give the same archive."""
    def anonymous(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=preset) as tar:
        tar.add(folder, folder.name, filter=anonymous)


def pack(build, out):
    version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)
    name = f"sheaf-runtime-{version}-linux-x86_64"
    folder, archive = out / name, out / f"{name}.tar.xz"
    out.mkdir(parents=True, exist_ok=True)
    install(build, folder)
    write_archive(folder, archive, 1)
    return folder, archive


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    folder, archive = pack(args.build, args.out)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB, unpacked {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
