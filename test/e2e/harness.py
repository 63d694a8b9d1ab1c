"""Running the tools for the end-to-end cases: every run once, whichever cases ask for it, in a scratch folder."""
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import threading
import time
import traceback
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "test" / "models"))

import unpack  # noqa: E402

MODELS = unpack.FOLDER  # a Session unpacks them
LARGE = ("gpt2-mini", "gpt2-124m")  # graphs without weights
# Bytes of a bucket of the small models, which have a single one by default. Others have buckets of 64 KiB.
BUCKETS = {"gpt2-tiny": 245234, "gpt2-tiny-logits": 244861, "gpt2-tiny-optimized": 222281, "llama-tiny": 267836, "llama-tiny-optimized": 228096,
           "mistral-tiny": 71005, "gpt-7.5b": 262660}


class Failure(Exception):
    """A case's expectation does not hold."""


class Skip(Exception):
    """A case cannot be run here; the text says why."""


def expect(condition, message):
    if not condition:
        raise Failure(message)


@dataclasses.dataclass
class Case:
    name: str
    run: Callable[[], str | None]  # may return what --verbose shows
    alone: bool = False  # it measures time, so nothing else may run meanwhile


@dataclasses.dataclass
class Finished:
    """A process that has ended."""
    code: int
    out: str
    err: str
    peak_kib: int


# The seconds that this thread's case has waited for what another case computes.
waiting = threading.local()


class Once:
    """A value computed at most once, by the first caller; a failure is kept for all callers."""

    def __init__(self):
        self._lock, self._entries = threading.Lock(), {}

    def get(self, key, compute):
        with self._lock:
            future = self._entries.get(key)
            mine = future is None
            if mine:
                future = self._entries[key] = concurrent.futures.Future()
        if mine:
            try:
                future.set_result(compute())
            except (Failure, Skip) as e:
                future.set_exception(e)
            except Exception:
                future.set_exception(Failure(traceback.format_exc()))
        begin = time.monotonic()
        try:
            return future.result()
        except (Failure, Skip) as e:
            raise type(e)(*e.args) from None
        finally:
            waiting.seconds = getattr(waiting, "seconds", 0) + time.monotonic() - begin


def has_word(text, word):
    """Whether the word occurs in the text by itself, not as part of another."""
    before, after = (r"(?<!\w)" if word[0].isalnum() else ""), (r"(?!\w)" if word[-1].isalnum() else "")
    return re.search(before + re.escape(word) + after, text) is not None


def expect_short_error(done, words, code=1):
    """A refusal: at most 12 lines on stderr that have the words, nothing on stdout, and this very exit code."""
    expect(done.code == code, f"exit {done.code}, not {code}\n{done.err}")
    lines = done.err.strip().splitlines()
    expect(lines, "nothing on stderr")
    expect(len(lines) <= 12, f"{len(lines)} lines on stderr:\n{done.err}")
    expect(not done.out, f"an error puts this on stdout: {done.out[:200]}")
    for word in words:
        expect(has_word(done.err, word), f"the error does not name `{word}`:\n{done.err}")


# This stands for `sheaf` on the PATH of a shell.
WRAPPER = """#!{python}
import os
import sys

sys.path.insert(0, {here!r})

from harness import for_processor

os.execv({tool!r}, [{tool!r}, *for_processor({cpu!r}, "sheaf", sys.argv[1:])])
"""


