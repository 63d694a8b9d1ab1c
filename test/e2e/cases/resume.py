"""A run that is interrupted prints the command that goes on, and that command leaves the bits of a run that was not interrupted."""
import random
import signal
import subprocess
import time

from cases.evaluation import first_rows
from formats import read_log
from harness import Case, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments

CONFIG = CONFIGS["gpt2-tiny"]
STEPS, ROWS = 60, 240  # two passes over the rows
STATE = ("--offload", "optimizer=file,parameters=file")
# By name: ranks, stage, processes, the signal, options of the run. Schedules state no length: it is that of the whole training.
WAYS = {
    "cosine": (2, 3, 1, signal.SIGINT, ("--steps", STEPS, "--lr-schedule", "cosine:warmup=20,min=0.1")),
    "linear-one-rank": (1, 0, 1, signal.SIGTERM, ("--steps", STEPS, "--lr-schedule", "linear:warmup=40,start=0")),
    "hangup": (2, 3, 1, signal.SIGHUP, ("--steps", STEPS, "--lr-schedule", "cosine")),
    "epochs": (2, 2, 1, signal.SIGINT, ("--epochs", 2, "--lr-schedule", "one-cycle", "--shuffle", 3)),
    "every": (2, 3, 1, signal.SIGINT, ("--steps", STEPS, "--lr-schedule", "wsd:decay=30", "--shuffle", 3, "--save-every", 15, "--save-staging", "auto",
                                       "--keep-saves", 2, "--eval-every", 40)),
    "processes": (4, 3, 2, signal.SIGTERM, ("--steps", STEPS, "--lr-schedule", "polynomial:power=2", "--shuffle", 3, "--save-every", 30)),
    "files": (2, 3, 1, signal.SIGINT, ("--steps", STEPS, "--lr-schedule", "cosine", "--shuffle", 3)),
}


def cases(session):
    for way in WAYS:
        yield Case(f"resume/interrupted/{way}", lambda w=way: interrupted(session, w))
    yield Case("resume/again", lambda: again(session))
    yield Case("resume/nothing-saved", lambda: nothing_saved(session))
    yield Case("resume/after-a-kill", lambda: after_a_kill(session))


def command_of(way, session, where):
    """The arguments of sheaf-run, with names that a shell would take apart."""
    ranks, zero, _, _, options = WAYS[way]
    compiled = (*CONFIG.options, *(STATE if way == "files" else ()), *(("--eval",) if "--eval-every" in options else ()))
    plan = session.plan(CONFIG.model, ranks, zero, 8, compiled)
    data = [a for name, file in CONFIG.data for a in ("--data", f"{name}={first_rows(session, file, ROWS)}")]
    if "--eval-every" in options:
        data += [a for name, file in CONFIG.data for a in ("--eval-data", f"{name}={first_rows(session, file, 16)}")]
    kept = ("--offload-dir", where / "files") if way == "files" else ("--save-state", where / "a state's folder")
    if way == "files":
        (where / "files").mkdir()
    return [plan, *data, *options, *kept, "--save", where / "weights $1.safetensors"]


def printed_command(errors):
    lines = [line.split(": ", 1)[1] for line in errors.splitlines() if line.startswith("to go on")]
    expect(len(lines) == 1, f"{len(lines)} commands are printed:\n{errors}")
    return lines[0]


def cut(session, way, where, wanted):
    """Interrupts a run after about so many steps; gives its command's arguments, its errors, and the number of its steps."""
    _, _, count, number, _ = WAYS[way]
    arguments, log = command_of(way, session, where), where / "log"
    with Job(session, count, *arguments, "--log", log) as job:
        job.until(lambda: log.exists() and log.read_text().count('"loss"') >= wanted)
        job.processes[-1].popen.send_signal(number)
        if number == signal.SIGHUP:
            # A closed terminal: the shell sends one, and the system another.
            time.sleep(0.02)
            job.processes[-1].popen.send_signal(number)
        job.end_with(0, 128 + number)
        done = len(read_log(log)[0])
        expect((job.processes[0].popen.returncode == 0) == (done == STEPS), f"{done} steps, exit {job.processes[0].popen.returncode}")
        return arguments, job.processes[0].error_text(), done


