#!/usr/bin/env python3
"""End-to-end tests: models are compiled and trained by the tools, and compared with PyTorch's runs in test/models.

    python3 test/e2e/run.py --tools build/bin [--only REGEX] [--quick] [--jobs N] [--cpu avx2] [--json RESULT.json] [--list] [--verbose]
"""
import argparse
import importlib
import json
import os
import pathlib
import pkgutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[up]) for up in (0, 1)]

import cases as rooms  # noqa: E402
import processor  # noqa: E402
from core import SHARES, core, in_share  # noqa: E402
from harness import Session, run_cases, shorten  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True, help="folder of sheaf and sheaf-run")
    parser.add_argument("--scratch", default="build/e2e", help="emptied first (default: %(default)s)")
    parser.add_argument("--only", help="run the cases whose names match")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--core", action="store_true", help="run the cases of core.py")
    parser.add_argument("--share", type=int, choices=range(1, SHARES + 1), help=f"run the cases of core.py, and of the others one share in {SHARES}")
    parser.add_argument("--quick", action="store_true", help="fewer steps and configurations, for instrumented tools")
    parser.add_argument("--slowdown", type=int, default=1, help="factor on every timeout")
    parser.add_argument("--every-mutant", action="store_true", help="all mutants of the proof, not samples: an hour")
    parser.add_argument("--every-division", action="store_true", help="all divisions of a batch, not a covering set: hours")
    parser.add_argument("--kills", type=int, default=6, help="of runs with state in files, for each number of processes (default: %(default)s)")
    parser.add_argument("--cpu", default="", help=f"use no other instructions than these: one of {processor.NAMES}")
    parser.add_argument("--json", help="write the counts, the failures, the skips and the seconds of each case there")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--verbose", action="store_true", help="a line for every case, not only for failures")
    args = parser.parse_args()

    try:
        if args.cpu:
            os.environ.update(processor.limited(os.environ, processor.chosen(args.cpu)))
        session = Session(args.tools, args.scratch, args.quick, args.slowdown, args.every_mutant, args.every_division, args.kills,
                          os.environ.get("SHEAF_TEST_CPU"))
    except (OSError, processor.Lacking) as e:
        print(f"end to end: {e}", file=sys.stderr)
        return 1
    modules = [importlib.import_module(f"cases.{module.name}") for module in pkgutil.iter_modules(rooms.__path__)]
    cases = [case for module in modules for case in module.cases(session)]
    if len({case.name for case in cases}) < len(cases):
        print("end to end: two cases have one name", file=sys.stderr)
        return 1
    every = len(cases)
    if not (args.quick or args.every_division):  # the two have other cases
        try:
            chosen = core([case.name for case in cases])
        except ValueError as e:
            print(f"end to end: test/e2e/core.py: {e}", file=sys.stderr)
            return 1
        cases = [case for case in cases if case.name in chosen or not args.core and (not args.share or in_share(case.name, args.share))]
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0

    failures, skips, times = [], [], {}

    def report(case, outcome, text, seconds):
        times[case.name] = round(seconds, 2)
        if outcome == "failed":
            failures.append({"case": case.name, "message": text})
        if outcome == "skipped":
            skips.append({"case": case.name, "message": text})
        if args.verbose or outcome != "passed":
            print(f"{outcome:>8}  {case.name}  ({seconds:.1f} s)", flush=True)
            if text:
                shown = text.rstrip() if outcome == "passed" else shorten(text, 30)
                print("          " + shown.replace("\n", "\n          "), flush=True)

    counts = run_cases(cases, args.jobs, args.only, report)
    print(f"end to end: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({**counts, "left_out": every - len(cases), "failures": failures, "skips": skips, "seconds": times}))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
