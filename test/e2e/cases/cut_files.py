"""Files that end before what is read of them, and Git LFS pointers in the place of files."""
import array

from formats import Tensor, write_npy, write_safetensors
from harness import Case, expect, expect_short_error
from onnxwriter import FLOAT, INT64, constant, linear, model, node, value, weight

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 65536\n"
DAMAGES = {"pointer": lambda data: POINTER, "empty": lambda data: b"", "one-byte": lambda data: data[:-1], "pages": lambda data: data[:5000]}
LARGE = [256, 64]  # elements that take 64 KiB


def cases(session):
    for reader in READERS:
        for damage in list(DAMAGES)[:3 if "axes" in reader else 4]:  # axes take less than a page
            yield Case(f"cut-files/{reader}/{damage}", lambda r=reader, d=damage: cut(session, r, d))
    yield Case("cut-files/pointers", lambda: pointers(session))


def numbers(name, location=None):
    return weight(name, LARGE, [0.001 * (i % 97) for i in range(LARGE[0] * LARGE[1])], location=location)


def external(where, tensor_is):
    """A model whose file `far.data` holds a weight, an initializer that is folded, or a constant of a node."""
    far = numbers("far", location="far.data")
    inputs, loss = [value("x", FLOAT, ["N", LARGE[0]])], value("loss", FLOAT, [])
    end = [node("MatMul", ["x", "used"], ["h"], "first"), node("ReduceMean", ["h"], ["loss"], "last", keepdims=0)]
    if tensor_is == "weight":
        nodes, weights = [node("Identity", ["far"], ["used"])], [far]
    elif tensor_is == "axes":  # the axes of a reduction must be known
        far = weight("far", [1], [1], INT64, location="far.data")
        nodes = [node("MatMul", ["x", "w"], ["y"]), node("ReduceSum", ["y", "far"], ["loss1"], keepdims=0), node("ReduceMean", ["loss1"], ["loss"], keepdims=0)]
        end, weights = [], [numbers("w"), far]
    else:
        nodes = [constant(far, "c"), node("Add", ["w", "c"], ["used"])]
        weights = [numbers("w")]
    (where / "model.onnx").write_bytes(model(nodes + end, inputs, [loss], weights))
    whole = bytes([1] + [0] * 7) if tensor_is == "axes" else b"\x00\x00\x80\x3c" * (LARGE[0] * LARGE[1])
    (where / "far.data").write_bytes(whole)
    return whole


def compiled(session, where, *options):
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4, *options)
    write_npy(where / "x.npy", "<f4", (8, LARGE[0]), bytes(4 * 8 * LARGE[0]))


# Commands that read a file whose offsets come from another file, by what is in the file.
MODELS_OF = {"weight": ("compile", "check", "fit"), "constant": ("compile", "check", "fit"), "axes": ("compile", "check", "fit")}
READERS = (*(f"{command}/{kind}" for kind, commands in MODELS_OF.items() for command in commands), "run", "run-unhashed", "export/constant")


def cut(session, reader, damage):
    """A file that ends before what is read of it: one error that names the file, its size and what is needed."""
    where = session.folder()
    command, _, kind = reader.partition("/")
    whole = external(where, kind or "weight")
    if command in ("run", "run-unhashed", "export"):
        compiled(session, where, *(["--no-weight-hashes"] if command == "run-unhashed" else []))
    damaged = DAMAGES[damage](whole)
    (where / "far.data").write_bytes(damaged)
    words = ["far.data", str(len(damaged))]
    words += ["Git LFS pointer", "git lfs pull"] if damage == "pointer" else []
    if command in ("run", "run-unhashed"):
        done = session.call("sheaf-run", where / "model.plan", "--data", f"x={where / 'x.npy'}", "--steps", 1)
    elif command == "export":
        write_safetensors(where / "w.safetensors", {"w": Tensor("F32", LARGE, array.array("f", [0.5] * (LARGE[0] * LARGE[1])))})
        done = session.call("sheaf", "export", where / "model.plan", "--weights", where / "w.safetensors", "--model", where / "model.onnx", "-o",
                            where / "out.onnx")
        expect(not (where / "out.onnx").exists() and not (where / "out.onnx.data").exists(), "something was written")
    else:
        output = ("-o", where / "out.plan") if command == "compile" else ("--memory", "1GiB", "--ranks", 1) if command == "fit" else ()
        done = session.call("sheaf", command, where / "model.onnx", "--batch", 4, *output)
    expect(done.code == 1, f"exit {done.code}\n{done.out}{done.err}")
    if command == "check":
        for word in words:
            expect(word in done.out + done.err, f"`{word}` is not named:\n{done.out}{done.err}")
    else:
        expect_short_error(done, words)
    expect(not (where / "out.plan").exists(), "a plan was written")


def pointers(session):
    """A Git LFS pointer in the place of any file that is read is named as one."""
    where = session.folder()
    (where / "model.onnx").write_bytes(linear())
    session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "model.plan", "--batch", 4)
    write_npy(where / "x.npy", "<f4", (8, 4), bytes(128))
    for name in ("p.onnx", "p.plan", "p.npy", "p.safetensors", "p.json", "p.u16"):
        (where / name).write_bytes(POINTER)
    run = ["sheaf-run", "model.plan", "--steps", 1, "--data", "labels=p.npy", "--data"]
    for command in (["sheaf", "compile", "p.onnx", "-o", "o.plan", "--batch", 4], ["sheaf", "fit", "p.onnx", "--memory", "1GiB", "--ranks", 1, "--batch", 4],
                    ["sheaf", "check", "p.onnx"], ["sheaf", "inspect", "p.plan"], ["sheaf-run", "p.plan", "--steps", 1], [*run, "x=p.npy"],
                    [*run, "x=p.u16"], [*run, "x=x.npy", "--weights", "p.safetensors"],
                    ["sheaf", "compile", "model.onnx", "-o", "o.plan", "--batch", 4, "--deepspeed", "p.json"],
                    ["sheaf", "compile", "model.onnx", "-o", "o.plan", "--batch", 4, "--profile", "p.json"],
                    ["sheaf", "compile", "model.onnx", "-o", "o.plan", "--batch", 4, "--loss", "cross_entropy(y,weight=p.npy)"],
                    ["sheaf", "export", "model.plan", "--weights", "p.safetensors", "--model", "model.onnx", "-o", "o.onnx"]):
        done = session.call(*command, cwd=where)
        expect_short_error(done, ["Git LFS pointer", "65536", "git lfs pull", "p."], 1)
