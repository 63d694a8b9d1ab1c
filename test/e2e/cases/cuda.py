"""Whole models on GPUs. The GPUs are emulated: the CUDA device, with its kernels, its library calls and its collectives,
runs on a double of CUDA's libraries; what the compiler makes of fusions for a GPU is replaced by what it makes for the
CPU. So these runs are those of a fat plan."""
import os
import re

from cases.micro_batches import dropping
from cases.pipes import fed, stream
from cases.precision import expect_near
from formats import read_log
from harness import Case, Skip, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, Trained, data_arguments, expect_reference
from training import train as on_cpu

TARGETS = ("--target", "cpu,cuda:sm_90")
STEPS = 6


def cases(session):
    for model in ("gpt2-tiny", "llama-tiny", "mistral-tiny"):
        for ranks, zero in ((1, 0), (2, 3)):
            yield Case(f"cuda/{model}-{ranks}-{zero}", lambda m=model, r=ranks, z=zero: reference(session, m, r, z))
    yield Case("cuda/mlp", lambda: mlp(session))
    yield Case("cuda/graphs", lambda: same_bits(session, "--no-graphs"))
    yield Case("cuda/trace", lambda: same_bits(session, "--trace", session.folder() / "trace.json"))
    yield Case("cuda/micro-batches", lambda: micro_batches(session))
    yield Case("cuda/micro-batch-groups", lambda: micro_batch_groups(session))
    yield Case("cuda/tf32", lambda: tf32(session))
    yield Case("cuda/poison", lambda: poison(session))
    yield Case("cuda/processes", lambda: processes(session))
    yield Case("cuda/ring", lambda: ring(session))
    yield Case("cuda/pipe", lambda: pipe(session))
    yield Case("cuda/errors", lambda: errors(session))


def library(session):
    path = session.tools.parent / "lib" / "libsheaf_cuda_emulated.so"
    if not path.exists():
        raise Skip("libsheaf_cuda_emulated.so is not built: there is no CUDA toolkit")
    return str(path)


def environment(session, **others):
    return {**os.environ, "SHEAF_CUDA_LIBRARY": library(session), **others}


def batch_of(ranks, compiled=()):
    """For runs that are compared with each other alone: an emulated GPU takes its time for each row. Two for every rank and micro-batch."""
    return max(4, 2 * ranks * (int(compiled[compiled.index("--micro-batches") + 1]) if "--micro-batches" in compiled else 1))


def train(session, config, ranks, zero, *options, steps=STEPS, compiled=(), batch=8):
    """A run on emulated GPUs, all ranks in one process; made once."""
    variables = environment(session)

    def run():
        plan = session.plan(config.model, ranks, zero, batch, config.options + TARGETS + compiled)
        where = session.folder()
        trained = Trained(None, where / "weights.safetensors", None)
        session.succeed("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", steps, "--log",
                        where / "run.jsonl", "--save", trained.weights, *options, env=variables)
        trained.steps, trained.events = read_log(where / "run.jsonl")
        first = trained.steps[0]["step"] if trained.steps and "--resume" in options else 0
        expect([s["step"] for s in trained.steps] == list(range(first, steps)), f"the log has {len(trained.steps)} steps of {steps}")
        return trained

    return session.once(("cuda", config.name, ranks, zero, steps, tuple(map(str, options)), compiled, batch), run)


def reference(session, model, ranks, zero):
    expect_reference(CONFIGS[model], train(session, CONFIGS[model], ranks, zero).steps)


def mlp(session):
    for ranks, zero in ((1, 1), (4, 2)):
        expect_reference(CONFIGS["mlp-momentum"], train(session, CONFIGS["mlp-momentum"], ranks, zero, steps=20).steps)


def pipe(session):
    """Rows through a pipe, with steps as graphs: the weights of a run from files."""
    expected = train(session, CONFIGS["mlp-momentum"], 4, 3, steps=12)
    plan = session.plan("mlp", 4, 3, 8, CONFIGS["mlp-momentum"].options + TARGETS)
    done, where = fed(session, plan, stream(session.folder(), [3, 16, 29, 48]), "--device", "cuda", env=environment(session))
    expect(done.code == 0, done.err)
    expect(digest(where / "w") == digest(expected.weights), "other weights than from files")


