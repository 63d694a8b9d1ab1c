#!/usr/bin/env python3
"""test/check.py believes no report whose program failed, and counts as failed what did not run. Scratch tests, with reports
of their own making, are run by ctest; lit and the end-to-end driver are doubles that leave a report and exit."""
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import check  # noqa: E402
import processor  # noqa: E402
import skips  # noqa: E402


def gtest_report(*results):
    """A GoogleTest report of cases with these results: COMPLETED, FAILED, SKIPPED or SUPPRESSED."""
    cases = [{"name": f"Case{i}", "result": "COMPLETED" if r == "FAILED" else r, "time": f"0.{i}5s",
              **({"failures": [{"failure": "wrong"}]} if r == "FAILED" else {})} for i, r in enumerate(results)]
    return {"tests": len(cases), "failures": results.count("FAILED"), "errors": 0,
            "testsuites": [{"name": "Suite", "testsuite": cases}] if cases else []}


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "test" / "results").mkdir(parents=True)
        (self.build / "test" / "sanitizers.txt").write_text("")
        (self.build / "CMakeCache.txt").write_text(f"LLVM_DIR:PATH={self.build}/lib/cmake/llvm\nSHEAF_SANITIZE:STRING=\n")
        self.results = self.build / "test" / "results"
        self.environment = check.test_environment(self.build)
        self.tests = []
        # In scratch builds, what may be skipped says so.
        patch = unittest.mock.patch.object(check, "is_allowed", lambda kind, name, reason, _: "allowed" in f"{name} {reason}")
        patch.start()
        self.addCleanup(patch.stop)

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def results_of(self, kind, *arguments):
        """(passed, failed, skipped), and what was printed."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            counts = kind(self.build, 1, self.environment, self.results, *arguments)
        self.failures, self.times, self.left_out = counts.failures, counts.times, counts.left_out
        return (counts.passed, counts.failed, counts.skipped), out.getvalue()


class CTest(Scratch):
    def add(self, name, report, code=0, action="", properties=""):
        """A scratch test binary that leaves the report, if any, and exits with the code."""
        path = self.results / f"{name}.json"
        text = "" if report is None else f"open({str(path)!r}, 'w').write({json.dumps(report)!r})\n"
        binary = self.script(self.build / "bin" / name, f"import os, time\n{text}{action}\nos._exit({code})\n")
        self.tests.append(f'add_test({name} "{binary}" "--gtest_output=json:{path}")\n')
        if properties:
            self.tests.append(f"set_tests_properties({name} PROPERTIES {properties})\n")
        return binary

    def counts(self, *arguments):
        (self.build / "CTestTestfile.cmake").write_text("".join(self.tests))
        return self.results_of(check.gtest, *arguments)

    def test_reports_are_counted(self):
        self.add("allowed_a", gtest_report("COMPLETED", "COMPLETED", "SKIPPED"))
        self.add("allowed_b", gtest_report("COMPLETED", "SUPPRESSED"))
        self.assertEqual(self.counts(), ((3, 0, 2), ""))

    def test_times(self):
        """Those of the cases, and what the binary takes in addition to them."""
        self.add("a", gtest_report("COMPLETED", "FAILED"), code=1, action="time.sleep(0.5)")
        self.counts()
        rest = self.times.pop("a, outside of its cases")
        self.assertEqual(self.times, {"a/Suite.Case0": 0.05, "a/Suite.Case1": 0.15})
        self.assertGreater(rest, 0.3)

    def test_slow_ones_are_left_out(self):
        self.add("a", gtest_report("COMPLETED"))
        self.add("b", gtest_report("COMPLETED"), properties='LABELS "gtest;slow"')
        self.assertEqual(self.counts(True)[0], (1, 0, 0))
        self.assertEqual(self.left_out, "1 binaries of GoogleTest (b)")
        self.assertEqual(self.counts()[0], (2, 0, 0))
        self.assertEqual(self.left_out, "")

    def test_skips_that_are_not_allowed(self):
        self.add("a", gtest_report("COMPLETED", "SKIPPED"))
        counts, out = self.counts()
        self.assertEqual(counts, (1, 1, 0))
        self.assertIn("a/Suite.Case1 was skipped; test/skips.py does not allow that here", out)

    def test_everything_is_skipped(self):
        self.add("a", gtest_report("SKIPPED", "SKIPPED"))
        self.add("b", gtest_report("SUPPRESSED"))
        self.assertEqual(self.counts()[0], (0, 3, 0))

    def test_disabled_entries(self):
        self.add("a", gtest_report("COMPLETED"), properties="DISABLED TRUE")
        self.assertEqual(self.counts(), ((0, 1, 0), "a was skipped: disabled; test/skips.py does not allow that here\n"))

    def test_failed_cases(self):
        self.add("a", gtest_report("COMPLETED", "FAILED", "FAILED"), code=1)
        self.assertEqual(self.counts()[0], (1, 2, 0))

    def test_sanitizer_at_exit(self):
        """Every case passes, the report is whole, and then a leak is found."""
        self.add("leaks", gtest_report("COMPLETED", "COMPLETED"), code=99)
        counts, out = self.counts()
        self.assertEqual(counts, (2, 1, 0))
        self.assertIn("leaks failed, and no case of it", out)

    def test_crash_at_exit(self):
        self.add("a", gtest_report("COMPLETED"), action="os.kill(os.getpid(), 11)")
        self.assertEqual(self.counts()[0], (1, 1, 0))

    def test_timeout_at_exit(self):
        self.add("a", gtest_report("COMPLETED"), action="time.sleep(60)", properties="TIMEOUT 1")
        self.assertEqual(self.counts()[0], (1, 1, 0))

    def test_failures_with_exit_0(self):
        self.add("a", gtest_report("COMPLETED", "FAILED"), code=0)
        self.assertEqual(self.counts()[0], (1, 1, 0))
        self.assertEqual(self.failures, ["a/Suite.Case1"])

    def test_no_report(self):
        self.add("a", None)
        self.assertEqual(self.counts(), ((0, 1, 0), "a left no report\n"))

    def test_report_that_is_not_json(self):
        path = self.results / "a.json"
        self.add("a", None, code=1, action=f"open({str(path)!r}, 'w').write('{{ }} {{ }}')")
        self.assertEqual(self.counts(), ((0, 1, 0), "a left a report that is not JSON\n"))

    def test_report_of_an_earlier_run(self):
        self.add("a", None)
        (self.results / "a.json").write_text(json.dumps(gtest_report("COMPLETED")))
        self.assertEqual(self.counts()[0], (0, 1, 0))

    def test_no_cases(self):
        self.add("a", gtest_report())
        self.assertEqual(self.counts(), ((0, 1, 0), "a has no cases\n"))

    def test_binary_is_missing(self):
        self.add("a", gtest_report("COMPLETED")).unlink()
        self.add("b", gtest_report("COMPLETED"))
        self.assertEqual(self.counts(), ((1, 1, 0), "a did not run\n"))

    def test_fixture_fails(self):
        """A test that another one is to prepare does not run if that fails."""
        self.add("prepare", gtest_report("FAILED"), code=1, properties="FIXTURES_SETUP room")
        self.add("a", gtest_report("COMPLETED"), properties="FIXTURES_REQUIRED room")
        self.assertEqual(self.counts(), ((0, 2, 0), "a did not run\n"))

    def test_entry_without_report(self):
        for name, code in (("good", 0), ("bad", 1)):
            binary = self.script(self.build / "bin" / name, f"raise SystemExit({code})\n")
            self.tests.append(f'add_test({name} "{binary}")\n')
        self.assertEqual(self.counts()[0], (1, 1, 0))
        self.assertEqual(self.failures, ["bad"])

    def test_filters_of_the_environment(self):
        os.environ["GTEST_FILTER"] = "-*"
        self.addCleanup(os.environ.pop, "GTEST_FILTER")
        self.environment = check.test_environment(self.build)
        self.add("a", gtest_report("COMPLETED"), action="assert 'GTEST_FILTER' not in os.environ")
        self.assertEqual(self.counts()[0], (1, 0, 0))


class Lit(Scratch):
    def counts(self, codes, exit_code, name="a"):
        text = "" if codes is None else (
            f"import sys\nopen(sys.argv[sys.argv.index('-o') + 1], 'w').write({json.dumps({'tests': [{'name': name, 'code': c, 'elapsed': 1.5} for c in codes]})!r})\n")
        self.script(self.build / "bin" / "lit", f"{text}raise SystemExit({exit_code})\n")
        return self.results_of(check.lit)

    def test_codes(self):
        self.assertEqual(self.counts(["PASS", "XFAIL", "UNSUPPORTED", "PASS"], 0, "allowed"), ((3, 0, 1), ""))
        self.assertEqual(self.times, {"allowed": 1.5})
        self.assertEqual(self.counts(["PASS", "UNSUPPORTED"], 0)[0], (1, 1, 0))
        self.assertEqual(self.counts(["PASS", "FAIL", "XPASS", "UNRESOLVED", "TIMEOUT"], 1)[0], (1, 4, 0))
        self.assertEqual(self.failures, ["a"] * 4)

    def test_exit_code(self):
        self.assertEqual(self.counts(["PASS"], 2)[0], (1, 1, 0))
        self.assertEqual(self.counts(None, 0)[0], (0, 1, 0))


class EndToEnd(Scratch):
    def counts(self, report, exit_code, quick=False, share=0):
        text = "" if report is None else (
            f"import sys\nassert ('--core' in sys.argv) == {quick}\nassert ('--share' in sys.argv) == {bool(share)}\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write({json.dumps(report)!r})\n")
        return self.results_of(check.end_to_end, quick, share, self.script(self.build / "run.py", f"{text}raise SystemExit({exit_code})\n"))

    def test_shares(self):
        """A share is passed on, and each case is in one."""
        whole = {"cases": 1, "passed": 1, "failed": 0, "failures": [], "skips": [], "left_out": 5}
        self.assertEqual(self.counts(whole, 0, share=2)[0], (1, 0, 0))
        self.assertIn("share 2 of 3", self.left_out)
        names = [f"numerics/{i}" for i in range(300)]
        shares = [{name for name in names if check.core.in_share(name, share)} for share in range(1, check.core.SHARES + 1)]
        self.assertEqual(set.union(*shares), set(names))
        self.assertEqual(sum(map(len, shares)), len(names))
        self.assertTrue(all(len(share) > 70 for share in shares))
        self.assertEqual({check.core.share_of(f"{i:08x}") for i in range(9)}, {1, 2, 3})
        self.assertEqual(check.core.share_of(""), 1)

    def test_exit_code(self):
        whole = {"cases": 3, "passed": 2, "failed": 0, "failures": [], "skips": [{"case": "proof/a", "message": "allowed"}],
                 "seconds": {"proof/a": 0.01, "bits/a": 7.5}}
        self.assertEqual(self.counts(whole, 0), ((2, 0, 1), ""))
        self.assertEqual(self.times, {"proof/a": 0.01, "bits/a": 7.5})
        self.assertEqual(self.counts(whole, 1)[0], (2, 1, 1))

    def test_skips_that_are_not_allowed(self):
        whole = {"cases": 3, "passed": 2, "failed": 0, "failures": [], "skips": [{"case": "proof/mutants/mlp", "message": "sheaf-mutants is not built"}]}
        counts, out = self.counts(whole, 0)
        self.assertEqual(counts, (2, 1, 0))
        self.assertIn("proof/mutants/mlp was skipped: sheaf-mutants is not built; test/skips.py does not allow", out)
        self.assertEqual(self.counts(None, 0)[0], (0, 1, 0))

    def test_cases_that_did_not_run(self):
        part = {"cases": 5, "passed": 2, "failed": 0, "failures": [], "skips": [{"case": "a", "message": "allowed"}]}
        self.assertEqual(self.counts(part, 0)[0], (2, 2, 1))

    def test_core(self):
        part = {"cases": 2, "passed": 2, "failed": 0, "failures": [], "skips": [], "left_out": 5}
        self.assertEqual(self.counts(part, 0, quick=True)[0], (2, 0, 0))
        self.assertIn("5 end-to-end cases", self.left_out)

    def test_failures_are_named(self):
        failures = [{"case": "bits/a", "message": "other weights\nthan those"}, {"case": "bits/b", "message": ""}]
        self.assertEqual(self.counts({"cases": 3, "passed": 1, "failed": 2, "failures": failures, "skips": []}, 1)[0], (1, 2, 0))
        self.assertEqual(self.failures, ["bits/a: other weights", "bits/b: no message"])


class Main(Scratch):
    COUNTS = (check.Counts(2, 1, failures=["a/Suite.Case1"], times={"a/Suite.Case1": 2.5}), check.Counts(3, times={"b": 0.5}),
              check.Counts(1, 1, failures=["bits/a: other weights"], times={"bits/a": 71}))

    def lines(self, *arguments):
        """Returns the printed lines; `environments` then has the variables that the three kinds of tests were given, and `unpacked` how many
        of them had run whenever models were unpacked."""
        self.environments, self.unpacked = [], []

        def ran(counts):
            return lambda _build, _jobs, environment, *_: self.environments.append(environment) or counts

        kinds = {name: ran(c) for name, c in zip(("gtest", "lit", "end_to_end"), self.COUNTS)}
        with unittest.mock.patch.multiple(check, formatted=lambda: True, **kinds), contextlib.redirect_stdout(io.StringIO()) as out, \
                unittest.mock.patch.object(sys, "argv", ["check.py", "--build", str(self.build), *arguments]), \
                unittest.mock.patch.object(check.unpack, "unpack", lambda: self.unpacked.append(len(self.environments))), \
                contextlib.redirect_stderr(io.StringIO()) as err:
            self.code = check.main()
        return out.getvalue().splitlines() + err.getvalue().splitlines()

    def test_failures_are_said_last(self):
        """The end of a long output has the names, and which processor the tests ran on."""
        lines = self.lines()
        self.assertEqual(self.code, 1)
        self.assertEqual(lines[1:3], ["failed: a/Suite.Case1", "failed: bits/a: other weights"])
        self.assertEqual(lines[-1], "6 passed, 2 failed, 0 skipped")
        self.assertTrue(lines[0] == lines[-3] and lines[0].endswith("not limited") and lines[0].startswith("processor: "), lines)
        self.assertIn("GoogleTest 2 s; lit 0 s; end to end 71 s", "\n".join(lines))

    def test_models_are_unpacked_first(self):
        """The build does not see that an unpacked model is missing. Only the format check reads none."""
        for only, expected in (("gtest,lit,e2e", [0]), ("lit", [0]), ("format", [])):
            self.lines("--only", only)
            self.assertEqual(self.unpacked, expected)

    def test_slowest(self):
        lines = self.lines("--slowest", "2")
        self.assertEqual([line.split()[-1] for line in lines[1:3]], ["bits/a", "a/Suite.Case1"])
        self.assertEqual((self.results / "times.txt").read_text().splitlines()[:2], lines[1:3])
        self.assertEqual(len((self.results / "times.txt").read_text().splitlines()), 3)

    def test_instruction_set(self):
        """All kinds of tests are limited to it; one that this processor lacks is an error before anything runs."""
        os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"
        self.addCleanup(os.environ.pop, "ONEDNN_MAX_CPU_ISA")
        self.lines()
        self.assertTrue(all("ONEDNN_MAX_CPU_ISA" not in e and "SHEAF_TEST_CPU" not in e for e in self.environments), self.environments)
        with unittest.mock.patch.object(processor, "fields", lambda: {"model name": "Zen 3", "flags": " ".join(processor.SETS[1].flags)}):
            lines = self.lines("--cpu", "avx2")
            self.assertTrue("Zen 3" in lines[0] and lines[0].endswith("limited to avx2, by CPU=avx2"), lines)
            self.assertEqual({(e["ONEDNN_MAX_CPU_ISA"], e["SHEAF_TEST_CPU"]) for e in self.environments}, {("AVX2", "x86-64-v3")})
            self.assertEqual(self.lines("--cpu", "AVX2"), lines)
            lines = self.lines("--cpu", "avx2 avx512")
            self.assertEqual((self.code, self.environments, lines), (2, [], ["CPU is 'avx2 avx512', which is not one of avx512, avx2"]))
            lines = self.lines("--cpu", "avx512")
        self.assertEqual((self.code, len(lines), self.environments), (2, 1, []))
        self.assertIn("Zen 3, lacks avx512f", lines[0])

    def test_makes_variable(self):
        """CPU counts on make's command line alone, and all of its words do."""
        for exported, given, said in (({"CPU": "x86_64"}, [], ""), ({"CPU": "x86_64"}, ["CPU=avx2"], "avx2"), ({}, ["CPU=avx2 x"], "avx2 x")):
            make = subprocess.run(["make", "--dry-run", "processor", *given], cwd=check.ROOT, env={"PATH": os.environ["PATH"], **exported},
                                  capture_output=True, text=True)
            self.assertIn(f'test/processor.py "{said}"\n', make.stdout, make.stderr)


