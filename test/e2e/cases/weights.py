"""--weights and --save: files that fit in part, tied tables under each of their names, and tensors that the step does not read."""
import array
import math
import struct

from formats import Tensor, read_safetensors, write_npy, write_safetensors
from harness import Case, expect, expect_short_error
from jobs import Job
from onnxwriter import BFLOAT16, FLOAT, INT64, encode, externalized, fields, model, node, value, varint, weight

ROWS, CLASSES, WIDTH = 8, 5, 3


def cases(session):
    yield Case("weights/in-part", lambda: in_part(session))
    for name in NAMES:
        yield Case(f"weights/tied/{name}", lambda n=name: tied(session, n))
    for storage in STORAGES:
        yield Case(f"weights/copied/{storage}", lambda s=storage: copied(session, s))
    yield Case("weights/copied/other-values", lambda: other_values(session))
    yield Case("weights/copied/absent", lambda: absent(session))


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
        expect("warning" not in done.err, done.err)
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


def typed(tensor):
    """A TensorProto of floats or of integers with its data in typed fields."""
    out, dtype = b"", dict((n, v) for n, _, v in fields(tensor))[2]
    for number, wire, entry in fields(tensor):
        if number == 9 and dtype == FLOAT:
            number = 4
        elif number == 9:
            number, entry = 7, b"".join(map(varint, struct.unpack(f"<{len(entry) // 8}q", entry)))
        out += encode(number, wire, entry)
    return out


# Places of initializers' bytes in the model's file.
STORAGES = ("raw", "external", "typed")
# Shapes and types of tensors that the step does not read. The graph reads `aux.weight` for an output that is not the loss.
COPIED = {
    "never.weight": ([2, 3], FLOAT), "aux.weight": ([3, 2], FLOAT), "scalar": ([], FLOAT), "num_batches_tracked": ([], INT64),
    "half": ([3], BFLOAT16), "empty": ([0, 4], FLOAT), "empty.used": ([0], FLOAT),
}
CODES = {FLOAT: "F32", INT64: "I64", BFLOAT16: "BF16"}


def with_copied(session, storage, *options):
    """A model with such tensors, its plan, and the arguments of a run."""
    where, content = session.folder(), b""
    tensors = [weight("w", [4, 3], [math.sin(i) for i in range(12)]), weight("b", [3], [0.5] * 3)]
    for i, (name, (shape, dtype)) in enumerate(COPIED.items()):
        values = [10 * i + k if dtype == INT64 else (8 * i + k) / 4 for k in range(math.prod(shape))]
        tensors.append(weight(name, shape, values, dtype))
    for i, tensor in enumerate(tensors):
        raw = next(v for n, _, v in fields(tensor) if n == 9)
        if storage == "external":
            tensors[i] = externalized(tensor, "model.data", len(content))
            content += raw
        elif storage == "typed" and (i < 2 or list(COPIED.values())[i - 2][1] != BFLOAT16):
            tensors[i] = typed(tensor)
    if content:
        (where / "model.data").write_bytes(content)
    (where / "model.onnx").write_bytes(model(
        [node("MatMul", ["x", "w"], ["h"]), node("Concat", ["b", "empty.used"], ["bias"], axis=0), node("Add", ["h", "bias"], ["y"]),
         node("MatMul", ["y", "aux.weight"], ["aux"]), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"])],
        [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, []), value("aux", FLOAT, ["N", 2])], tensors))
    write_npy(where / "x.npy", "<f4", (ROWS, 4), array.array("f", [math.cos(i) for i in range(4 * ROWS)]).tobytes())
    write_npy(where / "labels.npy", "<i8", (ROWS,), array.array("q", [i % 3 for i in range(ROWS)]).tobytes())
    plan = where / "model.plan"
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", plan, "--batch", 4, "--loss", "loss", "--optimizer", "sgd:lr=0.1", *options)
    return where, [plan, "--data", f"x={where / 'x.npy'}", "--data", f"labels={where / 'labels.npy'}"]


def expect_copied(path, change=None):
    """The file has every initializer: those that are not trained with the model's values, but for what `change` gives."""
    saved = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        saved |= read_safetensors(file)
    expect(sorted(saved) == sorted(["w", "b", *COPIED]), f"{sorted(saved)}")
    for i, (name, (shape, dtype)) in enumerate(COPIED.items()):
        found, factor = saved[name], (change or {}).get(name, 1)
        expect((found.shape, found.dtype) == (tuple(shape), CODES[dtype]), f"{name}: {found.dtype} {found.shape}")
        wanted = [10 * i + k if dtype == INT64 else factor * (8 * i + k) / 4 for k in range(math.prod(shape))]
        if dtype == BFLOAT16:
            wanted = [struct.unpack("<H", struct.pack("<f", v)[2:])[0] for v in wanted]
        expect(list(found.values) == wanted, f"{name}: {list(found.values)}, not {wanted}")
    return {name: list(tensor.values) for name, tensor in saved.items()}


