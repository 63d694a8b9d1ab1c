"""The proof of plans: every plan of the small models is proved, and mutants that drop an order or move a buffer are not."""
import re

from harness import Case, expect
from training import CONFIGS


def cases(session):
    for name in ("mlp-adamw", "gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)):
            yield Case(f"proof/{name}/ranks-{ranks}/zero-{zero}", lambda n=name, r=ranks, z=zero: proved(session, n, r, z))
    for zero in (0, 1, 2, 3):
        yield Case(f"proof/mutants/mlp-adamw/zero-{zero}", lambda z=zero: mutants(session, "mlp-adamw", z))
    yield Case("proof/run-refuses", lambda: run_refuses(session))


def proved(session, name, ranks, zero):
    config = CONFIGS[name]
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    expect("race-free" in session.succeed("sheaf", "verify", plan).out, "sheaf verify does not say what it proved")


def text_of(session, name, zero):
    config = CONFIGS[name]
    plan = session.plan(config.model, 4, zero, 8, config.options)
    return session.succeed("sheaf", "inspect", plan, "--format", "text").out.split("\n")


def assemble(session, where, lines):
    (where / "mutant.mlir").write_text("\n".join(lines))
    session.succeed("sheaf", "assemble", where / "mutant.mlir", "-o", where / "mutant.plan")
    return where / "mutant.plan"


def mutants(session, name, zero):
    """Every wait is needed but those that hold gathers to their schedule, which may be needed for memory only. A buffer
    moved onto its neighbour's bytes is a race or a read of what another has overwritten."""
    where, lines = session.folder(), text_of(session, name, zero)
    survivors, count = [], 0
    for i, line in enumerate(lines):
        if "plan.wait" not in line or "plan.all_gather" in lines[i + 1]:
            continue
        count += 1
        plan = assemble(session, where, lines[:i] + lines[i + 1:])
        if session.call("sheaf", "verify", plan).code == 0:
            survivors.append(line.strip())
    expect(count > 0 and not survivors, f"{len(survivors)} of {count} deleted waits were not missed: {survivors[:3]}")

    buffers = [i for i, line in enumerate(lines) if "plan.buffer" in line and "persistent" not in line]
    for i in buffers:
        moved = re.sub(r"offset \d+", "offset 0", lines[i])  # onto the first bucket's parameters
        plan = assemble(session, where, lines[:i] + [moved] + lines[i + 1:])
        expect(session.call("sheaf", "verify", plan).code != 0, f"moved onto other bytes and accepted: {moved.strip()[:120]}")


def run_refuses(session):
    """sheaf-run applies the proof to what it loads, before it looks at data."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0)
    at = next(i for i, line in enumerate(lines) if "plan.wait" in line)
    plan = assemble(session, where, lines[:at] + lines[at + 1:])
    told = session.call("sheaf-run", plan, "--data", "x=none.npy", "--data", "labels=none.npy", "--steps", 1)
    expect(1 <= told.code <= 127, f"exit code {told.code}")
    expect("may race" in told.err or "may deadlock" in told.err or "not written" in told.err, told.err[:300])
