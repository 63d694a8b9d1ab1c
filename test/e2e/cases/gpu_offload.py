"""Buffers in host memory and in files while GPUs compute, on the emulated CUDA device: the same bits as without, in graphs and one
by one, in one process and in several."""
import os
import signal

from cases import cuda
from cases.cuda import TARGETS, batch_of, environment, event, results
from cases.gpu_processes import emulated
from cases.offload import everything
from harness import Case, digest, expect, expect_short_error
from jobs import MODEL, RANKS, STAGE, lost
from training import CONFIGS, data_arguments
from training import train as on_cpu

BF16 = ("--precision", "bf16")
WAYS = (everything("host"), everything("file"), "optimizer=file,parameters=host,activations=file")
HOST = ("--update-on", "host")

# Ranks and stages of ranks that share a GPU: for `make test` those that are not in `make bits` alone.
LAYOUTS = (("gpt2-tiny", "f32", ((1, 0), (2, 1), (2, 2), (4, 3)), ((2, 0), (2, 3), (4, 1))),
           ("gpt2-tiny", "bf16", ((2, 3),), ((1, 0), (2, 1), (4, 2))),
           ("llama-tiny", "f32", ((2, 3),), ((1, 0),)), ("mlp-adamw", "f32", ((4, 2),), ()))


def cases(session):
    for name, precision, some, more in LAYOUTS:
        for ranks, zero in some[-1:] if session.quick else some + more if session.every_division else some:
            yield Case(f"gpu-offload/bits/{name}-{precision}/ranks-{ranks}/zero-{zero}",
                       lambda n=name, p=precision, r=ranks, z=zero: bits(session, n, p, r, z))
            yield Case(f"gpu-offload/update-on-host/{name}-{precision}/ranks-{ranks}/zero-{zero}",
                       lambda n=name, p=precision, r=ranks, z=zero: updated_on_host(session, n, p, r, z))
    yield Case("gpu-offload/update-on-host/processes", lambda: updated_by_processes(session))
    yield Case("gpu-offload/update-on-host/one-by-one", lambda: updated_one_by_one(session))
    yield Case("gpu-offload/update-on-host/threads", lambda: threads_on_host(session))
    yield Case("gpu-offload/update-on-host/gradients", lambda: gradients(session))
    for ranks in (2, 4):
        for zero in (0, 1, 2, 3) if ranks == 2 else (3,):
            yield Case(f"gpu-offload/processes/ranks-{ranks}/zero-{zero}", lambda r=ranks, z=zero: processes(session, r, z))
    yield Case("gpu-offload/killed", lambda: killed(session))
    yield Case("gpu-offload/one-by-one", lambda: one_by_one(session))
    yield Case("gpu-offload/poison", lambda: poisoned(session))
    yield Case("gpu-offload/micro-batches", lambda: micro_batches(session))
    yield Case("gpu-offload/evaluation", lambda: evaluated(session))
    yield Case("gpu-offload/limits", lambda: limits(session))
    yield Case("gpu-offload/as-on-cpus", lambda: as_on_cpus(session))
    yield Case("gpu-offload/resumed", lambda: resumed(session))
    yield Case("gpu-offload/pinned", lambda: pinned(session))
    yield Case("gpu-offload/refused", lambda: refused(session))


def compiled_with(way, *options):
    return (*options, *(("--offload", way) if way else ()))


def folder_for(session, way):
    return ("--offload-dir", session.folder()) if way and "file" in way else ()


def train(session, config, ranks, zero, *options, compiled=(), **more):
    return cuda.train(session, config, ranks, zero, *options, compiled=compiled, batch=batch_of(ranks, compiled), **more)


def in_processes(session, ranks, zero, *options, compiled=()):
    return cuda.in_processes(session, ranks, zero, *options, compiled=compiled, batch=batch_of(ranks, compiled))


def run(session, config, ranks, zero, way, *options, compiled=()):
    return train(session, config, ranks, zero, *options, *folder_for(session, way), compiled=compiled_with(way, *compiled))


def bits(session, name, precision, ranks, zero):
    config, options = CONFIGS[name], BF16 if precision == "bf16" else ()
    expected = results(train(session, config, ranks, zero, compiled=options))
    for way in WAYS:
        expect(results(run(session, config, ranks, zero, way, compiled=options)) == expected, f"{way}: other losses or weights")


def updated_on_host(session, name, precision, ranks, zero):
    """Updates by the host's processors, of state in its memory and in files."""
    config, options = CONFIGS[name], BF16 if precision == "bf16" else ()
    expected = results(train(session, config, ranks, zero, compiled=options))
    for way in ("optimizer=host", WAYS[1]):
        made = run(session, config, ranks, zero, way, compiled=(*options, *HOST))
        expect(results(made) == expected, f"{way}: other losses or weights")
        expect(int(event(made, "device")["host_update_threads"]) >= 1, "the log does not say how many threads update")


