#!/usr/bin/env python3
"""Packs the Python package of tools/python with the tools, the device libraries and what they load, as a wheel for Linux.

    python3 tools/wheel.py --build build/release --out build

The build folder has the targets sheaf_portable, sheaf-run and sheaf_cpu. The same files give the same wheel.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import licences
import manual

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the tag promises (PEP 600): a system with this glibc, and with the libstdc++ of its time.
GLIBC, GLIBCXX = (2, 36), (3, 4, 30)
TAG = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_x86_64"
METADATA = """Metadata-Version: 2.4
Name: sheaf
Version: {version}
Summary: Compiles ONNX graphs and PyTorch modules into training plans sharded over ranks by ZeRO, and runs them
License-Expression: Apache-2.0 WITH LLVM-exception
{licence_files}
Requires-Python: >=3.10
Requires-Dist: numpy
Description-Content-Type: text/markdown

{description}"""
ENTRY_POINTS = """[console_scripts]
sheaf = sheaf._console:sheaf
sheaf-run = sheaf._console:sheaf_run
"""


def cache_entry(build, name):
    return re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True, text=True).stdout


def without_links(folder):
    """Wheels have no symbolic links: each library once, by the name under which others ask for it."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            path.unlink()
    for path in sorted(folder.iterdir()):
        name = re.search(r"\(SONAME\).*\[(.+)\]", readelf("--dynamic", path))
        if name and name[1] != path.name:
            path.rename(folder / name[1])


def by_folder(libraries):
    """Each finds the others in its own folder, whatever loads it."""
    for path in libraries:
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", path], check=True)


def check_versions(files):
    """Versions of symbols that systems as old as the tag says do not have."""
    for path in files:
        for name, version in re.findall(r"\b(GLIBC|GLIBCXX)_([\d.]+)", readelf("--version-info", path)):
            newest = GLIBC if name == "GLIBC" else GLIBCXX
            if tuple(map(int, version.split("."))) > newest:
                sys.exit(f"wheel: {path.name} needs {name}_{version}, newer than {'.'.join(map(str, newest))}, which "
                         f"{TAG} promises: build the wheel on Debian 12")


def stage(build, folder):
    """Everything that the wheel has but for its record: below `folder` by its name in the wheel."""
    version = cache_entry(build, "CMAKE_PROJECT_VERSION")
    package, native = folder / "sheaf", folder / "sheaf" / "native"
    shutil.copytree(ROOT / "tools" / "python" / "sheaf", package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["cmake", "--install", build, "--component", "wheel", "--strip", "--prefix", native], check=True,
                   stdout=subprocess.DEVNULL)
    without_links(native / "lib")
    by_folder(path for path in sorted((native / "lib").iterdir()) if not path.name.startswith("libsheaf_"))
    check_versions([*(native / "bin").iterdir(), *(native / "lib").iterdir()])
    manual.write_all(build / "bin", folder / f"sheaf-{version}.data" / "data" / "share")

    info = folder / f"sheaf-{version}.dist-info"
    bundled = [path.name for path in sorted((native / "lib").iterdir()) if not path.name.startswith("libsheaf_")]
    names = licences.write(info / "licenses" / "third-party", build, bundled, (native / "lib" / "libsheaf_cuda.so").exists())
    shutil.copy(ROOT / "LICENSE", info / "licenses" / "LICENSE")
    files = "\n".join(f"License-File: {name}" for name in ["LICENSE", *(f"third-party/{name}" for name in names)])
    (info / "METADATA").write_text(METADATA.format(version=version, licence_files=files, description=(ROOT / "docs" / "python.md").read_text()))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: sheaf\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return version, info


def pack(build, out):
    folder = out / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    version, info = stage(build, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    record = []
    for path in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        record.append(f"{path.relative_to(folder)},sha256={digest},{path.stat().st_size}\n")
    (info / "RECORD").write_text("".join([*record, f"{(info / 'RECORD').relative_to(folder)},,\n"]))
    wheel = out / f"sheaf-{version}-{TAG}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [*files, info / "RECORD"]:
            # No time and no owner, but what is a program.
            entry = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
            archive.writestr(entry, path.read_bytes(), compresslevel=9)
    return wheel, folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    wheel, folder = pack(args.build.resolve(), args.out.resolve())
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB, unpacked {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
