"""What is seen of a run while it runs: event files for TensorBoard, metrics for Prometheus, the line on a terminal."""
import json
import os
import re
import struct
import subprocess

from cases.terminal import printed
from formats import read_events, read_log
from harness import Case, Skip, expect, expect_short_error
from training import CONFIGS, data_arguments

CONFIG = CONFIGS["mlp-adamw"]
STEPS, EVERY = 6, 3


def cases(session):
    yield Case("watching/events", lambda: events(session))
    yield Case("watching/events-resumed", lambda: resumed(session))
    yield Case("watching/metrics", lambda: metrics(session))
    yield Case("watching/metrics-of-a-failed-run", lambda: failed(session))
    yield Case("watching/readers", lambda: readers(session))
    yield Case("watching/terminal", lambda: terminal(session))
    yield Case("watching/refused", lambda: refused(session))


def plan(session):
    return session.plan(CONFIG.model, 2, 3, 8, CONFIG.options + ("--eval", "--clip-norm", "1"))


def arguments():
    data = data_arguments(CONFIG)
    return [*data, *(a for i in (1, 3) for a in ("--eval-data", data[i]))]


def watched(session):
    """A run with evaluations that writes everything: its folder."""
    def run():
        where = session.folder()
        session.succeed("sheaf-run", plan(session), *arguments(), "--steps", STEPS, "--eval-every", EVERY, "--log", where / "log",
                        "--log-dir", where / "events" / "first", "--metrics-file", where / "sheaf.prom")
        return where
    return session.once("watched", run)


def event_files(folder):
    return sorted(folder.glob("events.out.tfevents.*"))


def scalars(records):
    """{tag: {step: number}}"""
    found = {}
    for step, values, _ in records:
        for tag, number in values.items():
            found.setdefault(tag, {})[step] = number
    return found


