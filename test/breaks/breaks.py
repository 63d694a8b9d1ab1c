#!/usr/bin/env python3
"""Breaks the code on purpose and sees the test that guards it fail. docs/testing.md explains it.

    python3 test/breaks/breaks.py check                                 # every patch applies and names a test that exists
    python3 test/breaks/breaks.py run --build build/release [NAME...]   # apply, build, see the test fail, take back
    python3 test/breaks/breaks.py sample --build build/release [--seed N] [--count N]   # draw tests to write patches for

A patch is a file NAME.patch: lines `guards: KIND TEST` and `breaks: what is wrong now`, then a unified diff. KIND is gtest
(TEST is BINARY SUITE.CASE), lit (a path below test/) or e2e (a case's name).
"""
import argparse
import filecmp
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIT = "/usr/lib/llvm-22/bin/lit"
TOOLS = ["sheaf", "sheaf-opt", "sheaf-run", "sheaf_cpu"]


class Patch:
    def __init__(self, path):
        self.path, self.name, text = path, path.stem, path.read_text()
        guards = re.search(r"^guards: (gtest|lit|e2e) (\S.*)$", text, re.MULTILINE)
        self.kind, self.test = guards.groups() if guards else (None, None)
        self.what = (re.search(r"^breaks: (.+)$", text, re.MULTILINE) or [None, ""])[1]
        self.files = re.findall(r"^\+\+\+ b/(\S+)$", text, re.MULTILINE)

    def apply(self, tree, *options):
        return subprocess.run(["git", "apply", *options, self.path], cwd=tree, capture_output=True, text=True)

    def targets(self):
        if self.kind == "gtest":
            # A test that loads the CPU's device library names it; building it besides costs little.
            return [self.test.split()[0], "sheaf_cpu"]
        return TOOLS

    def command(self, tree, build):
        if self.kind == "gtest":
            binary, case = self.test.split()
            return [build / "test" / "bin" / binary, f"--gtest_filter={case}"]
        if self.kind == "lit":
            return [LIT, "-q", build / "test", "--filter", re.escape(self.test)]
        return [sys.executable, tree / "test/e2e/run.py", "--tools", build / "bin", "--scratch", build / "e2e-breaks",
                "--jobs", "1", "--only", f"^{re.escape(self.test)}$"]


def ran(patch, output):
    """Whether the test was there to run."""
    if patch.kind == "gtest":
        return "[==========] 1 test from" in output or "[==========] Running 1 test" in output
    if patch.kind == "lit":
        return "did not match any tests" not in output and "No tests" not in output
    return re.search(r"end to end: (1 passed, 0 failed|0 passed, 1 failed)", output) is not None


def patches(names=()):
    found = [Patch(p) for p in sorted(HERE.glob("*.patch"))]
    missing = set(names) - {p.name for p in found}
    if missing:
        sys.exit(f"there is no test/breaks/{sorted(missing)[0]}.patch")
    return [p for p in found if not names or p.name in names]


def check(args):
    wrong = []
    for patch in patches():
        if not patch.kind or not patch.what:
            wrong.append(f"{patch.path.name}: expected the lines 'guards: KIND TEST' and 'breaks: WHAT'")
            continue
        applied = patch.apply(ROOT, "--check")
        if applied.returncode:
            wrong.append(f"{patch.path.name} does not apply any more; write it anew against the code that {patch.test} guards:\n"
                         + applied.stderr.rstrip())
        if any(f.startswith("test/") for f in patch.files):
            wrong.append(f"{patch.path.name} changes a test; it must break the code that the test guards")
        if patch.kind == "lit" and not (ROOT / "test" / patch.test).exists():
            wrong.append(f"{patch.path.name}: there is no test/{patch.test}")
    print("\n".join(wrong) or f"{len(patches())} patches apply")
    return 1 if wrong else 0


def shell(command, cwd, log, **options):
    with log.open("a") as out:
        print("+", *command, file=out, flush=True)
        return subprocess.run([str(c) for c in command], cwd=cwd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options)


