"""Matrix products on CPUs: how tiles pack their operands, and that a run does not mix instruction sets."""
import difflib
import json
import os
import re

from formats import read_log
from harness import ROOT, Case, expect
from jobs import Job, common, plan

FIGURES = ROOT / "test" / "bench" / "packing.txt"
# Model, ranks, stage and batch.
PLANS = (("gpt2-mini", 1, 0, 8), ("gpt2-124m", 1, 0, 1), ("gpt2-mini", 4, 3, 8))


def cases(session):
    yield Case("products/packing", lambda: packing(session))
    yield Case("products/mixed-hosts", lambda: mixed_hosts(session))
    yield Case("products/resumed-elsewhere", lambda: resumed_elsewhere(session))


def packing(session):
    """The bytes that oneDNN packs for a flop, and the strides it packs with, are those in the tree: a tile rule that packs more is seen
    without a measurement. After an intended change, write what this prints to the file."""
    plans = [session.plan(model, ranks, zero, batch) for model, ranks, zero, batch in PLANS]
    made = session.succeed("../test/bin/gemm_bench", "--packing", *plans).out
    expected = FIGURES.read_text()
    changes = list(difflib.unified_diff(expected.splitlines(), made.splitlines(), "test/bench/packing.txt", "now", lineterm="", n=0))
    expect(not changes, "other tiles pack other bytes:\n" + "\n".join(changes))


def cpu_of(log):
    return read_log(log)[1][0]["cpu"]


def mixed_hosts(session):
    """Processes that compute with other instructions may compute other bits: a run of them is refused, or warns where that is allowed;
    where all are limited to the narrower set, neither."""
    one, narrow = plan(session), {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    where = session.folder()
    log = where / "log"
    mixed = lambda rank: narrow if rank else {"ONEDNN_MAX_CPU_ISA": "ALL"}
    session.succeed("sheaf-run", one, *common(1), "--log", log, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "ALL"})
    widest = cpu_of(log)
    expect(widest["instructions"] in ("AVX2", "AVX-512"), f"{widest}")
    expect(re.fullmatch(r"oneDNN \d+\.\d+\.\d+", widest["library"]) and widest["kernels"] and widest["processor"], f"{widest}")
    with Job(session, 2, one, *common(1), environment=mixed) as job:
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            for word in (f"with {widest['instructions']} instructions", "with SSE4.1 instructions", "ONEDNN_MAX_CPU_ISA=SSE41 ", "--allow-mixed-hosts"):
                expect(word in process.error_text(), f"`{word}` is not in\n{process.error_text()}")
    with Job(session, 2, one, *common(1), "--allow-mixed-hosts", "--log", log, "--save-state", where / "states", environment=mixed) as job:
        job.succeed()
        expect("mixed hosts: " in job.processes[0].error_text(), job.processes[0].error_text())
    expect(cpu_of(log)["mixed"] and any("mixed hosts: " in e["message"] for e in read_log(log)[1] if e["event"] == "warning"), "no warning in the log")
    resumed = session.succeed("sheaf-run", one, *common(2), "--resume", where / "states")
    expect(" and others; this one has" in resumed.err, resumed.err)
    with Job(session, 2, one, *common(1), "--log", log, environment=narrow) as job:
        job.succeed()
    expect({**cpu_of(log), "bf16": ""} == {**widest, "bf16": "", "instructions": "SSE4.1", "products": "oneDNN"}, f"the log has {cpu_of(log)}")
    session.succeed("sheaf-run", one, *common(1), "--log", log, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})
    expect(cpu_of(log)["products"] == "Sheaf", f"the log has {cpu_of(log)} of a run limited to AVX2")


def resumed_elsewhere(session):
    """A state says what its run computed with: to go on with other instructions is a warning, to go on with the same is none."""
    one, where = plan(session), session.folder()
    narrow, all_sets = ({**os.environ, "ONEDNN_MAX_CPU_ISA": isa} for isa in ("SSE41", "ALL"))
    session.succeed("sheaf-run", one, *common(1), "--save-state", where / "states", env=narrow)
    (state,) = (where / "states").glob("step-*")
    saved = json.loads((state / "manifest.json").read_text())["state"].get("cpu")
    expect(saved and saved["instructions"] == "SSE4.1" and not saved["mixed"], f"the state has {saved}")
    for environment, warns in ((narrow, False), (all_sets, True)):
        resumed = session.succeed("sheaf-run", one, *common(2), "--resume", where / "states", env=environment)
        expect(("the state was saved by a run that computed with oneDNN" in resumed.err) == warns, resumed.err)
