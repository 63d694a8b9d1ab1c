"""sheaf check: every obstacle at once, what would be trained, and the exit status."""
import json

from harness import MODELS, Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, linear, model, node, value, weight

BATCH = ("--batch", 8)


def cases(session):
    yield Case("checking/a-model-that-can-be-trained", lambda: trainable(session))
    yield Case("checking/every-obstacle-at-once", lambda: obstacles(session))
    yield Case("checking/a-loss-from-the-list", lambda: suggested_loss(session))
    yield Case("checking/missing-weights", lambda: missing_weights(session))
    yield Case("checking/the-fixed-batch", lambda: fixed_batch(session))
    yield Case("checking/ranks-that-share-a-fixed-batch", lambda: shared_batch(session))
    yield Case("checking/bad-input", lambda: bad_input(session))


def check(session, path, *options, code=0):
    """The report of a model as JSON; the report as text has the same exit status."""
    done = session.call("sheaf", "check", path, *options, "--json")
    expect(done.code == code, f"exit {done.code}, not {code}\n{done.out}{done.err}")
    expect(not done.err, f"stderr has {done.err}")
    text = session.call("sheaf", "check", path, *options)
    expect(text.code == code, f"as text: exit {text.code}, not {code}\n{text.out}{text.err}")
    said = "It can be trained." in text.out
    expect(said == (code == 0), f"exit {code}, and the report says\n{text.out}")
    return json.loads(done.out), text.out


def trainable(session):
    """What would be trained is what the plan says; the memory is that of sheaf fit."""
    options = (*BATCH, "--ranks", 2, "--memory", "1GiB")
    report, text = check(session, MODELS / "mlp.onnx", *options)
    plan = session.inspect(session.plan("mlp", 2, 3, 8))
    expect(report["trained"] == {"parameters": 6, "elements": plan["parameters"], "bytes": 4 * plan["parameters"]}, report["trained"])
    expect(report["exact"] and report["trainable"], "the report is not exact")
    # Three products forward, and two for each but the first backward, whose input has no gradient.
    layers = [64 * 256, 256 * 256, 256 * 10]
    expect(report["flops"] == 2 * 8 * (3 * sum(layers) - layers[0]), f"{report['flops']} flops")
    fit = session.succeed("sheaf", "fit", MODELS / "mlp.onnx", *options, "--json")
    expect(report["fit"] == json.loads(fit.out), "sheaf fit says something else")
    fit = session.succeed("sheaf", "fit", MODELS / "mlp.onnx", *options)
    expect(text.endswith(fit.out), "as text, sheaf fit says something else")


def strange():
    """Three operators that are not supported, a node with a bad shape, a free dimension, no loss, and no weights' file."""
    nodes = [node("Mul", ["x", "w"], ["a"]), node("Strange", ["a"], ["b"], "one"), node("Strange", ["b"], ["c"], "two"),
             node("Odd", ["a"], ["d"], "three", "some.domain"), node("Transpose", ["a"], ["e"], "four", perm=[0, 7]),
             node("Mul", ["c", "far"], ["f"]), node("Sum", ["f", "d", "e"], ["y"])]
    return model(nodes, [value("x", FLOAT, ["N", "length"])], [value("y", FLOAT, ["N", "length"])],
                 [weight("w", [1], [2]), weight("far", [1], location="far.data")], domains=("some.domain",))


def obstacles(session):
    path = session.folder() / "strange.onnx"
    path.write_bytes(strange())
    report, text = check(session, path, *BATCH, code=1)
    named = [(o["operator"], o["nodes"], o["first"]) for o in report["unsupported_operators"]]
    expect(named == [("Strange", 2, "one"), ("some.domain.Odd", 1, "three")], named)
    expect([o["operator"] for o in report["refused_nodes"]] == ["Transpose"], report["refused_nodes"])
    expect(report["unbound_dimensions"] == [{"name": "length", "input": "x"}], report["unbound_dimensions"])
    expect(len(report["other_obstacles"]) == 1 and "no scalar output" in report["other_obstacles"][0], report["other_obstacles"])
    expect(report["possible_losses"] == ["cross_entropy(y)", "mse(y)"], report["possible_losses"])
    expect([f["file"] for f in report["missing_files"]] == ["far.data"], report["missing_files"])
    expect(report["trained"]["parameters"] == 2 and not report["exact"], report["trained"])
    expect("fit" not in report, "a model that cannot be compiled was laid out")
    for words in ("Strange", "2 nodes, the first is 'one'", "some.domain.Odd", "--bind 'length=SIZE'", "far.data", "at most 2"):
        expect(words in text, f"the report does not have `{words}`:\n{text}")


