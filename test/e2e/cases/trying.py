"""sheaf check --try: the same step however the batch is divided, and the kinds of graphs that were once divided wrong or not at all.

A graph that counts rows, sums what is the same for all rows, or groups rows does something else with a rank's rows than with the batch's.
"""
import json
import struct

from formats import read_log, write_npy
from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import BOOL, FLOAT, INT64, model, node, value, weight

RANKS, BATCH, WIDTH = 4, 16, 6
DIVIDED = ((BATCH, RANKS), (BATCH, 2), (RANKS, RANKS), (2, 2))  # batches and ranks


def constant(name, values, shape=None):
    return weight(name, [len(values)] if shape is None else shape, values, INT64)


def counted(*nodes):
    """The nodes, with `count` as the float scalar of an integer vector of one element or a scalar `n`."""
    return (*nodes, node("Cast", ["n"], ["float"], to=FLOAT), node("Reshape", ["float", "scalar"], ["count"]))


def dimension(of, d):
    return node("Shape", [of], ["n"], start=d, end=d + 1)


# Nodes that make the scalar `loss` of h [batch, 6] = tanh(x w) and the parameters w [6, 6] and p [1, 6].
MEAN_OF_SUM = (node("ReduceSum", ["s"], ["all"], keepdims=0), node("Div", ["all", "count"], ["loss"]))
SQUARE = node("Mul", ["h", "h"], ["s"])
CASES = {
    # The shape of a computed tensor, its elements and products of its dimensions, as exporters write means.
    "counts/size": (SQUARE, *counted(node("Size", ["s"], ["n"])), *MEAN_OF_SUM),
    "counts/first-dimension": (SQUARE, *counted(dimension("h", 0)), *MEAN_OF_SUM),
    "counts/product-of-dimensions": (SQUARE, node("Shape", ["s"], ["dims"]), *counted(node("ReduceProd", ["dims"], ["n"])), *MEAN_OF_SUM),
    "counts/second-dimension": (node("Transpose", ["h"], ["t"], perm=[1, 0]), node("Mul", ["t", "t"], ["s"]), *counted(dimension("t", 1)), *MEAN_OF_SUM),
    "counts/flattened": (node("Reshape", ["h", "flat"], ["f"]), node("Mul", ["f", "f"], ["s"]), *counted(dimension("f", 0)), *MEAN_OF_SUM),
    "counts/mean-of-rows": (node("ReduceSum", ["h", "first"], ["sum"], keepdims=0), *counted(dimension("h", 0)), node("Div", ["sum", "count"], ["m"]),
                            node("Mul", ["m", "m"], ["s"]), node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    "counts/unbiased-variance": (node("ReduceMean", ["h", "first"], ["m"], keepdims=1), node("Sub", ["h", "m"], ["c"]), node("Mul", ["c", "c"], ["s"]),
                                 node("ReduceSum", ["s", "first"], ["v"], keepdims=0), dimension("h", 0), node("Sub", ["n", "one"], ["less"]),
                                 node("Cast", ["less"], ["count"], to=FLOAT), node("Div", ["v", "count"], ["variance"]),
                                 node("ReduceMean", ["variance"], ["loss"], keepdims=0)),
    # Equal rows are summed over the batch.
    "sums/ones": (SQUARE, node("Shape", ["s"], ["dims"]), node("ConstantOfShape", ["dims"], ["zeros"]), node("Exp", ["zeros"], ["ones"]),
                  node("ReduceSum", ["ones"], ["count"], keepdims=0), *MEAN_OF_SUM),
    "sums/expanded-parameter": (dimension("h", 0), node("Concat", ["n", "width"], ["dims"], axis=0), node("Expand", ["p", "dims"], ["e"]),
                                node("Add", ["h", "e"], ["y"]), node("Mul", ["e", "e"], ["q"]), node("Mul", ["y", "q"], ["s"]),
                                node("ReduceSum", ["s"], ["up"], keepdims=0), node("ReduceSum", ["q"], ["down"], keepdims=0),
                                node("Div", ["up", "down"], ["ratio"]), node("Mul", ["ratio", "ratio"], ["loss"])),
    "sums/product-with-ones": (dimension("h", 0), node("Concat", ["single", "n"], ["dims"], axis=0), node("ConstantOfShape", ["dims"], ["zeros"]),
                               node("Exp", ["zeros"], ["ones"]), node("MatMul", ["ones", "h"], ["sum"]), node("Mul", ["sum", "sum"], ["q"]),
                               *counted(), node("ReduceMean", ["q"], ["mean"], keepdims=0), node("Div", ["mean", "count"], ["loss"])),
    "sums/running": (dimension("h", 0), node("Concat", ["n", "width"], ["dims"], axis=0), node("Expand", ["p", "dims"], ["e"]),
                     node("Reshape", ["e", "flat"], ["f"]), node("ReduceSum", ["f"], ["down"], keepdims=0), node("Constant", [], ["part"], value_float=0.05),
                     node("Mul", ["down", "part"], ["less"]), node("Exp", ["less"], ["d"]),
                     node("ReduceMean", ["h"], ["up"], keepdims=0), node("Div", ["up", "d"], ["loss"])),
}
# Integers that are summed over the batch: how many elements of h are above 0.
ABOVE = (node("Greater", ["h", "zerof"], ["above"]), node("Cast", ["above"], ["ones"], to=INT64), node("ReduceSum", ["ones"], ["k"], keepdims=0))
OF_COUNT = (node("Cast", ["m"], ["count"], to=FLOAT), SQUARE, *MEAN_OF_SUM)
INTEGERS = {
    "plus-one": node("Add", ["k", "one0"], ["m"]),
    "minus-one": node("Sub", ["k", "one0"], ["m"]),
    "from-size": node("Sub", ["hundred", "k"], ["m"]),
    "times-two": node("Mul", ["k", "two0"], ["m"]),
    "half": node("Div", ["k", "two0"], ["m"]),
    "third": node("Div", ["k", "three0"], ["m"]),
    "squared": node("Mul", ["k", "k"], ["m"]),
    "negative": node("Neg", ["k"], ["m"]),
    "at-least": node("Max", ["k", "three0"], ["m"]),
    "twice": node("Add", ["k", "k"], ["m"]),
    "remainder": node("Mod", ["k", "three0"], ["m0"]),
}
CASES |= {f"integers/{name}": (*ABOVE, change, *((node("Add", ["m0", "one0"], ["m"]),) if name == "remainder" else ()), *OF_COUNT)
          for name, change in INTEGERS.items()}
# Logits and labels of two steps of each row, the steps one after the other.
STEPS = (node("Reshape", ["h", "two-three"], ["by-row"]), node("Transpose", ["by-row"], ["by-step"], perm=[1, 0, 2]),
         node("Reshape", ["by-step", "by-three"], ["logits"]))
CASES |= {
    # Constants that are made of constants.
    "constants/product": (dimension("h", 0), node("Concat", ["single", "n"], ["dims"], axis=0), node("ConstantOfShape", ["dims"], ["zeros"]),
                          node("Exp", ["zeros"], ["ones"]), node("Transpose", ["ones"], ["column"], perm=[1, 0]),
                          node("MatMul", ["ones", "column"], ["n2"]), node("Reshape", ["n2", "scalar"], ["count"]), SQUARE, *MEAN_OF_SUM),
    "constants/einsum": (dimension("h", 0), node("ConstantOfShape", ["n"], ["zeros"]), node("Exp", ["zeros"], ["ones"]),
                         node("Einsum", ["ones", "ones"], ["count"], equation="i,i->"), SQUARE, *MEAN_OF_SUM),
    # Random numbers of a constant that is the same for all rows.
    "constants/dropped": (dimension("h", 0), node("Concat", ["n", "single"], ["dims"], axis=0), node("ConstantOfShape", ["dims"], ["zeros"]),
                          node("Exp", ["zeros"], ["ones"]), node("Cast", ["one0"], ["training"], to=BOOL), node("Constant", [], ["ratio"], value_float=0.5),
                          node("Dropout", ["ones", "ratio", "training"], ["kept"]), node("Mul", ["h", "kept"], ["t"]), node("Mul", ["t", "t"], ["s"]),
                          node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    "order/same": (*STEPS, node("ArgMax", ["by-step"], ["best"], axis=2, keepdims=0), node("Reshape", ["best", "flat"], ["labels"]),
                   node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], reduction="mean")),
}
# Random numbers of values whose rows are not their first dimension, and of values without rows.
DRAWN = (node("Cast", ["one0"], ["training"], to=BOOL), node("Constant", [], ["ratio"], value_float=0.5))
SQUARED = (node("Mul", ["t", "t"], ["s"]), node("ReduceMean", ["s"], ["loss"], keepdims=0))
CASES |= {
    "random/columns-first": (*DRAWN, node("Dropout", ["ht", "ratio", "training"], ["t"]), *SQUARED),
    "random/time-first": (*DRAWN, node("Reshape", ["h", "two-three"], ["by-row"]), node("Transpose", ["by-row"], ["by-step"], perm=[1, 0, 2]),
                          node("Dropout", ["by-step", "ratio", "training"], ["t"]), *SQUARED),
    "random/weights": (*DRAWN, node("Dropout", ["w", "ratio", "training"], ["d"]), node("MatMul", ["h", "d"], ["t"]), *SQUARED),
    "random/as-many-weights-as-rows": (*DRAWN, node("Concat", ["w", "w", "w"], ["w3"], axis=0), node("Slice", ["w3", "zero", "sixteen"], ["w16"]),
                                       node("Dropout", ["w16", "ratio", "training"], ["d"]), node("Transpose", ["d"], ["dt"], perm=[1, 0]),
                                       node("MatMul", ["h", "dt"], ["t"]), *SQUARED),
    "random/sum": (*DRAWN, node("ReduceMean", ["h", "first"], ["m"], keepdims=1), node("Dropout", ["m", "ratio", "training"], ["t"]), *SQUARED),
    "random/uniform": (node("RandomUniformLike", ["ht"], ["u"]), node("Mul", ["ht", "u"], ["t"]), *SQUARED),
}
# Groups of rows, of as many as a rank, a leaf or a micro-batch has, or of others; and what fixes a number of rows.
GROUPS = (node("ReduceMean", ["g", "second"], ["m"], keepdims=0), node("Mul", ["m", "m"], ["s"]), node("ReduceMean", ["s"], ["loss"], keepdims=0))
# Rows that meet, and what the number of rows decides: right on ranks and leaves. With micro-batches the losses are right, or a node is refused.
CROSSING = {
    "groups/of-four": (node("Reshape", ["h", "by-four"], ["g"], "here"), *GROUPS),
    "groups/four": (node("Reshape", ["h", "four-groups"], ["g"], "here"), *GROUPS),
    "groups/first-four": (node("Slice", ["h", "zero", "four"], ["g0"], "here"), node("Reshape", ["g0", "by-four"], ["g"]), *GROUPS),
    # The number of rows decides what is computed.
    "rows/decide": (node("Mul", ["h", "h"], ["s"], "here"), dimension("s", 0), node("Greater", ["n", "nine"], ["many"]), node("Where", ["many", "s", "h"], ["chosen"]),
                    node("ReduceMean", ["chosen"], ["loss"], keepdims=0)),
    "rows/last": (node("Slice", ["h", "minus", "most"], ["g"], "here"), node("Mul", ["g", "g"], ["s"]), node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    "rows/range": (dimension("h", 0), node("Squeeze", ["n"], ["n0"]), node("Range", ["zero0", "n0", "one0"], ["r"]), node("Cast", ["r"], ["f"], to=FLOAT),
                   node("Unsqueeze", ["f", "second"], ["c"]), node("Mul", ["h", "c"], ["s"], "here"), node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    "rows/each-other": (node("MatMul", ["h", "ht"], ["s"], "here"), node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    # Two views of each row, of which none is its own neighbour.
    "rows/masked-views": (node("Neg", ["h"], ["h2"]), node("Concat", ["h", "h2"], ["v"], axis=0), node("Transpose", ["v"], ["vt"], perm=[1, 0]),
                          node("MatMul", ["v", "vt"], ["g"], "here"), node("EyeLike", ["g"], ["eye"]), node("Cast", ["eye"], ["own"], to=BOOL),
                          node("Constant", [], ["far"], value_float=-1e9), node("Where", ["own", "far", "g"], ["masked"]),
                          dimension("v", 0), node("Squeeze", ["n"], ["n0"]), node("Range", ["zero0", "n0", "one0"], ["r"]), node("Div", ["r", "two0"], ["labels"]),
                          node("SoftmaxCrossEntropyLoss", ["masked", "labels"], ["loss"], reduction="mean")),
    # Places that go by the number of rows, in tensors without rows.
    "places/slice": (dimension("h", 0), node("Mod", ["n", "five"], ["start"]), node("Add", ["start", "one"], ["end"]),
                     node("Slice", ["p", "start", "end", "second"], ["g"], "here"), node("Add", ["h", "g"], ["t"]), node("Mul", ["t", "t"], ["s"]),
                     node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    "places/pad": (dimension("h", 0), node("Mod", ["n", "five"], ["low"]), node("Sub", ["five", "low"], ["high"]),
                   node("Concat", ["zero", "low", "zero", "high"], ["pads"], axis=0), node("Pad", ["p", "pads"], ["long"], "here"),
                   node("Slice", ["long", "zero", "width", "second"], ["g"]), node("Add", ["h", "g"], ["t"]), node("Mul", ["t", "t"], ["s"]),
                   node("ReduceMean", ["s"], ["loss"], keepdims=0)),
    # Logits step by step, labels row by row.
    "order/other": (*STEPS, node("ArgMax", ["by-row"], ["best"], axis=2, keepdims=0), node("Reshape", ["best", "flat"], ["labels"]),
                    node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], "here", reduction="mean")),
}


def cases(session):
    for name, nodes in CASES.items():
        yield Case(f"trying/{name}", lambda n=nodes: divided(session, n))
    for name, nodes in CROSSING.items():
        # A batch has at least the rows of one group.
        batches = DIVIDED[:3] if name.startswith("groups") else DIVIDED
        yield Case(f"trying/{name}", lambda n=nodes, b=batches: divided(session, n, b))
    yield Case("trying/different", lambda: different(session))
    yield Case("trying/zero-gradients", lambda: zero_gradients(session))
    yield Case("trying/models", lambda: models(session))
    yield Case("trying/refused", lambda: not_tried(session))
    yield Case("trying/fixed", lambda: fixed(session))


def written(session, nodes, batch="batch"):
    path = session.folder() / "model.onnx"
    first = [node("MatMul", ["x", "w"], ["z"]), node("Tanh", ["z"], ["h"]), node("Transpose", ["h"], ["ht"], perm=[1, 0]),
             node("Constant", [], ["zerof"], value_float=0.0)]
    constants = [constant(*c) for c in (
        ("scalar", [], [0]), ("five", [5]), ("two-three", [0, 2, 3]), ("by-three", [-1, 3]), ("flat", [-1]), ("first", [0]), ("second", [1]), ("one", [1]), ("nine", [9]), ("width", [WIDTH]), ("single", [1]),
        ("by-four", [-1, 4, WIDTH]), ("four-groups", [4, -1, WIDTH]), ("zero", [0]), ("four", [4]), ("sixteen", [16]), ("minus", [-1]), ("most", [1 << 40]),
        ("zero0", [0], []), ("one0", [1], []), ("two0", [2], []), ("three0", [3], []), ("hundred", [100], []))]
    weights = [weight("w", [WIDTH, WIDTH], [0.2 * ((7 * i) % 5 - 2) for i in range(WIDTH * WIDTH)]),
               weight("p", [1, WIDTH], [0.1 * (i + 1) for i in range(WIDTH)])]
    path.write_bytes(model([*first, *nodes], [value("x", FLOAT, [batch, WIDTH])], [value("loss", FLOAT, [])], [*weights, *constants]))
    return path


def trial(session, path, *options, code=0):
    done = session.call("sheaf", "check", path, "--try", *options, "--json")
    expect(done.code == code, f"exit {done.code}, not {code}\n{done.out}{done.err}")
    return json.loads(done.out)["try"]


def divided(session, nodes, batches=DIVIDED):
    """Several ranks, leaves, and micro-batches compute the loss of one rank; a leaf may have one row."""
    path = written(session, nodes)
    for batch, ranks in batches:
        trial(session, path, "--ranks", ranks, "--batch", batch)
    data = session.folder() / "x.npy"
    write_npy(data, "<f4", (BATCH, WIDTH), struct.pack(f"<{BATCH * WIDTH}f", *(((5 * i) % 17 - 8) / 8 for i in range(BATCH * WIDTH))))
    losses = []
    for micro in (1, 4):
        plan, log = path.with_suffix(f".{micro}.plan"), path.with_suffix(".log")
        done = session.call("sheaf", "compile", path, "-o", plan, "--ranks", 1, "--batch", BATCH, "--micro-batches", micro, "--optimizer", "sgd:lr=0.5")
        if micro > 1 and done.code:
            # An operation that is not linear in a sum over the batch, or reads rows of others, needs all micro-batches at once.
            return expect_short_error(done, ["leave out --micro-batches"], 1)
        session.succeed("sheaf-run", plan, "--data", f"x={data}", "--steps", 2, "--log", log)
        losses.append([step["loss"] for step in read_log(log)[0]])
    expect(all(abs(a - b) <= 1e-5 * abs(a) + 1e-7 for a, b in zip(*losses)), f"losses {losses[0]}, with micro-batches {losses[1]}")
    expect(len(set(losses[0])) == 2, f"losses {losses[0]} do not change")


def fixed(session):
    """A graph that is fixed to the rows of the batch is divided, and takes no other batch."""
    path = written(session, (node("CumSum", ["h", "zero0"], ["c"], "here"), node("Mul", ["c", "c"], ["s"]), node("ReduceSum", ["s"], ["all"], keepdims=0),
                             node("Cast", ["four"], ["float"], to=FLOAT), node("Div", ["all", "float"], ["loss"])), batch=4)
    data, plan, log = (path.with_suffix(end) for end in (".npy", ".plan", ".log"))
    write_npy(data, "<f4", (4, WIDTH), struct.pack(f"<{4 * WIDTH}f", *(((5 * i) % 17 - 8) / 8 for i in range(4 * WIDTH))))
    losses = []
    for ranks in (1, 2, 4):
        session.succeed("sheaf", "compile", path, "-o", plan, "--ranks", ranks, "--batch", 4, "--optimizer", "sgd:lr=0.5")
        session.succeed("sheaf-run", plan, "--data", f"x={data}", "--steps", 2, "--log", log)
        losses.append([step["loss"] for step in read_log(log)[0]])
    expect(all(abs(a - b) <= 1e-5 * abs(a) for other in losses[1:] for a, b in zip(losses[0], other)), losses)
    trial(session, path, "--ranks", 2)
    done = session.call("sheaf", "compile", path, "-o", plan, "--ranks", 4, "--batch", 16)
    expect_short_error(done, ["exported for a batch of 4 rows", "give --batch 4"], 1)


def different(session):
    """A loss in which rounding is all there is differs between one rank and leaves: exit 1, with the first gradient's name."""
    path = written(session, (node("Constant", [], ["huge"], value_float=1e7), node("ReduceSum", ["h"], ["sum"], keepdims=0),
                             node("Mul", ["sum", "huge"], ["much"]), node("Sin", ["much"], ["loss"])))
    done = session.call("sheaf", "check", path, "--try", "--ranks", RANKS, "--batch", BATCH)
    expect(done.code == 1 and "DIFFERENT: one rank, with leaves and without: the gradient of 'w'" in done.out, f"exit {done.code}\n{done.out}{done.err}")


def zero_gradients(session):
    """A parameter that the first step does not train is named."""
    path = written(session, (node("Mul", ["h", "zerof"], ["off"]), node("Add", ["off", "x"], ["y"]), node("Mul", ["y", "p"], ["scaled"]),
                             node("Mul", ["scaled", "scaled"], ["s"]), node("ReduceMean", ["s"], ["loss"], keepdims=0)))
    report = trial(session, path, "--ranks", 2, "--batch", 4)
    expect(report["zero_gradients"] == ["w"] and report["same"], report)
    done = session.succeed("sheaf", "check", path, "--try", "--ranks", 2, "--batch", 4)
    expect("note: 1 of 2 gradients is zero for these data, so that a first step does not train 'w'" in done.out, done.out)


def models(session):
    """The models of the tests, on random data of their own kinds."""
    for name, options in (("mlp", ()), ("cnn", ()), ("gpt2-tiny", ()), ("llama-tiny", ()), ("moe", ())):
        report = trial(session, MODELS / f"{name}.onnx", "--ranks", 2, "--batch", 4, *options)
        expect(report["same"] and report["gradients"] > 1 and not report["zero_gradients"], report)
    # One rank takes the leaves of an odd number of ranks in micro-batches.
    for name, ranks in (("mlp", 3), ("mlp", 6), ("gpt2-tiny", 5)):
        report = trial(session, MODELS / f"{name}.onnx", "--ranks", ranks, "--batch", 2 * ranks)
        expect(report["same"], report)


def not_tried(session):
    path = written(session, (SQUARE, node("ReduceMean", ["s"], ["loss"], keepdims=0)))
    for arguments, words in (((path,), "give --ranks N"), ((path, "--ranks", 2, "--data", "y=nothing.npy"), "nothing.npy")):
        done = session.call("sheaf", "check", *arguments, "--try")
        expect(done.code == 2 and words in done.err, f"exit {done.code}, without `{words}`\n{done.out}{done.err}")
    expect_short_error(session.call("sheaf", "check", path, "--data", "x=x.npy"), ["--data is for --try"], 2)