class Skips(unittest.TestCase):
    """The list itself, on machines that have everything and nothing."""

    def setUp(self):
        class Double(skips.Machine):
            def __init__(self, there, sanitized=False):
                super().__init__(pathlib.Path("/nowhere"), sanitized)
                self.__dict__.update({has: lambda: there for has in ("has_gpu", "has_ptxas", "builds_emulated_device")})

        self.whole, self.bare, self.sanitized = Double(True), Double(False), Double(True, sanitized=True)

    def test_gpu(self):
        for name in ("cuda_gpu_test/CudaContextTest.EventsOrderStreams", "cuda_functions_gpu_test/Gpu.IsThere"):
            self.assertTrue(skips.is_allowed("GoogleTest", name, "", self.bare))
            self.assertFalse(skips.is_allowed("GoogleTest", name, "", self.whole))

    def test_toolkit(self):
        words = "no ptxas of a CUDA toolkit from 12.8 on is here"
        self.assertTrue(skips.is_allowed("end to end", "kernels/assembled/mlp", words, self.bare))
        self.assertFalse(skips.is_allowed("end to end", "kernels/assembled/mlp", words, self.whole))

    def test_emulated_device(self):
        words = "libsheaf_cuda_emulated.so is not built: there is no CUDA toolkit"
        for name in ("cuda/errors", "gpu-offload/poison", "f16/cuda/loss"):
            self.assertTrue(skips.is_allowed("end to end", name, words, self.bare), name)
            self.assertFalse(skips.is_allowed("end to end", name, words, self.whole), name)

    def test_pythons(self):
        """Every case that needs a Python of the caller's may be skipped where none is named, and nowhere else."""
        cases = [path.read_text() for path in sorted((check.ROOT / "test/e2e/cases").glob("*.py"))]
        reasons = {found for text in cases for found in re.findall(r'"(SHEAF_\w+ names no Python[^"]*)"', text)}
        self.assertGreaterEqual({reason.split()[0] for reason in reasons}, {"SHEAF_PYTORCH", "SHEAF_READERS"})
        for reason in reasons:
            variable = reason.split()[0]
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop(variable, None)
                self.assertTrue(skips.is_allowed("end to end", "any/case", reason, self.whole), reason)
                os.environ[variable] = "/venv/bin/python"
                self.assertFalse(skips.is_allowed("end to end", "any/case", reason, self.whole), reason)

    def test_sanitizers(self):
        words = "instrumented tools would take long"
        self.assertTrue(skips.is_allowed("end to end", "kernels/assembled/gpt2-124m", words, self.sanitized))
        self.assertFalse(skips.is_allowed("end to end", "kernels/assembled/gpt2-124m", words, self.bare))

    def test_what_a_build_always_has(self):
        for machine in (self.whole, self.bare, self.sanitized):
            for name, words in (("proof/mutants/mlp-adamw/zero-0", "sheaf-mutants is not built"),
                                ("fuzzing/plan", "sheaf-fuzz is not built"),
                                ("launchers/mpirun", "there is no mpirun.mpich: Debian's packages openmpi-bin and mpich have them")):
                self.assertFalse(skips.is_allowed("end to end", name, words, machine), name)
            self.assertFalse(skips.is_allowed("GoogleTest", "runtime_test/Proof.ARace", "", machine))
            self.assertFalse(skips.is_allowed("lit", "sheaf :: ir/plan-text.mlir", "", machine))


if __name__ == "__main__":
    unittest.main()
