"""Only parameters are trained, and by PyTorch's gradients: detached values, padding rows, buffers, weights in Constant nodes."""
import array
import json
import math

from formats import read_log, read_safetensors, write_npy
from harness import MODELS, Case, digest, expect
from onnxwriter import FLOAT, constant, encode, model, node, value, weight

FOLDER = MODELS / "trained"
# The models that each exporter writes in full; elsewhere detach() leaves no trace, or a look-up of known rows is folded.
FORMS = {
    "raw": ("add", "itself", "product", "both", "clone", "target", "straight-through", "padding", "buffers", "weighted"),
    "optimized": ("add", "itself", "product", "both", "target", "straight-through", "weighted"),
    "torchscript": ("buffers", "weighted"),
}


def cases(session):
    for form, models in FORMS.items():
        for name in models:
            yield Case(f"trained/gradients/{name}/{form}", lambda n=name, f=form: gradients(session, n, f))
    yield Case("trained/doubts", lambda: doubts(session))
    yield Case("trained/constants", lambda: constants(session))


def flat(values):
    return [x for row in values for x in flat(row)] if isinstance(values, list) else [values]


def shape(values):
    return (len(values), *shape(values[0])) if isinstance(values, list) else ()


def gradients(session, name, form):
    """Parameters are those of PyTorch that have a gradient, and no others; the gradient is PyTorch's in f64."""
    wanted = json.loads((FOLDER / "gradients.json").read_text())[name]
    where, data = session.folder(), []
    for key, values in wanted["inputs"].items():
        kind, code = ("<f4", "f") if any(isinstance(x, float) for x in flat(values)) else ("<i8", "q")
        write_npy(where / f"{key}.npy", kind, shape(values), array.array(code, flat(values)).tobytes())
        data += ["--data", f"{key}={where / key}.npy"]
    rows = len(next(iter(wanted["inputs"].values())))
    done = session.succeed("sheaf", "compile", FOLDER / f"{name}.{form}.onnx", "-o", where / "model.plan", "--batch", rows, "--optimizer", "sgd:lr=0.1")
    expect("detach" not in done.err and "padding" not in done.err, done.err)
    expect(("the file does not say" in done.err) == (form == "torchscript" and name == "buffers"), done.err)
    session.succeed("sheaf-run", where / "model.plan", *data, "--steps", 1, "--log", where / "log", "--dump-gradients", where / "g.safetensors")
    loss = read_log(where / "log")[0][0]["loss"]
    expect(abs(loss - wanted["loss"]) <= 1e-5 * (1 + abs(loss)), f"loss {loss}, PyTorch's {wanted['loss']}")
    found = {key: tensor.values for key, tensor in read_safetensors(where / "g.safetensors").items()}
    expected = {key: values for key, values in wanted["gradients"].items() if values is not None}
    # TorchScript's file does not tell a buffer that limits a Clip from a parameter: both are trained, and the line on possible buffers says so.
    limits = {"high", "low"} if (name, form) == ("buffers", "torchscript") else set()
    expect(set(found) == set(expected) | limits, f"trained: {sorted(found)}, by PyTorch {sorted(expected)}")
    expect(all(limit in done.err for limit in limits), done.err)
    for key, values in expected.items():
        largest = max(map(abs, values))
        for a, b in zip(found[key], values, strict=True):
            expect(abs(a - b) <= 1e-5 * largest + 1e-7, f"{key}: {list(found[key])}, PyTorch's {values}")


def inputs(where):
    write_npy(where / "x.npy", "<f4", (8, 3), array.array("f", (math.cos(i * 1.7) for i in range(24))).tobytes())
    return "--data", f"x={where / 'x.npy'}"


def by_pytorch(serialized):
    return serialized + encode(2, 2, b"pytorch")  # ModelProto.producer_name


