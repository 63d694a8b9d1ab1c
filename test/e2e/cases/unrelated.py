"""Other programs, other users and files cannot end a job without a message, and cannot control a terminal."""
import array
import os
import pathlib
import re
import resource
import socket
import struct
import subprocess
import threading
import time

from formats import Tensor, write_npy, write_safetensors
from harness import Case, digest, expect
from jobs import Job, common, plan, running, variables, whole
from onnxwriter import FLOAT, INT64, model, node, value, weight

SECRET = "what all know, at length"
# Everything that a terminal may take for a command, but for line ends and tabs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e]")
EVIL = "\x1b]0;owned\x07\x9b2J\u202e"
# A line that a tool could print itself.
FORGED = "sheaf: error: forged"
# EVIL as it is shown, in text and in JSON.
SHOWN, ESCAPED = r"\x1b]0;owned\x07\xc2\x9b2J\xe2\x80\xae", r"\u001b]0;owned\u0007\u009b2J\u202e"


def cases(session):
    yield Case("unrelated/first-process-fails", lambda: first_process_fails(session))
    yield Case("unrelated/few-descriptors", lambda: few_descriptors(session))
    yield Case("unrelated/refusal-is-shown", lambda: refusal_is_shown(session))
    yield Case("unrelated/names-are-shown", lambda: names_are_shown(session))
    yield Case("unrelated/libcrypto", lambda: libcrypto(session))
    yield Case("unrelated/no-libcrypto", lambda: no_libcrypto(session))


def first_process_fails(session):
    """An error of process 0 right after all have joined is that of all, at once."""
    right = plan(session)
    for _ in range(5):
        with Job(session, 4, *common(), own=[["missing.plan"], [right], [right], [right]], environment={"SHEAF_TIMEOUT": 60}) as job:
            codes = job.wait(seconds=20)
            expect(codes == [1] * 4, f"exits {codes}")
            for rank, process in enumerate(job.processes):
                expect("missing.plan" in process.error_text() and (rank == 0 or "process 0 (" in process.error_text()), process.error_text())


def few_descriptors(session):
    """A process that may open so few files that it cannot join or share memory says so; nothing spins."""
    for descriptors in (7, 8, 10):
        command = [session.tools / "sheaf-run", plan(session), *common(2)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for rank in range(2):
            given = {k: str(v) for k, v in {**variables("torchrun", rank, 2, port), "SHEAF_TIMEOUT": 1}.items()}
            processes.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                              env={**os.environ, **given},
                                              preexec_fn=lambda n=descriptors: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))))
        try:
            for process in processes:
                error = process.communicate(timeout=20 * session.slowdown)[1].decode()
                expect(process.returncode == 0 or process.returncode in (1, 127) and "error" in error,
                       f"exit {process.returncode} with {descriptors} descriptors: {error}")
        finally:
            for process in processes:
                process.kill()
                process.wait()


