"""What is installed besides the tools: man pages and completion for bash and zsh, as people use them; the Debian package."""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

from harness import MODELS, ROOT, Case, Skip, expect, for_processor, library_limits


def cases(session):
    yield Case("installing/man-pages", lambda: man_pages(session))
    yield Case("installing/bash", lambda: bash(session))
    yield Case("installing/zsh", lambda: zsh(session))
    yield Case("installing/prefix", lambda: prefix(session))
    yield Case("installing/debian", lambda: debian(session))


def shared(session):
    """The folder that man pages and completion are in."""
    def write():
        out = session.folder() / "share"
        done = subprocess.run([sys.executable, ROOT / "tools" / "manual.py", "--tools", session.tools, "--out", out],
                              capture_output=True, text=True)
        expect(done.returncode == 0, done.stderr)
        return out
    return session.once("manual", write)


def commands(session):
    overview = session.succeed("sheaf", "--help").out
    return re.findall(r"(?m)^  (\w+) +[A-Z]", overview[overview.index("\nCommands\n"):])


def options_of(session, *command):
    return re.findall(r"(?m)^\| `(--?[\w-]+)", session.succeed(*command, "--help=markdown").out)


def man_pages(session):
    """Each page is typeset without a warning, and has every option; the pages refer to pages that are there."""
    folder = shared(session) / "man" / "man1"
    pages = {"sheaf": (), "sheaf-run": options_of(session, "sheaf-run"),
             **{f"sheaf-{name}": options_of(session, "sheaf", name) for name in commands(session)}}
    expect({p.name for p in folder.iterdir()} == {f"{name}.1" for name in pages}, f"the pages are {sorted(folder.iterdir())}")
    for name, options in pages.items():
        done = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-P-c", "-rLL=100n", folder / f"{name}.1"], capture_output=True, text=True)
        expect(done.returncode == 0 and not done.stderr, f"{name}.1: {done.stderr}")
        text = re.sub(r".\x08", "", done.stdout)
        for part in ("NAME", "SYNOPSIS", "SEE ALSO"):
            expect(re.search(rf"(?m)^{part}$", text), f"{name}.1 has no {part}")
        expect(re.search(rf"(?m)^ +{name} +- +\w", text), f"{name}.1 does not say what it is")
        for option in options:
            expect(re.search(rf"(?m)^ +{option}( |$)", text), f"{name}.1 has no {option}:\n{text[:500]}")
        for other in re.findall(r"(?m)^\.BR (\S+) \(1\)", (folder / f"{name}.1").read_text()):
            expect(other.replace("\\-", "-") in pages, f"{name}.1 refers to {other}")