def updated_by_processes(session):
    """In graphs, with clipping, which every update waits for, and without."""
    for options in ((), ("--clip-norm", "1"), BF16):
        expected = results(train(session, CONFIGS["gpt2-tiny"], 2, 3, compiled=options))
        for way in ("optimizer=host", "optimizer=file,parameters=host"):
            apart = in_processes(session, 2, 3, *folder_for(session, way), compiled=compiled_with(way, *HOST, *options))
            expect(event(apart, "device")["graphs"] == "on", "the steps are not run as graphs")
            expect(results(apart) == expected, f"{way} {options}: other losses or weights")


def updated_one_by_one(session):
    """Without graphs, with some steps that are traced between graphs, and with memory that is poisoned."""
    config = CONFIGS["gpt2-tiny"]
    expected = results(train(session, config, 1, 0))
    for options in (("--no-graphs",), ("--trace", session.folder() / "trace.json"), ("--poison",)):
        expect(results(run(session, config, 1, 0, "optimizer=host", *options, compiled=HOST)) == expected, f"{options[0]}: other losses or weights")


def threads_on_host(session):
    """--max-threads-per-rank, which limits CPU ranks by the scratch of their plan, limits neither --threads-per-rank nor its default."""
    config, compiled = CONFIGS["gpt2-tiny"], (*HOST, "--max-threads-per-rank", "1")
    expected = results(train(session, config, 1, 0))
    for options, threads in (((), len(os.sched_getaffinity(0))), (("--threads-per-rank", 11), 11)):
        made = run(session, config, 1, 0, "optimizer=host", *options, compiled=compiled)
        expect(results(made) == expected, f"{threads} threads: other losses or weights")
        said = int(event(made, "device")["host_update_threads"])
        expect(said == threads, f"{said} threads update, not {threads}")


def gradients(session):
    """--dump-gradients takes those of updates on the host from its memory."""
    config = CONFIGS["gpt2-tiny"]
    dumped = []
    for way, compiled in ((None, ()), ("optimizer=host", HOST)):
        where = session.folder() / "gradients.safetensors"
        run(session, config, 2, 3, way, "--dump-gradients", where, compiled=compiled)
        dumped.append(digest(where))
    expect(dumped[0] == dumped[1], "other gradients")


def processes(session, ranks, zero):
    """A GPU each, over (an emulated) NCCL, where every step from the third on is a graph."""
    # At each stage one of the two ways in bf16, the other one in f32; both in f32 where most is moved.
    runs = [(WAYS[0], ()), (WAYS[1], BF16)] if zero % 2 else [(WAYS[1], ()), (WAYS[0], BF16)]
    for way, options in runs + ([(WAYS[1], ())] if zero == 3 else []):
        expected = results(train(session, CONFIGS["gpt2-tiny"], ranks, zero, compiled=options))
        apart = in_processes(session, ranks, zero, *folder_for(session, way), compiled=compiled_with(way, *options))
        expect(event(apart, "device")["graphs"] == "on", "the steps are not run as graphs")
        expect(results(apart) == expected, f"{way} {options}: other losses or weights")


def killed(session):
    """A process is killed while the others wait for files and for it: each ends with an error, none waits for ever."""
    outcome = []
    for way in WAYS[:2]:
        plan = session.plan(MODEL.model, RANKS, STAGE, 8, (*MODEL.options, *TARGETS, "--offload", way))
        outcome.append(lost(session, 2, signal.SIGKILL, ["ended without a message", "it was at"], emulated(session), plan, "--device", "cuda",
                            *folder_for(session, way)))
    return outcome[-1]


def one_by_one(session):
    """Without graphs, and with some steps that are traced between graphs."""
    config = CONFIGS["gpt2-tiny"]
    expected = results(train(session, config, 1, 0))
    for way in WAYS:
        for options in (("--no-graphs",), ("--trace", session.folder() / "trace.json")):
            expect(results(run(session, config, 1, 0, way, *options)) == expected, f"{way} {options[0]}: other losses or weights")


def poisoned(session):
    """No byte is read before it is written, in host memory as on the device, and none after the arena is touched."""
    config = CONFIGS["gpt2-tiny"]
    expected = results(train(session, config, 2, 3))
    for way in WAYS[:2]:
        made = run(session, config, 2, 3, way, "--poison")
        expect(results(made) == expected, f"{way}: --poison changes the result")
        arena = event(made, "arena")
        expect(0 < arena["highest_touched_byte"] <= arena["peak_bytes"], f"{way}: bytes after the arena were touched: {arena}")


def micro_batches(session):
    """Parts before the body: each is a graph in a process of its own."""
    config, more = CONFIGS["gpt2-tiny"], ("--micro-batches", "2")
    expected = results(train(session, config, 2, 3, compiled=more))
    for way in WAYS[:2]:
        expect(results(run(session, config, 2, 3, way, compiled=more)) == expected, f"{way}: other losses or weights")
        apart = in_processes(session, 2, 3, *folder_for(session, way), compiled=compiled_with(way, *more))
        expect(results(apart) == expected, f"{way}: processes give other bits")