def copied(session, storage):
    """--save writes them as the model has them: in one file or several, by one process or two, after resuming, and in an export."""
    for ranks, zero in ((1, 0), (2, 3)):
        where, run = with_copied(session, storage, "--ranks", ranks, "--zero", zero)
        one = ("--steps", 2, "--save", where / "w.safetensors", "--save-state", where / "state")
        done = session.succeed("sheaf-run", *run, *one)
        expect("warning" not in done.err, done.err)
        expect_copied(where / "w.safetensors")
        (where / "shards").mkdir()
        session.succeed("sheaf-run", *run, "--steps", 2, "--save", where / "shards" / "w.safetensors.index.json", "--shard-size", "40B")
        expect(len(list((where / "shards").glob("*.safetensors"))) > 2, "one file")
        expect_copied(where / "shards")
        if ranks > 1:
            for name in ("p.safetensors", "shards/w.safetensors.index.json"):
                with Job(session, 2, *run, "--steps", 2, "--save", where / name) as job:
                    job.succeed()
            expect_copied(where / "p.safetensors")
            expect_copied(where / "shards")
        session.succeed("sheaf-run", *run, "--steps", 3, "--resume", where / "state", "--save", where / "r.safetensors")
        expect_copied(where / "r.safetensors")
        # A saved file loads without a note, and an export of it has the same tensors.
        for more in ((), ("--weights-partial",)):
            done = session.succeed("sheaf-run", *run, "--steps", 1, "--lr", 0, "--weights", where / "r.safetensors", *more, "--save", where / "again.safetensors")
            expect("warning" not in done.err, done.err)
        expect(expect_copied(where / "again.safetensors") == expect_copied(where / "r.safetensors"), "other weights")
        for given in (("--weights", where / "w.safetensors"), ("--state", where / "state")):
            session.succeed("sheaf", "export", where / "model.plan", *given, "-o", where / "e.safetensors")
            expect(expect_copied(where / "e.safetensors") == expect_copied(where / "w.safetensors"), "the export has other weights")
        # The plan's text has them.
        text = session.succeed("sheaf", "inspect", where / "model.plan", "--format", "text").out
        (where / "text.mlir").write_text(text)
        session.succeed("sheaf", "assemble", where / "text.mlir", "-o", where / "again.plan")
        expect(session.succeed("sheaf", "inspect", where / "again.plan", "--format", "text").out == text, "the text gives another plan")


def other_values(session):
    """Tensors that the step does not read are taken from --weights, too; a shape that differs is refused."""
    where, run = with_copied(session, "raw")
    session.succeed("sheaf-run", *run, "--steps", 1, "--save", where / "w.safetensors")
    tensors = read_safetensors(where / "w.safetensors")
    tensors["never.weight"] = Tensor("F32", [2, 3], array.array("f", [3 * v for v in tensors["never.weight"].values]))
    write_safetensors(where / "v.safetensors", tensors)
    session.succeed("sheaf-run", *run, "--steps", 1, "--weights", where / "v.safetensors", "--save", where / "w.safetensors")
    expect_copied(where / "w.safetensors", {"never.weight": 3})
    tensors["never.weight"] = Tensor("F32", [6], tensors["never.weight"].values)
    write_safetensors(where / "v.safetensors", tensors)
    refused = session.call("sheaf-run", *run, "--steps", 1, "--weights", where / "v.safetensors", "--save", where / "w.safetensors")
    expect_short_error(refused, ["--weights", "never.weight", "[6]", "[2, 3]"])
    # An evaluation that reads one makes it a parameter of the plan.
    where, run = with_copied(session, "raw", "--eval")
    session.succeed("sheaf-run", *run, "--steps", 1, "--save", where / "w.safetensors")
    expect_copied(where / "w.safetensors")


def absent(session):
    """Without the model's file, weights come from --weights, and those that it lacks are named before the training."""
    where, run = with_copied(session, "external")
    session.succeed("sheaf-run", *run, "--steps", 1, "--save", where / "w.safetensors")
    tensors = read_safetensors(where / "w.safetensors")
    del tensors["never.weight"]
    write_safetensors(where / "v.safetensors", tensors)
    (where / "model.data").unlink()
    done = session.succeed("sheaf-run", *run, "--steps", 1, "--weights", where / "v.safetensors", "--save", where / "w.safetensors")
    expect("warning: the saved weights lack never.weight: initial weights" in done.err and "model.data" in done.err, done.err)
    expect(sorted(read_safetensors(where / "w.safetensors")) == sorted(tensors), "other tensors")
