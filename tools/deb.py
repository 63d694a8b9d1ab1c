#!/usr/bin/env python3
"""Packs what `cmake --install` installs as a Debian package, with the dependencies that dpkg-shlibdeps finds.

    python3 tools/deb.py --build build/release --out build
"""
import argparse
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

import licences

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTROL = """Package: sheaf
Version: {version}
Architecture: amd64
Maintainer: Sheaf <sheaf@localhost>
Installed-Size: {kib}
Section: science
Priority: optional
Depends: {depends}
Recommends: libssl3
Suggests: {suggests}
Description: training compiler for ONNX graphs, sharded over ranks by ZeRO
 Sheaf compiles an ONNX graph, ahead of time, into a training plan that is sharded over
 ranks by ZeRO (stages 0 to 3), and runs that plan with a small runtime.
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: sheaf

Files: *
Copyright: the authors of Sheaf
Comment: the licences of what is compiled or linked into it are in /usr/share/doc/sheaf/third-party
License: Apache-2.0 with LLVM exception
"""
# `Recommends` is libcrypto.so.3, which sheaf-run loads for SHEAF_SECRET.
# Dependencies of what is loaded only if it is asked for.
OPTIONAL = ("libsheaf_mpi_openmpi.so", "libsheaf_mpi_mpich.so")
# What no Debian package of main has: of NVIDIA's toolkit.
FOREIGN = ("libsheaf_cuda.so",)


def shared_libraries(files, scratch):
    """What `Depends` of these files says."""
    (scratch / "debian").mkdir(exist_ok=True)
    (scratch / "debian" / "control").write_text("Source: sheaf\n\nPackage: sheaf\nArchitecture: amd64\n")
    # What our tools find in LLVM's folder is a link there, of the package for developers.
    (scratch / "debian" / "shlibs.local").write_text("libLLVM 22.1 libllvm22\n")
    command = ["dpkg-shlibdeps", "-O", "--warnings=0", *map(str, files)]
    done = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True)
    return re.search(r"^shlibs:Depends=(.*)$", done.stdout, re.MULTILINE).group(1)


def pack(build, out):
    version = re.search(r"^CMAKE_PROJECT_VERSION:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE).group(1)
    scratch = out / "deb"
    shutil.rmtree(scratch, ignore_errors=True)
    root = scratch / "root"
    root.mkdir(parents=True)
    subprocess.run(["cmake", "--install", build, "--strip", "--prefix", "/usr"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "DESTDIR": str(root)})
    share = root / "usr" / "share"
    # Where Debian's zsh looks for completion of packages.
    (share / "zsh" / "site-functions").rename(share / "zsh" / "vendor-completions")
    for page in sorted((share / "man").rglob("*.1")):
        with open(page.with_name(page.name + ".gz"), "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(page.read_bytes())
        page.unlink()
    doc = share / "doc" / "sheaf"
    doc.mkdir(parents=True, exist_ok=True)
    (doc / "copyright").write_text(COPYRIGHT + "".join(f" {line}".rstrip() + "\n" if line.strip() else " .\n" for line in
                                                       (ROOT / "LICENSE").read_text().splitlines()))
    licences.write(doc / "third-party", build, [], (root / "usr" / "lib" / "libsheaf_cuda.so").exists())
    binaries = [*sorted((root / "usr" / "bin").iterdir()), *sorted((root / "usr" / "lib").glob("*.so"))]
    needed = [path for path in binaries if path.name not in OPTIONAL + FOREIGN]
    optional = [path for path in binaries if path.name in OPTIONAL]
    depends = shared_libraries(needed, scratch)
    suggests = shared_libraries(optional, scratch) if optional else ""
    needed_names = {one.split(" ")[0] for one in depends.split(", ")}
    others = [one for one in suggests.split(", ") if one and one.split(" ")[0] not in needed_names]
    files = sorted(path for path in root.rglob("*") if path.is_file())
    control = root / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(CONTROL.format(version=version, kib=sum(f.stat().st_size for f in files) // 1024, depends=depends,
                                                    suggests=", ".join([*others, "zsh | bash-completion"])))
    (control / "md5sums").write_text("".join(f"{hashlib.md5(f.read_bytes()).hexdigest()}  {f.relative_to(root)}\n" for f in files))
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    package = out / f"sheaf_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", "-Zxz", "-z3", root, package], check=True, stdout=subprocess.DEVNULL)
    return package


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    package = pack(args.build.resolve(), args.out.resolve())
    print(f"{package}: {package.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
