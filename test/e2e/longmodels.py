"""Models that are long, wide or deep: of n nodes of a kind, or of one node with n operands."""
from onnxwriter import FLOAT, INT64, function, graph, model, node, value, weight

WIDTH = 4


def trained(nodes, result, weights=(), functions=(), domains=(), inputs=()):
    """A model that begins with y0 = x * w and ends with the mean of `result`."""
    first, last = node("Mul", ["x", "w"], ["y0"], "first"), node("ReduceMean", [result], ["loss"], "last", keepdims=0)
    return model([first, *nodes, last], [value("x", FLOAT, ["N", WIDTH]), *inputs], [value("loss", FLOAT, [])],
                 [weight("w", [WIDTH], [0.5] * WIDTH), *weights], functions=functions, domains=domains)


def chain(op, more=(), weights=(), **attributes):
    """Each node takes the one before it."""
    return lambda n: trained([node(op, [f"y{i}", *more], [f"y{i + 1}"], f"n{i}", **attributes) for i in range(n)], f"y{n}", weights)


def wide(op, **attributes):
    """One node that takes the same value n times."""
    return lambda n: trained([node(op, ["y0"] * n, ["y"], "wide", **attributes)], "y")


def wide_of_many(op, **attributes):
    """One node that takes n values, each a node's."""
    return lambda n: trained([*(node("Relu", ["y0"], [f"r{i}"], f"n{i}") for i in range(n)),
                              node(op, [f"r{i}" for i in range(n)], ["y"], "wide", **attributes)], "y")


def split(n):
    """One node with n results, all of which are used."""
    x = value("x", FLOAT, ["N", n])
    nodes = [node("Mul", ["x", "w"], ["y0"], "first"), node("Split", ["y0"], [f"s{i}" for i in range(n)], "split", axis=1, num_outputs=n),
             node("Concat", [f"s{n - 1 - i}" for i in range(n)], ["y"], "wide", axis=1), node("ReduceMean", ["y"], ["loss"], "last", keepdims=0)]
    return model(nodes, [x], [value("loss", FLOAT, [])], [weight("w", [1], [0.5])])


def alternating(n):
    nodes = [node("Transpose" if i % 2 else "Relu", [f"y{i}"], [f"y{i + 1}"], f"n{i}", **({"perm": [0, 1]} if i % 2 else {})) for i in range(n)]
    return trained(nodes, f"y{n}")


def diamonds(n):
    return trained([node("Add" if i % 2 else "Mul", [f"y{i}"] * 2, [f"y{i + 1}"], f"n{i}") for i in range(n)], f"y{n}")


def parameters(n):
    """n parameters, each of a product of its own."""
    nodes = [node("Mul", [f"y{i}", f"w{i}"], [f"y{i + 1}"], f"n{i}") for i in range(n)]
    return trained(nodes, f"y{n}", [weight(f"w{i}", [WIDTH], [0.5] * WIDTH) for i in range(n)])


def products(n):
    nodes = [node("MatMul", [f"y{i}", "m"], [f"y{i + 1}"], f"n{i}") for i in range(n)]
    return trained(nodes, f"y{n}", [weight("m", [WIDTH, WIDTH], [0.1] * WIDTH ** 2)])


def data(n):
    """n inputs."""
    nodes = [node("Add", [f"y{i}", f"x{i}"], [f"y{i + 1}"], f"n{i}") for i in range(n)]
    return trained(nodes, f"y{n}", inputs=[value(f"x{i}", FLOAT, ["N", WIDTH]) for i in range(n)])


def constants(n):
    """Arithmetic on known values."""
    nodes = [node("Add", [f"c{i}", "one"], [f"c{i + 1}"], f"n{i}") for i in range(n)]
    return trained([*nodes, node("Mul", ["y0", f"c{n}"], ["y"])], "y", [weight("one", [], [1.0]), weight("c0", [], [1.0])])


def calls(n, width=1):
    """n functions, each of which calls the one before it `width` times."""
    functions = [function("f0", "my", ["a"], ["b"], [], [node("Relu", ["a"], ["b"])])]
    for i in range(1, n):
        body = [node(f"f{i - 1}", [f"t{k}" if k else "a"], [f"t{k + 1}" if k + 1 < width else "b"], domain="my") for k in range(width)]
        functions.append(function(f"f{i}", "my", ["a"], ["b"], [], body, domains=("my",)))
    return trained([node(f"f{n - 1}", ["y0"], ["y"], domain="my")], "y", functions=functions, domains=("my",))


KINDS = {
    "relu": chain("Relu"), "add": chain("Add", ["x"]), "mul": chain("Mul", ["x"]), "add-self": diamonds, "identity": chain("Identity"),
    "neg": chain("Neg"), "sigmoid": chain("Sigmoid"), "cast": chain("Cast", to=FLOAT), "dropout": chain("Dropout"),
    "reshape": chain("Reshape", ["shape"], [weight("shape", [2], [-1, WIDTH], INT64)]),
    "transpose": chain("Transpose", perm=[0, 1]), "alternating": alternating,
    "slice": chain("Slice", ["begin", "end", "axis"], [weight("begin", [1], [0], INT64), weight("end", [1], [WIDTH], INT64), weight("axis", [1], [1], INT64)]),
    "pad": chain("Pad", ["pads"], [weight("pads", [4], [0, 0, 0, 0], INT64)]), "softmax": chain("Softmax", axis=-1),
    "where": lambda n: trained([node("Greater", ["y0", "x"], ["c"]), *(node("Where", ["c", f"y{i}", "x"], [f"y{i + 1}"]) for i in range(n))], f"y{n}"),
    "reduce": chain("ReduceSum", ["axes"], [weight("axes", [1], [1], INT64)], keepdims=1),
    "products": products, "parameters": parameters, "inputs": data, "constants": constants,
    "concat": wide("Concat", axis=1), "sum": wide("Sum"), "max": wide("Max"), "mean": wide("Mean"),
    "concat-of-nodes": wide_of_many("Concat", axis=1), "sum-of-nodes": wide_of_many("Sum"), "split": split,
}