def suggested_loss(session):
    """What is suggested is what helps."""
    path = session.folder() / "outputs.onnx"
    for classes, usual in ((3, "cross_entropy(y)"), (1, "bce_with_logits(y)")):
        path.write_bytes(model([node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, ["N", 4])], [value("y", FLOAT, ["N", classes])],
                               [weight("w", [4, classes], [0.1 * i for i in range(4 * classes)])]))
        report, _ = check(session, path, *BATCH, code=1)
        expect(usual in report["possible_losses"], f"{classes} classes: {report['possible_losses']}")
        for loss in report["possible_losses"]:
            check(session, path, *BATCH, "--loss", loss)
    # A softmax, as one operator or written out: cross entropy takes what goes into it.
    for nodes in ([node("Softmax", ["y"], ["p"])],
                  [node("ReduceMax", ["y", "last"], ["r"]), node("Max", ["least", "r"], ["m"]), node("Sub", ["y", "m"], ["s"]), node("Exp", ["s"], ["e"]),
                   node("ReduceSum", ["e", "last"], ["t"]), node("Div", ["e", "t"], ["p"])]):
        path.write_bytes(model([node("MatMul", ["x", "w"], ["y"]), *nodes], [value("x", FLOAT, ["N", 4])],
                               [value("p", FLOAT, ["N", 3])],
                               [weight("w", [4, 3], [0.1 * i for i in range(12)]), weight("last", [1], [1], INT64),
                                weight("least", [], [-1e30])]))
        report, _ = check(session, path, *BATCH, code=1)
        expect(report["possible_losses"] == ["cross_entropy(y)", "mse(p)"], report["possible_losses"])
        for loss in report["possible_losses"]:
            check(session, path, *BATCH, "--loss", loss)


def missing_weights(session):
    """The graph compiles without them, so that sheaf init can make them; a run needs them."""
    path = session.folder() / "far.onnx"
    path.write_bytes(linear(weight_tensor=weight("w", [4, 3], location="far.data")))
    report, text = check(session, path, *BATCH, code=1)
    expect(report["missing_files"] == [{"file": "far.data", "parameters": 1, "bytes": 48, "exists": False}], report["missing_files"])
    expect("fit" in report and "sheaf init" in text, "no memory, or no remedy")
    plan = path.with_name("far.plan")
    said = session.succeed("sheaf", "compile", path, "-o", plan, *BATCH).err
    expect(f"warning: far.data, which has 1 parameter, is missing from {path.parent}/" in said and f"`sheaf init {plan} -o W.safetensors`" in said, said)
    expect(f"next: sheaf-run {plan} --weights W.safetensors --data" in said, f"the next command would fail: {said}")
    path.with_name("far.data").write_bytes(bytes(40))
    report, text = check(session, path, *BATCH, code=1)
    expect(report["missing_files"][0]["exists"] and "far.data has 40 bytes" in text and "truncated" in text, "a file that is too short is not named")
    path.with_name("far.data").write_bytes(bytes(48))
    check(session, path, *BATCH)


def fixed_batch(session):
    """Without --batch, the model's own; else one row a rank, which is said."""
    path = session.folder() / "fixed.onnx"
    path.write_bytes(linear(batch=5))
    report, _ = check(session, path)
    expect(report["fit"]["batch"] == 5 and not report["notes"], report["notes"])
    path.write_bytes(linear())
    report, _ = check(session, path)
    expect(report["fit"]["batch"] == 1 and "--batch is not given" in report["notes"][0], report["notes"])


