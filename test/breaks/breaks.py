#!/usr/bin/env python3
"""Breaks the code on purpose and sees the test that guards it fail. docs/testing.md explains it.

    python3 test/breaks/breaks.py check [--tools build/release/bin]     # every patch applies and names a test that exists
    python3 test/breaks/breaks.py run --build build/release [NAME...]   # apply, build, see the test fail, take back
    python3 test/breaks/breaks.py sample --build build/release [--seed N] [--count N]   # draw tests to write patches for

A patch is a file NAME.patch: lines `guards: KIND TEST` and `breaks: what is wrong now`, then a unified diff. KIND is gtest
(TEST is BINARY SUITE.CASE), lit (a path below test/) or e2e (a case's name). Optional lines: `needs: TARGET...`, what the
test uses beside its own binary or the tools; `instead of: KIND TEST: WHY`, the drawn test that this one stands in for.
"""
import argparse
import contextlib
import fcntl
import filecmp
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLE = HERE / "sample.txt"
TOOLS = ["sheaf", "sheaf-opt", "sheaf-run", "sheaf_cpu", "sheaf_mpi"]
KINDS = ("lit", "gtest", "e2e")
LIMIT = 600  # seconds for one test
# What a test says when the program under test died, hung, or the test itself is wrong: that is no assertion that failed.
WRONG_REASON = re.compile(
    r"Stack dump:|PLEASE submit a bug report|exit status: -\d+|\bexit -\d+\b|crashed \(SIG|^no end after|^Traceback|Segmentation fault", re.MULTILINE)


class Patch:
    def __init__(self, path):
        self.path, self.name, text = path, path.stem, path.read_text()
        header = text.split("\n--- ")[0]

        def line(key):
            found = re.search(rf"^{key}: (\S.*)$", header, re.MULTILINE)
            return found.group(1) if found else ""

        self.guards, self.what, self.needs, self.instead = line("guards"), line("breaks"), line("needs").split(), line("instead of")
        self.kind, _, self.test = self.guards.partition(" ")
        self.files = re.findall(r"^\+\+\+ b/(\S+)$", text, re.MULTILINE)
        hunks = re.split(r"^@@.*\n", text, flags=re.MULTILINE)[1:]
        self.removed = ["".join(row[1:] + "\n" for row in hunk.splitlines() if row.startswith("-") and not row.startswith("--- "))
                        for hunk in hunks]

    def apply(self, tree, *options):
        """Returns git's complaint, or nothing. Lines may have moved. Where the lines around a change are no longer the same,
        the changed lines alone decide, if they are unique in their file."""
        def attempt(context):
            command = ["git", "apply", f"-C{context}", *options, self.path]
            return subprocess.run(command, cwd=tree, capture_output=True, text=True)

        done = attempt(1)
        if done.returncode and len(self.files) == 1 and (tree / self.files[0]).exists():
            text = (tree / self.files[0]).read_text()
            if all(removed and text.count(removed) == 1 for removed in self.removed):
                done = attempt(0)
        return done.stderr.strip() or "git apply failed" if done.returncode else ""

    def targets(self):
        """What to build. All programs that the test runs are among it, so that none is left from the patch before."""
        if self.kind == "gtest":
            return [self.test.split()[0], *self.needs]
        if self.kind == "lit" and self.test.endswith(".mlir"):
            run_lines = "\n".join(re.findall(r"RUN:.*", (ROOT / "test" / self.test).read_text()))
            if not re.search(r"\b(sheaf|sheaf-run)\b(?!-)", run_lines):
                return ["sheaf-opt", *self.needs]
        return [*TOOLS, *self.needs]


def patches(names=()):
    found = [Patch(p) for p in sorted(HERE.glob("*.patch"))]
    missing = set(names) - {p.name for p in found}
    if missing:
        sys.exit(f"there is no test/breaks/{sorted(missing)[0]}.patch")
    return [p for p in found if not names or p.name in names]


def drawn():
    """The tests that sample.txt lists."""
    return [line for line in SAMPLE.read_text().splitlines() if line and not line.startswith("#")]