def evaluated(session):
    """An evaluation, which is issued one by one between steps that are graphs, fetches what it reads and changes nothing."""
    config = CONFIGS["mlp-adamw"]
    evaluation = ("--eval-every", 3, *(f"--eval-{a[2:]}" if a == "--data" else a for a in data_arguments(config)))

    def results_of(way):
        made = run(session, config, 1, 0, way, *evaluation, compiled=("--eval",))
        return *results(made), [(e["step"], e["loss"]) for e in made.events if e["event"] == "eval"]

    expected = results_of(None)
    expect(len(expected[-1]) == 2, f"evaluations: {expected[-1]}")
    for way in WAYS[:2]:
        expect(results_of(way) == expected, f"{way}: other results")


def limits(session):
    """A plan under a limit that nothing but offload keeps, chosen by the compiler for a GPU."""
    config = CONFIGS["gpt2-tiny"]
    plain = session.inspect(session.plan(config.model, 1, 0, batch_of(1), config.options + TARGETS))["memory"]
    limit = int(plain["peak_bytes"] * 0.6)
    options = ("--offload", "auto", "--memory-limit", str(limit), "--recompute", "none")
    found = session.inspect(session.plan(config.model, 1, 0, batch_of(1), config.options + TARGETS + options))["memory"]
    expect(found["peak_bytes"] <= limit, f"{found['peak_bytes']} bytes are over the limit of {limit}")
    expect(found["spaces"]["host"]["peak_bytes"] >= plain["peak_bytes"] - limit, f"{found['spaces']}")
    made = train(session, config, 1, 0, "--poison", compiled=options)
    expect(results(made) == results(train(session, config, 1, 0)), "other losses or weights")
    expect(event(made, "arena")["peak_bytes"] <= limit, "the run's arena is over the limit")


def as_on_cpus(session):
    """A fat plan computes on CPU ranks what it does there without offload."""
    config = CONFIGS["gpt2-tiny"]
    fat = TARGETS + ("--gemm-epilogues", "on")
    expected = on_cpu(session, config, 2, 3, 6, fat)
    for way in WAYS[:2]:
        found = on_cpu(session, config, 2, 3, 6, (*fat, "--offload", way), ("--device", "cpu", *folder_for(session, way)))
        expect(digest(found.weights) == digest(expected.weights), f"{way}: other weights")


def resumed(session):
    """A state that a GPU saved with offload is resumed without, and the other way round."""
    config = CONFIGS["gpt2-tiny"]
    whole = results(train(session, config, 2, 3))[1]
    for before, after in ((None, WAYS[1]), (WAYS[0], None), (WAYS[1], WAYS[0])):
        state = session.folder() / "state"
        train(session, config, 2, 3, *folder_for(session, before), "--save-state", state, steps=3, compiled=compiled_with(before))
        rest = train(session, config, 2, 3, *folder_for(session, after), "--resume", state, compiled=compiled_with(after))
        expect(digest(rest.weights) == whole, f"saved with {before}, resumed with {after}: other weights")


def pinned(session):
    """The log says how much memory is pinned: what the plan has in host memory, and two chunks for files where they are that large."""
    config = CONFIGS["gpt2-tiny"]
    for way, least in ((WAYS[0], 0), (WAYS[2], 4096)):
        plan = session.plan(config.model, 2, 3, batch_of(2), config.options + TARGETS + ("--offload", way))
        host = session.inspect(plan)["memory"]["spaces"]["host"]["peak_bytes"]
        device = event(run(session, config, 2, 3, way), "device")
        staging = int(device["pinned_bytes"]) - host
        expect(least <= staging <= (4 * (4 << 20) if least else 0) and staging % 4096 == 0, f"{way}: {host} bytes in host memory, {device}")
        expect(("file_input_output" in device) == bool(least), f"{device}")
        expect(device["pinned_on_node"], f"{device}")


def refused(session):
    """What cannot be had is one clear error before the first step."""
    config = CONFIGS["gpt2-tiny"]
    where = session.folder()

    def expect_refused(way, words, *options, **variables):
        plan = session.plan(config.model, 2, 3, batch_of(2), config.options + TARGETS + ("--offload", way))
        done = session.call("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", 1, *options,
                            env=environment(session, **variables))
        expect_short_error(done, words)

    expect_refused(WAYS[0], ["rank 0: cannot pin", "bytes) of host memory", "out of memory", "ulimit -l", "--host-memory"],
                   SHEAF_EMULATED_PINNABLE="100000")
    expect_refused(WAYS[1], ["in files", "--offload-dir"])
    expect_refused(WAYS[1], ["--offload-dir", "nowhere", "folder"], "--offload-dir", where / "nowhere")
    # Staging is pinned, too.
    expect_refused(WAYS[1], ["cannot pin", "for transfers of files"], "--offload-dir", where, SHEAF_EMULATED_PINNABLE="10000")
    expect(not list(where.iterdir()), "a run that did not begin leaves files")
    # A node that the machine lacks changes nothing but where memory lies.
    plan = session.plan(config.model, 2, 3, batch_of(2), config.options + TARGETS + ("--offload", WAYS[0]))
    session.succeed("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", 6, "--save", where / "w",
                    env=environment(session, SHEAF_EMULATED_NODE="1000"))
    expect(digest(where / "w") == results(train(session, config, 2, 3))[1], "other weights")
