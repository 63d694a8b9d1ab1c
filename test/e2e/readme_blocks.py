#!/usr/bin/env python3
"""Runs the code blocks of README.md in order, as a reader would, and prints the time of each command.

    python3 test/e2e/readme_blocks.py --repository PATH|URL --out FOLDER [--pytorch PYTHON]     # from `git clone` on: hours
    python3 test/e2e/readme_blocks.py --tools build/bin --out FOLDER [--pytorch PYTHON]         # with tools that are built

The info string of a block says what it needs: ```sh needs=CUDA-toolkit. A block that needs what is missing is skipped, with that reason.
All shell blocks are one session: a later one starts in the folder and with the variables that the one before has left. A Python block
continues the ones before it. Without PyTorch, test/models/readme.onnx and random data stand in for what the first of them leaves.
"""
import argparse
import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from formats import write_npy

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
# A block may need one of these: its language, and the form of each of its lines. So a block that could be run everywhere
# cannot be skipped by a wrong label.
NEEDS = {
    "nothing": ("sh", r".*"),
    "PyTorch": ("python", r".*"),
    "CUDA-toolkit": ("sh", r"sheaf compile .*--target \S*cuda:.*"),
    "cluster": ("sh", r"(srun|torchrun|mpirun) .*"),
    "Debian-12": ("sh", r"(git clone|cd|make) .*"),
}
OUTPUT = "text"  # the language of blocks that show something and are not typed
# With such a word a command begins.
TYPED = ("sheaf", "sheaf-run", "sheaf-opt", "make", "git", "python3?", "pip", "srun", "torchrun", "mpirun", "export", "cd", "mkdir", "sudo", "apt")
TRAINING_ROWS, TEST_ROWS, WIDTH, CLASSES = 4000, 1000, 64, 10


class WrongBlock(Exception):
    """README has a malformed code block."""


@dataclasses.dataclass(frozen=True)
class Block:
    name: str  # its language and its number among those of this language
    line: int
    language: str
    needs: str
    text: str


def lines_of_blocks(text):
    """[(number of its first line, info string, its text)] of each code block. Raises WrongBlock for one that is written in
    another way than between two lines of ```, so that no block is overlooked."""
    found, begin, info, inner = [], 0, "", []
    for number, line in enumerate(text.splitlines(), 1):
        if not begin and re.match(r"( {4}|\t)", line):
            raise WrongBlock(f"line {number}: a code block stands between lines of ```, not indented: {line}")
        if re.match(r"[ \t>]*~~~", line) or re.match(r"[ \t>]*````", line) or re.match(r"[ \t>]+```", line) or re.search(r"<(pre|code)\b", line):
            raise WrongBlock(f"line {number}: a code block begins and ends with ``` at the beginning of a line: {line}")
        if not line.startswith("```"):
            inner.append(line + "\n")
        elif not begin:
            begin, info, inner = number, line[3:].strip(), []
        elif line.strip() != "```":
            raise WrongBlock(f"line {begin}: this block has no end")
        else:
            found.append((begin, info, "".join(inner)))
            begin = 0
    if begin:
        raise WrongBlock(f"line {begin}: this block has no end")
    return found


def blocks(text):
    """The blocks that are typed. Raises WrongBlock for one that does not say what it needs, or says it wrongly."""
    found, counts = [], {}
    for line, info, inner in lines_of_blocks(text):
        language, _, said = info.partition(" ")
        if language == OUTPUT:
            if command := re.search(rf"(?m)^[ $>#]*({'|'.join(TYPED)})(?= |$).*", inner):
                raise WrongBlock(f"line {line}: a block of {OUTPUT} shows output; this is a command: {command[0]}")
            continue
        needs = re.fullmatch(r"needs=(\S+)", said.strip())
        if not needs or needs[1] not in NEEDS:
            raise WrongBlock(f"line {line}: a block must say what it needs, as in ```sh needs=nothing, one of {', '.join(NEEDS)}; "
                             f"it says '{info}'")
        expected, pattern = NEEDS[needs[1]]
        if language != expected:
            raise WrongBlock(f"line {line}: a block of {language} cannot need {needs[1]}, which is for {expected}")
        counts[language] = counts.get(language, 0) + 1
        block = Block(f"{language}-{counts[language]}", line, language, needs[1], inner)
        if language == "sh":
            check_commands(block, pattern)
        found.append(block)
    check_targets(text)
    return found


