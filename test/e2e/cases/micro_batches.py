"""Micro-batches: PyTorch's losses, and the bits of as many leaves with all that a model has. divisions.py combines them with ranks,
micro_batch_groups.py has numbers other than powers of two."""
import array
import json
import math

from cases.bits import same_bits
from formats import read_log, write_npy
from harness import MODELS as FOLDER
from harness import Case, Skip, digest, expect, expect_short_error
from jobs import Job
from onnxwriter import FLOAT, INT64, model as written, node, value, weight
from training import CONFIGS, data_arguments, expect_gradients, expect_reference, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
STEPS = 10


def cases(session):
    for name in MODELS:
        yield Case(f"micro-batches/{name}/reference", lambda c=CONFIGS[name]: reference(session, c))
    yield Case("micro-batches/ignored-labels", lambda: ignored_labels(session))
    yield Case("micro-batches/class-weights", lambda: class_weights(session))
    yield Case("micro-batches/standardized-inputs", lambda: standardized_inputs(session))
    yield Case("micro-batches/processes", lambda: processes(session))
    yield Case("micro-batches/skipped-step", lambda: skipped_step(session))
    yield Case("micro-batches/three-ranks", lambda: three_ranks(session))
    yield Case("micro-batches/dropout", lambda: dropout(session))
    yield Case("micro-batches/batch-norm", lambda: batch_norm(session))
    yield Case("micro-batches/resumed", lambda: resumed(session))
    yield Case("micro-batches/evaluation", lambda: evaluation(session))
    yield Case("micro-batches/memory", lambda: memory(session))
    yield Case("micro-batches/recompute", lambda: recompute(session))
    yield Case("micro-batches/auto", lambda: automatic(session))
    yield Case("micro-batches/fit", lambda: fit(session))
    yield Case("micro-batches/mutants", lambda: mutants(session))
    yield Case("micro-batches/refused", lambda: refused(session))


def buckets(*options):
    return ("--bucket-size", 64 << 10, *options)


def split(session, config, ranks, zero, micro, more=(), options=(), steps=STEPS, **arguments):
    return train(session, config, ranks, zero, steps, buckets("--micro-batches", micro, *more, *options), **arguments)


def reference(session, config):
    run = split(session, config, 2, 3, 2, steps=session.steps, gradients=True)
    expect_reference(config, run.steps)
    expect_gradients(config, run.gradients)


def ignored_labels(session):
    """The mean is over the labels that count in the whole step, though micro-batches have unevenly many, one of them none."""
    expect_pytorch(session, "adamw-lm.f64", 8, STEPS, ((1, 0, ("--leaves", 4)), (1, 0, ("--micro-batches", 4)), (2, 3, ("--micro-batches", 2)),
                                                       (2, 1, ("--micro-batches", 2, "--reduce", "last"))))


def expect_pytorch(session, name, batch, steps, divisions):
    """PyTorch's losses and gradient norms of a stored run, and one set of weights, in each division: ranks, stage and options."""
    config = CONFIGS["gpt2-tiny"]
    expected = json.loads((FOLDER / "micro-batches.json").read_text())["runs"][name]
    data = [a for n in ("input_ids", "labels") for a in ("--data", f"{n}={FOLDER}/micro-batches.{n}.npy")]
    weights = set()
    for ranks, zero, options in divisions:
        plan = session.plan(config.model, ranks, zero, batch, config.options + buckets(*options))
        where = session.folder()
        session.succeed("sheaf-run", plan, *data, "--steps", steps, "--log", where / "log", "--save", where / "w.safetensors")
        for step, entry in enumerate(read_log(where / "log")[0]):
            for key, what, within in (("loss", "loss", 2e-5), ("grad_norm", "gradient norm", max(2e-5, 1e-4 * expected["grad_norm"][step]))):
                expect(abs(entry[key] - expected[key][step]) <= within,
                       f"{ranks} ranks, {options}: step {step}: {what} {entry[key]}, PyTorch's is {expected[key][step]}")
        weights.add(digest(where / "w.safetensors"))
    expect(len(weights) == 1, "the weights depend on how the rows are divided")


