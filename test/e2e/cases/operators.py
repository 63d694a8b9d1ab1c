"""The ONNX project's node tests through compiled plans: the outputs of each case are gradients of a training step.

test/models/onnx_node_tests.py makes the steps and says how. Steps of one opset are put together into models of many cases,
which are compiled and run as any other. Every case passes, or is left out by the row of an operator in the registry
(`sheaf operators`), with the reason. An operator that is added there is tried here.
"""
import array
import collections
import json
import math
import re
import struct

from formats import read_safetensors, write_npy
from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, linear, model, node, summed, value, weight

CASES_PER_MODEL = 48
# What must be covered: of the cases of the supported operators on f32, integers and booleans at least so many in a hundred pass.
GOAL = 95
TYPES = {"float", "bool", "int8", "int16", "int32", "int64", "uint8"}
UNKNOWN_TYPES = {"uint16", "uint32", "uint64"}  # no training graph has them
# The expected values are rounded by more than the runner's tolerance: 2e-7 where the result is zero.
ROUNDED = {"test_dft_inverse.*": 1e-6}


def cases(session):
    for opset, number, names in batches(session):
        yield Case(f"operators/opset-{opset}/{number}", lambda key=(opset, number): passes(session, key))
    yield Case("operators/registry", lambda: registry(session))
    yield Case("operators/left-out", lambda: left_out(session))
    yield Case("operators/coverage", lambda: coverage(session))
    yield Case("operators/of-a-folder", lambda: of_a_folder(session))
    yield Case("operators/constant-inputs", lambda: constant_inputs(session))
    yield Case("operators/names-of-symbols", lambda: names_of_symbols(session))


def registered(session):
    """The rows of the registry."""
    return session.once("operators/registry", lambda: json.loads(session.succeed("sheaf", "operators", "--format", "json").out)["operators"])


def reasons(session):
    """{operator of ONNX's own domain: why it is not supported, or None}, [(pattern of cases, why)]"""
    def read():
        rows = registered(session)
        left = [(re.compile(row[key]["cases"]), row[key]["why"]) for row in rows for key in ("left_out", "left_out_of_plans") if row[key]]
        return {row["operator"]: row.get("unsupported") for row in rows if row["domain"] == "ai.onnx"}, left

    return session.once("operators/reasons", read)


_STORED = []


def stored():
    """({name: entry}, data)"""
    if not _STORED:
        raw = (MODELS / "onnx-node-tests").read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        _STORED.extend([json.loads(raw[8:8 + length]), memoryview(raw)[8 + length:]])
    return _STORED


def not_supported(session, name, entry):
    """Why a case is not tried, or None."""
    if "reason" in entry:
        return entry["reason"]
    if unknown := UNKNOWN_TYPES & set(entry["types"]):
        return "type " + ", ".join(sorted(unknown))
    operators, left = reasons(session)
    return next((why for pattern, why in left if pattern.fullmatch(name)), None) or next(filter(None, map(operators.get, entry["ops"])), None)


def batches(session):
    """(opset, number, names) of each model."""
    by_opset = {}
    for name, entry in stored()[0].items():
        if not not_supported(session, name, entry):
            by_opset.setdefault(entry["opset"], []).append(name)
    for opset, names in sorted(by_opset.items()):
        for k in range(0, len(names), CASES_PER_MODEL):
            yield opset, k // CASES_PER_MODEL, names[k:k + CASES_PER_MODEL]


def attempt(session, names):
    """The cases as one step: None and {case: what is wrong}, or the compiler's or the runtime's complaint."""
    entries, data = stored()
    folder = session.folder()
    losses = [name.removeprefix("test_") + "/.total" for name in names]
    graph = b"".join(bytes(data[slice(*entries[name]["graph"])]) for name in names)
    (folder / "model.onnx").write_bytes(summed(graph, losses, entries[names[0]]["opset"]))
    done = session.call("sheaf", "compile", folder / "model.onnx", "-o", folder / "plan", "--batch", 1, "--optimizer", "sgd:lr=1",
                        "--on-nan", "skip", "--no-weight-hashes", timeout=600)
    if done.code:
        return done.err, {}
    arguments = []
    wanted = {i["name"] for i in session.inspect(folder / "plan")["inputs"]}
    for number, (name, (kind, shape, begin, end)) in enumerate((n, i) for case in names for n, i in entries[case]["inputs"].items()):
        if name in wanted:
            write_npy(folder / f"{number}.npy", "<" + kind, shape, bytes(data[begin:end]))
            arguments += ["--data", f"{name}={folder / f'{number}.npy'}"]
    done = session.call("sheaf-run", folder / "plan", *arguments, "--steps", 1, "--dump-gradients", folder / "gradients", timeout=600)
    if done.code:
        return done.err, {}
    found, wrong = read_safetensors(folder / "gradients"), {}
    for name in names:
        for parameter, span in entries[name]["results"].items():
            expected = array.array("f")
            expected.frombytes(bytes(data[slice(*span)]))
            difference = differs(found[parameter].values, expected, *tolerance(name, entries[name])) if parameter in found else "it is not trained"
            if difference:
                wrong[name] = f"{parameter}: {difference}"
    return None, wrong