def commands(block):
    """Without comments; continued lines are joined."""
    joined = block.text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def check_commands(block, pattern):
    for command in commands(block):
        # `set -e` would not see the failure of such a part.
        if re.search(r"&&|\|\||;|&\s*$|<\(|^!|^(if|while|until|for|case)\b", command):
            raise WrongBlock(f"line {block.line}: a command stands on a line of its own, so that its failure is seen: {command}")
        # This ends the shell before its last command, changes what it does about failures, or is a command in another one.
        if re.search(r"^(exit|exec|set|trap|return|eval|shopt|kill|alias|function)\b|^[({]|\(\)|\$\(|`|<<", command):
            raise WrongBlock(f"line {block.line}: a failure could be hidden by this: {command}")
        if not re.fullmatch(pattern, command):
            raise WrongBlock(f"line {block.line}: this does not need {block.needs}: {command}")


def check_targets(text):
    """Each `make TARGET` of the text, in a block that is skipped or between backquotes, is a target of the Makefile."""
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text()))
    for said in re.findall(r"(?m)(?:^|`)make ([^`#\n]*)", text):
        unknown = [word for word in said.split() if not re.match(r"-|\w+=", word) and word not in targets]
        if unknown:
            raise WrongBlock(f"`make {said.strip()}`: the Makefile has no target {unknown[0]}")


def prose(text):
    """The sentences of the text, headings among them; code blocks, tables and images are left out."""
    text = re.sub(r"^[ >]*```.*?^[ >]*```[ ]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", lambda code: re.sub(r"[.!?]", "", code[0]), text)
    paragraphs = [""]
    for line in text.splitlines():
        starts = re.match(r"\s*([-*#]|\d+\.)", line)
        if not line.strip() or line.startswith("|") or starts:
            paragraphs.append("")
        if not line.startswith("|"):
            paragraphs[-1] += " " + re.sub(r"^\s*([-*]|#+|\d+\.)\s", "", line)
        if line.startswith("#"):
            paragraphs.append("")
    sentences = [s.strip() for p in paragraphs for s in re.split(r"(?<=[.!?])[*_)\"]*\s+", p)]
    return [s for s in sentences if s]


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def stand_in(folder):
    """Writes the files of the first Python block: a model that it exported once, and data of the same form."""
    shutil.copy(ROOT / "test" / "models" / "readme.onnx", folder / "model.onnx")
    numbers = random.Random(1)
    for end, rows in (("", TRAINING_ROWS), ("-test", TEST_ROWS)):
        x = [[numbers.gauss(0, 1) for _ in range(WIDTH)] for _ in range(rows)]
        labels = [max(range(CLASSES), key=row.__getitem__) for row in x]
        write_npy(folder / f"x{end}.npy", "<f4", (rows, WIDTH), b"".join(struct.pack(f"<{WIDTH}f", *row) for row in x))
        write_npy(folder / f"labels{end}.npy", "<i8", (rows,), struct.pack(f"<{rows}q", *labels))


@dataclasses.dataclass
class Typed:
    code: int
    said: str
    seconds: float


