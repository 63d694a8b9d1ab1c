"""Jobs of several processes give the bits of one process; they end together, in order or because one is lost."""
import re
import signal

from formats import read_log
from harness import Case, digest, expect
from jobs import MODEL, RANKS, STAGE, STEPS, Job, broken_labels, common, losses, lost, plan, running, whole
from training import train


def cases(session):
    for count, launcher in ((2, "torchrun"), (4, "torchrun"), (2, "mpirun"), (4, "srun"), (2, "mpiexec"), (4, "kubernetes")):
        yield Case(f"processes/{count}-by-{launcher}", lambda n=count, v=launcher: same_bits(session, n, v))
    for stage in (0, 1, 2):
        yield Case(f"processes/stage-{stage}", lambda z=stage: same_bits(session, 2, "torchrun", z))
    for hosts in ("abcd", "aabb"):
        yield Case(f"processes/hosts-{hosts}", lambda h=hosts: same_bits(session, 4, "torchrun", hosts=h))
    for before, after in ((4, 1), (1, 4), (4, 2)):
        yield Case(f"processes/state-of-{before}-for-{after}", lambda b=before, a=after: resumed(session, b, a))
    yield Case("processes/damaged-state", lambda: damaged_state(session))
    yield Case("processes/interrupted", lambda: interrupted(session))
    for victim in (0, 2):
        yield Case(f"processes/killed-{victim}", lambda v=victim: lost(session, v, signal.SIGKILL, ["ended without a message"]))
    yield Case("processes/stalled", lambda: lost(session, 1, signal.SIGSTOP, ["SHEAF_TIMEOUT"], {"SHEAF_TIMEOUT": 4 * session.slowdown}))
    yield Case("processes/killed-over-sockets", lambda: lost(session, 2, signal.SIGKILL, ["ended without a message"], lambda rank: {"SHEAF_HOST": rank}))
    yield Case("processes/different-starts", lambda: different_starts(session))
    yield Case("processes/not-finite", lambda: not_finite(session))
    yield Case("processes/one-fails", lambda: one_fails(session))
    yield Case("processes/one-rank-fails", lambda: one_rank_fails(session))


def same_bits(session, count, launcher, stage=STAGE, hosts=""):
    """hosts: names the host of each process; those of one host share memory, and so do all if it is empty."""
    where, expected = session.folder(), whole(session, stage)
    with Job(session, count, plan(session, stage), *common(), "--save", where / "w", "--log", where / "log", "--dump-gradients",
                      where / "g", "--trace", where / "trace", "--poison", launcher=launcher,
             environment=lambda rank: {"SHEAF_HOST": hosts[rank]} if hosts else {}) as job:
        job.succeed()
        expect("loss" in job.processes[0].error_text(), "process 0 shows no progress")
        for process in job.processes[1:]:
            expect(not process.error_text(), f"another process than 0 says\n{process.error_text()}")
    expect(digest(where / "w") == digest(expected.weights), "other weights")
    expect(digest(where / "g") == digest(expected.gradients), "other gradients")
    steps, events = read_log(where / "log")
    expect(losses(steps) == losses(expected.steps), "other losses")
    arenas = [e for e in events if e["event"] == "arena"]
    expect([e["rank"] for e in arenas] == list(range(RANKS)), f"arenas of {arenas}")
    expect(all(e["highest_touched_byte"] <= e["peak_bytes"] for e in arenas), f"more than the arena is touched: {arenas}")
    nodes = len(set(hosts)) or 1
    expect((events[0]["processes"], events[0]["nodes"]) == (count, nodes) and (events[0]["exchange_bytes"] > 0) == (nodes > 1),
           f"the log begins with {events[0]}")
    traces = [where / "trace"] + [where / f"trace.process-{p}" for p in range(1, count)]
    expect(all(t.exists() for t in traces), f"traces: {sorted(p.name for p in where.iterdir())}")


def resumed(session, before, after):
    half, where, expected = STEPS // 2, session.folder(), whole(session)
    for count, steps, options in ((before, half, ("--save-state", where / "state", "--save-every", 2)),
                                  (after, STEPS, ("--resume", where / "state", "--save", where / "w"))):
        arguments = [plan(session), *common(steps), *options]
        if count == 1:
            session.succeed("sheaf-run", *arguments)
        else:
            with Job(session, count, *arguments) as job:
                job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "other weights than without the interruption")
    states = sorted(p.name for p in (where / "state").iterdir())
    expect(states == ["latest", "step-00000002", "step-00000004", "step-00000005"], f"the states are {states}")


