"""Programs that may have few threads, little memory or small files: each ends in order, or with one error."""
import concurrent.futures
import itertools
import os
import re
import resource
import signal
import subprocess
import time

from common import CONFIG, End, Processes, limiting, plan, tally, text
from training import data_arguments

LIMIT, AT_ONCE = 3, 3
THREADS, COUNTS, WAYS = range(2, 25), (1, 2, 4), ("memory", "sockets")
MIB = 1 << 20
MEMORY = [20 + 840 * i // 53 for i in range(54)]  # MiB
FILES = [1 << shift for shift in range(10, 21)]
FIRST_USER = 61000


def loaded(end):
    """The dynamic linker did its work: without memory it says so itself, and exits with 127."""
    return end.code != 127 or not end.text


def outcome(tries, results):
    """Judges the runs of an attack, each a list of processes."""
    bad = [t for t, ends in zip(tries, results) if any(loaded(e) and not e.good for e in ends)]
    ends = [e for each in results for e in each]
    killed = sum(e.code is not None and e.code < 0 for e in ends)
    unloaded = sum(not loaded(e) for e in ends)
    return {"tries": len(tries), "bad": len(bad),
            "text": f"processes: {text(tally([e for e in ends if loaded(e)]))}, {unloaded} not loaded, {killed} by a signal" + (f"; bad: {bad[:8]}" if bad else "")}


def every(function, tries):
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return outcome(tries, list(pool.map(lambda t: function(*t), tries)))


def apart(way):
    return (lambda rank: {"SHEAF_HOST": rank}) if way == "sockets" else (lambda rank: {})


def threads(session):
    """Processes that may have few threads, each of a user of its own: the limit is one of a user, and root has none."""
    if os.getuid() != 0:
        return {"tries": 0, "bad": 0, "text": "skipped: only root can start processes of a user who has no others"}
    users = itertools.count(FIRST_USER)
    tries = list(itertools.product(THREADS, COUNTS, WAYS))

    def one(most, count, way):
        return Processes(session, count, 4, limit=LIMIT, more=apart(way), limits={resource.RLIMIT_NPROC: most},
                         user=lambda rank: next(users)).ends(1.25 * LIMIT + 15)

    return every(one, tries)


def memory(session):
    """Processes with little address space."""
    tries = [(mib, count) for mib in MEMORY for count in COUNTS]

    def one(mib, count):
        return Processes(session, count, 4, limit=LIMIT, limits={resource.RLIMIT_AS: mib * MIB}).ends(1.25 * LIMIT + 15)

    return every(one, tries)


def files(session):
    """Runs that save everything, where files may not be large. Nothing temporary is left."""
    tries = [(most, count, staging) for most in FILES for count in COUNTS for staging in ("", "auto")]

    def one(most, count, staging):
        where = session.folder()
        saves = ["--save", where / "w.safetensors", "--save-state", where / "state", "--save-every", 1, "--log", where / "log",
                 "--trace", where / "trace", "--dump-gradients", where / "gradients", *(["--save-staging", staging] if staging else [])]
        ends = Processes(session, count, 4, *saves, limit=LIMIT, limits={resource.RLIMIT_FSIZE: most}).ends(1.25 * LIMIT + 15)
        left = [p for p in where.rglob("*") if re.fullmatch(r"\..*-[0-9A-Za-z]{6}(\.old)?", p.name)]
        return ends + [End(-1, f"left: {left}")] * bool(left)

    return every(one, tries)


def compilers(session):
    """The compiler's commands, with few threads or little memory."""
    where, ready = session.folder(), plan(session, 4)
    where.chmod(0o777)
    graph = session.graph(CONFIG.model)
    commands = {"check": ("sheaf", "check", graph, "--batch", 8), "inspect": ("sheaf", "inspect", ready), "verify": ("sheaf", "verify", ready),
                "compile": ("sheaf", "compile", graph, "--batch", 8, "--ranks", 4, "-o")}
    tries = [(name, "memory", mib) for name in commands for mib in MEMORY[::3]]
    if os.getuid() == 0:
        tries += [(name, "threads", most) for name in commands for most in range(1, 9)]
    tries += [("compile", "files", most) for most in FILES]

    def one(name, what, most):
        number = session.folder().name
        command = list(map(str, commands[name])) + ([str(where / f"{number}.plan")] if name == "compile" else [])
        limits = {"memory": {resource.RLIMIT_AS: most * MIB}, "threads": {resource.RLIMIT_NPROC: most}, "files": {resource.RLIMIT_FSIZE: most}}[what]
        user = FIRST_USER + 2000 + int(number) if what == "threads" else None
        try:
            done = subprocess.run([str(session.tools / command[0]), *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  errors="replace", timeout=60, preexec_fn=limiting(limits, user))
            # This program's errors begin with the name of what is wrong.
            return [End(done.returncode, done.stderr + ("sheaf-run: error: " if done.returncode == 1 and "error: " in done.stderr else ""))]
        except subprocess.TimeoutExpired:
            return [End(None, "")]

    return every(one, tries)


def stopped(session):
    """A process that was stopped for longer than the others wait says so, and accuses no other of a crash."""
    bad, said = 0, []
    for which, way in itertools.product(range(4), WAYS):
        job = Processes(session, 4, 4, steps=10**7, limit=2, more=apart(way))
        time.sleep(1.5)
        job.popen[which].send_signal(signal.SIGSTOP)
        time.sleep(5)
        job.popen[which].send_signal(signal.SIGCONT)
        ends = job.ends(15)
        wrong = not all(e.good and e.code == 1 for e in ends) or "crashed or was killed" in ends[which].text
        bad += wrong
        said.append(ends)
    return {"tries": len(said), "bad": bad, "text": f"processes: {text(tally([e for ends in said for e in ends]))}"}


ATTACKS = {"threads": threads, "memory": memory, "file-sizes": files, "compilers": compilers, "stopped": stopped}
