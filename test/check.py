#!/usr/bin/env python3
"""Everything `make test` runs after the build: format check, lit, GoogleTest, end to end; then the counts of all three.

    python3 test/check.py --build build/release [--jobs N] [--only format,lit,gtest,e2e] [--quick] [--cpu avx2] [--slowest 40]

A test that is skipped has failed, unless test/skips.py allows that here. --quick runs the tests of `make quick`. --cpu limits the tests to some of the
processor's instructions (processor.py). The seconds of all tests are in BUILD/test/results/times.txt, the slowest first.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

import processor
from skips import Machine, is_allowed

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "test" / "models"), str(ROOT / "test" / "e2e")]

import core  # noqa: E402
import unpack  # noqa: E402

KINDS = ("format", "lit", "gtest", "e2e")


class Counts:
    """failures: what failed, a line each, to be read again after all counts; there may be fewer lines than failures.
    times: the seconds of each test, by name. left_out: what `make quick` does not run."""

    left_out = ""

    def __init__(self, passed=0, failed=0, skipped=0, failures=(), times=None):
        self.passed, self.failed, self.skipped, self.failures = passed, failed, skipped, list(failures)
        self.times = dict(times or {})

    def __str__(self):
        rest = [f"{n} {what}" for n, what in ((self.failed, "failed"), (self.skipped, "skipped")) if n]
        return ", ".join([f"{self.passed} passed"] + rest)


def sum_of(counts):
    total = Counts()
    for one in counts:
        total.passed, total.failed, total.skipped = (
            total.passed + one.passed, total.failed + one.failed, total.skipped + one.skipped)
        total.failures += one.failures
        total.times.update(one.times)
    return total


def failure(text):
    """The counts of one test that failed outside of its own report, which is said at once."""
    print(text, flush=True)
    return Counts(failed=1, failures=[text])


def cache_entry(build, name):
    match = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def test_environment(build):
    """Without the variables by which GoogleTest and lit leave out tests; with the sanitizers' options, which CMake itself
    gives to the GoogleTests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GTEST_", "TEST_", "LIT_", "FILECHECK_"))}
    entries = re.findall(r'"(\w+=[^"]*)"', (build / "test" / "sanitizers.txt").read_text())
    return {**kept, **dict(e.split("=", 1) for e in entries)}


def formatted():
    """Our tracked C++ files are as clang-format writes them."""
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "*.cpp", "*.h"], capture_output=True, check=True, text=True)
    names = [ROOT / n for n in files.stdout.split("\0") if n and (ROOT / n).exists()]
    if not names:
        return True
    result = subprocess.run(["clang-format-14", "--dry-run", "--Werror", *names], capture_output=True, text=True)
    if result.returncode:
        wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", result.stderr, re.MULTILINE)))
        print("format: `make format` rewrites", *[os.path.relpath(w, ROOT) for w in wrong], flush=True)
    return result.returncode == 0


def skipped(build, kind, skips):
    """The counts of skipped tests, given as pairs of name and reason: those that may not be skipped here have failed."""
    machine = Machine(build, bool(cache_entry(build, "SHEAF_SANITIZE")))
    return sum_of(Counts(skipped=1) if is_allowed(kind, name, reason, machine) else
                  failure(f"{name} was skipped{f': {reason}' if reason else ''}; test/skips.py does not allow that here")
                  for name, reason in skips)


def failed_with(code, counts, what):
    """A program that reports no failure and yet exits nonzero has failed: a sanitizer's finding at exit, say."""
    if code and not counts.failed:
        return sum_of([counts, failure(f"{what} exited with {code}, and its report names no failure")])
    return counts


def lit(build, jobs, environment, results):
    report = results / "lit.json"
    report.unlink(missing_ok=True)
    command = [f"{cache_entry(build, 'LLVM_DIR').rsplit('/lib/', 1)[0]}/bin/lit", "-qv", "-j", str(jobs), "-o", report, build / "test"]
    code = subprocess.run(command, env=environment).returncode
    if not report.exists():
        return failure("lit left no report")
    tests = json.loads(report.read_text())["tests"]
    skips = [(t["name"], "") for t in tests if t["code"] in ("UNSUPPORTED", "SKIPPED", "EXCLUDED")]
    passed = sum(t["code"] in ("PASS", "XFAIL") for t in tests)
    failed = [t["name"] for t in tests if t["code"] not in ("PASS", "XFAIL", "UNSUPPORTED", "SKIPPED", "EXCLUDED")]
    times = {t["name"]: t.get("elapsed") or 0 for t in tests}
    ran = failed_with(code, Counts(passed, len(failed), failures=failed, times=times), "lit")
    return sum_of([ran, skipped(build, "lit", skips)])


