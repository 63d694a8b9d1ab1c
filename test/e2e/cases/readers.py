"""Everything that can stand in the place of a file that is read: one error that names it, at once and in little memory."""
import array
import os
import pathlib
import re
import shutil
import socket
import subprocess

from formats import Tensor, write_npy, write_safetensors
from harness import Case, expect
from onnxwriter import FLOAT, INT64, constant, linear, model, node, value, weight

SECONDS, PEAK = 30, 1 << 20  # a reader that waits or reads without end takes longer on any machine; KiB
LARGE = 1 << 40


def folder(path):
    path.mkdir()


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(LARGE)


def unix_socket(path):
    # A path of a socket has at most 107 bytes.
    one = socket.socket(socket.AF_UNIX)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        one.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)
        one.close()


# By name: how to make it, and what the error must say.
THINGS = {
    "pipe": (os.mkfifo, "it is a pipe, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    "folder": (folder, "it is a folder, not a regular file"),
    "socket": (unix_socket, "it is a socket, not a regular file"),
    "missing": (lambda path: None, "No such file"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "circular": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "empty": (lambda path: path.write_bytes(b""), None),
    "huge": (sparse, None),
}
# All readers meet these; only readers of models, of their data and of plans meet the rest.
USUAL = ("pipe", "device", "folder", "huge")
FULL = {"model", "external", "plan"}
# Things that a reader may accept, or refuse in other words.
ALLOWED = {
    # Rows may come through a pipe, and a file of tokens may be of any size.
    ("sheaf-run", "--data"): {"pipe"}, ("sheaf-run", "--eval-data"): {"pipe"},
    # The weights may be made later; what else is wrong with their file is said.
    **{(f"sheaf {command}", "external"): {"missing", "dangling", "circular", "huge"} for command in ("compile", "check", "fit")},
    **{(f"sheaf {command}", "external constant"): {"huge"} for command in ("compile", "check", "fit")},
    # Weights may be in a folder.
    ("sheaf-run", "--weights"): {"folder"}, ("sheaf export", "--weights"): {"folder"}, ("sheaf-run", "--weights index"): {"folder"},
    ("sheaf check", "--data"): {"pipe"},
}


def external(where, used, name):
    """A model whose weight w, or the addend of it, lies in a file `name`."""
    far = weight("far", [4, 3], location=name)
    nodes = ([node("Identity", ["far"], ["w"])] if used == "weight" else [constant(far, "c"), node("Add", ["v", "c"], ["w"])])
    nodes += [node("MatMul", ["x", "w"], ["y"], "first"), node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "last")]
    own = [far] if used == "weight" else [weight("v", [4, 3], [0.1] * 12)]
    return model(nodes, [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])], own)


def prepared(session):
    """A folder with a model, data, a plan, trained weights and a saved state."""
    where = session.folder()
    (where / "m.onnx").write_bytes(linear())
    write_npy(where / "x.npy", "<f4", (8, 4), bytes(128))
    write_npy(where / "labels.npy", "<i8", (8,), bytes(64))
    session.succeed("sheaf", "compile", "m.onnx", "-o", "m.plan", "--batch", 8, "--eval", cwd=where)
    session.succeed("sheaf-run", "m.plan", "--data", "x=x.npy", "--data", "labels=labels.npy", "--steps", 1, "--save", "w.safetensors",
                    "--save-state", "state", "--trace", "t.json", cwd=where)
    for used in ("weight", "constant"):
        (where / f"{used}.onnx").write_bytes(external(where, used, "far.data"))
    write_safetensors(where / "far.data", {"w": Tensor("F32", (4, 3), array.array("f", [0.0] * 12))})
    return where


