#!/usr/bin/env python3
"""Makes build/models, where tests, benchmarks and the demo read models: every file of this folder, ready for use.

    python3 test/models/unpack.py [FOLDER]

NAME.xz becomes NAME, NAME.tar.xz the folder NAME; other files are copied. Of the weights in TRANSPOSED there is also a copy whose
matrices are transposed, as an exporter's optimizer stores them. A file is made again if its source or the file itself has changed
since the last time, and what no source makes is removed. The build and all that read models call this, so there is nothing to do by
hand.
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
MANIFEST, LOCK = ".unpacked", ".lock"
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


class Refused(SystemExit):
    """Models cannot be unpacked; the text says why. A script that does not catch this ends with the text and 1."""


def files(folder):
    """{path in the folder: [size, time of change]}"""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = pathlib.Path(where, name)
            state = path.lstat()
            found[str(path.relative_to(folder))] = [state.st_size, state.st_mtime_ns]
    return found


def outputs(name):
    """The paths in `build/models` of what a source makes; the first has the source's own name. An archive makes a folder."""
    made = name.removesuffix(".tar.xz") if name.endswith(".tar.xz") else name.removesuffix(".xz")
    return [made, TRANSPOSED[made]] if made in TRANSPOSED else [made]


def within(path, folders):
    """Returns the folder that has the path or is it; None if there is none among them."""
    return next((str(p) for p in (pathlib.PurePath(path), *pathlib.PurePath(path).parents) if str(p) in folders), None)


def sources(folder):
    """Files of the folder but for scripts and README, as files() has them. Raises Refused if two of them make one output."""
    found = {name: state for name, state in files(folder).items() if pathlib.PurePath(name).suffix not in (".py", ".pyc", ".md")}
    maker = {}
    for name in sorted(found):
        for path in outputs(name):
            if path in maker:
                raise Refused(f"{folder / maker[path]} and {folder / name} both make {path}: remove one of them")
            maker[path] = name
    for path, name in maker.items():
        if other := within(pathlib.PurePath(path).parent, maker):
            raise Refused(f"{folder / maker[other]} makes the folder {other}, and {folder / name} a file in it: remove one of them")
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


def make(source, name, folder):
    """Writes the outputs of a source."""
    path, made = source / name, outputs(name)
    if not name.endswith(".xz"):
        replace(folder / name, lambda to: shutil.copyfile(path, to))
        return
    try:
        data = lzma.decompress(path.read_bytes())
    except lzma.LZMAError as e:
        raise Refused(f"{path} cannot be unpacked: {e}") from None
    if name.endswith(".tar.xz"):
        replace(folder / made[0], lambda to: extract(data, to))
        return
    replace(folder / made[0], lambda to: to.write_bytes(data))
    for other in made[1:]:
        replace(folder / other, lambda to: to.write_bytes(transposed(data)))


@contextlib.contextmanager
def locked(folder):
    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def manifest_of(folder):
    """The entries of the folder's manifest and the script that wrote it; nothing if there is no readable manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return {name: (entry["state"], entry["outputs"]) for name, entry in manifest["made"].items()}, manifest["script"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, None


def by_source(found, now):
    """{source: {path: state} of the found files that it makes}, and the paths that no source makes."""
    maker = {path: name for name in now for path in outputs(name)}
    made, others = {name: {} for name in now}, []
    for path, state in found.items():
        if owner := within(path, maker):
            made[maker[owner]][path] = state
        elif path not in (MANIFEST, LOCK):
            others.append(path)
    return made, others


def update(folder, source):
    script = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    before, writer = manifest_of(folder)
    now = sources(source)
    found, others = by_source(files(folder), now)
    for path in others:  # before anything is made: a file may be where a folder will be
        remove(folder / path)
    kept = {name for name, state in now.items() if writer == script and before.get(name) == (state, found[name])}
    if len(kept) == len(now) == len(before):
        return
    for name in sorted(now.keys() - kept):
        make(source, name, folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    found, _ = by_source(files(folder), now)
    made = {name: {"state": state, "outputs": found[name]} for name, state in now.items()}
    replace(folder / MANIFEST, lambda to: to.write_text(json.dumps({"script": script, "made": made}, indent=0)))


def unpack(folder=FOLDER, source=SOURCE):
    """Updates the folder from the sources and returns its path. Processes that call this at the same time wait for each other. Raises
    Refused where that cannot be done."""
    folder = pathlib.Path(folder)
    try:
        # Files of the folder may be removed, so another folder than our own must be known by its manifest.
        if folder.resolve() != FOLDER.resolve() and not (folder / MANIFEST).exists() and folder.exists() and {p.name for p in folder.iterdir()} - {LOCK}:
            raise Refused(f"{folder} has files and was not made by {pathlib.Path(__file__).name}: name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            update(folder, source)
    except OSError as e:
        raise Refused(f"models cannot be unpacked to {folder}: {e}") from None
    return folder


if __name__ == "__main__":
    # The build compares this file's time with those of the sources.
    os.utime(unpack(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER) / MANIFEST)