def report_of(test):
    """The file into which a ctest entry writes its cases; none if it is not a GoogleTest."""
    option = "--gtest_output=json:"
    return next((pathlib.Path(a[len(option):]) for a in test.get("command", []) if a.startswith(option)), None)


def cases_of(report, skips):
    """The counts of a GoogleTest's report without its skipped cases, which are appended to `skips`."""
    summary = json.loads(report.read_text())
    cases = [(f"{report.stem}/{suite['name']}.{c['name']}", c) for suite in summary["testsuites"] for c in suite["testsuite"]]
    found = [(name, "") for name, case in cases if case["result"] in ("SKIPPED", "SUPPRESSED")]
    skips += found
    failed = summary["failures"] + summary["errors"]
    times = {name: float(case.get("time", "0s").rstrip("s")) for name, case in cases}
    return Counts(len(cases) - failed - len(found), failed, failures=[name for name, case in cases if case.get("failures")], times=times)


def verdict_of(test, verdict, skips):
    """The counts of one ctest entry: the cases of its report, and a failure more where ctest's own verdict is worse than
    the report. verdict: its testcase in ctest's JUnit file, or None if there is none. What was skipped is added to
    `skips`."""
    name, report = test["name"], report_of(test)
    status = "missing" if verdict is None else verdict.get("status")
    if status == "disabled":
        skips.append((name, "disabled"))
        return Counts()
    if status not in ("run", "fail"):
        return failure(f"{name} did not run")
    seconds = float(verdict.get("time") or 0)
    if report is None:
        return Counts(passed=status == "run", failed=status == "fail", failures=[name] if status == "fail" else [], times={name: seconds})
    if not report.exists():
        return failure(f"{name} left no report")
    before = len(skips)
    try:
        counts = cases_of(report, skips)
    except json.JSONDecodeError:  # GoogleTest leaves out a comma before failures outside of its tests
        return failure(f"{name} left a report that is not JSON")
    if status == "fail" and not counts.failed:
        why = verdict.find("failure")
        counts = sum_of([counts, failure(f"{name} failed, and no case of it: {'' if why is None else why.get('message')}")])
    if not counts.passed + counts.failed + len(skips) - before:
        return failure(f"{name} has no cases")
    counts.times[f"{name}, outside of its cases"] = max(0.0, seconds - sum(counts.times.values()))
    return counts


def listed_by_ctest(build, environment, *options):
    listing = ["ctest", "--show-only=json-v1", *options]
    return json.loads(subprocess.run(listing, cwd=build, env=environment, capture_output=True, check=True).stdout)["tests"]


