"""The comparison with stored gradients (gradients.py) is attacked: it must notice what is wrong outside of its sample."""
import array
import math
import random

import gradients
from formats import Tensor
from harness import Case, expect

SHAPE, NAMES, WITHIN = (96, 128), ("a.weight", "b.weight"), 1e-5
EXPECTED = -227.94624794329806  # the sum of the first 10,000 weights
PAIRS = 40  # exchanged elements, each pair by itself
UNNOTICED = 1  # a pair may have so small elements, or such near weights, that WITHIN covers it


def cases(session):
    yield Case("comparison/same", lambda: same(session))
    for name, wrong in WRONG.items():
        yield Case(f"comparison/{name}", lambda w=wrong: expect_noticed(session, w))
    yield Case("comparison/exchanged", lambda: exchanged(session))
    yield Case("comparison/parameters", lambda: parameters(session))
    yield Case("comparison/count", lambda: count(session))
    yield Case("comparison/weights", weights)


def whole(session):
    """The gradients, and what is stored of them."""
    def make():
        generator, path = random.Random(3), session.folder() / "x.grad0.sample.safetensors"
        made = {name: Tensor("F32", SHAPE, array.array("f", (generator.gauss(0, 1) for _ in range(math.prod(SHAPE))))) for name in NAMES}
        gradients.store(path, made)
        return {name: tensor.values for name, tensor in made.items()}, gradients.read(path)

    return session.once("comparison", make)


def outside(name):
    """The elements that the sample does not have."""
    found = set(range(math.prod(SHAPE))) - set(gradients.positions(name, math.prod(SHAPE)))
    expect(len(found) > math.prod(SHAPE) / 2, "the sample has most elements")
    return sorted(found)


def same(session):
    """The stored part does not differ from the values it was made of, and rounding does not count."""
    values, stored = whole(session)
    for name in NAMES:
        expect(stored[name].difference(values[name]) == 0, f"{name} differs from itself")
        rounded = array.array("f", (v * (1 + (-1)**i * 1e-6) for i, v in enumerate(values[name])))
        expect(0 < stored[name].difference(rounded) < WITHIN, f"{name} differs too much from itself, rounded")


# Each of these makes values wrong, only at the places of `where`.
def change(value):
    def changed(values, where):
        values[where[len(where) // 2]] = value
        return values

    return changed


def element(values, where):
    values[where[7]] += 0.1
    return values


def sign(values, where):
    """The sign of one element."""
    at = max(where, key=lambda i: abs(values[i]))
    values[at] = -values[at]
    return values


def signs(values, where):
    for i in where:
        values[i] = -values[i]
    return values


def zeros(values, where):
    for i in where[100:110]:
        values[i] = 0
    return values


def rotated(values, where):
    """All elements outside of the sample are one place further: the norm does not change."""
    kept = [values[i] for i in where]
    for i, value in zip(where, kept[1:] + kept[:1]):
        values[i] = value
    return values


WRONG = {"nan": change(math.nan), "inf": change(math.inf), "minus-inf": change(-math.inf), "element": element, "sign": sign, "signs": signs,
         "zeros": zeros, "rotated": rotated}


def expect_noticed(session, wrong):
    values, stored = whole(session)
    for name in NAMES:
        found = stored[name].difference(wrong(values[name][:], outside(name)))
        expect(found > WITHIN, f"{name}: unnoticed, the difference is {found}")


def exchanged(session):
    """Two elements of equal sign, which only the product with a vector can notice."""
    values, stored = whole(session)
    generator, unnoticed = random.Random(4), 0
    for name in NAMES:
        positive = [i for i in outside(name) if values[name][i] > 0]
        for _ in range(PAIRS):
            i, j = generator.sample(positive, 2)
            wrong = values[name][:]
            wrong[i], wrong[j] = wrong[j], wrong[i]
            unnoticed += stored[name].difference(wrong) <= WITHIN
    expect(unnoticed <= UNNOTICED, f"{unnoticed} of {2 * PAIRS} exchanged pairs are not noticed")


def parameters(session):
    """Two parameters of one shape, exchanged outside of the samples of both."""
    values, stored = whole(session)
    for name, other in (NAMES, NAMES[::-1]):
        wrong = values[name][:]
        for i in outside(name):
            wrong[i] = values[other][i]
        expect(stored[name].difference(wrong) > WITHIN, f"{name} with the elements of {other} is not noticed")
        expect(stored[name].difference(values[other]) > WITHIN, f"{other} passes for {name}")


def count(session):
    """Elements that are missing at the end, or too many there."""
    values, stored = whole(session)
    for wrong in (values["a.weight"][:-1], values["a.weight"] + array.array("f", [0.0]), array.array("f")):
        expect(stored["a.weight"].difference(wrong) == math.inf, f"{len(wrong)} elements are not noticed")


def weights():
    """The product's vector is what it was when the files in test/models were made."""
    found = gradients.sums(array.array("d", [1.0] * 10000))[1]
    expect(abs(found - EXPECTED) < 1e-9, f"the weights are others: their sum is {found}, not {EXPECTED}")
    # A weight comes again only after both periods.
    first = [gradients.sums(array.array("d", [0.0] * i + [1.0]))[1] for i in (0, 1, *gradients.PERIODS)]
    expect(len(set(first)) == len(first), f"weights repeat: {first}")
