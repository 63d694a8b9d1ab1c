"""The proof of plans: every plan of the small models is proved, and mutants that change an order or a byte are not."""
from harness import Case, Skip, expect
from training import CONFIGS


def cases(session):
    for name in ("mlp-adamw", "gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)):
            yield Case(f"proof/{name}/ranks-{ranks}/zero-{zero}", lambda n=name, r=ranks, z=zero: proved(session, n, r, z))
    for name in CONFIGS:
        for zero in (0, 1, 2, 3):
            yield Case(f"proof/mutants/{name}/zero-{zero}", lambda n=name, z=zero: mutants(session, n, z))
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
    """What changes an order or a byte is refused, and no wait could be spared: see sheaf-mutants. Samples, unless all
    mutants are asked for."""
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    config = CONFIGS[name]
    clip = ("--clip-norm", "1")
    jobs = [(2, clip), (4, ())] + ([(2, ()), (4, clip)] if session.every_mutant else [])
    plans = [session.plan(config.model, ranks, zero, 8, config.options + options) for ranks, options in jobs]
    every = [] if session.every_mutant else ["--sample", 6]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def run_refuses(session):
    """sheaf-run applies the proof to what it loads, before it looks at data."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0)
    at = next(i for i, line in enumerate(lines) if "plan.wait" in line)
    plan = assemble(session, where, lines[:at] + lines[at + 1:])
    told = session.call("sheaf-run", plan, "--data", "x=none.npy", "--data", "labels=none.npy", "--steps", 1)
    expect(told.code == 1, f"exit code {told.code}")
    expect("may race" in told.err or "may deadlock" in told.err or "not written" in told.err, told.err[:300])
    expect("none.npy" not in told.err, told.err[:300])