def readers():
    """(tool, what is given as a bad file): the command, and the path of the bad file in the folder."""
    table = {}

    def add(command, flag, arguments, path="bad"):
        table[command, flag] = ([*command.split(), *map(str, arguments)], path)

    batch, output = ("--batch", 8), ("-o", "o.plan")
    fits = ("--ranks", 1, "--memory", "1GiB")
    for command, more in (("compile", output), ("check", ()), ("fit", fits)):
        add(f"sheaf {command}", "model", ["bad.onnx", *batch, *more], "bad.onnx")
        add(f"sheaf {command}", "external", ["weight.onnx", *batch, *more], "far.data")
        add(f"sheaf {command}", "external constant", ["constant.onnx", *batch, *more], "far.data")
        if command != "compile":
            continue  # these options are the same code in all three
        add(f"sheaf {command}", "--profile", ["m.onnx", *batch, *more, "--ranks", 2, "--profile", "./bad"])
        add(f"sheaf {command}", "--const", ["m.onnx", *batch, *more, "--const", "x=bad"])
        add(f"sheaf {command}", "--loss", ["m.onnx", *batch, *more, "--loss", "cross_entropy(y,weight=bad)"])
    add("sheaf compile", "--deepspeed", ["m.onnx", *batch, *output, "--deepspeed", "bad"])
    add("sheaf compile", "--like", ["m.onnx", *batch, *output, "--like", "bad"])
    add("sheaf check", "--data", ["m.onnx", *batch, "--ranks", 2, "--try", "--data", "x=bad", "--data", "labels=labels.npy"])
    for command in ("inspect", "verify", "simulate", "report", "init", "export"):
        more = {"simulate": ("--profile", "cpu"), "report": ("-o", "r.html"), "init": ("-o", "i.safetensors"),
                "export": ("--weights", "w.safetensors", "-o", "e.safetensors")}.get(command, ())
        add(f"sheaf {command}", "plan", ["bad", *more])
    add("sheaf same", "plan", ["m.plan", "bad"])
    add("sheaf diff", "plan", ["m.plan", "bad"])
    add("sheaf diff", "--profile", ["m.plan", "m.plan", "--profile", "./bad"])
    add("sheaf simulate", "--profile", ["m.plan", "--profile", "./bad"])
    add("sheaf report", "--profile", ["m.plan", "-o", "r.html", "--profile", "./bad"])
    add("sheaf report", "--measured", ["m.plan", "-o", "r.html", "--measured", "bad"])
    add("sheaf assemble", "text", ["bad", *output])
    add("sheaf export", "--weights", ["m.plan", "--weights", "bad.safetensors", "-o", "e.safetensors"], "bad.safetensors")
    add("sheaf export", "--model", ["m.plan", "--weights", "w.safetensors", "--model", "bad.onnx", "-o", "e.onnx"], "bad.onnx")
    add("sheaf export", "--state", ["m.plan", "--state", "state", "-o", "e.safetensors"], "state/step-00000001/manifest.json")
    data = ["m.plan", "--data", "labels=labels.npy", "--steps", 1, "--data"]
    run = [*data, "x=x.npy"]
    add("sheaf-run", "plan", ["bad", *run[1:]])
    add("sheaf-run", "--data", [*data, "x=bad.npy"], "bad.npy")
    add("sheaf-run", "--eval-data", [*run, "--eval-every", 1, "--eval-data", "labels=labels.npy", "--eval-data", "x=bad.npy"], "bad.npy")
    add("sheaf-run", "--weights", [*run, "--weights", "bad.safetensors"], "bad.safetensors")
    add("sheaf-run", "--weights index", [*run, "--weights", "bad.safetensors.index.json"], "bad.safetensors.index.json")
    add("sheaf-run", "--weights shard", [*run, "--weights", "i.safetensors.index.json"], "bad.safetensors")
    for name in ("manifest.json", "rank-00000.safetensors"):
        add("sheaf-run", f"--resume {name}", [*run[:4], 2, *run[5:], "--resume", "state"], f"state/step-00000001/{name}")
    return table


def cases(session):
    groups = {}
    for key in readers():
        groups.setdefault(key[0].replace(" ", "-"), []).append(key)
    for name, keys in groups.items():
        yield Case(f"readers/{name}", lambda k=keys: refused(session, k))
    yield Case("readers/unreadable", lambda: unreadable(session))
    yield Case("readers/links", lambda: links(session))
    yield Case("readers/out-of-the-folder", lambda: out_of_the_folder(session))


