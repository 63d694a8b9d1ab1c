"""docs/tutorial.md and the commands of docs/from-fsdp.md, as they stand there, in a folder of their own: shell blocks one after the
other, with the exported model of test/models; and with a Python that has torch (SHEAF_PYTORCH) the export itself."""
import os
import re
import shutil
import subprocess

from cases.documented import free_port
from formats import read_log
from harness import MODELS, ROOT, Case, Skip, digest, expect

PAGES = ROOT / "docs"


def cases(session):
    yield Case("tutorial/commands", lambda: commands(session))
    yield Case("tutorial/sampled", lambda: sampled(session))
    yield Case("tutorial/export", lambda: export(session))
    yield Case("tutorial/python", lambda: python_page(session))
    yield Case("tutorial/from-fsdp", lambda: from_fsdp(session))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)


def run_blocks(session, where, page, changes):
    """What all shell blocks of a page print, in a folder with the model."""
    script = "".join(blocks(page, "sh"))
    for old, new in changes.items():
        expect(old in script, f"docs/{page} has no '{old}'")
        script = script.replace(old, new)
    done = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{session.on_path()}:{os.environ['PATH']}", "SHEAF": str(ROOT)})
    expect(done.returncode == 0, f"exit {done.returncode}:\n{done.stderr[-3000:]}\n{done.stdout[-1000:]}")
    return done.stdout


def sampled(session):
    """Text that ONNX Runtime draws from the trained model."""
    python = torch_python()
    if subprocess.run([python, "-c", "import onnxruntime"], capture_output=True).returncode:
        raise Skip("the Python of SHEAF_PYTORCH has no onnxruntime")
    where, _ = trained(session)
    done = subprocess.run([python, "-c", blocks("tutorial.md", "python")[1]], cwd=where, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    expect(done.stdout.startswith("ROMEO:") and len(done.stdout) > 200 and done.stdout.count(" ") > 20, f"it writes {done.stdout!r}")
    return done.stdout


def commands(session):
    return trained(session)[1]


def trained(session):
    """The folder in which the commands have run, and what the evaluations say."""
    return session.once("tutorial", lambda: run_commands(session))


def run_commands(session):
    if not shutil.which("mpirun.openmpi"):
        raise Skip("Debian's package openmpi-bin has the launcher")
    where = session.folder()
    shutil.copy(MODELS / "tutorial.onnx", where / "model.onnx")
    said = run_blocks(session, where, "tutorial.md", {"mpirun -np": "mpirun.openmpi -np", "127.0.0.1:29400": f"127.0.0.1:{free_port()}"})
    for line in "".join(blocks("tutorial.md", "text")).splitlines():
        expect(re.search(rf"(?m)^{re.escape(line)}$", said), f"the tutorial shows '{line}', but that is not printed:\n{said[:3000]}")
    steps, events = read_log(where / "run.jsonl")
    evaluations = [e["loss"] for e in events if e["event"] == "eval"]
    expect(len(steps) == 300 and len(evaluations) == 2, f"{len(steps)} steps, evaluations {evaluations}")
    # A byte of English takes less than 8 bits, ln 256 = 5.5; letters' frequencies alone give some 3.1.
    expect(steps[0]["loss"] > 5 and evaluations[1] < evaluations[0] < 3.1, f"the loss goes from {steps[0]['loss']} to {evaluations}")
    for name in ("trained.onnx", "outputs/logits.npy"):
        expect((where / name).exists(), f"there is no {name}")
    return where, f"evaluated: {evaluations}"


def torch_python():
    named = os.environ.get("SHEAF_PYTORCH")
    if not named:
        raise Skip("SHEAF_PYTORCH names no Python with torch")
    return named


def export(session):
    """The tutorial's export gives the model of the tests: the same names, and the same first steps."""
    where = session.folder()
    (where / "export.py").write_text(blocks("tutorial.md", "python")[0])
    done = subprocess.run([torch_python(), "export.py"], cwd=where, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    tokens = ROOT / "LICENSE"
    digests = []
    for model in (MODELS / "tutorial.onnx", where / "model.onnx"):
        session.succeed("sheaf", "compile", model, "-o", where / "p", "--batch", 4)
        session.succeed("sheaf-run", where / "p", "--data", f"input_ids,labels={tokens}:u8", "--steps", 2, "--save", where / "w")
        digests.append(digest(where / "w"))
    expect(digests[0] == digests[1], "the tutorial's export trains to other weights than test/models/tutorial.onnx")


def python_page(session):
    """The example of docs/python.md, with the package of the source tree and the tools under test."""
    where = session.folder()
    (where / "example.py").write_text(blocks("python.md", "python")[0])
    done = subprocess.run([torch_python(), "example.py"], cwd=where, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "tools" / "python"), "SHEAF_TOOLS": str(session.on_path())})
    expect(done.returncode == 0, done.stderr)
    losses = [float(loss) for step, loss in re.findall(r"(?m)^(\d+) ([\d.]+)$", done.stdout)]
    expect(len(losses) == 1000 and sum(losses[-50:]) < sum(losses[:50]) / 4, f"{len(losses)} losses, from {losses[0]} to {losses[-1]}")


def from_fsdp(session):
    """The commands that stand for FSDP2's loop."""
    where = session.folder()
    shutil.copy(MODELS / "tutorial.onnx", where / "model.onnx")
    shutil.copy(ROOT / "LICENSE", where / "train.u8")
    run_blocks(session, where, "from-fsdp.md", {})
    expect((where / "trained.safetensors").exists() and (where / "state" / "step-00000020").exists(), "nothing is saved")
    # The options of the table, with numbers for the letters.
    page = (PAGES / "from-fsdp.md").read_text()
    for options in ("--zero 3 --keep none", "--zero 3 --keep '.*'", "--ranks-per-node K --zero 3 --secondary-shards all",
                    "--ranks-per-node L --zero node=3,world=0", "--micro-batches M --reduce last", "--micro-batches M --reduce each",
                    "--precision f16 --loss-scale dynamic:init=...,interval=..."):
        expect(f"`{options}`" in page, f"the page does not have `{options}`")
        given = re.sub(r"\b[KLM]\b", "2", options).replace("init=...", "init=1024").replace("interval=...", "interval=10").replace("'", "")
        session.succeed("sheaf", "compile", where / "model.onnx", "-o", where / "p", "--ranks", 4, "--batch", 16, *given.split())
