"""State in files that every step can be resumed from, while GPUs compute, on the emulated CUDA device: in graphs and one by one, in
one process and in several, across kills of real processes."""
from cases import durable
from cases.cuda import TARGETS, batch_of, environment, library, results, train
from cases.durable import SETTINGS, STATE
from formats import read_log
from harness import Case, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments

STEPS = 12
# Besides the kinds of combinations that CPU ranks have.
WAYS = {name: (*setting, ()) for name, setting in SETTINGS.items()} | {
    "graphs": ("gpt2-tiny", 1, 0, (), ()),
    "one-by-one": ("gpt2-tiny", 1, 0, (), ("--no-graphs",)),
    "host-updates": ("gpt2-tiny", 1, 0, ("--update-on", "host"), ()),
    "four-ranks": ("gpt2-tiny", 4, 2, ("--update-on", "host", "--clip-norm", "1"), ()),
    "activations": ("llama-tiny", 2, 3, ("activations=file",), ()),
}
# In processes, where each of several ranks has graphs: ranks, stage, options of the compiler and of the run.
APART = {
    "graphs": (2, 3, (), ()),
    "one-by-one": (2, 3, (), ("--no-graphs",)),
    "host-updates": (2, 1, ("--update-on", "host"), ()),
    "f16": (2, 3, ("--precision", "f16"), ()),
    "micro-batches": (2, 3, ("--micro-batches", "2"), ()),
    "ring": (2, 2, (), ("--reduce-order", "ring")),
    "four-ranks": (4, 3, (), ()),
}


def cases(session):
    for what in WAYS if not session.quick else ("graphs", "f16"):
        yield Case(f"gpu-durable/resumed/{what}", lambda w=what: resumed(session, w))
    for what in APART if not session.quick else ("graphs",):
        yield Case(f"gpu-durable/processes/{what}", lambda w=what: apart(session, w))
    for processes in (1, 2):
        yield Case(f"gpu-durable/kills/processes-{processes}", lambda p=processes: kills(session, p))
    yield Case("gpu-durable/compiled", lambda: compiled(session))
    yield Case("gpu-durable/saved", lambda: saved(session))
    yield Case("gpu-durable/mistakes", lambda: mistakes(session))


def offloaded(options):
    """What is compiled: all state in files, and what else an option names."""
    more = [option for option in options if "=file" in option]
    return (*TARGETS, *(option for option in options if option not in more), "--offload", ",".join((STATE, *more)))


def pieces(session, config, start):
    """A run in three pieces, two of which begin after an odd number of steps: log and weights. start(steps, log, weights, options...)."""
    folder, where = session.folder(), session.folder()
    for steps, more in ((5, ()), (6, ("--resume", folder)), (STEPS, ("--resume", folder))):
        start(steps, where / "log", where / "weights", "--offload-dir", folder, *more)
    steps, events = read_log(where / "log")
    begun = [e["step"] for e in events if e["event"] == "resumed"]
    expect(begun == [5, 6], f"the runs go on at {begun}")
    expect([s["step"] for s in steps] == list(range(STEPS)), "steps are missing or done twice")
    return events, ([(s["loss"], s["grad_norm"]) for s in steps], digest(where / "weights"))


def run(session, plan, config, steps, log, weights, *options):
    session.succeed("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", steps, "--log", log, "--save", weights, *options,
                    env=environment(session))


def resumed(session, what):
    model, ranks, zero, options, given = WAYS[what]
    config = CONFIGS[model]
    plan = session.plan(config.model, ranks, zero, batch_of(ranks, options), (*config.options, *offloaded(options)))
    events, found = pieces(session, config, lambda *a: run(session, plan, config, *a, *given))
    graphs = "on" if ranks == 1 and not given else "off"
    expect(next(e for e in events if e["event"] == "device")["graphs"] == graphs, f"graphs are not {graphs}")
    plain = tuple(option for option in options if option not in ("--update-on", "host") and "=file" not in option)
    expect(found == results(train(session, config, ranks, zero, steps=STEPS, compiled=plain, batch=batch_of(ranks, options))), "other losses or weights")


def job(session, ranks, *arguments):
    with Job(session, ranks, *arguments, environment={"SHEAF_CUDA_LIBRARY": library(session), "SHEAF_EMULATED_DEVICES": ranks}) as job:
        codes = job.wait(seconds=120)
        expect(not any(codes), "\n".join(process.error_text() for process in job.processes))


def apart(session, what):
    """A GPU each, over an emulated NCCL."""
    ranks, zero, options, given = APART[what]
    config = CONFIGS["gpt2-tiny"]

    def start(plan):
        return lambda steps, log, weights, *more: job(session, ranks, plan, "--device", "cuda", *data_arguments(config), "--steps", steps,
                                                      "--log", log, "--save", weights, *more, *given)

    events, found = pieces(session, config, start(session.plan(config.model, ranks, zero, batch_of(ranks, options), (*config.options, *offloaded(options)))))
    graphs = "off" if "--no-graphs" in given else "on"
    expect(next(e for e in events if e["event"] == "device")["graphs"] == graphs, f"graphs are not {graphs}")
    plain = tuple(option for option in options if option not in ("--update-on", "host"))
    if what == "ring":  # whose bits are those of as many processes
        where = session.folder()
        start(session.plan(config.model, ranks, zero, batch_of(ranks), (*config.options, *TARGETS)))(STEPS, where / "log", where / "weights")
        expected = [(s["loss"], s["grad_norm"]) for s in read_log(where / "log")[0]], digest(where / "weights")
    else:
        expected = results(train(session, config, ranks, zero, steps=STEPS, compiled=plain, batch=batch_of(ranks, options)))
    expect(found == expected, "other losses or weights")


