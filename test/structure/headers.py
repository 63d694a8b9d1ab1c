#!/usr/bin/env python3
"""Checks that each of our headers compiles by itself: it must include what it uses. `make headers` runs this.

    python3 test/structure/headers.py --build build/release [--jobs N] [HEADER...]

A header is compiled with the options of a source file that includes it, or of one in its folder or above, but without
precompiled headers, which hide that an #include is missing.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def options_of(entry):
    """The compiler and the options of a compile command, without its input, its output and precompiled headers."""
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if re.search(r"(\+\+|cc)(-\d+)?$", word)):]
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-c", "-include", "-x", "-MF", "-MT"):
            skip = True
        elif word not in ("-Winvalid-pch", "-MD"):
            kept.append(word)
    return kept


def users(entries):
    """Header -> an entry of compile_commands.json whose source names it in an #include; and folder -> one in that folder."""
    by_header, by_folder = {}, {}
    for entry in entries:
        source = pathlib.Path(entry["file"])
        if ROOT not in source.parents or not source.exists():
            continue
        for name in re.findall(r'^#include "([^"]+)"', source.read_text(errors="replace"), re.MULTILINE):
            by_header.setdefault(name, entry)
        by_folder.setdefault(str(source.parent.relative_to(ROOT)), entry)
    return by_header, by_folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("headers", nargs="*", help="relative to the project's folder; default: all that are tracked")
    args = parser.parse_args()
    entries = json.loads((args.build / "compile_commands.json").read_text())
    by_header, by_folder = users(entries)
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "*.h"], capture_output=True, text=True, check=True).stdout
    names = args.headers or [name for name in listed.split("\0") if name and (ROOT / name).exists()]

    def compiled(name):
        """Returns the compiler's errors; none if no source file here says how to compile the header."""
        folders = [str(parent) for parent in pathlib.PurePath(name).parents]
        entry = by_header.get(name) or next((by_folder[folder] for folder in folders if folder in by_folder), None)
        if entry is None:
            return None
        command = [*options_of(entry), "-fsyntax-only", "-x", "c++", "-"]
        done = subprocess.run(command, cwd=entry["directory"], input=f'#include "{name}"\n', capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    failed, skipped = [], []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, errors in zip(names, pool.map(compiled, names)):
            if errors is None:
                skipped.append(name)
            elif errors:
                failed.append(name)
                print(f"{name} does not compile alone:\n{errors}", flush=True)
    for name in skipped:
        print(f"{name}: not checked: no source file that is compiled here includes it (a CUDA toolkit is missing?)")
    print(f"headers: {len(names) - len(failed) - len(skipped)} compile alone, {len(failed)} do not, {len(skipped)} were not tried")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
