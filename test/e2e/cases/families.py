"""Families of models, as two exporters write them, train as in PyTorch's f64 runs (test/models/families)."""
import json
import tarfile

from formats import read_log
from harness import MODELS, Case, expect

FOLDER = MODELS / "families"
EXPORTERS = ("raw", "optimized", "torchscript")


def cases(session):
    for archive in sorted(FOLDER.glob("*.tar.xz")):
        family = archive.name.removesuffix(".tar.xz")
        with tarfile.open(archive) as tar:
            exporters = [name.removesuffix(".onnx") for name in tar.getnames() if name.endswith(".onnx")]
            ranks = json.load(tar.extractfile("run.json"))["ranks"]
        # The first exporter's graph on all numbers of ranks and at both stages, other graphs of the same model on fewer.
        everything = [(n, zero) for n in ranks for zero in (0, 3)]
        for i, exporter in enumerate(sorted(exporters, key=EXPORTERS.index)):
            configurations = everything[-1:] if session.quick else [everything[0], everything[-1]] if i else everything
            yield case(session, archive, family, exporter, configurations)


def case(session, archive, family, exporter, configurations):
    def trains():
        for ranks, zero in configurations:
            run(session, archive, exporter, ranks, zero)

    return Case(f"families/{family}/{exporter}", trains)


def unpacked(session, archive):
    def unpack():
        folder = session.folder()
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        return folder

    return session.once(("family", archive.name), unpack)


def run(session, archive, exporter, ranks, zero):
    """50 steps; 5 batches are read ten times over. Small buckets, so that stage 3 has several."""
    model, where = unpacked(session, archive), session.folder()
    reference = json.loads((model / "run.json").read_text())
    session.succeed("sheaf", "compile", model / f"{exporter}.onnx", "-o", where / "plan", "--batch", reference["batch"],
                    "--ranks", ranks, "--zero", zero, "--bucket-size", 16384, *reference["options"])
    data = [a for path in sorted(model.glob("*.npy")) for a in ("--data", f"{path.stem}={path}")]
    steps = len(reference["loss"])
    session.succeed("sheaf-run", where / "plan", *data, "--steps", steps, "--log", where / "log")
    log = read_log(where / "log")[0]
    expect(len(log) == steps, f"{ranks} ranks, stage {zero}: the log has {len(log)} steps of {steps}")
    for entry, expected in zip(log, reference["loss"]):
        expect(abs(entry["loss"] - expected) <= reference["tolerance"],
               f"{ranks} ranks, stage {zero}, step {entry['step']}: loss {entry['loss']}, PyTorch's is {expected}")