def weights_of(session, graph, data, options, steps=STEPS):
    where = session.folder()
    session.succeed("sheaf", "compile", graph, "-o", where / "x.plan", *options)
    session.succeed("sheaf-run", where / "x.plan", *data, "--steps", steps, "--log", where / "log", "--save", where / "w.safetensors")
    return digest(where / "w.safetensors")


def expect_one(session, graph, data, runs, steps=STEPS):
    """runs: options; all leave the same weights."""
    first = None
    for options in runs:
        bits = weights_of(session, graph, data, options, steps)
        first = first or bits
        expect(bits == first, f"{options} leave other weights than {runs[0]}")


def weighted(session, rows):
    """A model with a weight for each class, and its data."""
    folder = session.folder()
    graph = folder / "weighted.onnx"
    graph.write_bytes(written(
        [node("MatMul", ["x", "w"], ["y"], "product"), node("SoftmaxCrossEntropyLoss", ["y", "labels", "classes"], ["loss"], "loss")],
        [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
        [weight("w", [4, 3], [((7 * i) % 12 - 5) / 6 for i in range(12)]), weight("classes", [3], [0.1, 0.7331, 1.9])]))
    write_npy(folder / "x.npy", "<f4", (rows, 4), array.array("f", [math.sin(i) for i in range(4 * rows)]).tobytes())
    write_npy(folder / "labels.npy", "<i8", (rows,), array.array("q", [r * r % 7 % 3 for r in range(rows)]).tobytes())
    return graph, ("--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy")


def class_weights(session):
    """The divisor is a sum of the weights of the labels' classes, which are a frozen parameter: no integers."""
    graph, data = weighted(session, 64)
    common = ("--loss", "loss", "--freeze", "classes", "--batch", 64, "--optimizer", "sgd:lr=0.3")
    runs = [("--ranks", 1, "--leaves", 8, *common), ("--ranks", 1, "--micro-batches", 8, *common)]
    runs += [("--ranks", n, "--zero", z, "--micro-batches", 8 // n, "--reduce", r, *common)
             for n, z, r in ((2, 2, "each"), (2, 1, "last"), (4, 3, "each"), (4, 3, "last"))]
    expect_one(session, graph, data, runs, steps=20)


def standardized_inputs(session):
    """Inputs by their mean and deviation over the global batch: the deviation needs the mean first, in a pass of its own over the micro-batches."""
    where, rows = session.folder(), 64
    graph = where / "standardized.onnx"
    graph.write_bytes(written(
        [node("ReduceMean", ["x"], ["mean"], axes=[0]), node("Sub", ["x", "mean"], ["centred"]), node("Mul", ["centred", "centred"], ["squares"]),
         node("ReduceMean", ["squares"], ["variance"], axes=[0]), node("Sqrt", ["variance"], ["deviation"]),
         node("Div", ["centred", "deviation"], ["standard"]), node("MatMul", ["standard", "w"], ["y"]),
         node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"])],
        [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
        [weight("w", [4, 3], [((7 * i) % 12 - 5) / 6 for i in range(12)])], opset=17))
    x = [math.sin(i * i) * (1 + i % 4) + i % 4 for i in range(4 * rows)]
    labels = [r * r % 7 % 3 for r in range(rows)]
    write_npy(where / "x.npy", "<f4", (rows, 4), array.array("f", x).tobytes())
    write_npy(where / "labels.npy", "<i8", (rows,), array.array("q", labels).tobytes())
    data = ("--data", f"x={where}/x.npy", "--data", f"labels={where}/labels.npy")
    common = ("--loss", "loss", "--batch", 64, "--optimizer", "sgd:lr=0.3")
    runs = [("--ranks", 1, "--leaves", 8, *common), ("--ranks", 1, "--micro-batches", 8, *common)]
    runs += [("--ranks", n, "--zero", z, "--micro-batches", 8 // n, "--reduce", r, *common)
             for n, z, r in ((2, 2, "each"), (2, 1, "last"), (4, 3, "each"), (4, 3, "last"))]
    expect_one(session, graph, data, runs)
    # The first loss, by hand.
    columns = [x[c::4] for c in range(4)]
    means = [sum(c) / rows for c in columns]
    deviations = [math.sqrt(sum((v - m) ** 2 for v in c) / rows) for c, m in zip(columns, means, strict=True)]
    wanted = 0
    for r in range(rows):
        standard = [(columns[k][r] - means[k]) / deviations[k] for k in range(4)]
        logits = [sum(standard[k] * ((7 * (3 * k + c)) % 12 - 5) / 6 for k in range(4)) for c in range(3)]
        wanted += (math.log(sum(map(math.exp, logits))) - logits[labels[r]]) / rows
    session.succeed("sheaf", "compile", graph, "-o", where / "x.plan", "--ranks", 2, "--micro-batches", 4, *common)
    session.succeed("sheaf-run", where / "x.plan", *data, "--steps", 1, "--log", where / "log")
    found = read_log(where / "log")[0][0]["loss"]
    expect(abs(found - wanted) <= 1e-5, f"the first loss is {found}, by hand {wanted}")


def processes(session):
    """Two processes that share memory, and two that have sockets between them; --trace and --poison change nothing."""
    config = CONFIGS["gpt2-tiny"]
    expected = digest(train(session, config, 1, 0, STEPS, buckets("--leaves", 4)).weights)
    for zero, reduce, hosts in ((3, "each", "aa"), (3, "each", "ab"), (1, "last", "ab")):
        plan = session.plan(config.model, 2, zero, 8, config.options + buckets("--micro-batches", 2, "--reduce", reduce))
        where = session.folder()
        with Job(session, 2, plan, *data_arguments(config), "--steps", STEPS, "--save", where / "w", "--log", where / "log", "--poison",
                 "--trace", where / "trace", environment=lambda rank, h=hosts: {"SHEAF_HOST": h[rank]}) as job:
            job.succeed()
        expect(digest(where / "w") == expected, f"stage {zero}, {reduce}, hosts {hosts}: other weights")
        start = read_log(where / "log")[1][0]
        expect(start["micro_batches"] == 2, f"the log begins with {start}")
        events = json.loads((where / "trace").read_text())
        named = {e["name"] for e in (events["traceEvents"] if isinstance(events, dict) else events)}
        expect(any("over micro-batches" in name for name in named), "the trace shows no sum over micro-batches")


def skipped_step(session):
    """A number that is not finite in one micro-batch leaves the whole step out, and the next ones go on."""
    folder, rows = session.folder(), 32
    graph = folder / "linear.onnx"
    graph.write_bytes(written([node("MatMul", ["x", "w"], ["y"], "product"),
                               node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "loss")],
                              [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
                              [weight("w", [4, 3], [((7 * i) % 12 - 5) / 6 for i in range(12)])]))
    x = array.array("f", [math.sin(i) for i in range(4 * rows)])
    x[4 * 10] = math.nan  # of the second step's second micro-batch
    write_npy(folder / "x.npy", "<f4", (rows, 4), x.tobytes())
    write_npy(folder / "labels.npy", "<i8", (rows,), array.array("q", [r % 3 for r in range(rows)]).tobytes())
    data = ("--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy")
    common = ("--loss", "loss", "--batch", 8, "--optimizer", "adamw:lr=0.1", "--on-nan", "skip")
    runs = [("--ranks", 1, "--leaves", 4, *common), ("--ranks", 1, "--micro-batches", 4, *common)]
    runs += [("--ranks", 2, "--zero", z, "--micro-batches", 2, "--reduce", r, *common) for z, r in ((0, "last"), (2, "each"), (3, "last"))]
    expect_one(session, graph, data, runs, steps=4)


def three_ranks(session):
    """A number of ranks that is not a power of two: gradients are reduced once, and the root of the tree has three subtrees."""
    data = data_arguments(CONFIGS["mlp-adamw"])
    common = ("--batch", 12, "--optimizer", "adamw:lr=1e-3", "--bucket-size", 64 << 10)
    runs = [("--ranks", 6, *common)] + [("--ranks", 3, "--zero", z, "--micro-batches", 2, *common) for z in (0, 1, 2, 3)]
    expect_one(session, session.graph("mlp"), data, runs)


def dropping(session):
    """A model with dropout, and its data."""
    folder, rows = session.folder(), 32
    graph = folder / "dropout.onnx"
    graph.write_bytes(written(
        [node("Cast", ["one"], ["training"], "cast", to=9), node("MatMul", ["x", "w"], ["h"], "product"),
         node("Dropout", ["h", "ratio", "training"], ["y"], "dropout"),
         node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "loss")],
        [value("x", FLOAT, ["N", 4]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
        [weight("w", [4, 3], [((7 * i) % 12 - 5) / 6 for i in range(12)]), weight("ratio", [], [0.5]), weight("one", [], [1], INT64)]))
    write_npy(folder / "x.npy", "<f4", (rows, 4), array.array("f", [math.sin(i) for i in range(4 * rows)]).tobytes())
    write_npy(folder / "labels.npy", "<i8", (rows,), array.array("q", [r * r % 3 for r in range(rows)]).tobytes())
    return graph, ("--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy")


def dropout(session):
    """Numbers are drawn by the row in the global batch."""
    graph, data = dropping(session)
    common = ("--loss", "loss", "--batch", 8, "--optimizer", "sgd:lr=0.5")
    runs = [("--ranks", 1, "--leaves", 4, *common), ("--ranks", 1, "--micro-batches", 4, *common)]
    runs += [("--ranks", 2, "--zero", z, "--micro-batches", 2, "--reduce", r, *common) for z in (0, 3) for r in ("each", "last")]
    expect_one(session, graph, data, runs)
    expect(weights_of(session, graph, data, (*runs[0], "--seed", 7)) != weights_of(session, graph, data, runs[0]),
           "the seed changes nothing: nothing is dropped")


def batch_norm(session):
    """Local moments and running statistics are those of leaves; moments of the whole batch are refused."""
    graph, data = FOLDER / "norms" / "resnet.onnx", data_arguments(CONFIGS["cnn-adamw"])
    common = ("--batch", 8, "--optimizer", "sgd:lr=0.01", "--batch-norm", "local")
    runs = [("--ranks", 4, *common), ("--ranks", 1, "--micro-batches", 4, *common)]
    runs += [("--ranks", 2, "--zero", z, "--micro-batches", 2, *common) for z in (0, 2, 3)]
    expect_one(session, graph, data, runs)
    out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--ranks", 2, "--micro-batches", 2, "--batch", 8,
                       "--optimizer", "sgd:lr=0.01", "--batch-norm", "sync")
    expect_short_error(out, ["--micro-batches", "--batch-norm local"], 1)


def resumed(session):
    """A state saved with micro-batches goes on without, on other ranks, with the bits of an undisturbed run."""
    config, half, state = CONFIGS["gpt2-tiny"], STEPS // 2, session.folder() / "state"
    whole = train(session, config, 1, 0, STEPS, buckets("--leaves", 4))
    split(session, config, 1, 0, 4, steps=half, run_options=("--save-state", state))
    for what, rest in (("two ranks with two", split(session, config, 2, 3, 2, steps=STEPS, run_options=("--resume", state))),
                       ("four ranks", train(session, config, 4, 3, STEPS, buckets(), ("--resume", state)))):
        expect(rest.steps[0]["step"] == half, f"{what}: the resumed run begins at step {rest.steps[0]['step']}")
        same_bits(whole, [(what, rest)])


def evaluation(session):
    """A batch of the evaluation is a micro-batch's: loss and accuracy are those of all rows, and training goes on as without."""
    expect_evaluations(session, 8, 6, ((2, ("--leaves", 4)), (2, ("--micro-batches", 2)), (2, ("--micro-batches", 2, "--reduce", "last"))))


def expect_evaluations(session, batch, steps, divisions):
    """The same losses, accuracies and weights in each division: ranks and options."""
    config, found, weights = CONFIGS["mlp-adamw"], [], set()
    for ranks, options in divisions:
        plan = session.plan(config.model, ranks, 2, batch, config.options + buckets("--eval", *options))
        where = session.folder()
        evaluated = [a for i in range(1, 4, 2) for a in ("--eval-data", data_arguments(config)[i])]
        session.succeed("sheaf-run", plan, *data_arguments(config), *evaluated, "--eval-every", 2, "--steps", steps, "--log", where / "log",
                        "--save", where / "w.safetensors")
        found.append([(e["loss"], e["accuracy"]) for e in read_log(where / "log")[1] if e["event"] == "eval"])
        weights.add(digest(where / "w.safetensors"))
    expect(len(found[0]) >= 3, f"{len(found[0])} evaluations")
    for other in found[1:]:
        for (loss, accuracy), (a, b) in zip(found[0], other, strict=True):
            expect(abs(loss - a) <= 1e-6 and accuracy == b, f"loss {a} and accuracy {b}, without micro-batches {loss} and {accuracy}")
    expect(len(weights) == 1, "evaluations with micro-batches change the weights")


def memory(session):
    """Four micro-batches take a quarter of the activations; gradients are at most the levels' and that of the last one."""
    kinds = {}
    for micro in (1, 4):
        plan = session.plan("gpt2-mini", 1, 0, 8, ("--optimizer", "adamw:lr=1e-3", "--micro-batches", micro))
        kinds[micro] = session.inspect(plan)["memory"]["by_kind"]
    share = kinds[4]["activations"] / kinds[1]["activations"]
    expect(share <= 0.25 * 1.05, f"{share:.1%} of the activations")
    most = 2 * kinds[1]["parameters"] + kinds[1]["gradients"]
    expect(kinds[4]["gradients"] <= most * 1.01, f"{kinds[4]['gradients']} bytes of gradients are more than {most}")
    return f"{share:.1%} of the activations"


def recompute(session):
    """Recomputation and a memory limit change no bit."""
    config = CONFIGS["gpt2-tiny"]
    same_bits(train(session, config, 1, 0, STEPS, buckets("--leaves", 4)),
              [(what, split(session, config, 2, 3, 2, ("--recompute", what))) for what in ("kernels", "all")])


def automatic(session):
    """`auto` takes micro-batches where they are quicker than recomputation, and both where neither alone fits."""
    def compiled(limit, *options):
        plan = session.folder() / "x.plan"
        done = session.call("sheaf", "compile", session.graph("gpt2-mini"), "-o", plan, "--batch", 8, "--optimizer", "adamw:lr=1e-3",
                            "--memory-limit", f"{limit}MiB", *options)
        if done.code:
            expect("too much" in done.err, done.err)
            return None
        found = session.inspect(plan)
        expect(found["memory"]["peak_bytes"] <= limit << 20, f"{options}: {found['memory']['peak_bytes']} bytes")
        decision = next(d for d in found["decisions"] if d.startswith("schedule: "))
        value, unit = decision.split("step ")[1].split(",")[0].split()
        return found["micro_batches"], float(value) * {"s": 1, "ms": 1e-3}[unit], "recomputing" in decision

    expect(compiled(600, "--micro-batches", "auto")[0] == 1, "micro-batches where all fits without")
    count, seconds, _ = compiled(300, "--micro-batches", "auto")
    alone = compiled(300)
    expect(count > 1 and alone[2] and seconds < 0.95 * alone[1], f"{count} micro-batches take {seconds} s, recomputation {alone[1]} s")
    tight = 216
    expect(compiled(tight) is None, f"recomputation alone fits {tight} MiB")
    for micro in (2, 4, 8):
        expect(compiled(tight, "--micro-batches", micro, "--recompute", "none") is None, f"{micro} micro-batches alone fit {tight} MiB")
    count, _, recomputed = compiled(tight, "--micro-batches", "auto")
    expect(count > 1 and recomputed, f"{count} micro-batches, recomputing: {recomputed}")
    expect(compiled(100, "--micro-batches", "auto") is None, "100 MiB are enough for 124 MiB of state")
    # A model that cannot be cut is compiled as it is.
    plan = session.folder() / "moe.plan"
    session.succeed("sheaf", "compile", session.graph("moe"), "-o", plan, "--batch", 8, "--micro-batches", "auto")
    expect(session.inspect(plan)["micro_batches"] == 1, "a mixture of experts was cut")


def fit(session):
    """What `sheaf fit` says of micro-batches is what the plan takes."""
    expect_fit(session, 2, 8, 2)


def expect_fit(session, ranks, batch, micro):
    options = ("--ranks", ranks, "--batch", batch, "--micro-batches", micro, "--optimizer", "adamw:lr=1e-3")
    done = session.succeed("sheaf", "fit", session.graph("gpt2-tiny"), "--memory", "1GiB", *options, "--json")
    for stage in json.loads(done.out)["stages"]:
        plan = session.folder() / "x.plan"
        session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", plan, "--zero", stage["stage"], "--recompute", "none", *options)
        peak, said = session.inspect(plan)["memory"]["peak_bytes"], stage["without_recompute"]["peak_bytes"]
        expect(peak == said, f"stage {stage['stage']}: {said} bytes, the plan has {peak}")


def mutants(session):
    """Changes of turns, parts and what they do are refused; see sheaf-mutants."""
    return expect_refused_mutants(session, 8, [(n, z, 8, ("--micro-batches", m, "--reduce", r))
                                               for n, z, m, r in ((1, 0, 4, "auto"), (2, 3, 2, "each"), (2, 1, 2, "last"))])


def expect_refused_mutants(session, sample, divisions):
    """divisions: ranks, stage, batch and options. Without --every-mutant one of `sample` is tried."""
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    config = CONFIGS["mlp-adamw"]
    plans = [session.plan(config.model, n, z, batch, config.options + buckets(*options)) for n, z, batch, options in divisions]
    every = [] if session.every_mutant else ["--sample", sample]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def refused(session):
    def compiled(*options):
        return session.call("sheaf", "compile", session.graph("mlp"), "-o", session.folder() / "x.plan", "--optimizer", "sgd:lr=0.1", *options)

    for words, code, options in (
            (["--leaves 6 is not --ranks 2 times --micro-batches 2", "give 4, 8, 16"], 1,
             ("--batch", 24, "--ranks", 2, "--micro-batches", 2, "--leaves", 6)),
            (["does not divide into 16 pieces: --ranks times --micro-batches"], 1, ("--batch", 8, "--ranks", 2, "--micro-batches", 8)),
            (["--reduce each needs a power of two of ranks, not 3", "--reduce last"], 1,
             ("--batch", 12, "--ranks", 3, "--micro-batches", 2, "--reduce", "each")),
            (["--reduce", "needs --micro-batches"], 2, ("--batch", 8, "--ranks", 2, "--reduce", "last"))):
        expect_short_error(compiled(*options), words, code)
    # The load of experts is a sum over the batch of what the model computes.
    out = session.call("sheaf", "compile", session.graph("moe"), "-o", session.folder() / "x.plan", "--optimizer", "sgd:lr=0.1",
                       "--batch", 8, "--micro-batches", 2)
    expect_short_error(out, ["node_mean_1", "leave out --micro-batches"], 1)