class Terminal:
    """A shell at a terminal, into which a person types."""

    def __init__(self, session, command, setup):
        self.where = session.folder()
        for name in ("model.onnx", "other.txt", "a.plan", "b.plan", "x.npy"):
            (self.where / name).write_text("")
        (self.where / "folder").mkdir()
        environment = {"PATH": f"{session.tools}:{os.environ['PATH']}", "HOME": str(self.where), "TERM": "dumb", "PS1": "$ ", "LC_ALL": "C"}
        pid, self.master = pty.fork()
        if pid == 0:
            os.chdir(self.where)
            os.execvpe(command[0], command, environment)
        self.pid, self.patience = pid, 10 * session.slowdown
        self.type(setup + "; echo rea''dy\n", "ready")

    def type(self, text, until):
        """What the terminal shows until a pattern occurs."""
        os.write(self.master, text.encode())
        shown, begin = "", time.monotonic()
        while not re.search(until, shown):
            left = self.patience - (time.monotonic() - begin)
            expect(left > 0 and select.select([self.master], [], [], left)[0], f"{text!r} shows {shown!r}, without {until!r}")
            shown += os.read(self.master, 65536).decode(errors="replace")
        return shown

    def completed(self, text, becomes):
        """A tab after the text makes another one of it."""
        self.type(text + "\t", re.escape(becomes))
        self.type("\x15\n", r"\$ ")

    def listed(self, text, words, without=()):
        """Two tabs after the text list these words."""
        shown = self.type(text + "\t\t", r"(?s)" + ".*".join(map(re.escape, sorted(words))))
        for word in without:
            expect(not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", shown.replace(text, "")), f"{text!r} offers {word}: {shown!r}")
        self.type("\x15\n", r"\$ ")

    def close(self):
        os.close(self.master)
        os.waitpid(self.pid, 0)


# What is typed, and what a tab makes of it; or what two tabs list, and what they do not.
COMPLETED = [("sheaf comp", "sheaf compile "), ("sheaf compile mo", "sheaf compile model.onnx"),
             ("sheaf compile --zer", "sheaf compile --zero"), ("sheaf compile --precision f3", "--precision f32"),
             ("sheaf inspect --format js", "--format json"), ("sheaf-run a.plan --data x=x.n", "x=x.npy"),
             ("sheaf-run a.plan --save-state fo", "--save-state folder"), ("sheaf-run a.plan --dev", "--device")]
LISTED = [("sheaf ", ("check", "compile", "simulate"), ()),
          ("sheaf compile --re", ("--recompute", "--reduce", "--reduce-order", "--reduce-precision"), ("--ranks", "--resume")),
          ("sheaf-run --re", ("--reduce-order", "--resume"), ("--recompute",)),
          ("sheaf inspect ", ("a.plan", "b.plan"), ("other.txt", "model.onnx"))]


def drive(terminal, completed, listed):
    try:
        for text, becomes in completed:
            terminal.completed(text, becomes)
        for text, words, without in listed:
            terminal.listed(text, words, without)
    finally:
        terminal.close()


def bash(session):
    folder = shared(session) / "bash-completion" / "completions"
    # A bell, or columns by the terminal's width, would differ from terminal to terminal.
    setup = f"bind 'set bell-style none' 'set completion-display-width 0' 2>/dev/null; . {folder}/sheaf; . {folder}/sheaf-run"
    words = [("sheaf compile --zero=", ("0", "1", "2", "3", "auto"), ()), ("sheaf compile model.onnx --recompute ", ("all", "auto", "none"), ())]
    drive(Terminal(session, ["bash", "--norc", "--noprofile", "-i"], setup), COMPLETED, LISTED + words)


def zsh(session):
    if not shutil.which("zsh"):
        raise Skip("Debian's package zsh has the shell")
    folder = shared(session) / "zsh" / "site-functions"
    setup = f"PS1='$ '; unsetopt zle_bracketed_paste list_beep beep; fpath=({folder} $fpath); autoload -U compinit; compinit -u -D"
    drive(Terminal(session, ["zsh", "-f", "-i"], setup), COMPLETED, LISTED)


def build_folder(session):
    cache = session.tools.parent / "CMakeCache.txt"
    if not cache.exists():
        raise Skip("the tools do not lie in a build folder")
    if re.search(r"^SHEAF_SANITIZE:\w+=.+$", cache.read_text(), re.MULTILINE):
        raise Skip("instrumented tools need their sanitizer's library")
    return cache.parent


def prefix(session):
    """`cmake --install` into a folder: the tools run from there, and everything is where systems look for it."""
    build, where = build_folder(session), session.folder()
    done = subprocess.run(["cmake", "--install", build, "--prefix", where / "usr"], capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)
    files = {str(p.relative_to(where / "usr")) for p in (where / "usr").rglob("*") if p.is_file()}
    for name in ("bin/sheaf", "bin/sheaf-run", "bin/sheaf-opt", "lib/libsheaf_cpu.so", "lib/libsheaf_measure.so", "lib/libsheaf_same.so", "share/man/man1/sheaf.1", "share/man/man1/sheaf-compile.1",
                 "share/man/man1/sheaf-run.1", "share/bash-completion/completions/sheaf", "share/zsh/site-functions/_sheaf-run",
                 "share/doc/sheaf/LICENSE"):
        expect(name in files, f"{name} is not installed; there are {sorted(files)}")
    trains(session, where / "usr" / "bin", where)


def trains(session, tools, where):
    """Compiles and trains with nothing in the environment that names the build."""
    environment = {"PATH": "/usr/bin:/bin", **library_limits()}
    compiling = ["compile", str(MODELS / "mlp.onnx"), "-o", str(where / "mlp.plan"), "--batch", "8", "--ranks", "2"]
    for command in ([tools / "sheaf", *for_processor(session.cpu, "sheaf", compiling)],
                    [tools / "sheaf-run", where / "mlp.plan", "--data", f"x={MODELS / 'mlp.x.npy'}", "--data",
                     f"labels={MODELS / 'mlp.labels.npy'}", "--steps", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        expect(done.returncode == 0, done.stderr)


def debian(session):
    """The package: its files, its declared dependencies, and that the tools in it run."""
    build, where = build_folder(session), session.folder()
    done = subprocess.run([sys.executable, ROOT / "tools" / "deb.py", "--build", build, "--out", where], capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout + done.stderr)
    package = next(where.glob("*.deb"))
    fields = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    for dependency in ("libllvm22", "libmlir-22", "libdnnl2", "libc6", "libstdc++6"):
        expect(re.search(rf"(?m)^Depends: .*\b{re.escape(dependency)}\b", fields), f"{dependency} is not declared:\n{fields}")
    expect("\nRecommends: libssl3\n" in fields, f"what SHEAF_SECRET loads is not recommended:\n{fields}")
    expect("libopenmpi" not in re.search(r"(?m)^Depends: .*$", fields)[0], f"MPI is loaded on demand, not needed:\n{fields}")
    subprocess.run(["dpkg-deb", "--extract", package, where / "root"], check=True)
    for name in ("share/man/man1/sheaf-compile.1.gz", "share/doc/sheaf/copyright", "share/zsh/vendor-completions/_sheaf",
                 "share/doc/sheaf/third-party/LLVM-and-MLIR.txt"):
        expect((where / "root" / "usr" / name).exists(), f"the package has no {name}")
    for name in ("cpu", "measure", "same"):
        expect((where / "root" / "usr" / "lib" / f"libsheaf_{name}.so").exists(), f"the package has no libsheaf_{name}.so")
    trains(session, where / "root" / "usr" / "bin", where)
