"""Micro-batches of any number: groups whose sums follow each other, against as many leaves on ranks without micro-batches.

micro_batches.py has powers of two, which are one group.
"""
import array
import itertools
import math

from cases.bits import same_bits
from cases.micro_batches import (buckets, dropping, expect_evaluations, expect_fit, expect_one, expect_pytorch, expect_refused_mutants,
                                 weighted)
from cases.offload import everything
from formats import write_npy
from harness import MODELS as FOLDER
from harness import Case, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments, train

STEPS = 6
# Leaves: the ranks that divide them without micro-batches, and the ranks and micro-batches that do otherwise.
DIVISIONS = {
    6: (6, [(1, 3), (1, 6), (2, 3)]),
    12: (3, [(1, 3), (1, 6), (1, 12), (2, 3), (2, 6), (4, 3), (6, 2)]),
    15: (15, [(3, 5), (5, 3)]),
    20: (5, [(1, 5), (2, 5), (4, 5)]),
    30: (15, [(6, 5), (3, 10), (1, 15)]),
    36: (9, [(3, 3), (3, 6), (3, 12), (6, 3), (6, 6), (1, 9)]),
    48: (3, [(4, 12), (2, 12)]),
    72: (9, [(6, 12), (2, 36)]),
}
NODES = {4: 2, 6: 2}  # ranks: of a node
# Models: with what, and which of the ways `make test` tries, one in so many from a first one on.
SETTINGS = {
    "mlp-adamw/f32": (7, 0, ()),
    "mlp-adamw/bf16": (15, 1, ("--precision", "bf16", "--clip-norm", 0.1)),
    "cnn-adamw/f16": (29, 3, ("--precision", "f16")),
    "gpt2-tiny/f32": (31, 6, ("--clip-norm", 0.1)),
}


def cases(session):
    for name, setting in SETTINGS.items():
        yield Case(f"micro-batch-groups/divisions/{name}", lambda n=name, s=setting: divisions(session, CONFIGS[n.split("/")[0]], *s))
    yield Case("micro-batch-groups/reference", lambda: reference(session))
    yield Case("micro-batch-groups/class-weights", lambda: class_weights(session))
    yield Case("micro-batch-groups/dropout", lambda: dropout(session))
    yield Case("micro-batch-groups/batch-norm", lambda: batch_norm(session))
    yield Case("micro-batch-groups/skipped-step", lambda: skipped_step(session))
    yield Case("micro-batch-groups/fit", lambda: fit(session))
    yield Case("micro-batch-groups/processes", lambda: processes(session))
    yield Case("micro-batch-groups/resumed", lambda: resumed(session))
    yield Case("micro-batch-groups/evaluation", lambda: evaluation(session))
    yield Case("micro-batch-groups/offload", lambda: offload(session))
    yield Case("micro-batch-groups/like", lambda: like(session))
    yield Case("micro-batch-groups/traffic", lambda: traffic(session))
    yield Case("micro-batch-groups/mutants", lambda: mutants(session))
    yield Case("micro-batch-groups/refused", lambda: refused(session))


def ways(ranks, micro):
    """All ways of a division: stage and options."""
    made = [(0, ())] if ranks == 1 else [(z, ()) for z in range(4)]
    if micro % 2 == 0 and ranks > 1:
        made = [(z, ("--reduce", r)) for z, _ in made for r in ("each", "last") if r == "last" or ranks & (ranks - 1) == 0]
    if ranks in NODES:
        pairs = (0, 1, 2, 3, "node=3,world=0", "node=3,world=1", "node=1,world=0", "node=2,world=1")
        made += [(z, (*more, "--ranks-per-node", NODES[ranks])) for z in pairs for more in {more for _, more in made}]
    return made


