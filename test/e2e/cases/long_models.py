"""Models that are too long, wide or deep, or that no exporter writes: one error, at once, and no crash."""
import re

import longmodels
from harness import Case, expect
from onnxwriter import FLOAT, INT64, encode, fields, function, linear, model, node, value, weight

SECONDS = 60  # quadratic algorithms take longer on any machine
LONG = 70000


def cases(session):
    yield Case("long-models/operands", lambda: refused(session, longmodels.KINDS["concat"](LONG), "70000 inputs or outputs"))
    yield Case("long-models/inputs", lambda: refused(session, longmodels.KINDS["inputs"](LONG), "the model has 70001 inputs"))
    yield Case("long-models/results", lambda: refused(session, longmodels.KINDS["split"](LONG), "70000 inputs or outputs"))
    yield Case("long-models/nodes", lambda: refused(session, longmodels.KINDS["add"](LONG), "more than 65536 operations"))
    yield Case("long-models/calls", lambda: refused(session, longmodels.calls(40, width=2), "more than 65536 operations"))
    yield Case("long-models/unknown-calls", lambda: refused(session, unknown_calls(), "Relv"))
    yield Case("long-models/moves", lambda: accepted(session, longmodels.KINDS["slice"](20000)))
    yield Case("long-models/sums", lambda: accepted(session, longmodels.KINDS["sum"](3000)))
    yield Case("long-models/same-operands", lambda: same_operands(session))
    yield Case("long-models/texts", lambda: texts(session))
    yield Case("long-models/nested-text", lambda: nested_text(session))


def unknown_calls():
    """2^40 calls of a function that has an operator which is not supported, of a value that is not known."""
    whole = longmodels.calls(40, width=2)
    return whole.replace(b"\x04Relu", b"\x04Relv")


def refused(session, content, words):
    where = session.folder()
    (where / "m.onnx").write_bytes(content)
    for command, more in (("compile", ("-o", "out.plan")), ("check", ())):
        done = session.call("sheaf", command, "m.onnx", "--batch", 8, *more, cwd=where, timeout=SECONDS)
        expect(done.code == 1 and words in done.out + done.err, f"{command}: exit {done.code}\n{done.out[-500:]}{done.err[-500:]}")
        expect(command == "check" or done.err.count("error: ") == 1, done.err[-500:])


def accepted(session, content):
    where = session.folder()
    (where / "m.onnx").write_bytes(content)
    session.succeed("sheaf", "compile", "m.onnx", "--batch", 8, "-o", "out.plan", "--zero", 0, cwd=where, timeout=SECONDS)


def same_operands(session):
    """Each node of what is made of parameters alone has the one before it as both operands: 2^60 ways through."""
    nodes = [node("Mul", ["x", "w"], ["h"]), node("Reshape", ["h", "shape"], ["g"])]
    nodes += [node("Add", [f"p{i}"] * 2, [f"p{i + 1}"]) for i in range(60)]
    nodes += [node("Add", ["g", "p60"], ["y"]), node("ReduceMean", ["y"], ["loss"], "last", keepdims=0)]
    content = model(nodes, [value("x", FLOAT, ["N", 4, 4])], [value("loss", FLOAT, [])],
                    [weight("w", [4], [0.5] * 4), weight("shape", [2], [-1, 4], INT64), weight("p0", [32, 4], [0.5] * 128)])
    where = session.folder()
    (where / "m.onnx").write_bytes(content)
    done = session.call("sheaf", "compile", "m.onnx", "--batch", 8, "-o", "out.plan", "--ranks", 2, "--zero", 0, cwd=where, timeout=SECONDS)
    expect(done.code in (0, 1), f"exit {done.code}\n{done.err}")


def texts(session):
    """A text of a model that is not UTF-8 is named, whatever it is; protobuf prints nothing."""
    where = session.folder()
    bad = b"bad\xff"
    call = function("f", "my", ["a"], ["b"], ["c"], [node("Relu", ["a"], ["b"])])

    def in_graph(number, content):
        return [(n, w, v + encode(number, 2, content) if n == 7 else v) for n, w, v in fields(linear())]

    node_of = lambda extra: node("Relu", ["h"], ["unused"]) + extra
    table = {
        "producer": [*fields(linear()), (2, 2, bad)], "documentation": [*fields(linear()), (6, 2, bad)],
        "metadata 'k'": [*fields(linear()), (14, 2, encode(1, 2, b"k") + encode(2, 2, bad))],
        "key of metadata": [*fields(linear()), (14, 2, encode(1, 2, bad))],
        "domain of an operator set": [*fields(linear()), (8, 2, encode(1, 2, bad) + encode(2, 0, 1))],
        "name of a function": [*fields(linear()), (25, 2, call + encode(1, 2, bad))],
        "attribute of a function": [*fields(linear()), (25, 2, call + encode(6, 2, bad))],
        "name of a graph": in_graph(2, bad), "documentation of a graph": in_graph(10, bad),
        "name of a node": in_graph(1, node_of(encode(3, 2, bad))), "operator of a node": in_graph(1, node_of(encode(4, 2, bad))),
        "domain of a node": in_graph(1, node_of(encode(7, 2, bad))), "output of a node": in_graph(1, node_of(encode(2, 2, bad))),
        "documentation of a node": in_graph(1, node_of(encode(6, 2, bad))),
        "name of an attribute": in_graph(1, node_of(encode(5, 2, encode(1, 2, bad)))),
        "name of a tensor": in_graph(5, weight("", [1], [0.0]) + encode(8, 2, bad)),
        "name of a value": in_graph(13, value("", FLOAT, [1]) + encode(1, 2, bad)),
        "name of a dimension": in_graph(13, value("v", FLOAT, [1]) + encode(2, 2, encode(1, 2, encode(2, 2, encode(1, 2, encode(2, 2, bad)))))), "input of a node": in_graph(1, node_of(encode(1, 2, bad))),
    }
    for what, content in table.items():
        (where / "m.onnx").write_bytes(b"".join(encode(*field) for field in content))
        # The commands read models in one way.
        commands = {"compile": ("-o", "out.plan"), "check": (), "fit": ("--ranks", 1, "--memory", "1GiB")}
        for command, more in commands.items() if what == "name of a node" else [("compile", commands["compile"])]:
            done = session.call("sheaf", command, "m.onnx", "--batch", 8, *more, cwd=where)
            text = done.out + done.err
            expect(done.code == 1 and re.search(f"the {re.escape(what)} is not UTF-8: 'bad.xff'", text), f"{what}, {command}: exit {done.code}\n{text}")
            expect("libprotobuf" not in text and not (where / "out.plan").exists(), text)


def nested_text(session):
    """Deep brackets in the text of a plan are refused at the first one that does not belong there."""
    where = session.folder()
    for opening, column in (("[", 37), ("{a = ", 36), ("tensor<", 36), ("((", 36)):
        (where / "plan.mlir").write_text(f"plan.program attributes {{streams = {opening * 200000}")
        done = session.call("sheaf", "assemble", "plan.mlir", "-o", "out.plan", cwd=where)
        expect(done.code == 1 and f"plan.mlir:1:{column}: got " in done.err, f"{opening}: exit {done.code}\n{done.err[:300]}")