class Session:
    """A shell in a folder, and a Python that continues the blocks before. package: folders of the Python package and of the tools
    that it calls."""

    def __init__(self, folder, python="", package=None, replace=None, timeout=None):
        self.state, self.python, self.replace, self.timeout = folder / ".session", python, replace or {}, timeout
        self.session, self.typed = "", 0
        # Without what another `make` has left, whose variables would count for README's, too.
        left = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTORCH")
        self.environment = {k: v for k, v in os.environ.items() if k not in left}
        if package:
            self.environment |= {"PYTHONPATH": str(package[0]), "SHEAF_TOOLS": str(package[1])}
        self.state.write_text(f"cd '{folder}'\n")

    def folder(self):
        """In which the next block is typed."""
        return pathlib.Path(re.search(r"(?m)^cd '(.*)'$", self.state.read_text())[1])

    def type(self, block):
        if block.language == "python":
            self.session += block.text
            return self.run([self.python, "-c", self.session])
        text = block.text
        for old, new in self.replace.items():
            text = text.replace(old, new)
        # The shell's last commands say that it came to its end.
        self.typed += 1
        end = f"# after block {self.typed}\n"
        keep = f"set +x\n{{ export -p; echo \"cd '$PWD'\"; echo '{end[:-1]}'; }} > '{self.state}.next'\nmv '{self.state}.next' '{self.state}'\n"
        done = self.run(["bash", "-euo", "pipefail", "-c", f". '{self.state}'\nset -x\n{text}\n{keep}"])
        if done.code == 0 and not self.state.read_text().endswith(end):
            return Typed(1, f"{done.said}\nthe shell ended before the end of the block", done.seconds)
        return done

    def run(self, command):
        begin = time.monotonic()
        # The process leads a group, so that what it has started can be ended with it.
        process = subprocess.Popen(command, cwd=self.folder(), env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            said, _ = process.communicate(timeout=self.timeout)
        except BaseException as e:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            return Typed(124, f"{said}\nno end after {e.timeout} s", time.monotonic() - begin)
        return Typed(process.returncode, said, time.monotonic() - begin)


def printed_by(said, command):
    """Returns the part of a block's output that a command printed: the lines after the one in which bash shows it."""
    match = re.search(rf"(?ms)^\+ {re.escape(command)}$\n(.*?)(?=^\+ |\Z)", said)
    return match[1] if match else ""


def main():
    sys.path.insert(0, str(ROOT / "test"))
    from skips import Machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--repository", help="what is cloned")
    where.add_argument("--tools", type=pathlib.Path, help="folder of sheaf and sheaf-run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="emptied first")
    parser.add_argument("--pytorch", default="", help="a Python that has torch, onnxscript and numpy")
    args = parser.parse_args()

    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tools = args.tools.resolve() if args.tools else out / "sheaf" / "build" / "bin"
    if args.tools:
        (out / "build").mkdir()
        (out / "build" / "bin").symlink_to(tools)
    missing = {"cluster": "a cluster"}
    if args.tools:
        missing["Debian-12"] = "a bare Debian 12: give --repository"
    if not args.pytorch:
        missing["PyTorch"] = "PyTorch: give --pytorch"
    # `make demo` does not install a toolkit, so that it is here now or not at all.
    if not Machine(out, False).has_ptxas():
        missing["CUDA-toolkit"] = "a CUDA toolkit from 12.8 on"
    session = Session(out, args.pytorch, (ROOT / "tools" / "python", tools), {"REPOSITORY": args.repository or ""})
    total = 0.0
    log = out / "typed.log"
    for block in blocks(README.read_text()):
        if block.needs in missing:
            print(f" skipped             README.md:{block.line}, {block.name}: needs {missing[block.needs]}", flush=True)
            if block.name == "python-1":
                stand_in(session.folder())
            continue
        # A shell's commands one by one, so that each has its time.
        for text in commands(block) if block.language == "sh" else [block.text]:
            typed = session.type(dataclasses.replace(block, text=text + "\n"))
            total += typed.seconds
            with open(log, "a") as file:
                file.write(f"{text}\n{typed.said}\n")
            what = " ".join(text.split()) if block.language == "sh" else f"README.md:{block.line}, {block.name}"
            print(f"{'passed' if typed.code == 0 else 'failed':>8} {typed.seconds:8.1f} s  {what}", flush=True)
            if typed.code:
                print(f"exit {typed.code}:\n{typed.said[-4000:]}")
                return 1
    print(f"README.md was typed in {total:.0f} s; {log} has what was printed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
