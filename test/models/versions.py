#!/usr/bin/env python3
"""Stores a plan, a saved state and weights as this version writes them, for the tests of later versions (test/e2e/cases/compatibility.py).

    python3 test/models/versions.py --tools build/bin        # writes versions/VERSION.tar.xz; once for every version

The model is the family `conformer` (attention, convolutions, normalization; 10,000 parameters). Its plan has four ranks, ZeRO-3, an
evaluation, and kernels for every processor with AVX2. In the archive:

    model.onnx, INPUT.npy        the model and 40 rows of data
    model.plan                   the plan
    state/, weights.safetensors  after STEPS steps
    run.json                     the version; the options of `sheaf compile` and `sheaf-run`; the losses of 2 * STEPS steps, the second half
                                 of which begins with the state; the losses of an evaluation of all rows after each half
"""
import argparse
import io
import json
import lzma
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import unpack

MODEL, STEPS = "families/conformer", 4
COMPILE = ["--batch", "8", "--optimizer", "adamw:lr=1e-3", "--clip-norm", "1", "--bucket-size", "4KiB", "--eval"]
LAYOUT = ["--ranks", "4", "--zero", "3", "--cpu", "x86-64-v3"]
RUN = ["--shuffle", "1", "--eval-every", str(STEPS)]
LARGEST = 300 << 10  # bytes of an archive


def make(tools, folder, version):
    """Compiles and runs in the folder, with paths relative to it, because plans and states keep paths."""
    def tool(name, *arguments):
        subprocess.run([tools / name, *arguments], cwd=folder, check=True)

    models = unpack.unpack()
    shutil.copyfile(models / MODEL / "raw.onnx", folder / "model.onnx")
    data = []
    for path in sorted((models / MODEL).glob("*.npy")):
        shutil.copyfile(path, folder / path.name)
        data += ["--data", f"{path.stem}={path.name}", "--eval-data", f"{path.stem}={path.name}"]
    tool("sheaf", "compile", "model.onnx", "-o", "model.plan", *COMPILE, *LAYOUT)
    run = ("sheaf-run", "model.plan", *data, *RUN, "--log", "log")
    tool(*run, "--steps", str(STEPS), "--save-state", "state", "--save", "weights.safetensors")
    tool(*run, "--steps", str(2 * STEPS), "--resume", "state")  # goes on with the log, too
    entries = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    (folder / "log").unlink()
    (folder / "run.json").write_text(json.dumps({
        "version": version, "steps": STEPS, "compile": COMPILE, "layout": LAYOUT, "run": RUN,
        "loss": [e["loss"] for e in entries if "event" not in e],
        "eval": [e["loss"] for e in entries if e.get("event") == "eval"]}, indent=1) + "\n")


def archive(folder):
    """The folder as .tar.xz; no times and no users are kept."""
    def plain(info):
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=plain)
    return lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    tools = parser.parse_args().tools.resolve()
    version = subprocess.run([tools / "sheaf", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make(tools, folder, version)
        for path in filter(pathlib.Path.is_file, folder.rglob("*")):
            if scratch.encode() in path.read_bytes():
                raise SystemExit(f"{path.name} has the path of this machine's folder {scratch}")
        data = archive(folder)
    if len(data) > LARGEST:
        raise SystemExit(f"the archive would have {len(data)} bytes, more than {LARGEST}")
    path = unpack.SOURCE / "versions" / f"{version}.tar.xz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes")


if __name__ == "__main__":
    main()