def tolerance(name, entry):
    """Relative and absolute, as ONNX's own runner has them; 16-bit floats are not rounded in between."""
    relative = 1e-2 if "bfloat16" in entry["types"] else 2e-3 if "float16" in entry["types"] else 1e-3
    return relative, next((absolute for pattern, absolute in ROUNDED.items() if re.fullmatch(pattern, name)), 1e-7)


def differs(actual, expected, relative, absolute):
    if len(actual) != len(expected):
        return f"{len(actual)} elements, not {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        if not (a == e or (math.isnan(a) and math.isnan(e)) or abs(a - e) <= absolute + relative * abs(e)):
            return f"element {i} is {a}, not {e}"
    return None


def outcomes(session, key):
    """{case: what is wrong or ""} of a model; where it does not compile, of what the error does not name, or of its halves."""
    def compute():
        def several(names):
            complaint, wrong = attempt(session, names)
            if complaint is None:
                return {name: wrong.get(name, "") for name in names}
            if len(names) == 1:
                return {names[0]: complaint.strip()}
            if (named := re.search(r"error: (\w+)/", complaint)) and (name := "test_" + named[1]) in names:
                return {name: complaint.strip()} | several([other for other in names if other != name])
            half = len(names) // 2
            return several(names[:half]) | several(names[half:])

        return several(next(names for opset, number, names in batches(session) if (opset, number) == key))

    return session.once(("operators", key), compute)


def passes(session, key):
    wrong = {name: text for name, text in outcomes(session, key).items() if text}
    lines = (f"{name}: {text.splitlines()[0]}" for name, text in wrong.items())
    expect(not wrong, f"{len(wrong)} cases fail:\n" + "\n".join(lines))


def left_out(session):
    """What is left out does not pass."""
    entries = stored()[0]
    passing = []
    for name, entry in entries.items():
        if "graph" not in entry or not not_supported(session, name, entry):
            continue
        complaint, wrong = attempt(session, [name])
        if complaint is None and not wrong:
            passing.append(name)
    expect(not passing, f"take off the list: {passing}")


def registry(session):
    """Every operator of the cases is registered; what is derived of the rows is there, and agrees with what is known of some."""
    entries, rows = stored()[0], registered(session)
    known = {row["operator"]: row for row in rows if row["domain"] == "ai.onnx"}
    own = [entry for entry in entries.values() if not entry.get("reason", "").startswith("domain ")]
    expect(not (missing := {op for entry in own for op in entry["ops"]} - set(known)), f"not registered: {sorted(missing)}")
    counts = collections.Counter(op for name, entry in entries.items() if "graph" in entry and "_expanded" not in name for op in entry["ops"])
    expect(not (stale := [op for op, row in known.items() if row["node_tests"] != counts[op]]),
           f"run test/models/onnx_node_tests.py: NodeTests.inc has other counts of {stale}")
    for row in rows:
        name = row["operator"]
        expect("error" not in row, f"{name}: {row.get('error')}")
        expect("unsupported" in row or "sample" in row or "note" in row, f"{name} has neither a sample nor words about its lowering")
        # Whatever is computed has something that computes it, on either kind of device.
        if computed := set(row.get("lowering", [])) - {"reshape"}:
            expect(row["cpu"] and row["cuda"], f"{name} becomes {computed}, which nothing executes")
    for name, lowering, gradients, calls in (
            ("Conv", ["conv", "reshape", "broadcast", "add"], [0, 1, 2], {"conv", "conv_grad_input", "conv_grad_filter", "kernel"}),
            ("Relu", ["relu"], [0], {"kernel"}), ("Floor", ["floor"], [], {"kernel"}), ("Identity", [], [0], set()),
            ("Gather", ["gather"], [0], {"gather", "scatter_add"})):
        row = known[name]
        expect(row["lowering"] == lowering and row["gradients"] == gradients, f"{name}: {row}")
        expect(calls <= set(row["cpu"]) and calls <= set(row["cuda"]) and (calls or not row["cpu"]), f"{name}: {row}")
    page = session.succeed("sheaf", "operators").out
    for row in rows:
        expect(f"| {row['operator']} | " in page, f"the page has no {row['operator']}")
    return f"{sum('unsupported' not in row for row in rows)} operators, {sum('unsupported' in row for row in rows)} not supported"