def listed_cases(tools):
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, ROOT / "test/e2e/run.py", "--tools", tools, "--scratch", scratch, "--list"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def check(args):
    sources = "\n".join(p.read_text() for p in (ROOT / "test").rglob("*_test.cpp"))
    cases = set(listed_cases(args.tools)) if args.tools else None

    def exists(patch):
        if patch.kind == "lit":
            return (ROOT / "test" / patch.test).is_file()
        if patch.kind == "e2e":
            return cases is None or patch.test in cases
        # Of INSTANCE/SUITE.CASE/PARAMETER the source has the suite and the case.
        name = re.fullmatch(r"\w+ (?:\w+/)?(\w+)(?:/\w+)?\.(\w+)(?:/.*)?", patch.test)
        return name and re.search(rf"TEST(?:_F|_P)?\(\s*{name[1]},\s*{name[2]}\)", sources)

    wrong, found = [], patches()
    for patch in found:
        name = patch.path.name
        if patch.kind not in KINDS or not patch.test or not patch.what or not patch.files:
            wrong.append(f"{name}: expected the lines 'guards: KIND TEST' and 'breaks: WHAT', and a unified diff")
            continue
        complaint = patch.apply(ROOT, "--check")
        if complaint:
            wrong.append(f"{name} no longer applies; rewrite it against the code that {patch.test} guards:\n{complaint}")
        if any(f.startswith("test/") for f in patch.files):
            wrong.append(f"{name} changes a test; it must break the code that the test guards")
        if not exists(patch):
            wrong.append(f"{name}: there is no test {patch.guards}; name the one that guards this code now")
    covered = {p.guards for p in found} | {p.instead.split(": ")[0] for p in found}
    wrong += [f"no patch guards or stands in for '{test}', which {SAMPLE.name} lists" for test in drawn() if test not in covered]
    print("\n".join(wrong) or f"{len(found)} patches apply")
    return 1 if wrong else 0


