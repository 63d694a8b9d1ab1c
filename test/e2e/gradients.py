"""Samples of reference gradients, as test/models stores them, and their comparison with whole gradients.

Of a tensor of more than SMALL elements one element of each STRIDE is stored, chosen by a fixed pseudo-random sequence, of a
smaller one every element. Two sums over all elements, in f64, show a wrong element anywhere: the norm, and the product with a
fixed pseudo-random vector, which also sees signs and places, because no two of its elements are alike.
"""
import array
import dataclasses
import itertools
import math
import operator
import random

from formats import Tensor, read_safetensors, write_safetensors

SMALL, STRIDE = 1024, 32
PERIODS = 4093, 4099  # both are prime: the factors repeat after 16 million elements


def _normal(seed, count):
    """Numbers of mean 0 and variance 1/2, nearly normal. Every version of Python gives the same ones: this is promised of random(), and
    fsum() rounds correctly, where sum() has changed."""
    generator = random.Random(seed)
    return [math.sqrt(0.5) * (math.fsum(generator.random() for _ in range(12)) - 6.0) for _ in range(count)]


_FACTORS = [_normal(f"weights {period}", period) for period in PERIODS]


def positions(name, count):
    """Indices of the stored elements of a flat tensor."""
    if count <= SMALL:
        return range(count)
    generator = random.Random(name)
    return [min(begin + int(generator.random() * STRIDE), count - 1) for begin in range(0, count, STRIDE)]


def sums(values):
    """Norm, and the product with the vector whose elements are the sums of two sequences, each of its own period."""
    weights = map(operator.add, *map(itertools.cycle, _FACTORS))
    return math.sqrt(math.fsum(map(operator.mul, values, values))), math.fsum(map(operator.mul, values, weights))


@dataclasses.dataclass
class Gradient:
    """The stored part of one tensor."""
    name: str
    shape: tuple
    norm: float
    product: float
    sample: array.array

    def difference(self, values):
        """An estimate of |values - this| / |this| in the Euclidean norm: the largest of what sample, norm and product say. It is infinite
        if there is any element that is not finite, or another number of elements."""
        if len(values) != math.prod(self.shape) or not all(map(math.isfinite, values)):
            return math.inf
        where = positions(self.name, len(values))
        norm, product = sums(values)
        squares = math.fsum((values[i] - expected)**2 for i, expected in zip(where, self.sample, strict=True))
        parts = [math.sqrt(squares * len(values) / max(len(where), 1)), abs(norm - self.norm), abs(product - self.product)]
        if not all(map(math.isfinite, parts)):  # max() would pass over a NaN
            return math.inf
        return max(parts) / self.norm if self.norm else max(parts)


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
