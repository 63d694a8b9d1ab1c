"""Files that a command would replace, or whose names say another format than the one that is written."""
import os
import re
import shlex

from cases.cut_files import compiled, external
from harness import Case, expect, expect_short_error
from onnxwriter import linear


def cases(session):
    for command in OUTPUTS:
        yield Case(f"output-files/replaced/{command.replace(' ', '-')}", lambda c=command: replaced(session, c))
    yield Case("output-files/links", lambda: links(session))
    yield Case("output-files/model", lambda: model_files(session))
    yield Case("output-files/run", lambda: run_files(session))
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
              if syntax and re.match(r"(Also )?(Write|File (for|to write)|Keep a file)", text)} - FOLDERS
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