def ends_well(done, command, thing, words):
    text = done.out + done.err
    label = f"{command} with {thing}"
    expect(done.code in (0, 1, 2) and done.peak_kib < PEAK, f"{label}: exit {done.code}, {done.peak_kib} KiB\n{text}")
    if words is None:
        return
    expect(done.code != 0, f"{label}: exit 0\n{text}")
    errors = re.findall("^sheaf(?:-run)?: error: ", done.err, re.M)
    expect(len(errors) == (0 if command.startswith("sheaf check") and done.code == 1 and not errors else 1), f"{label}: {len(errors)} errors\n{text}")
    for word in words:
        expect(word in text, f"{label}: `{word}` is not named:\n{text}")


def clear(at):
    if at.is_dir() and not at.is_symlink():
        shutil.rmtree(at)
    elif at.exists() or at.is_symlink():
        at.unlink()


def place(where, path, thing):
    clear(where / path)
    THINGS[thing][0](where / path)


def refused(session, keys):
    table = readers()
    where = prepared(session)
    (where / "i.safetensors.index.json").write_text('{"weight_map": {"w": "bad.safetensors"}}')
    for key in keys:
        command, path = table[key]
        good = (where / path).read_bytes() if (where / path).is_file() else None
        for thing in THINGS if key[1] in FULL and key[0] in ("sheaf compile", "sheaf inspect", "sheaf-run") else USUAL:
            why = THINGS[thing][1]
            place(where, path, thing)
            done = session.call(*command, cwd=where, timeout=SECONDS)
            right = thing in ALLOWED.get(key, ())
            ends_well(done, " ".join(command), thing, None if right else [pathlib.Path(path).name, *([why] if why else [])])
        clear(where / path)
        if good is not None:
            (where / path).write_bytes(good)


def unreadable(session):
    """Files that this user may not read; root may read all, so the tools run as another user."""
    where = prepared(session)
    tools = session.tools
    other = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    for command, path in ((["sheaf", "check", "m.onnx"], "m.onnx"), (["sheaf", "inspect", "m.plan"], "m.plan"),
                          (["sheaf", "check", "weight.onnx", "--batch", "8"], "far.data"),
                          (["sheaf", "simulate", "m.plan", "--profile", "./p.json"], "p.json"),
                          (["sheaf-run", "m.plan", "--steps", "1", "--data", "labels=labels.npy", "--data", "x=x.npy"], "x.npy")):
        at = where / path
        if not at.exists():
            at.write_bytes(b"{}")
        at.chmod(0)
        done = subprocess.run([tools / command[0], *command[1:]], cwd=where, capture_output=True, text=True, timeout=SECONDS, **other)
        at.chmod(0o644)
        expect(done.returncode == 1 and path in done.stdout + done.stderr and "Permission denied" in done.stdout + done.stderr,
               f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def links(session):
    """Links are followed, and those that lead out of the model's folder are named."""
    where, elsewhere = prepared(session), session.folder()
    (where / "far.data").rename(elsewhere / "blob")
    (where / "inner").mkdir()
    (where / "inner" / "far.data").write_bytes((elsewhere / "blob").read_bytes())
    for target, leaves in ((elsewhere / "blob", True), (pathlib.Path("inner/far.data"), False)):
        (where / "far.data").symlink_to(target)
        for command in (("compile", "-o", "o.plan"), ("check",), ("fit", "--ranks", 1, "--memory", "1GiB")):
            done = session.succeed("sheaf", command[0], "weight.onnx", "--batch", 8, *command[1:], cwd=where)
            named = "lead out of the model's folder" in done.out + done.err and str(elsewhere / "blob") in done.out + done.err
            expect(named == leaves, f"{command}, {target}:\n{done.out}{done.err}")
        (where / "far.data").unlink()


def out_of_the_folder(session):
    """A path with '..', an absolute one or none is refused before anything is opened."""
    where = prepared(session)
    for location in ("../far.data", "inner/../../far.data", str(where / "far.data"), ""):
        for used in ("weight", "constant"):
            (where / "bad.onnx").write_bytes(external(where, used, location))
            for command in (("compile", "-o", "o.plan"), ("check",), ("fit", "--ranks", 1, "--memory", "1GiB")):
                done = session.call("sheaf", command[0], "bad.onnx", "--batch", 8, *command[1:], cwd=where)
                text = done.out + done.err
                expect(done.code == 1 and "which is not a path within the model's folder" in text, f"{command}, {location!r}: exit {done.code}\n{text}")
