#!/usr/bin/env python3
"""Everything `make test` runs after the build: format check, lit, GoogleTest, end to end; then the counts of all three.

    python3 test/check.py --build build/release [--jobs N] [--only format,lit,gtest,e2e]
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ("format", "lit", "gtest", "e2e")


class Counts:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __str__(self):
        rest = [f"{n} {what}" for n, what in ((self.failed, "failed"), (self.skipped, "skipped")) if n]
        return ", ".join([f"{self.passed} passed"] + rest)


def cache_entry(build, name):
    match = re.search(rf"^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def sanitizer_environment(build):
    """What CMake gives to the GoogleTests, for the other two kinds."""
    entries = re.findall(r'"((?:A|UB|T)SAN_OPTIONS=[^"]*)"', (build / "test" / "sanitizers.txt").read_text())
    return {**os.environ, **dict(e.split("=", 1) for e in entries)}


def formatted():
    """Our tracked C++ files are as clang-format writes them."""
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "*.cpp", "*.h"], capture_output=True, check=True, text=True)
    names = [ROOT / n for n in files.stdout.split("\0") if n and (ROOT / n).exists()]
    if not names:
        return True
    told = subprocess.run(["clang-format-14", "--dry-run", "--Werror", *names], capture_output=True, text=True)
    if told.returncode:
        wrong = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", told.stderr, re.MULTILINE)))
        print("format: `make format` rewrites", *[os.path.relpath(w, ROOT) for w in wrong], flush=True)
    return told.returncode == 0


def lit(build, jobs, environment, results):
    report = results / "lit.json"
    report.unlink(missing_ok=True)
    command = [f"{cache_entry(build, 'LLVM_DIR').rsplit('/lib/', 1)[0]}/bin/lit", "-qv", "-j", str(jobs), "-o", report, build / "test"]
    subprocess.run(command, env=environment)
    if not report.exists():
        return Counts(failed=1)
    codes = [t["code"] for t in json.loads(report.read_text())["tests"]]
    skipped = sum(c in ("UNSUPPORTED", "SKIPPED", "EXCLUDED") for c in codes)
    passed = sum(c in ("PASS", "XFAIL") for c in codes)
    return Counts(passed, len(codes) - skipped - passed, skipped)


def gtest(build, jobs, results):
    """Counts the cases in each binary's report; a binary that ends without one counts as one failure."""
    for old in results.glob("*.json"):
        old.unlink()
    listed = json.loads(subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, check=True).stdout)
    subprocess.run(["ctest", "--output-on-failure", "--progress", "-j", str(jobs)], cwd=build)
    counts = Counts()
    for test in listed["tests"]:
        report = results / f"{test['name']}.json"
        if not report.exists():
            print(f"{test['name']} left no report", flush=True)
            counts.failed += 1
            continue
        told = json.loads(report.read_text())
        cases = [c for suite in told["testsuites"] for c in suite["testsuite"]]
        skipped = sum(c["result"] in ("SKIPPED", "SUPPRESSED") for c in cases)
        counts.failed += told["failures"] + told["errors"]
        counts.skipped += skipped
        counts.passed += len(cases) - told["failures"] - told["errors"] - skipped
    return counts


def end_to_end(build, jobs, environment, results):
    report = results / "e2e.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, ROOT / "test/e2e/run.py", "--tools", build / "bin", "--scratch", build / "e2e",
               "--jobs", str(jobs), "--json", report]
    if cache_entry(build, "SHEAF_SANITIZE"):
        command += ["--quick", "--slowdown", "10"]
    subprocess.run(command, env=environment)
    if not report.exists():
        return Counts(failed=1)
    told = json.loads(report.read_text())
    return Counts(told["passed"], told["failed"], told["skipped"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join(KINDS), help="some of %(default)s")
    args = parser.parse_args()
    build, only = args.build.resolve(), args.only.split(",")
    if set(only) - set(KINDS):
        parser.error(f"--only takes some of {', '.join(KINDS)}")
    results = build / "test" / "results"
    results.mkdir(parents=True, exist_ok=True)
    environment = sanitizer_environment(build)

    begin, format_holds, counts = time.monotonic(), True, {}
    if "format" in only:
        format_holds = formatted()
    if "gtest" in only:
        counts["GoogleTest"] = gtest(build, args.jobs, results)
    if "lit" in only:
        counts["lit"] = lit(build, args.jobs, environment, results)
    if "e2e" in only:
        counts["end to end"] = end_to_end(build, args.jobs, environment, results)

    total = Counts(*(sum(getattr(c, k) for c in counts.values()) for k in ("passed", "failed", "skipped")))
    kinds = "; ".join(f"{name} {count}" for name, count in counts.items())
    print(f"\ntests: {kinds}; format {'holds' if format_holds else 'differs'}; {time.monotonic() - begin:.0f} s")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 0 if format_holds and not total.failed and total.passed else 1


if __name__ == "__main__":
    sys.exit(main())