def doubts(session):
    """One line names what may be a buffer, in check, compile and the head of a run's log, and what it advises silences it."""
    where = session.folder()
    nodes = [node("MatMul", ["x", "fc.weight"], ["h"]), node("Add", ["h", "final_logits_bias"], ["b"]), node("Mul", ["b", "m.decay"], ["y"]),
             node("ReduceMean", ["y"], ["loss"], keepdims=0)]
    weights = [weight("fc.weight", [3, 3], [0.1 * i for i in range(9)]), weight("final_logits_bias", [3], [0.0] * 3), weight("m.decay", [3], [0.5, 0.25, 0.125])]
    (where / "model.onnx").write_bytes(by_pytorch(model(nodes, [value("x", FLOAT, ["N", 3])], [value("loss", FLOAT, [])], weights)))
    line = "'final_logits_bias', 'm.decay' are trained"
    advice = "--freeze '^(final_logits_bias|m\\.decay)$'"
    plan = where / "model.plan"
    compiling = ("sheaf", "compile", where / "model.onnx", "-o", plan, "--batch", 4, "--optimizer", "sgd:lr=0.1")
    running = ("sheaf-run", plan, *inputs(where), "--steps", 1, "--log", where / "log")

    def texts():
        checked = session.succeed("sheaf", "check", where / "model.onnx", "--batch", 4, *freeze).out
        compiled, ran = session.succeed(*compiling, *freeze).err, session.succeed(*running).err
        warnings = [entry["message"] for entry in read_log(where / "log")[1] if entry["event"] == "warning"]
        return checked, compiled, ran, "\n".join(warnings)
    freeze = ()
    for text in texts():
        expect(text.count(line) == 1 and advice in text, f"no line, or several: {text}")
    freeze = ("--freeze", advice.split("'")[1])
    for text in texts():
        expect("are trained" not in text and "is trained" not in text, text)


def constants(session):
    """Weights in Constant nodes train to the bits of the same weights in initializers; they are saved, loaded and exported by their names."""
    names = ["conv2d_0.w_0", "conv2d_0.b_0"]
    weights = [weight(names[0], [3, 3], [math.sin(i) for i in range(9)]), weight(names[1], [3], [0.5, 0.25, 0.125])]
    nodes = [node("MatMul", ["x", names[0]], ["h"]), node("Add", ["h", names[1]], ["b"]), node("Mul", ["b", "b"], ["y"]),
             node("ReduceMean", ["y"], ["loss"], keepdims=0)]
    where, saved = session.folder(), {}
    for form, own, held in (("initializers", [], weights), ("constants", [constant(w, n) for w, n in zip(weights, names, strict=True)], [])):
        file, plan = where / f"{form}.onnx", where / f"{form}.plan"
        file.write_bytes(model(own + nodes, [value("x", FLOAT, ["N", 3])], [value("loss", FLOAT, [])], held))
        done = session.succeed("sheaf", "compile", file, "-o", plan, "--batch", 4, "--optimizer", "sgd:lr=0.1")
        expect(("2 Constant nodes" in done.err and "12 elements" in done.err) == (form == "constants"), done.err)
        saved[form] = where / f"{form}.safetensors"
        session.succeed("sheaf-run", plan, *inputs(where), "--steps", 4, "--save", saved[form])
    expect(digest(saved["initializers"]) == digest(saved["constants"]), "other weights")
    expect(sorted(read_safetensors(saved["constants"])) == sorted(names), "other names")

    # Exported, the model begins where the run ended; so does the plan with the saved weights.
    out = where / "trained.onnx"
    session.succeed("sheaf", "export", where / "constants.plan", "--weights", saved["constants"], "--model", where / "constants.onnx", "-o", out)
    expect(out.read_bytes().count(b"Constant") == 2, "the Constant nodes are gone")
    session.succeed("sheaf", "compile", out, "-o", where / "trained.plan", "--batch", 4, "--optimizer", "sgd:lr=0.1")
    again = {}
    for plan, options in (("trained", ()), ("constants", ("--weights", saved["constants"]))):
        again[plan] = where / f"again-{plan}.safetensors"
        session.succeed("sheaf-run", where / f"{plan}.plan", *inputs(where), "--steps", 1, "--save", again[plan], *options)
    expect(digest(again["trained"]) == digest(again["constants"]), "the exported model has other weights")
    expect(digest(again["trained"]) != digest(saved["constants"]), "nothing was trained")
