#!/usr/bin/env python3
"""Every include between components is one that docs/architecture.md allows.

    python3 test/structure/includes.py [FOLDER]

The table "Which component may include which" has a row for each component: the component, what it is for, the components it may include. A file
belongs to the component with the longest name that its path begins with. Tests may include anything.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
PAGE = "docs/architecture.md"
INCLUDE = re.compile(r'^\s*(?:#\s*include|include)\s+"([^"]+)"', re.MULTILINE)
SOURCES = ("*.cpp", "*.h", "*.cu", "*.td", "*.in")


def allowed():
    """The table: component -> components that it may include."""
    table = {}
    for line in (ROOT / PAGE).read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"`[\w/-]+`", cells[0]):
            table[cells[0].strip("`")] = set(re.findall(r"`([\w/-]+)`", cells[2]))
    return table


def component_of(path, components):
    return max((c for c in components if path.startswith(c + "/")), key=len, default=None)


def main():
    table = allowed()
    if not table:
        sys.exit(f"{PAGE} has no table of components")
    wrong = [f"{PAGE}: component '{component}' may include '{other}', which is not a component of the table"
             for component, others in table.items() for other in others if other not in table]
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", *SOURCES], capture_output=True, text=True, check=True).stdout
    count = 0
    for name in filter(None, listed.split("\0")):
        if name.startswith("test/") or not (ROOT / name).exists():
            continue
        component = component_of(name, table)
        if component is None:
            wrong.append(f"{name}: no component of {PAGE} has this file")
            continue
        for included in INCLUDE.findall((ROOT / name).read_text()):
            if not (ROOT / included).exists() and "/" not in included:
                continue  # a generated or a library's header
            other = component_of(included, table)
            if other is None and not (ROOT / included).exists():
                continue  # a library's header, such as llvm/...
            count += 1
            if other != component and other not in table[component]:
                wrong.append(f"{name}: includes {included}, but {PAGE} does not allow {component} to include {other}")
    # Two components that include each other, directly or not, cannot be understood one at a time.
    for component in table:
        seen, todo = set(), list(table[component])
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += table.get(other, ())
        if component in seen:
            wrong.append(f"{PAGE}: component '{component}' may include itself through others")
    if not count:
        wrong.append("no include was found; is this the project's folder?")
    print("\n".join(wrong) or f"{count} includes, all allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
