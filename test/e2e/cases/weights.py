"""--weights: files that fit in part, and tied tables under each of their names."""
import array
import math

from formats import Tensor, read_safetensors, write_npy, write_safetensors
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, model, node, value, weight

ROWS, CLASSES, WIDTH = 8, 5, 3


def cases(session):
    yield Case("weights/in-part", lambda: in_part(session))
    for name in NAMES:
        yield Case(f"weights/tied/{name}", lambda n=name: tied(session, n))


# The names of a table's look-up and product in the graph, of the initializer, and the table's other names in the module.
NAMES = {
    "torchscript": ("/m/wte/Gather", "/m/lm_head/Transpose", "m.lm_head.weight", ["m.wte.weight"]),
    "three-modules": ("/encoder/embed/Gather", "/decoder/layers.0/out/Transpose", "shared.weight", ["encoder.embed.weight", "decoder.layers.0.out.weight"]),
    "no-modules": ("a", "b", "table", []),
}


def prepared(session, lookup, product, name):
    where = session.folder()
    table = [math.sin(i) for i in range(CLASSES * WIDTH)]
    (where / "model.onnx").write_bytes(model(
        [node("Gather", [name, "ids"], ["h"], lookup), node("Add", ["h", "m.bias"], ["b"], "/m/Add"), node("Transpose", [name], ["t"], product, perm=[1, 0]),
         node("MatMul", ["b", "t"], ["y"], "/m/MatMul"), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "/Loss")],
        [value("ids", INT64, ["N"]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
        [weight(name, [CLASSES, WIDTH], table), weight("m.bias", [WIDTH], [0.5] * WIDTH)]))
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4, "--optimizer", "sgd:lr=0")
    for file in ("ids", "labels"):
        write_npy(where / f"{file}.npy", "<i8", (ROWS,), array.array("q", [i % CLASSES for i in range(ROWS)]).tobytes())
    run = ("sheaf-run", where / "model.plan", "--data", f"ids={where / 'ids.npy'}", "--data", f"labels={where / 'labels.npy'}", "--steps", 1, "--save",
           where / "saved.safetensors")
    return where, run, table


def tensor(factor, *shape):
    return Tensor("F32", shape, array.array("f", [factor * math.cos(i) for i in range(math.prod(shape))]))


def in_part(session):
    """An error that names what the model lacks and what the file has, unless it is wanted; then the rest has the plan's values."""
    where, run, table = prepared(session, *NAMES["no-modules"][:3])
    file = where / "w.safetensors"
    write_safetensors(file, {"m.bias": tensor(1, WIDTH), "wte.weight": tensor(2, CLASSES, WIDTH)})
    expect_short_error(session.call(*run, "--weights", file), ["lacks 1 of the model's 2 parameters: table", "wte.weight", "--weights-partial"])
    expect(not (where / "saved.safetensors").exists(), "weights were saved")
    done = session.succeed(*run, "--weights", file, "--weights-partial")
    expect("--weights replaces 1 of 2 parameters; not table" in done.err and "wte.weight" in done.err, done.err)
    saved = read_safetensors(where / "saved.safetensors")
    expect(saved["table"].values == array.array("f", table) and saved["m.bias"].values == tensor(1, WIDTH).values, "other weights")
    write_safetensors(file, {"other": tensor(1, WIDTH)})
    for options in ((), ("--weights-partial",)):
        expect_short_error(session.call(*run, "--weights", file, *options), ["none of the model's parameters", "other"])
    # Tensors of the file that are not the model's get a note.
    write_safetensors(file, {"m.bias": tensor(1, WIDTH), "table": tensor(2, CLASSES, WIDTH), "more": tensor(1, 1)})
    expect("more" in session.succeed(*run, "--weights", file).err, "nothing is said of a tensor that is not the model's")
    expect_short_error(session.call(*run, "--weights-partial"), ["--weights-partial needs --weights"], 2)


def tied(session, name):
    """A tied table is loaded by each of its names; two that differ are refused."""
    lookup, product, own, others = NAMES[name]
    where, run, _ = prepared(session, lookup, product, own)
    file, expected = where / "w.safetensors", tensor(2, CLASSES, WIDTH)
    for known in (own, *others):
        write_safetensors(file, {"m.bias": tensor(1, WIDTH), known: expected})
        done = session.succeed(*run, "--weights", file)
        expect("--weights" not in done.err, done.err)
        saved = read_safetensors(where / "saved.safetensors")
        expect(saved[own].values == expected.values, f"the table is not that of '{known}'")
        session.succeed("sheaf", "export", where / "model.plan", "--weights", file, "--model", where / "model.onnx", "-o", where / "out.onnx")
        write_safetensors(file, {"m.bias": tensor(1, WIDTH), own: expected, known: expected})
        session.succeed(*run, "--weights", file)
    for known in others:
        write_safetensors(file, {"m.bias": tensor(1, WIDTH), own: expected, known: tensor(3, CLASSES, WIDTH)})
        expect_short_error(session.call(*run, "--weights", file), [own, known, "differ"])
    # A name of another module is not one of the table's.
    write_safetensors(file, {"m.bias": tensor(1, WIDTH), "m.weight": expected})
    expect_short_error(session.call(*run, "--weights", file), [own, "m.weight", "--weights-partial"])