def results(run):
    return [(step["loss"], step["grad_norm"]) for step in run.steps], digest(run.weights)


def same_bits(session, *options):
    config = CONFIGS["gpt2-tiny"]
    expect(results(train(session, config, 1, 0, *options)) == results(train(session, config, 1, 0)),
           f"{' '.join(map(str, options))} changes the result")


def micro_batches(session):
    """The parts before the body, with graphs of it and without, in one process and in several."""
    config, leaves, more = CONFIGS["gpt2-tiny"], ("--leaves", 4), ("--micro-batches", 2)
    expected = results(train(session, config, 2, 3, compiled=leaves))
    for what, run in (("each", train(session, config, 2, 3, compiled=(*more, "--reduce", "each"))),
                      ("last", train(session, config, 2, 3, compiled=(*more, "--reduce", "last"))),
                      ("four on one rank", train(session, config, 1, 0, compiled=("--micro-batches", 4))),
                      ("poison", train(session, config, 2, 3, "--poison", compiled=more))):
        expect(results(run) == expected, f"{what}: micro-batches change the result")
    # Each with a GPU of its own every part is a graph.
    expect(results(in_processes(session, 2, 3, compiled=more)) == expected, "processes give other bits")
    # Graphs of parts do not mix up rows: dropout draws by them.
    graph, data = dropping(session)
    weights = set()
    for options in (("--leaves", 8), ("--micro-batches", 8)):
        where = session.folder()
        session.succeed("sheaf", "compile", graph, "-o", where / "x.plan", "--loss", "loss", "--batch", 16, "--optimizer", "sgd:lr=0.5",
                        *TARGETS, *options)
        session.succeed("sheaf-run", where / "x.plan", "--device", "cuda", *data, "--steps", STEPS, "--save", where / "w",
                        env=environment(session))
        weights.add(digest(where / "w"))
    expect(len(weights) == 1, "dropout in micro-batches drops other elements")


def micro_batch_groups(session):
    """Groups whose sums follow each other, which each rank adds or a sum over ranks goes on from; in one process and in several."""
    config = CONFIGS["mlp-momentum"]
    for leaves, ranks, divided in ((12, 3, ((1, 0, 12, ()), (2, 2, 6, ("--reduce", "each")), (2, 3, 6, ("--reduce", "last")), (4, 1, 3, ()))),
                                   (36, 9, ((3, 2, 3, ()), (3, 1, 12, ()), (6, 3, 6, ("--ranks-per-node", 2)), (6, 0, 3, ())))):
        expected = results(train(session, config, ranks, 0, compiled=("--leaves", leaves), batch=36))
        for n, zero, micro, more in divided:
            compiled = (*(("--leaves", leaves) if n * micro < leaves else ()), "--micro-batches", micro, *more)
            expect(results(train(session, config, n, zero, compiled=compiled, batch=36)) == expected, f"{n} ranks, stage {zero}, {compiled}: other bits")
    for zero, micro in ((2, 3), (0, 12)):
        compiled = (*(("--leaves", 36) if micro < 12 else ()), "--micro-batches", micro)
        expect(results(in_processes(session, 3, zero, compiled=compiled, batch=36, config=config)) == expected, f"stage {zero}: processes give other bits")


def tf32(session):
    """Products round their operands where they are asked to, and nothing else does; a CPU's products never do."""
    config, options = CONFIGS["gpt2-tiny"], ("--precision", "tf32")
    run, exact = train(session, config, 1, 0, compiled=options), train(session, config, 1, 0)
    expect_near(config, run.steps)
    expect(results(run) != results(exact), "TF32 has the bits of f32")
    plan = session.plan(config.model, 1, 0, 8, config.options + TARGETS + options)
    where = session.folder()
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", STEPS, "--save", where / "weights.safetensors")
    own = on_cpu(session, config, 1, 0, STEPS, ("--gemm-epilogues", "on"))
    expect(digest(where / "weights.safetensors") == digest(own.weights), "on a CPU, TF32 has other bits than f32")


