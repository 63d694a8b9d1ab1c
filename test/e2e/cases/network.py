"""What crosses the network between nodes: the bytes that the plan says, counted by the transports, and no faster than a limit."""
import os
import time

from cases.transports import RANK, on_hosts
from cases.launchers import ended, mpirun, started
from formats import read_log
from harness import Case, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments

RANKS, CONFIG = 8, CONFIGS["gpt2-tiny"]
SPLITS = (2, 4, 8)  # nodes
STAGES = (0, 1, 2, 3, "node=3,world=0", "node=3,world=1")
LAUNCHERS = ("mpirun.openmpi", "mpirun.mpich")
SHORT, LONG = 2, 5  # steps of two runs, whose difference has none of what is sent before the first step


def cases(session):
    for nodes in SPLITS:
        for zero in STAGES[:4] if nodes == RANKS else STAGES:
            yield Case(f"network/bytes/{nodes}x{RANKS // nodes}/zero-{zero}", lambda n=nodes, z=zero: sockets(session, n, z))
        for launcher in LAUNCHERS:
            yield Case(f"network/bytes/{nodes}x{RANKS // nodes}/{launcher}", lambda n=nodes, v=launcher: over_mpi(session, n, v))
    yield Case("network/bytes/options", lambda: options(session))
    yield Case("network/rate", lambda: rate(session))
    yield Case("network/refused", lambda: refused(session))


def plan_for(session, nodes, zero, *extra):
    return session.plan(CONFIG.model, RANKS, zero, 8, (*CONFIG.options, "--bucket-size", 64 << 10, "--ranks-per-node", RANKS // nodes, *extra))


def expect_planned(session, plan, run):
    """The transports count the plan's bytes, all of them between nodes."""
    planned, end = session.inspect(plan), {steps: run(steps)["network"] for steps in (SHORT, LONG)}
    counted = end[LONG]["bytes"] - end[SHORT]["bytes"]
    expect(planned["network_bytes"] > 0, "the plan says that nothing crosses the network")
    expect(counted == (LONG - SHORT) * planned["network_bytes"], f"{counted} bytes in {LONG - SHORT} steps of {planned['network_bytes']} planned")
    expect(sum(end[LONG]["by_communicator"]) == sum(end[LONG]["by_process"]) == end[LONG]["bytes"], f"{end[LONG]}")
    expect(end[LONG]["header_bytes"] > 0 and min(end[LONG]["by_process"]) > 0, f"{end[LONG]}")
    # What a rank sends between nodes, by the axis alone: all but the sums of scalars over all ranks.
    expect(planned["network_bytes"] >= RANKS * planned["sent_bytes"]["network"], f"{planned['sent_bytes']}")


def by_sockets(session, nodes, plan, steps, rate=None):
    log = session.folder() / "log"
    limit = {"SHEAF_NETWORK_RATE": rate} if rate else {}
    with Job(session, nodes, plan, *data_arguments(CONFIG), "--steps", steps, "--log", log,
             environment=lambda rank: {"SHEAF_HOST": f"node{rank}", **limit}) as job:
        job.succeed()
    return read_log(log)[1][-1]


def sockets(session, nodes, zero):
    plan = plan_for(session, nodes, zero)
    expect_planned(session, plan, lambda steps: by_sockets(session, nodes, plan, steps))


def over_mpi(session, nodes, launcher):
    plan = plan_for(session, nodes, 3)

    def run(steps):
        log = session.folder() / "log"
        command = mpirun(session, launcher, nodes, *data_arguments(CONFIG), "--steps", steps, "--log", log, "--transport", "mpi")
        at = next(i for i, word in enumerate(command) if str(word).endswith("sheaf-run"))
        command[at + 1] = plan
        with started(session, on_hosts(command, RANK)) as (process, out):
            expect(ended(session, process, out) == 0, out.read_text())
        return read_log(log)[1][-1]

    expect_planned(session, plan, run)


def options(session):
    """Micro-batches, secondary shards, half-precision gradients, a norm for clipping."""
    for extra in (("--micro-batches", 2, "--leaves", 16), ("--secondary-shards", "all"), ("--precision", "bf16"), ("--clip-norm", "0.1")):
        batch = 16 if "--leaves" in extra else 8
        plan = session.plan(CONFIG.model, RANKS, 3, batch, (*CONFIG.options, "--bucket-size", 64 << 10, "--ranks-per-node", 4, *extra))
        expect_planned(session, plan, lambda steps, p=plan: by_sockets(session, 2, p, steps))


def rate(session):
    """Every process sends its part of the bytes, and no faster than the limit."""
    plan, limit = plan_for(session, 2, 3), 20_000_000
    begin = time.monotonic()
    end = by_sockets(session, 2, plan, LONG, limit)
    seconds, least = time.monotonic() - begin, max(end["network"]["by_process"]) / limit
    expect(seconds > least and end["step_seconds"] > 0.9 * session.inspect(plan)["network_bytes"] / 2 / limit, f"{seconds} s, at least {least}")


def refused(session):
    plan = plan_for(session, 2, 3)
    for value in ("fast", "10", "-1MiB"):
        done = session.call("sheaf-run", plan, *data_arguments(CONFIG), "--steps", 1, env={**os.environ, "SHEAF_NETWORK_RATE": value})
        expect_short_error(done, ["SHEAF_NETWORK_RATE", f"'{value}'", "100MiB"])