def divisions(session, config, every, first, more):
    """The plans of each division are proved the same, losses and weights are equal."""
    count, number = 0, itertools.count()
    for leaves, (most, divided) in DIVISIONS.items():
        chosen = [(n, m, *way) for n, m in divided for way in ways(n, m) if next(number) % every == first or session.every_division]
        if not chosen:
            continue
        runs = [(most, 1, 0, ())] + chosen
        options = [buckets(*more, *way, *(("--micro-batches", m) if m > 1 else ()), *(("--leaves", leaves) if n * m < leaves else ()))
                   for n, m, _, way in runs]
        plans = [session.plan(config.model, n, z, leaves, config.options + o) for (n, _, z, _), o in zip(runs, options)]
        session.succeed("sheaf", "same", *plans)
        trained = [train(session, config, n, z, STEPS, o, batch=leaves) for (n, _, z, _), o in zip(runs, options)]
        for (n, m, z, way), run in zip(chosen, trained[1:]):
            same_bits(trained[0], [(f"{leaves} leaves: {n} ranks, {m} micro-batches, stage {z} {way}", run)])
        count += len(chosen)
    return f"{count} ways"


def reference(session):
    """PyTorch's losses and gradient norms of three micro-batches that have unevenly many labels, one of them none in some rows."""
    expect_pytorch(session, "adamw-lm.f64.12-rows", 12, STEPS, [
        (ranks, zero, ("--micro-batches", micro, *options))
        for ranks, zero, micro, options in ((3, 0, 1, ("--leaves", 12)), (1, 0, 3, ("--leaves", 12)), (1, 0, 12, ()), (2, 3, 6, ("--reduce", "each")),
                                            (2, 1, 6, ("--reduce", "last")), (4, 2, 3, ()), (6, 3, 2, ()))])


def rows(leaves, *divided):
    """Options of the divisions of as many leaves: ranks, stage, micro-batches."""
    return [("--ranks", n, "--zero", z, *(("--micro-batches", m) if m > 1 else ()), *(("--leaves", leaves) if n * m < leaves else ()), *more)
            for n, z, m, *more in divided]


def class_weights(session):
    """The divisor is a sum of fractions, of which the micro-batches of all groups have terms."""
    count = 72
    graph, data = weighted(session, count)
    common = ("--loss", "loss", "--freeze", "classes", "--batch", count, "--optimizer", "sgd:lr=0.3")
    runs = rows(36, (9, 0, 1), (1, 0, 36), (2, 1, 18, "--reduce", "last"), (2, 2, 18, "--reduce", "each"), (3, 0, 6), (3, 2, 12), (6, 3, 3))
    expect_one(session, graph, data, [(*run, *common) for run in runs])


def dropout(session):
    """Numbers are drawn by the row in the global batch."""
    graph, data = dropping(session)
    common = ("--loss", "loss", "--batch", 12, "--optimizer", "sgd:lr=0.5")
    runs = rows(12, (3, 0, 1), (1, 0, 12), (2, 0, 6, "--reduce", "last"), (2, 3, 6, "--reduce", "each"), (4, 0, 3))
    expect_one(session, graph, data, [(*run, *common) for run in runs])


def batch_norm(session):
    """Local moments and running statistics are those of leaves."""
    graph, data = FOLDER / "norms" / "resnet.onnx", data_arguments(CONFIGS["cnn-adamw"])
    common = ("--batch", 24, "--optimizer", "sgd:lr=0.01", "--batch-norm", "local")
    runs = rows(12, (3, 0, 1), (1, 0, 12), (2, 2, 6), (4, 3, 3)) + rows(18, (9, 0, 1), (3, 2, 6), (6, 1, 3))
    for some in (runs[:4], runs[4:]):
        batch = ("--batch", 24) if some is runs[:4] else ("--batch", 36)
        expect_one(session, graph, data, [(*run, *common[2:], *batch) for run in some], steps=4)


def skipped_step(session):
    """A number that is not finite in one group leaves the whole step out, and the next ones go on."""
    graph, data = dropping(session)
    values = array.array("f", [math.sin(i) for i in range(4 * 32)])
    values[4 * 17] = math.nan  # in the second step
    write_npy(graph.with_name("x.npy"), "<f4", (32, 4), values.tobytes())
    common = ("--loss", "loss", "--batch", 12, "--optimizer", "adamw:lr=0.1", "--on-nan", "skip")
    runs = rows(12, (3, 0, 1), (1, 0, 12), (2, 0, 6, "--reduce", "last"), (2, 3, 6, "--reduce", "each"), (4, 2, 3)) + rows(12, (3, 1, 4), (6, 1, 2))
    expect_one(session, graph, data, [(*run, *common) for run in runs], steps=5)
    plan = session.folder() / "x.plan"
    session.succeed("sheaf", "compile", graph, "-o", plan, *runs[1], *common[:-2])
    expect_short_error(session.call("sheaf-run", plan, *data, "--steps", 5), ["step 1", "nan"], 1)


