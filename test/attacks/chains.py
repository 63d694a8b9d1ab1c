"""Long, wide and deep models: compiled in a time that grows with their size, or refused at once; no crash."""
import os
import resource
import subprocess
import time

import longmodels

# Seconds for a model beyond the limits that docs/onnx.md states: to refuse it, and to compile it where simplification
# leaves few of its nodes. Below the limits a model takes at most so much per node.
SIZES, REFUSED, SIMPLIFIED, PER_NODE, LEAST = (1000, 4000, 70000), 5, 40, 0.02, 10
COMMANDS = {"check": [], "compile": ["-o", "out.plan", "--zero", "0"]}


def seconds_of(session, where, name, command, limit):
    """(exit code or None, seconds of processor time, the last line of stderr)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(where / "err", "wb") as err:
        process = subprocess.Popen([session.tools / "sheaf", command, name, "--batch", "4", *COMMANDS[command]], cwd=where, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=err)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line for line in (where / "err").read_text(errors="replace").splitlines() if ": error: " in line]
    return code, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, lines[-1][:100] if lines else ""


def grows(session, kind):
    tries = bad = 0
    text = []
    where = session.folder()
    for command in COMMANDS:
        for size in SIZES:
            (where / "m.onnx").write_bytes(longmodels.KINDS[kind](size))
            limit = max(LEAST, PER_NODE * size) if size < SIZES[-1] else SIMPLIFIED
            begin = time.monotonic()
            code, seconds, error = seconds_of(session, where, "m.onnx", command, 10 * limit)
            tries += 1
            # A refusal of `check` is on stdout.
            wrong = code not in (0, 1) or seconds > (REFUSED if code == 1 else limit) or (code == 1 and command == "compile" and not error)
            bad += wrong
            text.append(f"{command} {size}: {seconds:.1f} s" + (" refused" if code == 1 else "" if code == 0 else f" exit {code}") + (" BAD" if wrong else ""))
            assert time.monotonic() - begin < 11 * limit
            if os.path.exists(where / "out.plan"):
                os.unlink(where / "out.plan")
    return {"tries": tries, "bad": bad, "text": "; ".join(text)}


ATTACKS = {f"chains/{kind}": lambda session, k=kind: grows(session, k) for kind in longmodels.KINDS}