def gtest(build, jobs, environment, results, quick=False):
    """Runs what ctest lists; for `make quick` without the slow ones."""
    for old in results.glob("*.json"):
        old.unlink()
    junit = results / "ctest.xml"
    junit.unlink(missing_ok=True)
    fast = ["-LE", "slow"] if quick else []
    listed = listed_by_ctest(build, environment, *fast)
    command = ["ctest", *fast, "--output-on-failure", "--progress", "-j", str(jobs), "--output-junit", junit]
    code = subprocess.run(command, cwd=build, env=environment).returncode
    verdicts = {}
    if junit.exists():
        verdicts = {case.get("name"): case for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase")}
    skips = []
    ran = failed_with(code, sum_of([verdict_of(test, verdicts.get(test["name"]), skips) for test in listed]), "ctest")
    counts = sum_of([ran, skipped(build, "GoogleTest", skips)])
    if quick:
        slow = sorted({test["name"] for test in listed_by_ctest(build, environment)} - {test["name"] for test in listed})
        counts.left_out = f"{len(slow)} binaries of GoogleTest ({', '.join(slow)})"
    return counts


def end_to_end(build, jobs, environment, results, quick=False, share=0, driver=ROOT / "test/e2e/run.py"):
    report = results / "e2e.json"
    report.unlink(missing_ok=True)
    # More than there are cores: cases wait for disks, for time-outs, and for processes that wait for each other.
    at_once = jobs + (jobs + 1) // 2
    command = [sys.executable, driver, "--tools", build / "bin", "--scratch", build / "e2e", "--jobs", str(at_once), "--json", report]
    if cache_entry(build, "SHEAF_SANITIZE"):
        command += ["--quick", "--slowdown", "10"]
    elif quick:
        command += ["--core"]
    elif share:
        command += ["--share", str(share)]
    code = subprocess.run(command, env=environment).returncode
    if not report.exists():
        return failure("the end-to-end tests left no report")
    summary = json.loads(report.read_text())
    failures = [f"{f['case']}: {(f['message'].strip() or 'no message').splitlines()[0]}" for f in summary["failures"]]
    counts = Counts(summary["passed"], summary["failed"], failures=failures, times=summary.get("seconds"))
    lost = summary["cases"] - counts.passed - counts.failed - len(summary["skips"])
    if lost:
        counts = sum_of([counts, failure(f"{lost} end-to-end tests did not run"), Counts(failed=lost - 1)])
    skips = [(skip["case"], skip["message"]) for skip in summary["skips"]]
    counts = sum_of([failed_with(code, counts, "test/e2e/run.py"), skipped(build, "end to end", skips)])
    if summary.get("left_out"):
        of_share = f", and that are not in share {share} of {core.SHARES}, which the revision decides" if share else ""
        counts.left_out = f"{summary['left_out']} end-to-end cases (all that test/e2e/core.py does not name{of_share})"
    return counts


def write_times(path, counts):
    """Writes the seconds of all tests, the slowest first, and returns these lines."""
    every = [(seconds, kind, name) for kind, count in counts.items() for name, seconds in count.times.items()]
    lines = [f"{seconds:9.2f} s  {kind:10}  {name}" for seconds, kind, name in sorted(every, key=lambda e: (-e[0], *e[1:]))]
    path.write_text("".join(line + "\n" for line in lines))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join(KINDS), help="some of %(default)s")
    parser.add_argument("--quick", action="store_true", help="the tests that take under three minutes on two cores")
    parser.add_argument("--all", action="store_true", help="all end-to-end cases, not a share of those outside the core")
    parser.add_argument("--cpu", default="", help=f"use no other instructions than these: one of {processor.NAMES}")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest tests as well")
    args = parser.parse_args()
    build, only = args.build.resolve(), args.only.split(",")
    if set(only) - set(KINDS):
        parser.error(f"--only takes some of {', '.join(KINDS)}")
    try:
        instructions = processor.chosen(args.cpu)
    except processor.Lacking as e:
        print(e, file=sys.stderr)
        return 2
    print(processor.sentence(instructions), flush=True)
    if set(only) - {"format"}:
        unpack.unpack()  # the build does not see that an unpacked model is missing or damaged
    results = build / "test" / "results"
    results.mkdir(parents=True, exist_ok=True)
    environment = processor.limited(test_environment(build), instructions)

    begin, format_holds, counts = time.monotonic(), True, {}
    if "format" in only:
        format_holds = formatted()
    if "gtest" in only:
        counts["GoogleTest"] = gtest(build, args.jobs, environment, results, args.quick)
    if "lit" in only:
        counts["lit"] = lit(build, args.jobs, environment, results)
    if "e2e" in only:
        share = 0 if args.quick or args.all else core.share_of(core.revision(ROOT))
        counts["end to end"] = end_to_end(build, args.jobs, environment, results, args.quick, share)

    total = sum_of(counts.values())
    kinds = "; ".join(f"{name} {count}" for name, count in counts.items())
    times = write_times(results / "times.txt", counts)
    for line in times[:args.slowest]:
        print(line)
    for line in total.failures:
        print(f"failed: {line}")
    seconds = "; ".join(f"{name} {sum(count.times.values()):.0f} s" for name, count in counts.items())
    print(f"\nseconds of all tests, some of which ran at the same time: {seconds} (each: {results / 'times.txt'})")
    if left_out := [count.left_out for count in counts.values() if count.left_out]:
        print(f"left out, `make test{'' if args.quick else ' ALL=1'}` runs them: {'; '.join(left_out)}")
    print(processor.sentence(instructions))
    print(f"tests: {kinds}; format {'holds' if format_holds else 'differs'}; {time.monotonic() - begin:.0f} s")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 0 if format_holds and not total.failed and total.passed else 1


if __name__ == "__main__":
    sys.exit(main())
