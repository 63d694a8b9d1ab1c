#!/usr/bin/env python3
"""Each program and library that ships links the components that test/structure/linked.txt lists for it, and no others.

    python3 test/structure/linked.py BUILD [LIST]

A component is a static library. The linker takes objects from it one by one, where something refers to them: CMake's lists
do not tell which. The linker's maps (BUILD/maps) do, each with the reference that asked for it.
"""
import pathlib
import re
import sys

# Archives of the compiler and the C library are left out.
NOT_OURS = ("gcc", "gcc_eh", "c_nonshared")
MEMBER = re.compile(r"^(\S+\.a)\((\S+?)\)\s+(\S.*)$", re.MULTILINE)


def listed(path):
    """{file: (whether it may be missing, {component: its objects, or None for any})}."""
    files = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, components = line.partition(":")
        files[name.rstrip("?")] = (name.endswith("?"),
                                   {m[1]: set(m[2].split()) if m[2] else None for m in re.finditer(r"([\w-]+)(?:\(([^)]*)\))?", components)})
    return files


def component_of(archive):
    return pathlib.PurePath(archive).name.removeprefix("lib").removesuffix(".a")


def linked(path):
    """{component: {object: the reference that asked for it}}, by the linker's map."""
    text = path.read_text(errors="replace")
    begin = text.find("Archive member included")
    if begin < 0:
        sys.exit(f"{path}: not a map of GNU ld: it has no list of archive members")
    end = re.search(r"^(Merging program properties|As-needed library|Discarded input|Memory Configuration)", text[begin:], re.MULTILINE)
    components = {}
    for archive, member, why in MEMBER.findall(text[begin:begin + end.start() if end else None]):
        if component_of(archive) not in NOT_OURS:
            components.setdefault(component_of(archive), {})[re.sub(r"(\.cpp|\.cc)?\.o$", "", member)] = why
    return components


def short(why):
    """"SheafExec(Run.cpp.o) (sheaf::plan::summarize(...))" of a reference with its whole path."""
    return re.sub(r"^\S*?([^/\s]+)\.a\(", lambda m: f"{component_of(m[1])}(", why)


def complaints(name, objects, expected, source):
    for component, members in sorted(objects.items()):
        if component not in expected:
            # The object that something outside of the component has asked for.
            outside = [m for m, why in members.items() if component_of(why.partition("(")[0]) != component]
            member = (outside or list(members))[0]
            yield f"{name} links {component}, which {source} does not list: {member}, for {short(members[member])}"
        elif expected[component] is not None:
            for member in sorted(members.keys() - expected[component]):
                yield f"{name} links {member} of {component}, which {source} does not list: for {short(members[member])}"
            for member in sorted(expected[component] - members.keys()):
                yield f"{name} does not link {member} of {component}: remove it from {source}"
    for component in sorted(expected.keys() - objects.keys()):
        yield f"{name} links nothing of {component}: remove it from {source}"


def main():
    build = pathlib.Path(sys.argv[1])
    source = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).with_name("linked.txt")
    files, bad, count = listed(source), [], 0
    maps = {path.name.removesuffix(".map"): path for path in (build / "maps").glob("*.map")}
    for name in sorted(maps.keys() | files.keys()):
        if name not in files:
            bad.append(f"{name} has no line in {source.name}")
        elif name in maps:
            count += 1
            bad += complaints(name, linked(maps[name]), files[name][1], source.name)
        elif not files[name][0]:
            bad.append(f"{name} has no map in {build / 'maps'}: build it")
    print("\n".join(bad) if bad else f"{count} files link the components that {source.name} lists")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