def refusal_is_shown(session):
    """Anything that listens at the address can refuse a process, in words of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def refuse():
        with listener.accept()[0] as connection:
            connection.recv(1 << 16)
            words = (EVIL + "\nsheaf-run: done").encode() + b"\xff"
            connection.sendall(struct.pack("<4I", 0x31464853, 2, 0, len(words)) + words)
            connection.recv(1)

    answering = threading.Thread(target=refuse, daemon=True)
    answering.start()
    environment = {k: str(v) for k, v in {**variables("torchrun", 1, 2, port), "SHEAF_TIMEOUT": 10}.items()}
    done = session.call("sheaf-run", plan(session), *common(1), env={**os.environ, **environment})
    answering.join()
    expect(done.code == 1 and not CONTROL.search(done.err), ascii(done.err))
    expect(rf"refuses process 1: {SHOWN}\x0asheaf-run: done\xff" in done.err, ascii(done.err))


def names_are_shown(session):
    """Names of a model, in everything that the commands print; of a plan's data and weights, in errors."""
    where = session.folder()
    evil = EVIL + "\n" + FORGED + "\n"
    x, labels, w = "x" + evil, "labels" + evil, "w" + evil
    nodes = [node("MatMul", [x, w], ["h"], "first" + evil), node("Softplus", ["h"], ["y" + evil], "second"),
             node("SoftmaxCrossEntropyLoss", ["y" + evil, labels], ["loss"], "third")]
    bytes_of = lambda graph: model(graph, [value(x, FLOAT, ["N", 4]), value(labels, INT64, ["N"])], [value("loss", FLOAT, [])],
                                   [weight(w, [4, 3], [0.1 * i for i in range(12)])])
    (where / "m.onnx").write_bytes(bytes_of(nodes))
    (where / "bad.onnx").write_bytes(bytes_of([node("No" + evil, [x, w], ["h"], "first" + evil), *nodes[1:]]))
    write_npy(where / "x.npy", "<f4", (8, 4), bytes(128))
    write_npy(where / "labels.npy", "<i8", (8,), bytes(64))
    data = ("--data", f"{x}={where / 'x.npy'}", "--data", f"{labels}={where / 'labels.npy'}", "--steps", 1)
    write_safetensors(where / "other.safetensors", {"other" + evil: Tensor("F32", (4, 3), array.array("f", [0.0] * 12))})
    run = ("sheaf-run", where / "m.plan", *data)
    commands = {
        "check": (0, ("sheaf", "check", where / "m.onnx", "--batch", 8)),
        "compile": (0, ("sheaf", "compile", where / "m.onnx", "-o", where / "m.plan", "--batch", 8, "--ranks", 2, "--verbose")),
        "compile-bad": (1, ("sheaf", "compile", where / "bad.onnx", "-o", where / "bad.plan", "--batch", 8)),
        "check-bad": (1, ("sheaf", "check", where / "bad.onnx", "--batch", 8)),
        "freeze": (1, ("sheaf", "compile", where / "m.onnx", "-o", where / "f.plan", "--batch", 8, "--freeze", w)),
        "text": (0, ("sheaf", "inspect", where / "m.plan", "--format", "text")),
        "json": (0, ("sheaf", "inspect", where / "m.plan", "--format", "json")),
        "summary": (0, ("sheaf", "inspect", where / "m.plan")),
        "fit": (0, ("sheaf", "fit", where / "m.onnx", "--batch", 8, "--ranks", 2, "--memory", "1GiB")),
        "simulate": (0, ("sheaf", "simulate", where / "m.plan", "--profile", "cpu")),
        "simulate-json": (0, ("sheaf", "simulate", where / "m.plan", "--profile", "cpu", "--json")),
        "report": (0, ("sheaf", "report", where / "m.plan", "-o", where / "r.html")),
        "init": (0, ("sheaf", "init", where / "m.plan", "-o", where / "i.safetensors")),
        "compile-other": (0, ("sheaf", "compile", where / "m.onnx", "-o", where / "n.plan", "--batch", 8, "--ranks", 2, "--zero", 3, "--optimizer", "sgd:lr=1")),
        "same": (1, ("sheaf", "same", where / "m.plan", where / "n.plan")),
        "diff": (0, ("sheaf", "diff", where / "m.plan", where / "n.plan")),
        "onnx": (0, ("sheaf", "compile", where / "m.onnx", "--batch", 8, "--compile-to", "import", "-o", where / "import.mlir")),
        "coverage": (0, ("sheaf", "operators", "--coverage", where)),
        "try": (0, ("sheaf", "check", where / "m.onnx", "--batch", 8, "--ranks", 2, "--try")),
        "check-json": (0, ("sheaf", "check", where / "m.onnx", "--batch", 8, "--json")),
        "no-such-loss": (1, ("sheaf", "compile", where / "m.onnx", "-o", where / "l.plan", "--batch", 8, "--loss", "mse(y)")),
        "no-such-group": (1, ("sheaf", "compile", where / "m.onnx", "-o", where / "l.plan", "--batch", 8, "--group", "nothing:lr=0.1")),
        "verify": (0, ("sheaf", "verify", where / "m.plan")),
        "no-such-option": (2, ("sheaf", "verify", where / "m.plan", "--no" + EVIL)),
        "no-such-file": (1, ("sheaf", "inspect", where / EVIL)),
        "no-data": (1, (*run[:2], "--steps", 1)),
        "run": (0, (*run, "--save", where / "w.safetensors")),
        "run-verbose": (0, (*run, "--log", where / "run.jsonl", "--trace", where / "trace.json", "--dump-gradients", where / "g.safetensors")),
        "measured": (0, ("sheaf", "report", where / "m.plan", "-o", where / "r.html", "--measured", where / "trace.json")),
        "no-rows": (1, (*run[:2], "--data", f"{x}={where / 'labels.npy'}", *data[2:])),
        "other-weights": (1, (*run, "--weights", where / "other.safetensors")),
        "no-such-plan": (1, ("sheaf-run", where / EVIL, *data)),
        "export": (0, ("sheaf", "export", where / "m.plan", "--weights", where / "w.safetensors", "--model", where / "m.onnx", "-o", where / "t.onnx")),
        "export-other": (1, ("sheaf", "export", where / "m.plan", "--weights", where / "other.safetensors", "--model", where / "m.onnx", "-o", where / "t2.onnx")),
    }
    named, raw = set(), {}
    for name, (code, command) in commands.items():
        done = session.call(*command)
        expect(done.code == code, f"{name}: exit {done.code}\n{ascii(done.err)}")
        expect(not CONTROL.search(done.out + done.err), f"{name} prints {ascii(done.out + done.err)}")
        if any(line.startswith(FORGED) for line in (done.out + done.err).splitlines()):
            raw[name] = ascii(done.out + done.err)
        named |= {name} if SHOWN in done.out + done.err or ESCAPED in done.out else set()
    expect(not raw, f"{', '.join(raw)} print a line of a name's: {raw}")
    # The others name no name of the model, or, as text, in MLIR's way.
    expect(named >= {"compile-bad", "check-bad", "no-such-option", "no-such-file", "no-data", "other-weights", "no-such-plan"}, f"only {named} name it")


