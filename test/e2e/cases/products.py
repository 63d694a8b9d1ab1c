"""Matrix products on CPUs: how tiles of both instruction sets pack their operands, and that a run does not mix instruction sets."""
import difflib
import os

from formats import read_log
from harness import ROOT, Case, expect
from jobs import Job, common, plan

FIGURES = ROOT / "test" / "bench" / "packing.txt"
# Model, ranks, stage and batch.
PLANS = (("gpt2-mini", 1, 0, 8), ("gpt2-124m", 1, 0, 1), ("gpt2-mini", 4, 3, 8))


def cases(session):
    yield Case("products/packing", lambda: packing(session))
    yield Case("products/instructions", lambda: instructions(session))


def packing(session):
    """The bytes that oneDNN packs for a flop, and the strides it packs with, are those in the tree: a tile rule that packs more is seen
    without a measurement. After an intended change, write what this prints to the file."""
    plans = [session.plan(model, ranks, zero, batch) for model, ranks, zero, batch in PLANS]
    made = session.succeed("../test/bin/gemm_bench", "--packing", *plans).out
    expected = FIGURES.read_text()
    changes = list(difflib.unified_diff(expected.splitlines(), made.splitlines(), "test/bench/packing.txt", "now", lineterm="", n=0))
    expect(not changes, "other tiles pack other bytes:\n" + "\n".join(changes))


def instructions(session):
    """Processes whose products are computed by other instructions would compute other bits: a run of them is refused, and one limited to
    the narrower set is not."""
    one, limit = plan(session), {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    log = session.folder() / "log"
    session.succeed("sheaf-run", one, *common(1), "--log", log, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "ALL"})
    widest = read_log(log)[1][0]["gemm_isa"]
    expect(widest in ("AVX2", "AVX-512"), f"products by {widest}")
    with Job(session, 2, one, *common(1), environment=lambda rank: limit if rank else {"ONEDNN_MAX_CPU_ISA": "ALL"}) as job:
        if widest == "AVX2":
            job.succeed()
            return
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            for word in ("matrix products by AVX-512 instructions (ONEDNN_MAX_CPU_ISA=AVX2", "matrix products by AVX2 instructions"):
                expect(word in process.error_text(), f"`{word}` is not in\n{process.error_text()}")
    with Job(session, 2, one, *common(1), "--log", log, environment=limit) as job:
        job.succeed()
    expect(read_log(log)[1][0]["gemm_isa"] == "AVX2", "the log names another set")