def coverage(session):
    """Of all supported operators of ONNX's own domain."""
    entries, done = stored()[0], {}
    operators = {name for name, why in reasons(session)[0].items() if why is None}
    for opset, number, _ in batches(session):
        done |= outcomes(session, (opset, number))
    counted = [name for name, entry in entries.items() if len(entry["ops"]) == 1 and entry["ops"][0] in operators and set(entry["types"]) <= TYPES
               and entry.get("reason") not in ("size", "its results have no elements")]
    passed = [name for name in counted if done.get(name) == ""]
    share = 100 * len(passed) / len(counted)
    summary = (f"{len(passed)} of {len(counted)} cases of {len(operators)} operators pass ({share:.1f} %); of all {len(entries)} cases "
               f"{sum(text == '' for text in done.values())}")
    expect(share >= GOAL, summary)
    for name in counted:
        if entries[name]["ops"][0] in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
            expect(name in passed, f"{name} does not pass")
    return summary


def of_a_folder(session):
    folder = session.folder()
    (folder / "deeper").mkdir()
    (folder / "known.onnx").write_bytes(linear())
    (folder / "deeper" / "unknown.onnx").write_bytes(linear("NoSuchOperator"))
    (folder / "broken.onnx").write_bytes(b"no model")
    out = session.succeed("sheaf", "operators", "--coverage", folder).out
    expect("3 models: 1 have supported operators only, 1 cannot be read. 5 of 6 nodes are supported." in out, out)
    expect("| ai.onnx.NoSuchOperator | 1 | 1 |" in out, out)
    expect_short_error(session.call("sheaf", "operators", "--coverage", folder / "none"), ["none"])


def constant_inputs(session):
    folder = session.folder()
    nodes = [node("Reshape", ["x", "shape"], ["rows"]), node("MatMul", ["rows", "w"], ["y"]), node("ReduceSum", ["y"], ["loss"], keepdims=0)]
    (folder / "model.onnx").write_bytes(model(nodes, [value("x", FLOAT, ["N", 6]), value("shape", INT64, [2])], [value("loss", FLOAT, [])],
                                              [weight("w", [3, 2], [1.0] * 6)]))
    write_npy(folder / "shape.npy", "<i8", [2], struct.pack("<2q", -1, 3))
    write_npy(folder / "x.npy", "<f4", [4, 6], struct.pack("<24f", *range(24)))
    compiling = ("sheaf", "compile", folder / "model.onnx", "-o", folder / "plan", "--batch", 4, "--optimizer", "sgd:lr=1")
    expect_short_error(session.call(*compiling), ["shape", "--const"])
    session.succeed(*compiling, "--const", f"shape={folder / 'shape.npy'}")
    session.succeed("sheaf-run", folder / "plan", "--data", f"x={folder / 'x.npy'}", "--steps", 1, "--dump-gradients", folder / "gradients")
    sums = [sum(x for x in range(24) if x % 3 == column) for column in range(3)]
    expect(list(read_safetensors(folder / "gradients")["w"].values) == [v for s in sums for v in (s, s)], "the gradient is not that of rows of 3")
    expect_short_error(session.call(*compiling, "--const", "shape"), ["--const"], code=2)


def names_of_symbols(session):
    """Parameters may be called as the compiler calls its own: the step, the evaluation, an optimizer, a bucket."""
    folder, names = session.folder(), ["step", "evaluation", "optimizer", "bucket0"]
    nodes = [node("MatMul", ["x" if k == 0 else f"h{k - 1}", name], [f"h{k}"]) for k, name in enumerate(names)]
    nodes.append(node("ReduceSum", [f"h{len(names) - 1}"], ["loss"], keepdims=0))
    weights = [weight(name, [2, 2], [1.0, 0.0, 0.0, 1.0 + k]) for k, name in enumerate(names)]
    (folder / "model.onnx").write_bytes(model(nodes, [value("x", FLOAT, ["N", 2])], [value("loss", FLOAT, [])], weights))
    write_npy(folder / "x.npy", "<f4", [2, 2], struct.pack("<4f", 1, 2, 3, 4))
    session.succeed("sheaf", "compile", folder / "model.onnx", "-o", folder / "plan", "--batch", 2, "--optimizer", "sgd:lr=1", "--eval",
                    "--group", "^step$:lr=0")
    session.succeed("sheaf-run", folder / "plan", "--data", f"x={folder / 'x.npy'}", "--steps", 1, "--save", folder / "weights")
    trained = {name: list(tensor.values) for name, tensor in read_safetensors(folder / "weights").items()}
    expect(sorted(trained) == sorted(names), f"the names are {sorted(trained)}")
    expect(trained["step"] == [1, 0, 0, 1], "the group that names it is not applied")
    # d loss / d evaluation = (x step)^T 1 (optimizer bucket0)^T: columns sums 4 and 6 by row sums 1 and 12.
    expect(trained["evaluation"] == [1 - 4, -48, -6, 2 - 72], f"evaluation is {trained['evaluation']}")
