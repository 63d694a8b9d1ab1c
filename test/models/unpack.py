#!/usr/bin/env python3
"""Makes build/models, where tests, benchmarks and the demo read models: every file of this folder, ready for use.

    python3 test/models/unpack.py [FOLDER]

NAME.xz becomes NAME, NAME.tar.xz the folder NAME; other files are copied. Of the weights in TRANSPOSED there is also a copy whose
matrices are transposed, as an exporter's optimizer stores them. Only files whose source has changed since the last time are made
again. The build and all that read models call this, so there is nothing to do by hand.
"""
import contextlib
import fcntl
import hashlib
import io
import json
import lzma
import os
import pathlib
import shutil
import struct
import sys
import tarfile

SOURCE = pathlib.Path(__file__).resolve().parent
FOLDER = SOURCE.parent.parent / "build" / "models"
MANIFEST = ".unpacked"
TRANSPOSED = {"llama-tiny.safetensors": "llama-tiny.transposed.safetensors"}


def transposed(data):
    """Weights with every matrix transposed, in a file of the same layout: [rows, columns] of 4 bytes each become [columns, rows]."""
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    out = bytearray(data)
    for name, entry in header.items():
        if name == "__metadata__" or len(entry["shape"]) != 2:
            continue
        rows, columns = entry["shape"]
        begin, end = (8 + length + at for at in entry["data_offsets"])
        values = memoryview(data)[begin:end].cast("I")
        turned = b"".join(values[column::columns].tobytes() for column in range(columns))
        assert entry["dtype"] == "F32" and len(turned) == end - begin == 4 * rows * columns
        out[begin:end] = turned
        entry["shape"] = [columns, rows]
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    out[8:8 + length] = text.ljust(length)
    return bytes(out)


def sources():
    """{path in this folder: [size, time of change]} of everything but scripts and the README."""
    found = {}
    for folder, _, names in os.walk(SOURCE):
        for name in names:
            path = pathlib.Path(folder, name)
            if path.suffix not in (".py", ".pyc", ".md"):
                state = path.stat()
                found[str(path.relative_to(SOURCE))] = [state.st_size, state.st_mtime_ns]
    return found


def replace(path, write):
    """Calls write(temporary path), then gives what it wrote its name: no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    remove(unfinished)
    write(unfinished)
    if path.is_dir():
        remove(path)
    os.replace(unfinished, path)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def extract(archive, into):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(into)  # ours; Python 3.11.2 has no filters


def make(name, folder):
    """Makes what a file of this folder stands for; returns the paths in `folder`."""
    path = SOURCE / name
    if not name.endswith(".xz"):
        replace(folder / name, lambda to: shutil.copyfile(path, to))
        return [name]
    name, data = name.removesuffix(".xz"), lzma.decompress(path.read_bytes())
    if name.endswith(".tar"):
        name = name.removesuffix(".tar")
        replace(folder / name, lambda to: extract(data, to))
        return [name]
    replace(folder / name, lambda to: to.write_bytes(data))
    if name not in TRANSPOSED:
        return [name]
    replace(folder / TRANSPOSED[name], lambda to: to.write_bytes(transposed(data)))
    return [name, TRANSPOSED[name]]


@contextlib.contextmanager
def locked(folder):
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack(folder=FOLDER):
    """Brings the folder up to date and returns its path. Processes that call this at the same time wait for each other."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    script = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    with locked(folder):
        manifest = folder / MANIFEST
        try:
            before = json.loads(manifest.read_text())
            made, current = before["made"], before["script"] == script
        except (OSError, ValueError, KeyError):
            made, current = {}, False
        now = sources()
        kept = {name: entry for name, entry in made.items()
                if current and now.get(name) == entry["state"] and all((folder / path).exists() for path in entry["paths"])}
        stale = {path for name, entry in made.items() if name not in kept for path in entry["paths"]}
        for name, state in now.items():
            if name not in kept:
                kept[name] = {"state": state, "paths": make(name, folder)}
        for path in stale - {path for entry in kept.values() for path in entry["paths"]}:
            remove(folder / path)
        if kept != made or not current:
            replace(manifest, lambda to: to.write_text(json.dumps({"script": script, "made": kept}, indent=0)))
    return folder


if __name__ == "__main__":
    # The build compares this file's time with those of the sources.
    os.utime(unpack(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER) / MANIFEST)
