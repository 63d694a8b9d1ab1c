#!/usr/bin/env python3
"""The number of comments that open with one of WORDS may only fall: such an opening is not a sentence about the code below it.

    python3 test/structure/comments.py [FOLDER] [--write] [--list]

A comment is a block of lines, a comment after code or a docstring, in a C++, TableGen, MLIR, JavaScript, Python, CMake or shell file.
Case does not matter. The count is compared with the number in test/structure/comments.txt; --write puts the count there if it is
lower, --list prints all places.
"""
import argparse
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

WORDS = "Of|What|Whether|Who|Where|Which|How"
NUMBER = "test/structure/comments.txt"
SLASHES, HASHES = (".cpp", ".h", ".cu", ".c", ".td", ".inc", ".fbs", ".proto", ".mlir", ".js"), (".cmake", ".sh", "CMakeLists.txt", "Makefile")
NOT_OURS = ("frontend/onnx/schema/",)
# Strings are matched so that no comment begins in them.
C_TOKEN = re.compile(r'R"(?P<end>[^()\s"]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.[^\'\n]*|[^\'\\\n])\'|//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/', re.DOTALL)
HASH_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\'\n]*\'|(?:^|(?<=\s))#(?P<line>[^\n]*)', re.MULTILINE | re.DOTALL)
OPENING = re.compile(rf"[\s/!<#*]*(?:{WORDS})\b", re.IGNORECASE)


def tokens(text, pattern):
    """(line, column, text) of each comment; line 1 is the first."""
    for found in pattern.finditer(text):
        if found.lastgroup in ("line", "block"):
            begin = found.start()
            said = found[found.lastgroup].strip().split("\n")[0]
            yield text.count("\n", 0, begin) + 1, begin - text.rfind("\n", 0, begin) - 1, said


def python_tokens(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield *token.start, token.string[1:]


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (said := ast.get_docstring(node)):
            yield node.body[0].lineno, said.split("\n")[0]


def openings(name, text):
    """(line, text) of each comment's first line."""
    if name.endswith(".py"):
        found = list(python_tokens(text))
        yield from docstrings(text)
    else:
        found = list(tokens(text, C_TOKEN if name.endswith(SLASHES) else HASH_TOKEN))
    lines, before = text.split("\n"), None
    for line, column, said in found:
        # A comment alone in its line continues one that begins in the same column of the line before.
        if (line - 1, column) != before or lines[line - 1][:column].strip():
            yield line, said.strip()
        before = line, column


def counted(root):
    """["file:line: comment"] of all comments that open with one of the words."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    places = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if name.endswith((*SLASHES, *HASHES, ".py")) and not name.startswith(NOT_OURS) and path.is_file():
            places += [f"{name}:{line}: {said}" for line, said in openings(name, path.read_text()) if OPENING.match(said)]
    return places


def new_places(root, places):
    """Those in lines that were added after the number was last changed, as far as git knows."""
    def git(*arguments):
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True).stdout

    base = git("log", "-1", "--format=%H", "--", NUMBER).strip()
    added, name = set(), None
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", base).split("\n") if base else ():
        if line.startswith("+++ "):
            name = line[6:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            added |= {f"{name}:{int(hunk[1]) + i}" for i in range(int(hunk[2] or 1))}
    return [place for place in places if ":".join(place.split(":", 2)[:2]) in added]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    places, number = counted(args.folder), args.folder / NUMBER
    allowed = int(number.read_text())
    if args.list:
        print("\n".join(places))
    if len(places) > allowed:
        new = new_places(args.folder, places)
        print(f"{len(places)} comments open with {WORDS.replace('|', ', ')}; at most {allowed} may. Write a sentence with a subject and a verb.")
        print("\n".join(new) if new else f"Git does not know which are new; `{sys.argv[0]} --list` prints all.")
        return 1
    if len(places) < allowed:
        if args.write:
            number.write_text(f"{len(places)}\n")
            return 0
        print(f"Only {len(places)} comments open with {WORDS.replace('|', ', ')}: lower the number in {NUMBER} from {allowed} to {len(places)}.")
        return 1
    print(f"{len(places)} comments to rewrite, none of them new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