def copy_tree(tree):
    """Makes `tree` a copy of the files of the project as they are now. Equal files keep their times: little is compiled."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    names = {n for n in listed.split("\0") if n and (ROOT / n).is_file()}
    for folder, folders, files in os.walk(tree):
        relative = pathlib.Path(folder).relative_to(tree)
        folders[:] = [f for f in folders if relative.parts or f not in ("build", ".git")]
        for file in files:
            if str(relative / file) not in names:
                (tree / relative / file).unlink()
    for name in sorted(names):
        source, target = ROOT / name, tree / name
        if not target.exists() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    # A repository of its own, or else git applies patches to ours. Tests of the source tree look at tracked files.
    subprocess.run(["git", "init", "-q", tree], check=True)
    subprocess.run(["git", "-C", tree, "add", "-A"], check=True)


class Copy:
    """A copy of the tree with a build of its own. The tree itself is never broken, whenever the run is interrupted."""

    def __init__(self, build, jobs):
        self.tree, self.log, self.jobs = build.parent / "breaks", build.parent / "breaks.log", jobs
        self.build = self.tree / "build" / "release"
        self.tree.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.tree.parent / "breaks.lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"another run uses {self.tree}")
        self.log.write_text("")
        copy_tree(self.tree)
        if self.call(["cmake", "--preset", "release", "-Wno-dev", "--log-level=NOTICE"])[0]:
            sys.exit(f"the copy of the tree cannot be configured: {self.log}")
        self.lit = re.search(r"^LLVM_DIR:\w+=(.*)/lib/", (self.build / "CMakeCache.txt").read_text(), re.MULTILINE)[1] + "/bin/lit"

    def call(self, command, limit=None):
        """Runs a command to its end; returns its exit code, none if it ran out of time, and what it said. The log has it all."""
        command = [str(c) for c in command]
        with subprocess.Popen(command, cwd=self.tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
            try:
                said, code = process.communicate(timeout=limit)[0], process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, code = process.communicate()[0], None
            except BaseException:  # ctrl-C or SIGTERM: what was started ends, too
                os.killpg(process.pid, signal.SIGKILL)
                raise
        with self.log.open("a") as out:
            print("+", *command, f"\n{said}exit {code}", file=out)
        return code, said

    def make(self, targets):
        return self.call(["cmake", "--build", self.build, "--parallel", self.jobs, "--target", *sorted(set(targets))])[0] == 0

    def has_target(self, name):
        return re.search(rf"^build {re.escape(name)}: phony", (self.build / "build.ninja").read_text(), re.MULTILINE) is not None

    @contextlib.contextmanager
    def broken(self, patch):
        """The patch is applied; gives git's complaint if it cannot be. After it, the files are as they were, but newer."""
        before = {f: (self.tree / f).read_bytes() for f in patch.files if (self.tree / f).exists()}
        try:
            yield patch.apply(self.tree)
        finally:
            for file, content in before.items():
                (self.tree / file).write_bytes(content)

    def outcomes(self, kind, tests):
        """Runs tests of one kind; gives for each its outcome (passed, failed, skipped, crashed) and what it said, or nothing
        for a test that did not run."""
        report = self.build / "breaks.json"
        found = {}
        if kind == "gtest":
            for binary in sorted({t.split()[0] for t in tests}):
                names = [t.split()[1] for t in tests if t.split()[0] == binary]
                report.unlink(missing_ok=True)
                command = [self.build / "test" / "bin" / binary, f"--gtest_filter={':'.join(names)}", f"--gtest_output=json:{report}"]
                code, said = self.call(command, LIMIT)
                if not report.exists():
                    outcome = "crashed" if code != 0 else "left no report"
                    found.update({f"{binary} {n}": (outcome, said) for n in names})
                    continue
                for suite in json.loads(report.read_text())["testsuites"]:
                    for case in suite["testsuite"]:
                        failures = "\n".join(f["failure"] for f in case.get("failures", []))
                        done = {"COMPLETED": "failed" if failures else "passed", "SKIPPED": "skipped"}.get(case["result"])
                        if done:
                            found[f"{binary} {suite['name']}.{case['name']}"] = (done, failures)
            return found
        report.unlink(missing_ok=True)
        names = "|".join(re.escape(t) for t in tests)
        if kind == "lit":
            self.call([self.lit, "-qv", "-j", self.jobs, "-o", report, self.build / "test", "--filter", f"^sheaf :: ({names})$"], LIMIT)
            if not report.exists():
                return found
            words = {"PASS": "passed", "FAIL": "failed", "UNSUPPORTED": "skipped"}
            for case in json.loads(report.read_text())["tests"]:
                if case["code"] in words:
                    found[case["name"].split(" :: ")[1]] = (words[case["code"]], case["output"])
        else:
            _, said = self.call([sys.executable, self.tree / "test/e2e/run.py", "--tools", self.build / "bin", "--scratch",
                                 self.build / "e2e", "--jobs", self.jobs, "--only", f"^({names})$", "--json", report, "--verbose"],
                                LIMIT * len(tests))
            if not report.exists():
                return found
            failures = {f["case"]: f["message"] for f in json.loads(report.read_text())["failures"]}
            for outcome, name in re.findall(r"^ *(passed|failed|skipped)  (\S+)  \(", said, re.MULTILINE):
                found[name] = (outcome, failures.get(name, said))
        return {name: ("crashed" if outcome == "failed" and WRONG_REASON.search(said) else outcome, said)
                for name, (outcome, said) in found.items()}