class Session:
    """The tools under test, the scratch folder, and the plans and runs made so far.

    tools: folder of `sheaf` and `sheaf-run`. scratch: emptied first. quick: fewer steps and configurations, for
    instrumented builds. slowdown: factor on every timeout. every_mutant: not samples of the proof's mutants, but all.
    every_division: not a set with every pair of settings, but all. kills: of runs with state in files. cpu: what kernels
    are compiled for, if not for this processor.
    """

    def __init__(self, tools, scratch, quick=False, slowdown=1, every_mutant=False, every_division=False, kills=6, cpu=None):
        self.tools, self.scratch = pathlib.Path(tools).resolve(), pathlib.Path(scratch).resolve()
        self.quick, self.slowdown = quick, slowdown
        self.every_mutant, self.every_division, self.kills = every_mutant, every_division, kills
        self.steps, self.cpu = 10 if quick else 100, cpu
        for tool in ("sheaf", "sheaf-run", "sheaf-opt"):
            if not (self.tools / tool).exists():
                raise FileNotFoundError(f"{self.tools} has no {tool}; `make build` makes it")
        unpack.unpack()
        self._made = Once()
        self._count = 0
        self._lock = threading.Lock()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)

    def folder(self):
        """A new empty folder of the caller's own."""
        with self._lock:
            self._count += 1
            path = self.scratch / f"{self._count:04}"
        path.mkdir()
        return path

    def graph(self, name):
        """The path of a model."""
        return MODELS / f"{name}.onnx"

    def call(self, tool, *args, timeout=300, cwd=None, env=None, watch=None):
        """Runs a tool to its end. watch(process) is called now and then while it runs."""
        command = [str(self.tools / tool), *for_processor(self.cpu, tool, list(map(str, args)))]
        begin = time.monotonic()
        where = self.folder()
        with open(where / "out", "wb") as out, open(where / "err", "wb") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=env)
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() - begin > timeout * self.slowdown:
                    process.kill()
                    os.wait4(process.pid, 0)
                    process.returncode = -9
                    raise Failure(f"no end after {timeout * self.slowdown} s: {' '.join(command)}")
                if watch:
                    watch(process)
                await_end(process.pid, 0.01 if watch else 1)
        process.returncode = os.waitstatus_to_exitcode(status)
        done = Finished(process.returncode, (where / "out").read_text(errors="replace"),
                        (where / "err").read_text(errors="replace"), usage.ru_maxrss)
        shutil.rmtree(where)
        return done

    def succeed(self, tool, *args, **options):
        done = self.call(tool, *args, **options)
        if done.code != 0 and "needs ptxas of the CUDA toolkit" in done.err:
            raise Skip("no ptxas of a CUDA toolkit from 12.8 on is here")
        if done.code != 0:
            command = " ".join(map(str, (tool, *args)))
            raise Failure(f"exit {done.code}: {command}\n{shorten(done.err)}")
        return done

    def plan(self, model, ranks=1, zero=0, batch=8, extra=()):
        """A compiled plan, made once for each set of options."""

        def compile_it():
            path = self.folder() / f"{model}.plan"
            buckets = () if "--bucket-size" in extra or model in LARGE else ("--bucket-size", BUCKETS.get(model, 64 << 10))
            self.succeed("sheaf", "compile", self.graph(model), "-o", path, "--ranks", ranks, "--zero", zero, "--batch", batch, *buckets, *extra)
            return path

        return self._made.get(("plan", model, ranks, zero, batch, tuple(extra)), compile_it)

    def inspect(self, plan):
        return json.loads(self.succeed("sheaf", "inspect", plan, "--format", "json").out)

    def on_path(self, cpu=None):
        """A folder of the tools for a shell's PATH, or for a program that calls them: there, kernels are compiled for self.cpu, too,
        or for another processor."""
        cpu = cpu or self.cpu

        def wrap():
            where = self.folder()
            for tool in ("sheaf", "sheaf-run", "sheaf-opt"):
                if tool == "sheaf":
                    here = str(ROOT / "test" / "e2e")
                    (where / tool).write_text(WRAPPER.format(python=sys.executable, here=here, cpu=cpu, tool=str(self.tools / tool)))
                    (where / tool).chmod(0o755)
                else:
                    (where / tool).symlink_to(self.tools / tool)
            return where

        return self._made.get(("tools on PATH", cpu), wrap) if cpu else self.tools

    def once(self, key, compute):
        return self._made.get(key, compute)


def await_end(pid, seconds):
    """Returns when a process has ended, or after so many seconds. Where the system has no pidfd, that is often."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        time.sleep(min(seconds, 0.01))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * seconds)
    finally:
        os.close(descriptor)


def for_processor(cpu, tool, arguments):
    """The arguments of a tool, with --cpu where it would compile kernels for this machine's processor."""
    compiles = arguments[:1] == ["compile"] or arguments[:1] == ["profile"] and "--target" in arguments
    if not cpu or tool != "sheaf" or not compiles or {"--cpu", "--like"} & {argument.partition("=")[0] for argument in arguments}:
        return arguments
    return [arguments[0], "--cpu", cpu, *arguments[1:]]


def library_limits():
    """The variables that limit oneDNN and our own loops, for programs that are started with an environment of their own."""
    return {name: os.environ[name] for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") if name in os.environ}


def shorten(text, lines=14):
    kept = text.strip().splitlines()
    return "\n".join(kept if len(kept) <= lines else kept[:lines] + [f"... {len(kept) - lines} more lines"])


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def plan_bytes(path):
    """A plan's file up to the plan's end: without the graph that may follow."""
    data = pathlib.Path(path).read_bytes()
    return data[:32 + int.from_bytes(data[16:24], "little")]


def run_cases(cases, jobs, only, report):
    """Runs the cases whose name matches; report(case, outcome, text, seconds) after each. Returns the outcomes' counts. The
    seconds are those of the case itself: what it waits for because another case computes it counts for that one."""
    chosen = [c for c in cases if not only or re.search(only, c.name)]
    counts = {"cases": len(chosen), "passed": 0, "failed": 0, "skipped": 0}
    lock = threading.Lock()

    def run(case):
        begin, outcome, text, waiting.seconds = time.monotonic(), "passed", "", 0
        try:
            # A case's result is text; one of several steps returns what they returned.
            result = case.run()
            text = result if isinstance(result, str) else ""
        except Skip as e:
            outcome, text = "skipped", str(e)
        except Failure as e:
            outcome, text = "failed", str(e)
        except Exception:
            outcome, text = "failed", traceback.format_exc()
        with lock:
            counts[outcome] += 1
            report(case, outcome, text, time.monotonic() - begin - waiting.seconds)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, [c for c in chosen if not c.alone]))
    for case in chosen:
        if case.alone:
            run(case)
    return counts