def copy_tree(tree):
    """Makes `tree` a copy of the tracked files as they are now. Files that are equal keep their times: little is compiled."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True, text=True).stdout
    names = {n for n in listed.split("\0") if n and (ROOT / n).is_file()}
    for old in tree.rglob("*"):
        relative = old.relative_to(tree)
        if old.is_file() and relative.parts[0] not in ("build", ".git") and str(relative) not in names:
            old.unlink()
    for name in names:
        source, target = ROOT / name, tree / name
        if not target.exists() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def run(args):
    """In a copy of the tree, so that the tree itself is never broken. The copy's build shares ccache with the tree's."""
    chosen = patches(args.names)
    tree = args.build.resolve().parent / "breaks"
    build, log = tree / "build" / "release", args.build.resolve().parent / "breaks.log"
    log.write_text("")
    copy_tree(tree)
    subprocess.run(["git", "init", "-q", tree], check=True)
    environment = {**os.environ, "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}
    onnx = ROOT / "build" / "third_party" / "onnx"
    configure = ["cmake", "--preset", "release", "-Wno-dev", "--log-level=NOTICE", f"-DSHEAF_ONNX_DIR={onnx}"]
    if shell(configure, tree, log, env=environment).returncode:
        sys.exit(f"the copy of the tree cannot be configured: {log}")

    def make(targets):
        return shell(["cmake", "--build", build, "--parallel", args.jobs, "--target", *sorted(set(targets))], tree, log,
                     env=environment).returncode == 0

    def test(patch):
        done = subprocess.run([str(c) for c in patch.command(tree, build)], cwd=tree, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=900)
        with log.open("a") as out:
            print(f"+ {patch.kind} {patch.test}: exit {done.returncode}\n{done.stdout}{done.stderr}", file=out)
        return done.returncode == 0, ran(patch, done.stdout + done.stderr)

    if not make([t for p in chosen for t in p.targets()]):
        sys.exit(f"the unbroken copy does not build: {log}")
    failures = 0
    for patch in chosen:
        begin = time.monotonic()
        passed, there = test(patch)
        verdict = ""
        if not there:
            verdict = "its test did not run"
        elif not passed:
            verdict = "its test fails without the patch"
        elif (applied := patch.apply(tree)).returncode:
            verdict = f"it does not apply: {applied.stderr.strip()}"
        else:
            try:
                if not make(patch.targets()):
                    verdict = "the broken code does not build"
                else:
                    passed, there = test(patch)
                    verdict = "" if there and not passed else "NOT NOTICED: its test passes with the broken code"
            finally:
                back = patch.apply(tree, "-R")
                if back.returncode:
                    sys.exit(f"{patch.name} cannot be taken back: {back.stderr}")
        failures += bool(verdict)
        print(f"{'  failed' if verdict else ' noticed'}  {patch.name}: {patch.kind} {patch.test} "
              f"({time.monotonic() - begin:.0f} s){': ' + verdict if verdict else ''}", flush=True)
    print(f"{len(chosen) - failures} of {len(chosen)} breaks noticed by the test that guards the code; log: {log}")
    return 1 if failures else 0


def sample(args):
    build = args.build.resolve()
    binaries = sorted(p for p in (build / "test/bin").glob("*_test") if os.access(p, os.X_OK))
    gtests = []
    for binary in binaries:
        suite = ""
        for line in subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True).stdout.splitlines():
            name = line.split("#")[0].strip()
            if not line.startswith(" "):
                suite = name
            else:
                gtests.append(f"gtest {binary.name} {suite}{name}")
    lits = [f"lit {p.relative_to(ROOT / 'test')}" for p in sorted((ROOT / "test").rglob("*")) if p.suffix in (".mlir", ".test")]
    listed = subprocess.run([sys.executable, ROOT / "test/e2e/run.py", "--tools", build / "bin", "--scratch", build / "e2e-breaks",
                             "--list"], capture_output=True, text=True, check=True).stdout
    cases = [f"e2e {name}" for name in listed.split()]
    generator = random.Random(args.seed)
    # A fourth lit, half GoogleTest, a fourth end to end; within GoogleTest each binary has the same chance.
    drawn = generator.sample(lits, args.count // 4)
    by_binary = {}
    for name in gtests:
        by_binary.setdefault(name.split()[1], []).append(name)
    order = sorted(by_binary)
    generator.shuffle(order)
    for i in range(args.count // 2):
        drawn.append(generator.choice(by_binary[order[i % len(order)]]))
    drawn += generator.sample(cases, args.count - len(drawn))
    print("\n".join(drawn))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("check").set_defaults(act=check)
    one = commands.add_parser("run")
    one.add_argument("names", nargs="*")
    one.set_defaults(act=run)
    two = commands.add_parser("sample")
    two.add_argument("--seed", type=int, default=20261122)
    two.add_argument("--count", type=int, default=40)
    two.set_defaults(act=sample)
    for command in (one, two):
        command.add_argument("--build", type=pathlib.Path, required=True)
        command.add_argument("--jobs", default=str(os.cpu_count()))
    args = parser.parse_args()
    return args.act(args)


if __name__ == "__main__":
    sys.exit(main())
