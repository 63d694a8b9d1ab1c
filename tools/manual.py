#!/usr/bin/env python3
"""Writes man pages and completion for bash and zsh, which the tools print themselves, into folders as below /usr/share.

    python3 tools/manual.py --tools build/release/bin --out /usr/local/share
"""
import argparse
import pathlib
import re
import subprocess


def printed(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def write_all(tools, out):
    """Returns the files."""
    sheaf, run = tools / "sheaf", tools / "sheaf-run"
    overview = printed(sheaf, "--help")
    commands = re.findall(r"(?m)^  (\w+) +[A-Z]", overview[overview.index("\nCommands\n"):])
    files = {"man/man1/sheaf.1": (sheaf, "--help=man"), "man/man1/sheaf-run.1": (run, "--help=man"),
             "bash-completion/completions/sheaf": (sheaf, "--help=bash"),
             "bash-completion/completions/sheaf-run": (run, "--help=bash"),
             "zsh/site-functions/_sheaf": (sheaf, "--help=zsh"), "zsh/site-functions/_sheaf-run": (run, "--help=zsh")}
    for command in commands:
        files[f"man/man1/sheaf-{command}.1"] = (sheaf, command, "--help=man")
    for name, command in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(printed(*command))
    return [out / name for name in files]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    write_all(args.tools, args.out)


if __name__ == "__main__":
    main()