def reason(kind, said):
    """One line of what a failed test said."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if kind == "lit":
        errors = [line.strip("#| ") for line in lines if re.search(r"\berror\b", line)]
        lines = [line for line in errors if "command failed" not in line] or errors or lines
    elif kind == "gtest":
        lines = [" ".join(lines[1:4])] if len(lines) > 1 else lines
    return lines[0][:150] if lines else "nothing"


def attempt(copy, patch):
    """Applies the patch, builds, runs its test, takes the patch back. Returns whether it was noticed, and by what."""
    with copy.broken(patch) as complaint:
        if complaint:
            return False, f"the patch does not apply: {complaint}"
        if not copy.make(patch.targets()):
            return False, "the broken code does not build"
        outcome, said = copy.outcomes(patch.kind, [patch.test]).get(patch.test, ("did not run", ""))
    if outcome == "passed":
        return False, "NOT NOTICED: the test passes with the broken code"
    return outcome == "failed", reason(patch.kind, said) if outcome == "failed" else f"the test {outcome}: {reason(patch.kind, said)}"


def run(args):
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    chosen = patches(args.names)
    copy = Copy(args.build.resolve(), args.jobs)
    left_out = [p for p in chosen if not all(copy.has_target(t) for t in p.targets())]
    chosen = [p for p in chosen if p not in left_out]
    if not chosen:
        sys.exit("there is nothing to run")
    # All tests see the unbroken code first: no build is needed between taking one patch back and applying the next.
    if not copy.make([t for p in chosen for t in p.targets()]):
        sys.exit(f"the unbroken copy does not build: {copy.log}")
    unbroken = {}
    for kind in KINDS:
        tests = sorted({p.test for p in chosen if p.kind == kind})
        if tests:
            unbroken.update({(kind, test): report for test, report in copy.outcomes(kind, tests).items()})
    print(f"unbroken: built and tested in {time.monotonic() - begin:.0f} s", flush=True)

    unnoticed = 0
    # Patches of one binary stand together, so that no other is linked between them.
    for patch in sorted(chosen, key=lambda p: (KINDS.index(p.kind), p.targets(), p.files)):
        since = time.monotonic()
        outcome, said = unbroken.get((patch.kind, patch.test), ("did not run", ""))
        if outcome == "passed":
            noticed, why = attempt(copy, patch)
        else:
            noticed, why = False, f"without the patch, the test {outcome}: {reason(patch.kind, said)}"
        unnoticed += not noticed
        print(f"{'noticed' if noticed else ' FAILED'} {time.monotonic() - since:5.0f} s  {patch.name}: {patch.guards}\n"
              f"                 {why}", flush=True)
    for patch in left_out:
        print(f"left out         {patch.name}: {patch.guards}: this build has no {patch.targets()[0]}")
    print(f"{len(chosen) - unnoticed} of {len(chosen)} breaks noticed by the test that guards the code, {len(left_out)} left out, "
          f"{time.monotonic() - begin:.0f} s; log: {copy.log}")
    return 1 if unnoticed else 0


def sample(args):
    """A fifth lit, three tenths end to end, half GoogleTest. All tests of a kind are equally likely; the instances of a
    parameterized GoogleTest count as one."""
    build = args.build.resolve()
    entries = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, check=True).stdout)["tests"]
    gtests = {}
    for entry in entries:
        labels = [label for p in entry["properties"] if p["name"] == "LABELS" for label in p["value"]]
        if "gtest" not in labels or "gpu" in labels:
            continue
        if "command" not in entry or not os.access(entry["command"][0], os.X_OK):
            sys.exit(f"{entry['name']} is not built; build everything first")
        binary, suite = pathlib.Path(entry["command"][0]), ""
        for line in subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout.splitlines():
            name = line.split("#")[0].strip()
            if not line.startswith(" "):
                suite = name if name.endswith(".") else ""
            elif suite:
                gtests.setdefault((binary.name, suite + name.split("/")[0]), []).append(f"gtest {binary.name} {suite}{name}")
    lits = [f"lit {p.relative_to(ROOT / 'test')}" for p in sorted((ROOT / "test").rglob("*")) if p.suffix in (".mlir", ".test", ".onnxtext")]
    cases = [f"e2e {name}" for name in sorted(listed_cases(build / "bin"))]
    generator = random.Random(args.seed)
    picked = generator.sample(lits, args.count // 5) + generator.sample(cases, args.count * 3 // 10)
    groups = generator.sample(sorted(gtests), args.count - len(picked))
    picked += [generator.choice(sorted(set(gtests[g]))) for g in groups]
    print(f"# Drawn by `breaks.py sample --seed {args.seed} --count {args.count}` from {len(lits)} lit tests, {len(cases)} end-to-end cases "
          f"and {len(gtests)} GoogleTests.")
    print("\n".join(sorted(picked)))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    check_parser = commands.add_parser("check")
    check_parser.add_argument("--tools", type=pathlib.Path, help="folder of sheaf and sheaf-run: the names of end-to-end cases are checked, too")
    check_parser.set_defaults(act=check)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("names", nargs="*")
    run_parser.add_argument("--jobs", default=str(os.cpu_count()))
    run_parser.set_defaults(act=run)
    sample_parser = commands.add_parser("sample")
    sample_parser.add_argument("--seed", type=int, default=11)
    sample_parser.add_argument("--count", type=int, default=40)
    sample_parser.set_defaults(act=sample)
    for command in (run_parser, sample_parser):
        command.add_argument("--build", type=pathlib.Path, required=True)
    args = parser.parse_args()
    return args.act(args)


if __name__ == "__main__":
    sys.exit(main())