def kills(session, processes):
    """Whenever processes are killed, the run goes on at most two steps before the last one that it reported, with the same bits."""
    durable.kills(session, processes, TARGETS, ("--device", "cuda"),
                  {"SHEAF_CUDA_LIBRARY": library(session), "SHEAF_EMULATED_DEVICES": processes}, rows=64)


def compiled(session):
    """Plans for GPUs, alone and with CPUs, have two generations where files have all state, and say why where they do not."""
    config = CONFIGS["gpt2-tiny"]
    for target in ("cuda:sm_90", "cpu,cuda:sm_90"):
        for options, generations in ((("--offload", STATE), 2), (("--offload", STATE, "--update-on", "host"), 2),
                                     (("--offload", STATE, "--file-generations", "1"), 1)):
            found = session.inspect(session.plan(config.model, 2, 3, 8, (*config.options, "--target", target, *options)))
            text = "every step can be resumed" if generations == 2 else "--file-generations 1"
            expect(any(text in decision for decision in found["decisions"]), f"{target} {options}: {found['decisions']}")


def saved(session):
    """A state that is saved from the files, and evaluations of them; a fat plan's files are for either device."""
    config = CONFIGS["mlp-adamw"]
    options = (*config.options, *TARGETS)
    plan = session.plan(config.model, 1, 0, 8, (*options, "--offload", STATE, "--eval"))
    plain = session.plan(config.model, 1, 0, 8, options)
    whole = results(train(session, config, 1, 0, steps=STEPS))[1]
    folder, where = session.folder(), session.folder()
    evaluation = [f"--eval-{a[2:]}" if a == "--data" else a for a in data_arguments(config)]
    go = lambda plan, steps, *more: run(session, plan, config, steps, where / "log", where / "weights", *more)  # noqa: E731
    go(plan, 5, "--offload-dir", folder)
    go(plan, 7, "--offload-dir", folder, "--resume", folder, "--save-state", where / "state", "--save-every", 1)
    content = lambda: {p.name: (digest(p), p.stat().st_mtime_ns) for p in folder.iterdir()}  # noqa: E731
    before, losses = content(), []
    for device in ("cuda", "cpu"):
        log = session.folder() / "log"
        session.succeed("sheaf-run", plan, "--device", device, "--eval", *evaluation, "--offload-dir", folder, "--resume", folder, "--log", log,
                        env=environment(session))
        losses += [e["loss"] for e in read_log(log)[1] if e["event"] == "eval"]
    expect(content() == before, "an evaluation changes the state that it reads, or the record of the one before")
    expect(len(losses) == 2 and abs(losses[0] - losses[1]) < 1e-5, f"evaluations give {losses}")
    go(plain, STEPS, "--resume", where / "state")
    expect(digest(where / "weights") == whole, "other weights from the state that was saved")
    go(plan, STEPS, "--offload-dir", folder, "--resume", folder, "--eval-every", 2, *evaluation)
    expect(digest(where / "weights") == whole, "other weights after evaluations")


def mistakes(session):
    """The errors of CPU ranks: each is one, and the state stays."""
    config = CONFIGS["mlp-adamw"]
    plan, other = (session.plan(config.model, ranks, 0, 8, (*config.options, *offloaded(()))) for ranks in (2, 1))
    folder = session.folder()
    call = lambda plan, *more: session.call("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", 2, *more,  # noqa: E731
                                            env=environment(session))
    expect_short_error(call(plan, "--offload-dir", folder, "--resume", folder), ["no", "state", "rank", "0"])
    expect(call(plan, "--offload-dir", folder).code == 0, "the run fails")
    expect_short_error(call(plan, "--offload-dir", folder), ["holds", "state", "--resume"])
    expect_short_error(call(other, "--offload-dir", folder, "--resume", folder), ["another", "plan"])
    arena = folder / "rank-1.arena"
    good = arena.read_bytes()
    arena.write_bytes(bytes(byte ^ (at % 512 == 0 and at < len(good) - 4096) for at, byte in enumerate(good)))
    expect_short_error(call(plan, "--offload-dir", folder, "--resume", folder), ["--resume", "rank-1.arena", "changed"])
    arena.write_bytes(good)
    expect(call(plan, "--offload-dir", folder, "--resume", folder).code == 0, "the state is lost")
    one = session.plan(config.model, 2, 0, 8, (*config.options, *offloaded(()), "--file-generations", "1"))
    elsewhere = session.folder()
    expect(call(one, "--offload-dir", elsewhere).code == 0 and not list(elsewhere.iterdir()), "files are left")
    expect_short_error(call(one, "--offload-dir", elsewhere, "--resume", elsewhere), ["--resume", "one generation", "inspect"])
