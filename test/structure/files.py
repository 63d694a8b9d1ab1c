#!/usr/bin/env python3
"""The tools make, name and remove files in few places: docs/files.md lists what is written, and runtime/base/NewFiles.cpp opens it.

    python3 test/structure/files.py [FOLDER]
"""
import pathlib
import re
import sys

FOLDERS = ("codegen", "frontend", "ir", "passes", "runtime", "tools")

# Kinds of calls, and the files that may have them, each with the reason.
KINDS = {
    "make a file or a folder, or read the umask": (
        r"\b(mkstemps?|mkostemps?|mkdtemp|tmpfile|tmpnam|tempnam|umask|creat|mknod|mkfifo|mkdir|shm_open|fopen|freopen|O_CREAT|O_TRUNC|O_TMPFILE"
        r"|create_director(y|ies)|createUnique\w+|createTemporary\w+|w?ofstream|fstream|ToolOutputFile|copy_file|create_(directory_)?symlink|create_hard_link|resize_file|O_WRONLY|openFileForWrite\w*)\b"
        r"|(?<![\w>])::(truncate|link)(at)?\(|\bsymlink(at)?\(|\bfs::copy\(|\bfilesystem::copy\(",
        {
            "runtime/base/NewFiles.cpp": "all files and folders are made here",
            "runtime/base/FileLock.cpp": "a lock may exist",
            "runtime/device/cpu/FileArena.cpp": "--offload-dir: for this user alone, and a resumed run opens what exists",
            "runtime/device/cpu/CommitLog.cpp": "--offload-dir: for this user alone, and a resumed run opens what exists",
            "tools/sheaf-opt/sheaf-opt.cpp": "-o of MLIR's driver, which lit tests use",
        }),
    "write to a file of a given name": (
        r"raw_fd_(o|rw_)stream\s*(\w+\s*)?[({](?!descriptor\b)",
        {}),
    "give a file another name": (
        r"(?<![\w.>])(std::|fs::|::|std::filesystem::)?rename(at2?)?\(",
        {
            "runtime/base/AtomicFile.cpp": "a written file gets its name",
            "runtime/exec/OutputFiles.cpp": "files that several processes write get their names, under a lock",
            "runtime/io/Checkpoint.cpp": "a state's folder gets its name",
            "runtime/io/KeptStates.cpp": "a state that is removed loses its name first",
            "runtime/io/SafetensorsShards.cpp": "files that several processes write get their names, under a lock",
            "runtime/io/StateFolder.cpp": "files of others move from a replaced state to the new one",
        }),
    "remove files": (
        r"(?<![\w.>])(std::|fs::|::|std::filesystem::|files_\.)?(remove_all|remove_directories|unlink(at)?|rmdir)\b|\b(fs|filesystem)::remove\(|\bstd::remove\([^,()]*(\(\))?\)",
        {
            "runtime/base/AtomicFile.cpp": "its own temporary file",
            "runtime/base/FileLock.cpp": "its own lock",
            "runtime/base/NewFiles.cpp": "its own scratch folder",
            "runtime/device/FileLayer.h": "its own arena",
            "runtime/exec/OutputFiles.cpp": "its own temporary files",
            "runtime/exec/StateSaver.cpp": "what another process of the run has said in the state's folder",
            "runtime/io/KeptStates.cpp": "a folder that it has made, if it is empty",
            "runtime/io/SafetensorsShards.cpp": "its own temporary files, and those of an index of Sheaf's that it replaces",
            "runtime/io/StateFolder.cpp": "files with names of states in folders with names of states",
            "runtime/measure/MeasureDisk.cpp": "its own temporary files",
            "tools/sheaf/Compile.cpp": "the data that it has just written for a plan that is refused",
        }),
}


def code(text):
    """The text without comments and strings' contents."""
    return re.sub(r'//[^\n]*|"(\\.|[^"\\\n])*"', lambda m: '""' if m.group()[0] == '"' else "", text)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    bad, used = [], set()
    for folder in FOLDERS:
        for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in (".cpp", ".h", ".cu")):
            name = str(path.relative_to(root))
            for number, line in enumerate(code(path.read_text()).splitlines(), 1):
                for kind, (pattern, allowed) in KINDS.items():
                    if re.search(pattern, line) and not line.startswith("#include"):
                        used.add((kind, name))
                        if name not in allowed:
                            bad.append(f"{name}:{number}: code to {kind}: use runtime/base/NewFiles.h or AtomicFile.h, or give a reason in {__file__}")
    if root == pathlib.Path(__file__).resolve().parents[2]:
        bad += [f"{name} has no code to {kind}: remove it from {__file__}" for kind, (_, allowed) in KINDS.items() for name in allowed if (kind, name) not in used]
    print("\n".join(bad) if bad else f"files are made, named and removed in {len({name for _, name in used})} places")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