def shared_batch(session):
    """sheaf fit finds the smallest number of ranks that divides a fixed batch and fits."""
    path = session.folder() / "fixed.onnx"
    fit = lambda batch, ranks, memory, *options: session.call("sheaf", "fit", path, "--ranks", ranks, "--batch", batch, "--memory", memory, *options)

    def needed(batch, ranks):
        report = json.loads(fit(batch, ranks, "1GiB", "--json").out)
        expect(report["smallest_ranks"] == 1, report)
        return report["stages"][-1]["with_recompute"]["needed_bytes"]

    products = lambda batch, *sizes: path.write_bytes(model(
        [node("MatMul", [f"y{i}" if i else "x", f"w{i}"], [f"y{i + 1}"]) for i in range(len(sizes) - 1)] +
        [node("ReduceMean", [f"y{len(sizes) - 1}"], ["loss"], keepdims=0)], [value("x", FLOAT, [batch, sizes[0]])], [value("loss", FLOAT, [])],
        [weight(f"w{i}", [a, b], range(a * b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]))
    products(6, 256, 2048)
    memory = {ranks: needed(6, ranks) for ranks in (1, 2, 3, 6)}
    expect(memory[1] > memory[2] > memory[3] > memory[6], memory)
    for ranks in (2, 3, 6):
        done = fit(6, 2, memory[ranks], "--json")
        expect(json.loads(done.out)["smallest_ranks"] == ranks, f"{ranks} ranks fit in {memory[ranks]} bytes: {done.out}")
    expect("and the model's fixed batch." in fit(6, 2, memory[2]).out, "the report does not mention the fixed batch")
    done = fit(6, 2, memory[6] - 1024)
    expect(done.code == 1 and "a fixed batch of 6 rows, and no number of ranks that divides it fits" in done.out, done.out + done.err)
    # Each of two micro-batches of three ranks has a row.
    done = fit(6, 1, "1MiB", "--micro-batches", 2, "--json")
    expect("smallest_ranks" not in json.loads(done.out), done.out)
    # Two ranks gather both products, and need more memory than one or twelve.
    products(12, 512, 1024, 512)
    memory = {ranks: needed(12, ranks) for ranks in (1, 2, 12)}
    expect(memory[1] < memory[12] < memory[2], memory)
    for ranks in (1, 2, 12):
        expect(json.loads(fit(12, ranks, memory[1], "--json").out)["smallest_ranks"] == 1, f"{ranks} ranks")


def bad_input(session):
    where = session.folder()
    (where / "text.onnx").write_text("not a model at all")
    (where / "half.onnx").write_bytes((MODELS / "mlp.onnx").read_bytes()[:5000])
    for path in (where / "text.onnx", where / "half.onnx", where / "nowhere.onnx"):
        report, _ = check(session, path, *BATCH, code=1)
        expect(len(report["other_obstacles"]) == 1, report["other_obstacles"])
        done = session.call("sheaf", "check", path, *BATCH)
        expect_short_error(done, [path.name, report["other_obstacles"][0]])
        expect(not done.out, f"a report of a file that cannot be read:\n{done.out}")
    report, _ = check(session, MODELS / "artifacts" / "mlp" / "optimizer_model.onnx", *BATCH, code=1)
    expect("ONNX Runtime" in report["other_obstacles"][0], report["other_obstacles"])
    report, _ = check(session, MODELS / "mlp.onnx", "--batch", 7, "--ranks", 2, code=1)
    expect(len(report["other_obstacles"]) == 1 and "does not divide" in report["other_obstacles"][0], report["other_obstacles"])
    expect_short_error(session.call("sheaf", "check"), ["MODEL.onnx"], 2)
    expect_short_error(session.call("sheaf", "check", MODELS / "mlp.onnx", "--batch", 0), ["--batch"], 2)
    expect_short_error(session.call("sheaf", "check", MODELS / "mlp.onnx", "--profile", "nowhere.json"), ["nowhere.json"])
