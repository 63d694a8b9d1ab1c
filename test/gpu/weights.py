"""Weights and tokens for models whose graphs come without."""
import array
import json
import random
import struct


def write_safetensors(path, weights, values):
    """values(weight): its elements, in f32."""
    header, arrays, offset = {}, [], 0
    for weight in weights:
        data = values(weight).tobytes()
        header[weight["name"]] = {"dtype": "F32", "shape": weight["shape"], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        arrays.append(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in arrays:
            file.write(data)


def write_weights(path, weights):
    """Random weights by name, f32: N(0, 0.02), and ones and zeros where they belong to a norm or a bias."""
    import numpy
    generator = numpy.random.default_rng(0)

    def values(weight):
        shape = weight["shape"]
        if len(shape) > 1:
            return generator.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)
        return numpy.full(shape, 0 if weight["name"].endswith("bias") else 1, numpy.float32)

    write_safetensors(path, weights, values)


def write_uniform(path, weights):
    """Weights by name, f32, uniform in +-0.03 by a generator that is part of Python; ones and zeros in norms and biases."""
    generator = random.Random(0)

    def values(weight):
        shape, count = weight["shape"], 1
        for size in shape:
            count *= size
        if len(shape) < 2:
            return array.array("f", [0.0 if weight["name"].endswith("bias") else 1.0]) * count
        return array.array("f", (0.03 / 32768 * v for v in array.array("h", generator.randbytes(2 * count))))

    write_safetensors(path, weights, values)


def write_tokens(path, rows, tokens, vocabulary):
    generator = random.Random(0)
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{rows * tokens + 1}H", *(generator.randrange(vocabulary) for _ in range(rows * tokens + 1))))