def fit(session):
    """The plan takes the memory that `sheaf fit` states."""
    expect_fit(session, 3, 36, 6)


def processes(session):
    """Processes that share memory, and processes that have sockets between them; also with nodes that they share."""
    config = CONFIGS["gpt2-tiny"]
    expected = {n: digest(train(session, config, n, 0, STEPS, buckets("--leaves", v), batch=36).weights) for n, v in ((9, 36), (3, 12))}
    for ranks, zero, micro, hosts, base, options in ((3, 3, 12, "aaa", 9, ()), (3, 1, 6, "abc", 9, ("--leaves", 36)), (6, 2, 6, "aabbcc", 9, ("--ranks-per-node", 2)),
                                                     (6, 0, 6, "aaabbb", 9, ()), (2, 1, 6, "ab", 3, ())):
        plan = session.plan(config.model, ranks, zero, 36, config.options + buckets("--micro-batches", micro, *options))
        where = session.folder()
        with Job(session, ranks, plan, *data_arguments(config), "--steps", STEPS, "--save", where / "w", "--log", where / "log", "--poison",
                 environment=lambda rank, h=hosts: {"SHEAF_HOST": h[rank]}) as job:
            job.succeed()
        expect(digest(where / "w") == expected[base], f"{ranks} ranks, {micro} micro-batches, stage {zero}, hosts {hosts}: other weights")


def resumed(session):
    """A state goes on with other micro-batches, or none, with the bits of an undisturbed run."""
    config, half = CONFIGS["gpt2-tiny"], STEPS // 2
    divided = {"none": (3, 0, ("--leaves", 12)), "three": (4, 3, ("--micro-batches", 3)), "six": (2, 1, ("--micro-batches", 6)),
               "twelve": (1, 0, ("--micro-batches", 12))}
    whole = train(session, config, 3, 0, STEPS, buckets("--leaves", 12), batch=12)
    for first, second in (("twelve", "none"), ("three", "six"), ("none", "three"), ("six", "none")):
        state, (ranks, zero, options) = session.folder() / "state", divided[first]
        train(session, config, ranks, zero, half, buckets(*options), ("--save-state", state), batch=12)
        ranks, zero, options = divided[second]
        rest = train(session, config, ranks, zero, STEPS, buckets(*options), ("--resume", state), batch=12)
        expect(rest.steps[0]["step"] == half, f"{first}, then {second}: the resumed run begins at step {rest.steps[0]['step']}")
        same_bits(whole, [(f"{first}, then {second}", rest)])


def evaluation(session):
    """A batch of the evaluation is a micro-batch's, and the last one is cut: loss and accuracy are those of all rows."""
    expect_evaluations(session, 24, STEPS, ((3, ("--leaves", 12)), (2, ("--micro-batches", 3, "--leaves", 12)),
                                            (2, ("--micro-batches", 6, "--reduce", "last")), (4, ("--micro-batches", 3))))


def offload(session):
    """Sums may lie in host memory or in files between groups, also where a sum over ranks goes on from one."""
    config, batch = CONFIGS["mlp-adamw"], 36
    for leaves, ranks, divided in ((12, 3, ((1, 0, 6, "host", ()), (2, 2, 6, "host", ()), (2, 3, 6, "file", ("--reduce", "last")))),
                                   (18, 9, ((3, 3, 3, "host", ()), (3, 0, 6, "file", ()), (6, 1, 3, "host", ("--ranks-per-node", 2))))):
        whole = train(session, config, ranks, 0, STEPS, buckets("--leaves", leaves), batch=batch)
        for n, z, m, space, more in divided:
            run = train(session, config, n, z, STEPS, buckets("--leaves", leaves, "--micro-batches", m, "--offload", everything(space), *more),
                        ("--offload-dir", session.folder()) if space == "file" else (), batch=batch)
            same_bits(whole, [(f"{n} ranks, {m} micro-batches, {space}", run)])