def interrupted(session, way):
    count, whole, draw = WAYS[way][2], session.folder(), random.Random(way)
    session.succeed("sheaf-run", *command_of(way, session, whole))
    expected = digest(whole / "weights $1.safetensors")
    # A quick run may be over before the signal comes, if this process has to wait for a processor.
    for _ in range(5):
        where = session.folder()
        arguments, errors, done = cut(session, way, where, draw.randrange(5, STEPS // 2))
        if done < STEPS:
            break
    log = where / "log"
    expect(done < STEPS, f"the run was over before the signal came: {done} steps")
    expect(f"interrupted: {done} of {STEPS} steps are done" in errors, errors)
    command = printed_command(errors)
    expect(("by the same launcher" in errors) == (count > 1), errors)
    if count == 1:
        # As it is printed, in a shell.
        rest = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60 * session.slowdown)
        expect(rest.returncode == 0, f"{command}\n{rest.stderr}")
        expect("warning" not in rest.stderr, rest.stderr)
    else:
        with Job(session, count, *arguments, "--log", log, "--resume", where / "a state's folder") as job:
            job.succeed()
    steps, events = read_log(log)
    expect([s["step"] for s in steps] == list(range(STEPS)), f"{len(steps)} steps, cut after {done}")
    expect([e["step"] for e in events if e["event"] == "resumed"] == [done], f"{events}")
    expect(digest(where / "weights $1.safetensors") == expected, f"cut after step {done}: other weights")
    if way == "every":
        # Evaluations and saves are done at the steps of the run without an interruption.
        evaluated = [e["step"] for e in events if e["event"] == "eval"]
        expect(evaluated == [40, STEPS], f"evaluated after {evaluated}")
        saved = {e["step"] for e in events if e["event"] == "saved_state"}
        expect(saved == {*range(15, STEPS, 15), done, STEPS}, f"saved after {sorted(saved)}")
    return f"cut after step {done}"


def again(session):
    """The command of a training that is complete trains nothing and ends well; one of fewer steps is refused."""
    where = session.folder()
    plan = session.plan(CONFIG.model, 2, 3, 8, CONFIG.options)
    run = ("sheaf-run", plan, *data_arguments(CONFIG), "--save-state", where / "state", "--save", where / "w", "--log", where / "log")
    session.succeed(*run, "--steps", 6)
    before = digest(where / "w")
    done = session.succeed(*run, "--steps", 6, "--resume", where / "state")
    expect("nothing is left to train: the state is of step 6, and --steps 6 is the length of the whole training" in done.err, done.err)
    expect(digest(where / "w") == before and len(read_log(where / "log")[0]) == 6, "something was trained")
    refused = session.call(*run, "--steps", 5, "--resume", where / "state")
    expect_short_error(refused, ["--steps 5", "whole training", "step 6", "--steps 11 trains 5 more"])
    longer = session.succeed(*run, "--steps", 8, "--resume", where / "state")
    expect("warning" not in longer.err and len(read_log(where / "log")[0]) == 8, longer.err)


def nothing_saved(session):
    """Without a folder for states the run says which option names one, and prints no command."""
    where = session.folder()
    plan = session.plan(CONFIG.model, 1, 0, 8, CONFIG.options)
    with Job(session, 1, plan, *data_arguments(CONFIG), "--steps", 100000, "--log", where / "log", "--save", where / "w") as job:
        job.until(lambda: (where / "log").exists() and (where / "log").read_text().count('"loss"') >= 3)
        job.processes[0].popen.send_signal(signal.SIGINT)
        job.end_with(128 + signal.SIGINT)
        errors = job.processes[0].error_text()
    expect("no state is saved: --save-state DIR saves one" in errors and "to go on" not in errors, errors)
    expect((where / "w").exists(), "--save writes no weights")


def after_a_kill(session):
    """Process 0 prints the command for the newest state if another process is killed."""
    where = session.folder()
    state = where / "state"
    plan = session.plan(CONFIG.model, 2, 3, 8, CONFIG.options)
    arguments = [plan, *data_arguments(CONFIG), "--steps", 100000, "--save-state", state, "--save-every", 5]
    with Job(session, 2, *arguments) as job:
        job.until(lambda: (state / "latest").exists())
        time.sleep(0.1)
        job.processes[1].popen.kill()
        expect(job.wait(but=(1,), seconds=20) == [1], "process 0 goes on")
        errors = job.processes[0].error_text()
    command = printed_command(errors)
    expect(command.endswith(f"--save-every 5 --resume {state}"), command)