def damaged_state(session):
    """Each process verifies some of the files; a damaged one is refused by all of them, and the state before it named."""
    where, expected = session.folder(), whole(session)
    session.succeed("sheaf-run", plan(session), *common(4), "--save-state", where / "state", "--save-every", 2)
    for rank in range(RANKS):
        path = where / "state" / "step-00000004" / f"rank-{rank:05}.safetensors"
        right = path.read_bytes()
        path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
        with Job(session, 2, plan(session), *common(STEPS), "--resume", where / "state", "--save", where / "w") as job:
            expect(job.wait() == [1, 1], f"a damaged file of rank {rank} is not noticed")
            for process in job.processes:
                for word in (str(path), str(where / "state" / "step-00000002")):
                    expect(word in process.error_text(), f"`{word}` is not in\n{process.error_text()}")
        path.write_bytes(right)
    with Job(session, 2, plan(session), *common(STEPS), "--resume", where / "state" / "step-00000002", "--save", where / "w") as job:
        job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "other weights")


def interrupted(session):
    """One process is asked to end: all end after the same step, with the state saved, from which the run goes on."""
    where = session.folder()
    log, state = where / "log", where / "state"
    with Job(session, 4, plan(session), *common(100000), "--save-state", state, "--log", log) as job:
        job.until(running(log))
        job.processes[2].popen.send_signal(signal.SIGTERM)
        job.end_with(128 + signal.SIGTERM)
        expect("interrupted" in job.processes[0].error_text(), job.processes[0].error_text())
    steps, events = read_log(log)
    done = len(steps)
    expect([e["step"] for e in events if e["event"] == "interrupted"] == [done], f"{done} steps, {events}")
    expect((state / f"step-{done:08}" / "manifest.json").exists(), "no state is saved")
    expected = train(session, MODEL, RANKS, STAGE, steps=done + 3, repeat=1)
    with Job(session, 2, plan(session), *common(done + 3), "--resume", state, "--save", where / "w") as job:
        job.succeed()
    expect(digest(where / "w") == digest(expected.weights), "the run goes on with other bits")


def refused(session, words, *arguments, own):
    with Job(session, 2, *arguments, own=own) as job:
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            for word in words:
                expect(word in process.error_text(), f"`{word}` is not in\n{process.error_text()}")


def different_starts(session):
    one, other = plan(session), plan(session, 2)
    refused(session, ["process 0 (", "process 1 (", "a plan for 4 ranks"], *common(), own=[[one], [other]])
    refused(session, ["--steps 10", "--steps 11"], one, *common()[:-2], own=[["--steps", 10], ["--steps", 11]])
    refused(session, ["--lr 0.1"], one, *common(), own=[["--lr", 0.1], []])
    refused(session, ["--shuffle 3", "--shuffle not given"], one, *common(), own=[["--shuffle", 3], []])
    swapped = ["--data", common()[1].replace("input_ids=", "labels="), "--data", common()[3].replace("labels=", "input_ids=")]
    refused(session, ["--data input_ids"], one, *common()[4:], own=[common()[:4], swapped])
    weights = session.folder() / "w"
    session.succeed("sheaf-run", one, *common(1), "--save", weights)
    refused(session, ["--weights of", "--weights not given"], one, *common(), own=[["--weights", weights], []])
    trace = session.folder() / "trace.json"
    refused(session, ["--trace given", "--trace not given"], one, *common(), own=[["--trace", trace], []])
    with Job(session, 3, one, *common()) as job:
        expect(job.wait() == [1, 1, 1] and "start 1, 2 or 4" in job.processes[1].error_text(), job.processes[1].error_text())


def not_finite(session):
    """Every process notices at the same step, whatever is under way."""
    state = session.folder() / "state"
    with Job(session, 4, plan(session), *common(50), "--lr", "1e30", "--save-state", state) as job:
        expect(job.wait() == [1] * 4, "no error")
        steps = {re.search(r"step (\d+): the loss", p.error_text()).group(1) for p in job.processes}
        expect(len(steps) == 1, f"it is noticed at steps {steps}")
    expect(not state.exists(), "a state is saved")


def one_fails(session):
    """An error of one process is reported by all, in its words."""
    refused(session, ["no-such-file"], plan(session), *common(), own=[[], ["--weights", "no-such-file"]])


def one_rank_fails(session):
    with Job(session, 2, plan(session), *broken_labels(session)) as job:
        codes = job.wait()
        expect(codes == [1, 1], f"exits {codes}")
        for process in job.processes:
            expect("rank 3: " in process.error_text() and "row 23" in process.error_text(), process.error_text())
        expect("process 1 (" in job.processes[0].error_text(), job.processes[0].error_text())
