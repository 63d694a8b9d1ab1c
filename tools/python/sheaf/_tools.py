"""The tools that the package contains, and how they are called."""
from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings
from typing import Mapping, Sequence, Union

# What an option of a tool may be given as: True stands for a flag, False and None for none, a sequence for an option that
# is given several times, and a mapping for one that takes NAME=VALUE several times.
Scalar = Union[str, int, float, "os.PathLike[str]"]
Option = Union[None, bool, Scalar, Sequence[Scalar], Mapping[str, Scalar]]

# Options that are easily given as objects of PyTorch.
EXAMPLES = {"optimizer": '"adamw:lr=1e-3"', "loss": '"cross_entropy(logits)"', "lr_schedule": '"cosine:warmup=100"'}


class Error(RuntimeError):
    """A tool has refused or failed; the text is its own."""


class ToolWarning(UserWarning):
    """A warning of a tool; the text is its own."""


def tool(name: str) -> pathlib.Path:
    """The path of `sheaf` or `sheaf-run`: in the folder that SHEAF_TOOLS names, in the package, or on PATH."""
    folder = os.environ.get("SHEAF_TOOLS")
    inside = pathlib.Path(__file__).resolve().parent / "native" / "bin" / name
    if folder:
        path = pathlib.Path(folder) / name
        if not path.exists():
            raise Error(f"SHEAF_TOOLS is {folder}, which has no {name}")
        return path
    if inside.exists():
        return inside
    found = shutil.which(name)
    if not found:
        raise Error(f"{name} is neither in the package nor on PATH; install Sheaf's wheel, or set SHEAF_TOOLS to the folder of the tools")
    return pathlib.Path(found)


def error_of(text: str, name: str, code: int) -> Error:
    """The error that a tool has printed, without the tool's name; what else it has printed before is left out. Options that
    the tool does not know are named as Python's keyword arguments."""
    marker = f"{name}: error: "
    if marker in text:
        text = text[text.index(marker) + len(marker):]
    if text.startswith("unknown option --"):
        text = re.sub(r"(option|did you mean) --([a-z-]+)", lambda found: f"{found[1]} {found[2].replace('-', '_')}=", text)
    return Error(text.strip() or f"{name} ended with status {code}")


def warn_of(text: str, name: str) -> None:
    """Gives the warnings that a tool has printed to Python's, as of the user's own line."""
    marker = f"{name}: warning: "
    for line in text.splitlines():
        if line.startswith(marker):
            warn(line[len(marker):])


def warn(text: str) -> None:
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ToolWarning, stacklevel=level)


def call(name: str, *arguments: Union[str, "os.PathLike[str]"], answers_by_status: bool = False) -> str:
    """Runs a tool to its end and returns what it prints. Raises Error if it fails. answers_by_status: the exit status 1 is an
    answer, and no failure, if the tool has printed one."""
    command = [str(tool(name)), *(os.fspath(argument) for argument in arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode and not (answers_by_status and done.returncode == 1 and done.stdout):
        raise error_of(done.stderr, name, done.returncode)
    warn_of(done.stderr, name)
    return done.stdout


def path_of(path: Union[str, "os.PathLike[str]"]) -> str:
    """A path as an argument of a tool, which takes what begins with "-" for an option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def arguments_of(options: Mapping[str, Option]) -> list[str]:
    """Options of a tool from keyword arguments: lr_schedule="cosine" becomes --lr-schedule=cosine."""
    arguments: list[str] = []
    for key, value in options.items():
        name = "--" + key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(name)
        elif isinstance(value, Mapping):
            for part, one in value.items():
                arguments.append(f"{name}={part}={_text(one)}")
        elif isinstance(value, (str, int, float, os.PathLike)):
            arguments.append(f"{name}={_text(value)}")
        elif isinstance(value, Sequence):
            for one in value:
                arguments.append(f"{name}={_text(one)}")
        else:
            example = f", such as {EXAMPLES[key]}" if key in EXAMPLES else ""
            raise Error(f"{key}= takes text or numbers{example}, not a {type(value).__name__}")
    return arguments


def _text(value: Scalar) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def version() -> str:
    """The version of the package, which is that of the tools in it; "0" of a source tree."""
    try:
        return importlib.metadata.version("sheaf")
    except importlib.metadata.PackageNotFoundError:
        return "0"