def f32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def expect_events(where, found):
    """What TensorBoard shows is what the log says."""
    steps, events = read_log(where / "log")
    evaluations = [e for e in events if e["event"] == "eval"]
    expect(len(steps) == STEPS and len(evaluations) == STEPS // EVERY, f"{len(steps)} steps, {len(evaluations)} evaluations")
    for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/lr", "lr")):
        expect(found[tag] == {s["step"]: f32(s[key]) for s in steps}, f"{tag}: {found.get(tag)}, the log says {steps}")
    for tag, key in (("eval/loss", "loss"), ("eval/accuracy", "accuracy")):
        expect(found[tag] == {e["step"]: f32(e[key]) for e in evaluations}, f"{tag}: {found.get(tag)}, the log says {evaluations}")
    expect(found["train/samples_per_second"] == {s["step"]: f32(8 / s["seconds"]) for s in steps}, "other rates than the log's")
    expect(all(n > 1 << 20 for n in found["memory/resident_bytes"].values()), f"memory {found['memory/resident_bytes']}")
    expect(set(found) == {"train/loss", "train/grad_norm", "train/lr", "train/samples_per_second", "memory/resident_bytes", "eval/loss",
                          "eval/accuracy"}, f"tags {sorted(found)}")


def events(session):
    where = watched(session)
    files = event_files(where / "events" / "first")
    expect(len(files) == 1, f"{len(files)} event files")
    records = read_events(files[0])
    expect(records[0][2].get(3) == b"brain.Event:2", f"the first record is {records[0]}")
    expect(records[1][2].get(7) == b"\x08\x01" and records[1][0] == 0, f"the second record is {records[1]}, no start")
    expect_events(where, scalars(records))


def resumed(session):
    """A resumed run adds a file to the folder, which tells readers to forget what came after its first step."""
    where = session.folder()
    for steps, more in ((4, ("--save-state", where / "state")), (6, ("--resume", where / "state"))):
        session.succeed("sheaf-run", plan(session), *data_arguments(CONFIG), "--steps", steps, "--log-dir", where / "events", *more)
    files = sorted(event_files(where / "events"), key=lambda f: read_events(f)[1][0])
    expect([[step for step, _, _ in read_events(f)[1:]] for f in files] == [[0, 0, 1, 2, 3], [4, 4, 5]], f"the records of {files}")


def read_metrics(path):
    """{name: number}: each metric once, with a type and help."""
    found, typed = {}, {}
    for line in path.read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            typed[name] = kind
        elif not line.startswith("# HELP "):
            match = re.fullmatch(r'(sheaf_[a-z_]+)\{plan="([^"]+)",model="([^"]+)"\} (\S+)', line)
            expect(match and match[1] in typed and match[1] not in found, f"a line that is not a metric: {line}")
            expect(typed[match[1]] == ("counter" if match[1].endswith("_total") else "gauge"), f"the type of {line}")
            found[match[1]] = float(match[4])
    return found


def metrics(session):
    where = watched(session)
    found, (steps, log) = read_metrics(where / "sheaf.prom"), read_log(where / "log")
    last, evaluation = steps[-1], [e for e in log if e["event"] == "eval"][-1]
    for name, number in (("running", 0), ("steps_total", STEPS), ("skipped_steps_total", 0), ("loss", last["loss"]),
                         ("gradient_norm", last["grad_norm"]), ("learning_rate", last["lr"]), ("step_seconds", last["seconds"]),
                         ("samples_per_second", 8 / last["seconds"]), ("eval_loss", evaluation["loss"]), ("eval_accuracy", evaluation["accuracy"])):
        expect(found.get(f"sheaf_{name}") == number, f"{name}: {found.get(f'sheaf_{name}')}, the log says {number}")
    expect(found["sheaf_last_step_timestamp_seconds"] > 1.7e9 and found["sheaf_resident_bytes"] > 1 << 20, str(found))
    expect([p.name for p in where.glob("*prom*")] == ["sheaf.prom"], "temporary files are left")


def failed(session):
    where = session.folder()
    done = session.call("sheaf-run", plan(session), *data_arguments(CONFIG), "--steps", 50, "--lr", "1e30", "--metrics-file", where / "m.prom")
    expect(done.code == 1 and "not finite" in done.err, done.err)
    found = read_metrics(where / "m.prom")
    expect(found["sheaf_running"] == 0 and found["sheaf_steps_total"] > 0, str(found))


READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from prometheus_client.parser import text_string_to_metric_families
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()["scalars"]
metrics = {s.name: s.value for f in text_string_to_metric_families(open(sys.argv[2]).read()) for s in f.samples}
print(json.dumps([{t: {e.step: e.value for e in events.Scalars(t)} for t in tags}, metrics]))
"""


def readers(session):
    """TensorBoard and Prometheus' own parsers."""
    python = os.environ.get("SHEAF_READERS")
    if not python:
        raise Skip("SHEAF_READERS names no Python with tensorboard and prometheus_client")
    where = watched(session)
    done = subprocess.run([python, "-c", READ, where / "events" / "first", where / "sheaf.prom"], capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    events, metrics = json.loads(done.stdout)
    expect_events(where, {tag: {int(step): number for step, number in values.items()} for tag, values in events.items()})
    expect(metrics == read_metrics(where / "sheaf.prom"), f"Prometheus reads {metrics}")


def at_terminal(session, columns, environment):
    """What a run writes to a terminal of so many columns."""
    text, code = printed([session.tools / "sheaf-run", plan(session), *data_arguments(CONFIG), "--steps", 800], columns, environment)
    expect(code == 0, text)
    return text


def terminal(session):
    wide = at_terminal(session, 120, {"LC_ALL": "C.UTF-8"})
    lines = wide.split("\r\033[K")
    expect(len(lines) > 2 and wide.count("\n") == 1, f"a line is not redrawn: {wide!r}")
    last = re.fullmatch(r"step 800/800  loss \d\.\d+  lr 0\.001  norm [\de.-]+  [\d,.kM ]+ samples/s  \d+s, 0s left  ([▁-█]{12,24})\s*", lines[-1])
    expect(last, f"the last line is {lines[-1]!r}")
    # The model learns: the loss is highest at the start.
    expect(last[1][0] == "█" and last[1][-1] in "▁▂", f"the loss runs {last[1]}")
    expect(all(len(line.strip()) < 120 for line in lines), "a line is wrapped")
    for columns, environment in ((60, {"LC_ALL": "C.UTF-8"}), (120, {"LC_ALL": "C"})):
        plain = at_terminal(session, columns, environment)
        expect(not re.search("[▁-█]", plain) and "step 800/800" in plain, f"{columns} columns, {environment}: {plain[-200:]!r}")
    done = session.succeed("sheaf-run", plan(session), *data_arguments(CONFIG), "--steps", 100)
    expect(done.err.count("\n") == 1 and "step 100/100" in done.err, f"without a terminal it prints {done.err!r}")


def refused(session):
    where = session.folder()
    (where / "file").write_text("")
    for option, path, words in (("--log-dir", where / "file" / "x", ["--log-dir", "cannot make folder"]),
                                ("--metrics-file", where / "none" / "x.prom", ["--metrics-file"])):
        expect_short_error(session.call("sheaf-run", plan(session), *data_arguments(CONFIG), "--steps", 1, "--save", where / "w", option, path), words)
