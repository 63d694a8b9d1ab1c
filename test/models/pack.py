#!/usr/bin/env python3
"""Stores what exporters and the scripts here have written: python3 test/models/pack.py FILE... [--into FOLDER]

    NAME.onnx               compressed; weights that another file has, too (SHARED), become references into that file
    NAME.npy                compressed
    NAME.grad0.safetensors  a sample of it with sums over all elements (test/e2e/gradients.py), as NAME.grad0.sample.safetensors
    others                  as they are

A .safetensors of SHARED is made from the graph of the same name. unpack.py does the opposite.
"""
import argparse
import array
import lzma
import pathlib
import shutil
import sys
import tempfile

import unpack

sys.path.insert(0, str(unpack.SOURCE.parent / "e2e"))

import gradients  # noqa: E402
from formats import Tensor, read_safetensors, write_safetensors  # noqa: E402
from onnxwriter import externalized, fields, with_initializers  # noqa: E402

# Graph: the file of its weights. A .safetensors is made from the graph of the same name.
SHARED = {
    "gpt2-tiny": "gpt2-tiny.safetensors",
    "gpt2-tiny-logits": "gpt2-tiny.safetensors",
    "gpt2-tiny-optimized": "gpt2-tiny.safetensors",
    "llama-tiny": "llama-tiny.safetensors",
    "llama-tiny-optimized": "llama-tiny.safetensors",
    "mlp-training-info": "mlp.onnx",
    "resnet-torchscript": "resnet.onnx",
}
PLAIN = {"mlp.onnx", "readme.onnx"}  # stored uncompressed, for docs/pipeline.md and for the tests of README
SMALLEST = 256  # bytes; smaller tensors stay in the graph
FLOAT = 1


def compress(data):
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


def floats(model):
    """(name, shape, data) of the graph's float initializers of at least SMALLEST bytes."""
    graph = next(value for number, _, value in fields(model) if number == 7)
    for number, _, tensor in fields(graph):
        if number == 5 and (parts := float_parts(tensor)):
            yield parts


def float_parts(tensor):
    """Name, shape and data of a TensorProto of floats that is not left in its graph, or None."""
    found = {}
    for number, _, value in fields(tensor):
        found.setdefault(number, []).append(value)
    data = found.get(9, [b""])[0]
    if found.get(2) != [FLOAT] or len(data) < SMALLEST:
        return None
    return found[8][0].decode(), found.get(1, []), data


def weights_of(model):
    return {name: Tensor("F32", shape, array.array("f", data)) for name, shape, data in floats(model)}


def with_references(model, holders):
    """The model with references in place of all weights that are in one of the files, {name: bytes}."""
    def refer(tensor):
        parts = float_parts(tensor)
        for name, content in holders.items() if parts else ():
            if (offset := content.find(parts[2])) >= 0:
                return externalized(tensor, name, offset)
        return tensor

    return with_initializers(model, refer)


def pack_graph(path, into):
    model, shared = path.read_bytes(), SHARED.get(path.stem)
    if makes_weights(path):
        with tempfile.TemporaryDirectory() as folder:
            weights = pathlib.Path(folder) / shared
            write_safetensors(weights, weights_of(model))
            store(into / shared, weights.read_bytes())
    if shared:
        holders = {shared: stored(into / shared)}
        if shared in unpack.TRANSPOSED:
            holders[unpack.TRANSPOSED[shared]] = unpack.transposed(holders[shared])
        model = with_references(model, holders)
    store(into / path.name, model)


def makes_weights(path):
    return SHARED.get(path.stem) == f"{path.stem}.safetensors"


def stored(path):
    """The data that store() was called with."""
    return path.read_bytes() if path.name in PLAIN else lzma.decompress(path.with_name(f"{path.name}.xz").read_bytes())


def store(path, data):
    """Stores what is to be unpacked to this path's name."""
    packed = path.with_name(f"{path.name}.xz")
    if path.name in PLAIN:
        path.write_bytes(data)
        packed.unlink(missing_ok=True)
    else:
        packed.write_bytes(compress(data))
        path.unlink(missing_ok=True)


def pack(path, into):
    if path.name.endswith(".grad0.safetensors"):
        name = path.name.replace(".grad0.", ".grad0.sample.")
        gradients.store(into / name, read_safetensors(path))
    elif path.suffix == ".onnx":
        pack_graph(path, into)
    elif path.suffix == ".npy":
        store(into / path.name, path.read_bytes())
    elif path.parent.resolve() != into.resolve():
        shutil.copy(path, into)


def pack_alone(path):
    """Stores a graph alone: its weights become references into a file that does not exist, and the exporter's stack traces go. Needs onnx."""
    import onnx

    model, offset = onnx.load(path), 0
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims:
            size = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", f"{path.stem}.weights"), ("offset", offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            offset += size
    for node in model.graph.node:
        for i in reversed(range(len(node.metadata_props))):
            if node.metadata_props[i].key == "pkg.torch.onnx.stack_trace":
                del node.metadata_props[i]
    path.write_bytes(model.SerializeToString())
    pack(path, path.parent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--into", type=pathlib.Path, default=unpack.SOURCE)
    args = parser.parse_args()
    # Graphs that refer to what another file has come last.
    for path in sorted(args.files, key=lambda p: (p.stem in SHARED and not makes_weights(p), p.name)):
        pack(path, args.into)


if __name__ == "__main__":
    main()