def event(run, name):
    found = [e for e in run.events if e["event"] == name]
    expect(found, f"the log has no event `{name}`")
    return found[0]


def poison(session):
    config = CONFIGS["gpt2-tiny"]
    run = train(session, config, 2, 3, "--poison")
    expect(results(run) == results(train(session, config, 2, 3)), "--poison changes the result")
    arena = event(run, "arena")
    expect(0 < arena["highest_touched_byte"] <= arena["peak_bytes"], f"bytes after the arena were touched: {arena}")
    device = event(run, "device")
    expect(device["gpu"] == "Emulated GPU" and device["kernels"] == "cuda:sm_90", f"the log says {device}")


def in_processes(session, ranks, zero, *options, compiled=(), batch=8, config=CONFIGS["gpt2-tiny"]):
    where = session.folder()
    run = Trained(None, where / "weights.safetensors", None)
    plan = session.plan(config.model, ranks, zero, batch, config.options + TARGETS + compiled)
    with Job(session, ranks, plan, "--device", "cuda", *data_arguments(config), "--steps", STEPS, "--log", where / "run.jsonl",
             "--save", run.weights, *options, environment={"SHEAF_CUDA_LIBRARY": library(session),
                                                           "SHEAF_EMULATED_DEVICES": str(ranks)}) as job:
        codes = job.wait(seconds=120)
        expect(not any(codes), "\n".join(process.error_text() for process in job.processes))
    run.steps, run.events = read_log(where / "run.jsonl")
    return run


def processes(session):
    """A GPU each, over (an emulated) NCCL: the bits of ranks that share one."""
    for ranks, zero in ((2, 3), (2, 1)):
        apart = in_processes(session, ranks, zero)
        expect(results(apart) == results(train(session, CONFIGS["gpt2-tiny"], ranks, zero)),
               f"{ranks} processes at stage {zero} give other bits than one")
        expect(event(apart, "device")["reduce_order"] == "tree", "the log does not name the order of sums")


def ring(session):
    run = in_processes(session, 2, 2, "--reduce-order", "ring")
    expect_reference(CONFIGS["gpt2-tiny"], run.steps)
    expect(event(run, "device")["reduce_order"] == "ring", "the log does not name the order of sums")
    # The plan may say so, and the command line has the last word.
    compiled = ("--reduce-order", "ring")
    same = in_processes(session, 2, 2, compiled=compiled)
    expect(results(same) == results(run), "a plan for ring sums gives other bits than --reduce-order ring")
    back = in_processes(session, 2, 2, "--reduce-order", "tree", compiled=compiled)
    expect(event(back, "device")["reduce_order"] == "tree", "--reduce-order tree does not override the plan")


def newer(session, plan):
    """The plan as a toolkit of the future would have made it."""
    where = session.folder()
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    expect(re.search(r'toolkit = "\d+\.\d+"', text), "the plan does not state the CUDA version of its machine code")
    (where / "newer.mlir").write_text(re.sub(r'toolkit = "\d+\.\d+"', 'toolkit = "99.0"', text))
    session.succeed("sheaf", "assemble", where / "newer.mlir", "-o", where / "newer.plan")
    return where / "newer.plan"


def errors(session):
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 1, 0, 8, config.options + TARGETS)
    cpu = session.plan(config.model, 1, 0, 8, config.options)

    def refused(plan, words, **others):
        done = session.call("sheaf-run", plan, "--device", "cuda", *data_arguments(config), "--steps", 1,
                            env=environment(session, **others))
        expect_short_error(done, words)

    refused(plan, ["there is no GPU to run on", "--device cpu"], SHEAF_EMULATED_DEVICES="0")
    refused(plan, ["cuda:sm_90", "sm_86", "--target"], SHEAF_EMULATED_ARCHITECTURE="86")
    refused(plan, ["the run needs", "free of"], SHEAF_EMULATED_MEMORY="100000000")
    refused(cpu, ["--target cuda:sm_90"])
    refused(newer(session, plan), ["cuda:sm_90", "made by ptxas of CUDA 99.0", "install a driver for CUDA 99"])
    refused(plan, ["libsheaf_nowhere.so"], SHEAF_CUDA_LIBRARY="/libsheaf_nowhere.so")