def like(session):
    """Plans of a job that goes on with other numbers of ranks; without a plan for them the error says how to compile it."""
    config, where = CONFIGS["mlp-adamw"], session.folder()
    first = session.plan(config.model, 6, 3, 24, config.options + buckets())
    session.succeed("sheaf", "compile", session.graph("mlp"), "-o", where / "two.plan", "--like", first, "--ranks", 2, "--micro-batches", 3)
    session.succeed("sheaf", "same", first, where / "two.plan")
    done = session.call("sheaf", "compile", session.graph("mlp"), "-o", where / "x.plan", "--like", first, "--ranks", 2)
    expect_short_error(done, ["--leaves 6 is not --ranks 2 times a power of two", "or --micro-batches 3"], 1)
    done = session.call("sheaf-run", first, where / "two.plan", *data_arguments(config), "--steps", 1, "--ranks", 1)
    expect_short_error(done, ["no plan is for 1 rank", "--ranks 1 --like", "--micro-batches 3"], 1)


def traffic(session):
    """`last` sends the gradients once for each group, `each` once for each micro-batch."""
    sent = {}
    for reduce, micro in (("each", 6), ("last", 6), ("each", 3), ("last", 3), ("last", 4)):
        plan = session.plan("gpt2-tiny", 2, 2, 24, ("--optimizer", "adamw:lr=1e-3", "--micro-batches", micro, "--reduce", reduce))
        sent[reduce, micro] = sum(c["bytes"] for c in session.inspect(plan)["communication"] if c["op"] == "reduce_scatter")
    once = sent.pop(("last", 4))
    # Buckets are padded to the number of leaves.
    for way, times in {("each", 6): 6, ("last", 6): 3, ("each", 3): 3, ("last", 3): 3}.items():
        expect(abs(sent[way] / once - times) < 0.01, f"{way}: {sent[way]} bytes, {once} once a step")
    summary = session.succeed("sheaf", "inspect", session.plan("gpt2-tiny", 2, 2, 24, ("--optimizer", "adamw:lr=1e-3", "--micro-batches", 6, "--reduce", "last"))).out
    expect("6 micro-batches, gradients reduced after every 2" in summary, summary)


def mutants(session):
    """Changes of turns, parts and what they do are refused; see sheaf-mutants."""
    return expect_refused_mutants(session, 6, [(n, z, 36, ("--micro-batches", m)) for n, z, m in ((1, 0, 6), (3, 3, 3), (2, 1, 6), (3, 0, 6))])


def refused(session):
    def compiled(*options):
        return session.call("sheaf", "compile", session.graph("mlp"), "-o", session.folder() / "x.plan", "--optimizer", "sgd:lr=0.1", *options)

    for words, code, options in (
            (["--batch 24 does not divide into 10 pieces: --ranks times --micro-batches"], 1, ("--batch", 24, "--ranks", 2, "--micro-batches", 5)),
            (["--leaves 6 is not --ranks 1 times a power of two", "give 1, 2, 4, ..., or --micro-batches 3"], 1, ("--batch", 24, "--leaves", 6)),
            (["--leaves 30 is not --ranks 2 times --micro-batches 3 times a power of two", "give 6, 12, 24, ..., or --micro-batches 15"], 1,
             ("--batch", 60, "--ranks", 2, "--micro-batches", 3, "--leaves", 30)),
            (["--reduce each needs a power of two of ranks, not 3", "an odd number of micro-batches, not 6", "--reduce last"], 1,
             ("--batch", 36, "--ranks", 3, "--micro-batches", 6, "--reduce", "each")),
            (["--micro-batches", "a number from 1 to 65536"], 2, ("--batch", 24, "--micro-batches", 0))):
        expect_short_error(compiled(*options), words, code)
