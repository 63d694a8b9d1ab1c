"""Files that a command would replace, or whose names say another format than the one that is written."""
import os
import re
import shlex

from cases.cut_files import compiled, external
from formats import write_npy
from harness import ROOT, Case, expect, expect_short_error
from onnxwriter import FLOAT, linear, model, node, value, weight


def cases(session):
    for command in OUTPUTS:
        yield Case(f"output-files/replaced/{command.replace(' ', '-')}", lambda c=command: replaced(session, c))
    yield Case("output-files/links", lambda: links(session))
    yield Case("output-files/model", lambda: model_files(session))
    yield Case("output-files/run", lambda: run_files(session))
    yield Case("output-files/folders", lambda: folders(session))
    yield Case("output-files/tools", lambda: tools(session))
    yield Case("output-files/endings", lambda: endings(session))


# By command: the options that write a file, and the arguments and options that read one.
OUTPUTS = {
    "sheaf compile": (["-o"], ["", "--like", "--deepspeed", "--profile"], "--batch 4"),
    "sheaf assemble": (["-o"], [""], ""),
    "sheaf export": (["-o"], ["", "--model", "--weights"], ""),
    "sheaf init": (["-o"], [""], ""),
    "sheaf profile": (["-o"], [], ""),
    "sheaf report": (["-o"], ["", "--measured", "--profile"], ""),
    "sheaf simulate": (["--trace"], ["", "--profile"], "--profile h100"),
    "sheaf-run": (["--save", "--log", "--metrics-file", "--trace", "--dump-gradients", "--tuned"], ["", "--data", "--eval-data", "--weights"],
                  "--steps 1 --eval-every 1"),
}
# Options that write into a folder of their own.
FOLDERS = {"--save-state", "--log-dir", "--outputs", "--offload-dir"}
# Options that name a folder of files that are read; and one whose disk is measured.
READ_FOLDERS = {"--resume", "--weights-dir", "--state", "--coverage"}
MEASURED = {"--disk"}
# Options of other modes: what reads a file with them is the argument.
MODES = {"--measure"}


def tables(session):
    """{command: {option: (syntax, help)}} of every command."""
    text = session.succeed("sheaf", "--help=markdown").out + session.succeed("sheaf-run", "--help=markdown").out
    found = {}
    for line in text.splitlines():
        if title := re.fullmatch(r"## (sheaf[\w -]*)", line):
            options = found[title.group(1)] = {}
        elif row := re.match(r"\| `(--?[\w-]+)(?: ([^`]+))?` \| (.*?) \|", line.replace("\\|", "/")):
            options[row.group(1)] = (row.group(2) or "", row.group(3))
    return found


def replaced(session, command):
    """An output that is one of the inputs is refused, and the file stays."""
    outputs, inputs, more = OUTPUTS[command]
    options = tables(session)[command]
    writes = {name for name, (syntax, text) in options.items()
              if re.search(r"FILE|DIR|\w\.\w", syntax) and re.match(r"(Also )?(Write|File (for|to write)|Keep a file)", text)} - FOLDERS
    expect(writes - set(outputs) - MODES == set(), f"{sorted(writes - set(outputs))} write files; say so here and in the table of options")
    reads = {name for name, (syntax, _) in options.items() if re.search(r"FILE|\w\.(plan|onnx|json|safetensors)", syntax)} - set(outputs) - MODES
    reads -= {"--ignore", "--offload", "--const", "--bind"}
    expect(reads <= set(inputs), f"{sorted(reads - set(inputs))} read files; name them here")
    where = session.folder()
    (where / "that").write_text("what stands here")
    (where / "a").write_text("")
    for output in outputs:
        for given in inputs:
            arguments = [*command.split(), *shlex.split(more)]
            if given == "":
                arguments.append("./that")
            elif given == "--profile" and "--profile" in more:
                arguments[arguments.index("h100")] = "./that"
                arguments.append("a")
            else:
                arguments += ["a", given, "x=./that" if given in ("--data", "--eval-data") else "./that"]
            if given != "--eval-data" and "--eval-every" in more:
                arguments += ["--eval-data", "x=a"]
            arguments += [output, "that"]
            done = session.call(*arguments, cwd=where)
            expect_short_error(done, [f"{output} that", "which is read"], 2)
            expect((where / "that").read_text() == "what stands here", f"{arguments} changed a file")


def links(session):
    """The same file by a symbolic link, a hard link, another path and from another folder; two outputs in one file."""
    where = session.folder()
    (where / "model.onnx").write_bytes(linear())
    (where / "folder").mkdir()
    (where / "soft").symlink_to("model.onnx")
    os.link(where / "model.onnx", where / "hard")
    (where / "around").symlink_to(".")
    for output in ("model.onnx", "./model.onnx", "folder/../model.onnx", "around/model.onnx", "soft", "hard", where / "model.onnx"):
        done = session.call("sheaf", "compile", "model.onnx", "-o", output, "--batch", 4, cwd=where)
        expect(done.code == 2 and (where / "model.onnx").read_bytes() == linear(), f"-o {output}: exit {done.code}\n{done.err}")
    done = session.call("sheaf-run", "x.plan", "--steps", 1, "--save", "w", "--trace", "around/w", cwd=where)
    expect_short_error(done, ["--trace around/w", "--save"], 2)
    # Devices may be named twice.
    done = session.call("sheaf-run", "x.plan", "--steps", 1, "--log", os.devnull, "--trace", os.devnull, cwd=where)
    expect_short_error(done, ["x.plan"])


