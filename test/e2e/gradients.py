"""Samples of reference gradients, as test/models stores them, and their comparison with whole gradients.

Of a tensor of more than SMALL elements one element of each STRIDE is stored, chosen by a fixed pseudo-random sequence, of a
smaller one every element. Two sums over all elements, in f64, show a wrong element anywhere: the norm, and the product with a
fixed pseudo-random vector of ones and minus ones, which also sees signs and places.
"""
import array
import dataclasses
import itertools
import math
import operator
import random

from formats import Tensor, read_safetensors, write_safetensors

SMALL, STRIDE = 1024, 32
# Only random() is promised to give the same numbers in every version of Python. The period divides no dimension.
_SIGNS = [1.0 if r.random() < 0.5 else -1.0 for r in [random.Random("signs")] for _ in range(4093)]


def positions(name, count):
    """Indices of the stored elements of a flat tensor."""
    if count <= SMALL:
        return range(count)
    generator = random.Random(name)
    return [min(begin + int(generator.random() * STRIDE), count - 1) for begin in range(0, count, STRIDE)]


def sums(values):
    """Norm, and the product with the vector of signs."""
    return math.sqrt(math.fsum(map(operator.mul, values, values))), math.fsum(map(operator.mul, values, itertools.cycle(_SIGNS)))


@dataclasses.dataclass
class Gradient:
    """The stored part of one tensor."""
    name: str
    shape: tuple
    norm: float
    product: float
    sample: array.array

    def difference(self, values):
        """An estimate of |values - this| / |this| in the Euclidean norm: the largest of what sample, norm and product say."""
        where = positions(self.name, len(values))
        norm, product = sums(values)
        squares = math.fsum((values[i] - expected)**2 for i, expected in zip(where, self.sample))
        found = max(math.sqrt(squares * len(values) / max(len(where), 1)), abs(norm - self.norm), abs(product - self.product))
        return found / self.norm if self.norm else found


def store(path, tensors):
    """Writes the sample of whole gradients, {name: Tensor}: three entries for each, `sample`, `shape` and `sums`."""
    entries = {}
    for name, tensor in tensors.items():
        entries[f"{name}/sample"] = Tensor("F32", (len(kept := [tensor.values[i] for i in positions(name, len(tensor.values))]),),
                                           array.array("f", kept))
        entries[f"{name}/shape"] = Tensor("I64", (len(tensor.shape),), array.array("q", tensor.shape))
        entries[f"{name}/sums"] = Tensor("F64", (2,), array.array("d", sums(tensor.values)))
    write_safetensors(path, entries)


def read(path):
    """{name: Gradient}"""
    entries = read_safetensors(path)
    names = [key.removesuffix("/sums") for key in entries if key.endswith("/sums")]
    return {name: Gradient(name, tuple(entries[f"{name}/shape"].values), *entries[f"{name}/sums"].values, entries[f"{name}/sample"].values)
            for name in names}