def mapped(process):
    try:
        return "libcrypto" in pathlib.Path(f"/proc/{process.popen.pid}/maps").read_text()
    except OSError:
        return False


def libcrypto(session):
    """It is loaded only where there is a secret, whose job has the bits of any other."""
    for secret in (None, SECRET):
        where, expected = session.folder(), whole(session)
        with Job(session, 2, plan(session), *common(), "--save", where / "w", environment={"SHEAF_SECRET": secret} if secret else None) as job:
            job.succeed()
        expect(digest(where / "w") == digest(expected.weights), "other weights")
        log = where / "log"
        with Job(session, 2, plan(session), *common(100000), "--log", log, environment={"SHEAF_SECRET": secret} if secret else None) as job:
            job.until(running(log))
            for process in job.processes:
                expect(mapped(process) == bool(secret), f"libcrypto is {'not ' if secret else ''}mapped")


def no_libcrypto(session):
    """A library of that name that is none stands for a system that lacks it."""
    where = session.folder()
    (where / "libcrypto.so.3").write_bytes(b"")
    folder = {"LD_LIBRARY_PATH": str(where)}
    with Job(session, 2, plan(session), *common(1), environment={"SHEAF_SECRET": SECRET, "SHEAF_TIMEOUT": 5, **folder}) as job:
        begin = time.monotonic()
        codes = job.wait(seconds=20)
        expect(codes == [1, 1] and time.monotonic() - begin < 4 * session.slowdown, f"exits {codes}")
        for process in job.processes:
            text = process.error_text()
            expect("libssl3" in text and len(text.splitlines()) == 1, text)
    session.succeed("sheaf-run", plan(session), *common(1), env={**os.environ, "SHEAF_SECRET": SECRET, **folder})
