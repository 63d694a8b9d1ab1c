#!/usr/bin/env python3
"""A precompiled header has what its headers have, also where ccache has made another one from the same old one.

    python3 test/structure/precompiled.py
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    if not shutil.which("ccache"):
        print("there is no ccache")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        made, first = where / "p.hxx.gch", where / "first"
        (where / "p.hxx").write_text('#pragma GCC system_header\n#include "t.h"\n')
        (where / "p.hxx.cxx").write_text("\n")
        # The headers are new, which ccache would otherwise take for unsafe.
        environment = {**os.environ, "CCACHE_DIR": str(where / "cache"), "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime"}

        def precompiled(value):
            (where / "t.h").write_text(f"inline int value() {{ return {value}; }}\n")
            subprocess.run([ROOT / "cmake" / "without-old-output.sh", "ccache", "c++", "-x", "c++-header", "-include", where / "p.hxx", "-o", made,
                            "-c", where / "p.hxx.cxx"], check=True, cwd=where, env=environment)
            return made.read_bytes()

        header = precompiled("1")
        shutil.copy(made, first)
        longer = precompiled("22")
        shutil.copy(first, made)
        longest = precompiled("333")
        same = precompiled("1") == header
    if len({header, longer, longest}) < 3 or not same:
        print("a precompiled header does not have what its headers have")
        return 1
    print("a precompiled header has what its headers have")
    return 0


sys.exit(main())