def model_files(session):
    """The external data of a model are its files, too, and PATH.data is written next to a plan."""
    where = session.folder()
    whole = external(where, "weight")
    for output in ("far.data", "far"):
        done = session.call("sheaf", "compile", "model.onnx", "-o", output, "--batch", 4, cwd=where)
        expect_short_error(done, ["far.data"], 2)
    expect((where / "far.data").read_bytes() == whole and not (where / "far").exists(), "the weights were replaced")


def run_files(session):
    """Files that only a run finds: the plan's own weights, files of a pattern, of an index and of a folder."""
    where = session.folder()
    whole = external(where, "weight")
    compiled(session, where)
    (where / "far").symlink_to("far.data")
    (where / "rows-1.npy").write_bytes((where / "x.npy").read_bytes())
    (where / "rows").symlink_to("rows-1.npy")
    run = ("sheaf-run", "model.plan", "--steps", 1, "--lr", 0)
    session.succeed(*run, "--data", "x=x.npy", "--save", "w/model.safetensors.index.json", cwd=(where / "w").mkdir() or where)
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    for arguments, words in (((*run, "--data", "x=x.npy", "--save", "far"), ["--save far", "initial weights"]),
                             ((*run, "--data", "x=rows-*.npy", "--log", "rows"), ["--log rows", "--data"]),
                             ((*run, "--data", "x=x.npy", "--weights", "w", "--save", "w/model.safetensors.index.json"), ["--weights", "which is read"]),
                             ((*run, "--data", "x=x.npy", "--weights", "w/model.safetensors.index.json", "--save",
                               "w/model-00001-of-00001.safetensors"), ["--weights"])):
        expect_short_error(session.call(*arguments, cwd=where), words)
    expect(before == {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}, "a file was changed")
    expect((where / "far.data").read_bytes() == whole, "the weights were replaced")


def expect_kept(session, where, commands):
    """Each command is refused with these words, and every file of the folder stays as it is."""
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    for arguments, words in commands:
        done = session.call(*arguments, cwd=where)
        expect(done.code in (1, 2), f"{arguments}: exit {done.code}\n{done.err}")
        expect_short_error(done, words, done.code)
        expect(before == {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}, f"{arguments} changed a file")


def folders(session):
    """Files in folders that are read or written: of a state, of weights in several files, of an evaluation's outputs."""
    known = FOLDERS | READ_FOLDERS | MEASURED
    for command, options in tables(session).items():
        others = {name for name, (syntax, _) in options.items() if "DIR" in syntax} - known
        expect(not others, f"{command}: say of {sorted(others)} what they read or write, and compare it with other files")
    where, rows = session.folder(), 8
    graph = model([node("MatMul", ["x", "w"], ["y"], "product"), node("ReduceMean", ["y"], ["loss"], "last", keepdims=0)],
                  [value("x", FLOAT, ["N", 4])], [value("loss", FLOAT, []), value("y", FLOAT, ["N", 3])], [weight("w", [4, 3], range(12))])
    (where / "m.onnx").write_bytes(graph)
    write_npy(where / "x.npy", "<f4", (rows, 4), bytes(16 * rows))
    session.succeed("sheaf", "compile", "m.onnx", "-o", "m.plan", "--batch", 4, "--eval", "--optimizer", "sgd:lr=0.1", cwd=where)
    run = ("sheaf-run", "m.plan", "--data", "x=x.npy", "--steps", 2)
    (where / "w").mkdir()
    session.succeed(*run, "--save-state", "s", "--save", "w/model.safetensors.index.json", cwd=where)
    (where / "o").mkdir()
    (where / "o" / "y.npy").symlink_to("../x.npy")
    (where / "steps" / "step-00000002").mkdir(parents=True)
    (where / "steps" / "step-00000002" / "y.npy").symlink_to("../../w/model-00001-of-00001.safetensors")
    (where / "other").mkdir()
    (where / "other" / "y.npy").write_bytes((where / "x.npy").read_bytes())
    os.link(where / "other" / "y.npy", where / "l")
    evaluation = ("sheaf-run", "m.plan", "--eval", "--eval-data", "x=x.npy")
    state = "s/step-00000002/"
    expect_kept(session, where, (
        ((*evaluation, "--outputs", "o"), ["--outputs", "o/y.npy", "--eval-data", "which is read"]),
        ((*evaluation, "--outputs", "other", "--log", "l"), ["--outputs", "--log", "too"]),
        ((*run, "--weights", "w", "--eval-every", 2, "--eval-data", "x=x.npy", "--outputs", "steps"), ["--outputs", "--weights", "which is read"]),
        ((*run, "--weights", "w", "--log", "w/model.safetensors.index.json"), ["--log", "--weights", "which is read"]),
        ((*run, "--resume", "s", "--log", state + "manifest.json"), ["--log", "--resume", "which is read"]),
        ((*run, "--resume", "s", "--dump-gradients", state + "rank-00000.safetensors"), ["--dump-gradients", "--resume", "which is read"]),
        ((*run, "--save-state", "s", "--log", "s/latest"), ["--log", "--save-state"]),
        ((*run, "--save-state", "new/", "--log", "new/latest"), ["--log new/latest has the name of a file of --save-state new/"]),
        ((*run, "--save-state", "new/", "--save", "new"), ["--save new and --save-state new/ have the same path"]),
        ((*run, "--save-state", "both", "--save", "./both"), ["--save ./both and --save-state both have the same path"]),
        ((*run, "--save-state", "s", "--save", "s/step-00000007/rank-00000.safetensors"), ["--save", "--save-state"]),
        (("sheaf", "export", "m.plan", "--state", "s", "-o", state + "rank-00000.safetensors"), ["-o", "--state", "which is read"]),
        (("sheaf", "export", "m.plan", "--weights", "w", "-o", "w/model-00001-of-00001.safetensors"), ["-o", "--weights", "which is read"]),
        (("sheaf", "export", "m.plan", "--weights", "w", "--model", "m.onnx", "-o", "w/model.safetensors.index.json"), ["-o"])))


