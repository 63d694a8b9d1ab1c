"""Commands at a terminal and without one: their output is compared with test/e2e/terminal.txt: numbers and times are masked, and the chart of the loss is left out.

    python3 test/e2e/run.py --tools build/release/bin --only '^terminal/' with SHEAF_WRITE_TERMINAL=1 writes the file again. `watching/terminal` tests
the chart.
"""
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios

from harness import MODELS, ROOT, Case, expect

TRANSCRIPTS = ROOT / "test" / "e2e" / "terminal.txt"
COLUMNS = 110
DATA = ["--data", "x=x.npy", "--data", "labels=labels.npy"]
COMPILE = ["sheaf", "compile", "mlp.onnx", "-o", "m.plan", "--ranks", "2", "--zero", "3", "--batch", "16"]
RUN = ["sheaf-run", "m.plan", *DATA]
LONG = "long.jsonl"
# These commands run one after the other in one folder. True: Ctrl-C is typed as soon as the log has a step.
STEPS = [
    (COMPILE, False),
    ([*COMPILE, "--quiet"], False),
    (["sheaf", "report", "m.plan", "-o", "m.html"], False),
    ([*RUN, "--steps", "60", "--save", "w.safetensors", "--save-state", "state", "--log", "run.jsonl"], False),
    (["sheaf", "export", "m.plan", "--weights", "w.safetensors", "--model", "mlp.onnx", "-o", "trained.onnx"], False),
    ([*RUN, "--steps", "100000000", "--resume", "state", "--save-state", "state", "--log", LONG], True),
    ([*RUN, "--steps", "60", "--quiet", "--save", "w.safetensors"], False),
    ([*RUN, "--steps", "60", "--data", "x=x.npy"], False),
]


def cases(session):
    yield Case("terminal/shown", lambda: compared(session, True))
    yield Case("terminal/without-one", lambda: compared(session, False))
    yield Case("terminal/quiet", lambda: quiet(session))


def quiet(session):
    """With --quiet nothing is on stderr, and stdout is what it is without."""
    where = session.folder()
    copy_files(where)
    model, plan, data = where / "mlp.onnx", where / "m.plan", ["--data", f"x={where / 'x.npy'}", "--data", f"labels={where / 'labels.npy'}"]
    commands = [
        ["sheaf", "compile", model, "-o", plan, "--ranks", 2, "--batch", 16],
        ["sheaf", "compile", model, "-o", where / "m.mlir", "--batch", 16, "--compile-to", "train"],
        ["sheaf", "compile", model, "-o", "-", "--batch", 16, "--compile-to", "train"],
        ["sheaf", "report", plan, "-o", where / "m.html"],
        ["sheaf", "inspect", plan, "--format", "text"],
        ["sheaf", "inspect", plan, "--format", "json"],
        ["sheaf", "simulate", plan, "--profile", "h100", "--json"],
        ["sheaf", "fit", model, "--ranks", 2, "--memory", "1GiB", "--json"],
        ["sheaf", "check", model, "--batch", 16, "--json"],
        ["sheaf", "init", plan, "-o", where / "initial.safetensors"],
        ["sheaf", "profile", "-o", where / "probe.plan", "--target", "cpu"],
        ["sheaf", "verify", plan],
        ["sheaf-run", plan, *data, "--steps", 2, "--save", where / "w.safetensors", "--save-state", where / "state", "--log", where / "run.jsonl"],
        ["sheaf", "export", plan, "--weights", where / "w.safetensors", "--model", model, "-o", where / "trained.onnx"],
    ]
    for command in commands:
        plain = session.succeed(*command)
        shutil.rmtree(where / "state", ignore_errors=True)
        silent = session.succeed(*command, "--quiet")
        expect(silent.err == "", f"{command[:2]} --quiet prints {silent.err!r}")
        expect(silent.out == plain.out, f"{command[:2]} prints {silent.out[:200]!r} with --quiet, {plain.out[:200]!r} without")
        writes = [word for word, before in zip(command[1:], command) if before in ("-o", "--save") and word != "-"]
        for path in writes:
            expect(f"{path} (" in plain.err and "wrote" in plain.err, f"{command[:2]} does not say that it wrote {path}: {plain.err!r}")


def copy_files(where):
    for name in ("mlp.onnx", "mlp.x.npy", "mlp.labels.npy"):
        shutil.copy(MODELS / name, where / name.replace("mlp.x", "x").replace("mlp.labels", "labels"))


def rendered(text):
    """The lines that stay on a terminal: what is after a carriage return replaces its line."""
    return "\n".join(line.rsplit("\r\033[K", 1)[-1].rstrip("\r") for line in text.replace("\r\n", "\n").split("\n"))


def masked(text):
    text = re.sub(r"  [▁-█]+", "", text)
    text = re.sub(r"\b\d[\d,.]*(e[-+]?\d+)?(?= (?:[num]?s)\b)", "#", text)
    text = re.sub(r"\b(?:\d+h\d+m|\d+m\d+s|\d+s)\b", "#s", text)
    text = re.sub(r"(?<![\w-])-?\d[\d,.]*(?:e[-+]?\d+)?(?![\w-])", "#", text)
    text = re.sub(r"# [num]?s\b", "# s", text)
    text = re.sub(r"step-\d+", "step-#", text)
    return re.sub(r"# (?:[KMG]i)?B\b", "# B", text)


def printed(command, columns=0, environment=None, where=None, interrupts=None):
    """Runs a command at a terminal of so many columns, or into a pipe, and returns what it prints and its exit status.

    Ctrl-C is typed once interrupts() is true.
    """
    here, there = pty.openpty() if columns else os.pipe()
    if columns:
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=there, stderr=there, cwd=where,
                               env={**os.environ, **(environment or {})})
    os.close(there)
    text = b""
    while True:
        if interrupts and interrupts():
            process.send_signal(signal.SIGINT)
            interrupts = None
        if interrupts and not select.select([here], [], [], 0.02)[0]:
            continue
        try:
            piece = os.read(here, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(here)
    return text.decode(errors="replace"), process.wait()


def compared(session, terminal):
    where, found = session.folder(), ""
    copy_files(where)
    log = where / LONG
    for command, interrupt in STEPS:
        text, _ = printed([session.tools / command[0], *command[1:]], COLUMNS if terminal else 0, {"LC_ALL": "C.UTF-8"}, where,
                          (lambda: log.exists() and '"loss"' in log.read_text()) if interrupt else None)
        expect(terminal or "\r" not in text and "\033" not in text, f"there is no terminal, and it prints {text!r}")
        text = rendered(text)
        expect(all(len(line) < COLUMNS for line in text.split("\n")) or not terminal or "next:" in text or "--resume" in text, f"a line is wrapped:\n{text}")
        found += f"$ {' '.join(command)}\n{masked(text.replace(str(session.tools) + '/', ''))}"
    title = "# On a terminal" if terminal else "# Without a terminal"
    parts = TRANSCRIPTS.read_text().split("\n\n# ") if TRANSCRIPTS.exists() else []
    parts = {"# " + part.lstrip("# ").split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in parts}
    if os.environ.get("SHEAF_WRITE_TERMINAL"):
        parts[title] = found.strip()
        TRANSCRIPTS.write_text("\n\n".join(f"{name}\n{text}" for name, text in sorted(parts.items())) + "\n")
    expect(parts.get(title) == found.strip(), f"{title}: it prints\n{found}")
