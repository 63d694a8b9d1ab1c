"""Unpacking (test/models/unpack.py) makes a folder exactly what the sources say, whatever is there before, or refuses with one clear error."""
import io
import lzma
import os
import subprocess
import sys
import tarfile

import unpack
from harness import ROOT, Case, Failure, expect

SCRIPT = ROOT / "test" / "models" / "unpack.py"
CONTENT = {"mlp.onnx": b"mlp", "cnn.onnx": b"cnn" * 50, "families/a/raw.onnx": b"raw", "families/a/more/x.npy": b"x"}


def cases(session):
    for name, change in CHANGES.items():
        yield Case(f"unpacking/{name}", lambda c=change: remade(session, c))
    yield Case("unpacking/unchanged", lambda: unchanged(session))
    yield Case("unpacking/two-sources", lambda: two_sources(session))
    yield Case("unpacking/refused", lambda: refused(session))


def sources(where):
    """A plain file, a compressed one and an archive."""
    (where / "families").mkdir(parents=True)
    (where / "mlp.onnx").write_bytes(CONTENT["mlp.onnx"])
    (where / "cnn.onnx.xz").write_bytes(lzma.compress(CONTENT["cnn.onnx"]))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("raw.onnx", "more/x.npy"):
            info = tarfile.TarInfo(name)
            info.size = len(CONTENT[f"families/a/{name}"])
            tar.addfile(info, io.BytesIO(CONTENT[f"families/a/{name}"]))
    (where / "families" / "a.tar.xz").write_bytes(lzma.compress(out.getvalue()))
    return where


def unpacked(session):
    """A folder, made from sources of its own."""
    folder = session.folder()
    return unpack.unpack(folder / "models", sources(folder / "sources")), folder / "sources"


def states(folder):
    return {name: state for name, state in unpack.files(folder).items() if name not in (unpack.MANIFEST, unpack.LOCK)}


def content(folder):
    return {name: (folder / name).read_bytes() for name in states(folder)}


# Each of these damages an unpacked folder.
def overwritten(models):
    (models / "cnn.onnx").write_bytes(b"nnc" * 50)
    os.utime(models / "cnn.onnx", (1, 1))


def without_manifest(models):
    """A file that has lost its source, in a folder that has lost its manifest."""
    (models / ".unpacked").write_text("{")
    (models / "old.onnx").write_bytes(b"old")
    (models / "families" / "old").mkdir()
    (models / "families" / "old" / "raw.onnx").write_bytes(b"old")


def folder_for_file(models):
    (models / "mlp.onnx").unlink()
    (models / "mlp.onnx").mkdir()
    (models / "mlp.onnx" / "x").write_bytes(b"x")


def file_for_folder(models):
    unpack.remove(models / "families")
    (models / "families").write_bytes(b"x")


CHANGES = {
    "removed": lambda models: (models / "mlp.onnx").unlink(),
    "truncated": lambda models: os.truncate(models / "cnn.onnx", 3),
    "overwritten": overwritten,
    "removed-in-archive": lambda models: (models / "families/a/more/x.npy").unlink(),
    "truncated-in-archive": lambda models: os.truncate(models / "families/a/raw.onnx", 1),
    "added-in-archive": lambda models: (models / "families/a/y.npy").write_bytes(b"y"),
    "without-manifest": without_manifest,
    "folder-for-file": folder_for_file,
    "file-for-folder": file_for_folder,
}


def remade(session, change):
    models, where = unpacked(session)
    expect(content(models) == CONTENT, f"unpacked: {content(models)}")
    change(models)
    unpack.unpack(models, where)
    expect(content(models) == CONTENT, f"unpacked again: {content(models)}")


def unchanged(session):
    """An output that has not changed is left alone; a source that changes or goes is followed."""
    models, where = unpacked(session)
    before = states(models)
    unpack.unpack(models, where)
    expect(states(models) == before, "made again without a reason")
    (where / "cnn.onnx.xz").write_bytes(lzma.compress(b"other"))
    (where / "families" / "a.tar.xz").unlink()
    unpack.unpack(models, where)
    expect(content(models) == {"mlp.onnx": b"mlp", "cnn.onnx": b"other"}, f"unpacked: {content(models)}")
    expect(not (models / "families").exists(), "an empty folder is left")
    expect(states(models)["mlp.onnx"] == before["mlp.onnx"], "a file whose source is the same was made again")


def expect_refused(words, folder, where=unpack.SOURCE):
    try:
        unpack.unpack(folder, where)
    except unpack.Refused as e:
        for word in words:
            expect(str(word) in str(e), f"the error does not name {word}: {e}")
        expect("\n" not in str(e), f"not one line: {e}")
    else:
        raise Failure(f"accepted: {folder}")


def two_sources(session):
    """No order of reading decides which of two sources is taken: both are named."""
    for extra, other in (("mlp.onnx.xz", "mlp.onnx"), ("cnn.onnx", "cnn.onnx.xz"), ("families/a/raw.onnx", "families/a.tar.xz"),
                         ("families/a", "families/a.tar.xz")):
        models, where = unpacked(session)
        (where / extra).parent.mkdir(exist_ok=True)
        (where / extra).write_bytes(lzma.compress(b"x"))
        expect_refused((where / extra, where / other), models, where)
        expect(content(models) == CONTENT, f"refused, and the folder was changed: {content(models)}")


def refused(session):
    """A folder that cannot be written, one that is not ours, a damaged source: one error, no traceback."""
    folder = session.folder()
    (folder / "file").write_bytes(b"")
    (folder / "own").mkdir()
    (folder / "own" / "thesis.txt").write_bytes(b"ten years")
    for wrong in (folder / "file" / "models", folder / "file", folder / "own"):
        expect_refused([wrong], wrong)
        done = subprocess.run([sys.executable, SCRIPT, wrong], capture_output=True, text=True)
        expect(done.returncode == 1 and len(done.stderr.splitlines()) == 1 and str(wrong) in done.stderr, f"exit {done.returncode}: {done.stderr}")
    expect((folder / "own" / "thesis.txt").exists(), "a file of another folder was removed")
    models, where = unpacked(session)
    (where / "cnn.onnx.xz").write_bytes(lzma.compress(b"x" * 1000)[:-20])
    expect_refused([where / "cnn.onnx.xz"], models, where)