def tools(session):
    """Files that only the inputs name, and those that are written next to the output."""
    where = session.folder()
    external(where, "weight")
    (where / "p.json").write_bytes((ROOT / "passes" / "schedule" / "profiles" / "h100.json").read_bytes())
    (where / "q.plan.data").symlink_to("p.json")
    compiled(session, where, "--profile", where / "p.json")
    session.succeed("sheaf-run", "model.plan", "--data", "x=x.npy", "--steps", 1, "--save", "w", cwd=where)
    (where / "link.safetensors").symlink_to("far.data")
    (where / "out.onnx.data").symlink_to("w")
    expect_kept(session, where, (
        (("sheaf", "compile", "model.onnx", "-o", "q.plan", "--batch", 4, "--profile", "p.json"), ["q.plan", "--profile", "which is read"]),
        (("sheaf", "report", "model.plan", "--json", "-o", "p.json"), ["-o", "the plan's profile", "which is read"]),
        (("sheaf", "export", "model.plan", "--weights", "w", "--model", "model.onnx", "-o", "out.onnx"), ["--weights", "which is read"]),
        (("sheaf", "export", "model.plan", "--weights", "w", "-o", "link.safetensors"), ["-o link.safetensors", "initial weights"])))


WRONG = ("sheaf compile m -o m.onnx --batch 4", "sheaf compile m -o m.plan --compile-to train", "sheaf compile m -o m.ONNX",
         "sheaf compile m -o m.plan --compile-to train --format onnx", "sheaf assemble m -o p.onnx", "sheaf export m --weights w -o w.pt",
         "sheaf export m --weights w -o w.plan", "sheaf init m -o w.bin", "sheaf profile -o p.plan", "sheaf profile -o p.json --target cpu",
         "sheaf report m -o r.json", "sheaf report m --json -o r.html", "sheaf simulate m --profile h100 --trace t.html",
         "sheaf simulate m --profile h100 --trace t.json --format perfetto", "sheaf-run m --steps 1 --save w.pt", "sheaf-run m --steps 1 --save w.json",
         "sheaf-run m --steps 1 --save m.onnx.data", "sheaf-run m --steps 1 --log l.plan", "sheaf-run m --steps 1 --metrics-file m.json",
         "sheaf-run m --steps 1 --trace t.npy", "sheaf-run m --steps 1 --dump-gradients g.npz", "sheaf-run m --measure p.plan")
RIGHT = ("sheaf compile m -o m.PLAN --batch 4", "sheaf compile m -o m.best --batch 4", "sheaf-run m --steps 1 --save w.v1.2", "sheaf-run m --steps 1 --save w",
         "sheaf-run m --steps 1 --save w.safetensors.index.json", "sheaf-run m --steps 1 --log run.log", "sheaf-run m --steps 1 --tuned t.json")


def endings(session):
    """A name that says another format than the one that is written."""
    where = session.folder()
    (where / "m").write_text("")
    for command in WRONG:
        done = session.call(*command.split(), cwd=where)
        expect_short_error(done, ["another format", "give a name that ends in"], 2)
    for command in RIGHT:
        done = session.call(*command.split(), cwd=where)
        expect(done.code == 1 and "another format" not in done.err, f"{command}: exit {done.code}\n{done.err}")
    expect(sorted(os.listdir(where)) == ["m"], f"left behind: {os.listdir(where)}")
