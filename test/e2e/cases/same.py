"""Plans that compute the same bits: `sheaf same` says which do, `compile --like` makes them, `sheaf-run` takes one of several."""
import json
import re

from harness import Case, Skip, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments, in_turn

MODEL = "mlp"
BATCH, LEAVES = 16, 4
BASE = {"--batch": BATCH, "--leaves": LEAVES, "--bucket-size": 64 << 10, "--optimizer": "adamw:lr=1e-3"}
SCALED = {"--optimizer": "adamw:lr=1e-3,weight_decay=0.1"}
HALF = {"--precision": "bf16"}
# Every option of `sheaf compile` is in one of these two. Those that decide bits: the model, options of both plans, the options
# of the second, and words of the error.
DECIDES = {
    "--batch": (MODEL, {}, {"--batch": 32}, "the batch is 16 and 32"),
    "--leaves": (MODEL, {}, {"--leaves": 8}, "the number of leaves is 4 and 8; of the options, the first has --leaves=4, the second has "
                                             "--leaves=8; compile both with --leaves 8"),
    "--seed": (MODEL, {}, {"--seed": 3}, "the seed is 0 and 3"),
    "--loss": ("gpt2-tiny-logits", {"--loss": "cross_entropy(logits)"}, {"--loss": "cross_entropy(logits,label_smoothing=0.1)"},
               "the program of the step"),
    "--optimizer": (MODEL, {}, {"--optimizer": "adamw:lr=1e-3,beta1=0.8"}, "the optimizer is adamw"),
    "--group": (MODEL, {}, {"--group": "fc1:lr=0.5"}, "the number of parameter groups"),
    "--no-decay": (MODEL, SCALED, {"--no-decay": None}, "the number of parameter groups"),
    "--lr-schedule": (MODEL, {}, {"--lr-schedule": "cosine"}, "the learning-rate schedule is constant and cosine"),
    "--clip-norm": (MODEL, {}, {"--clip-norm": 0.5}, "step scalars"),
    "--on-nan": (MODEL, {}, {"--on-nan": "skip"}, "what a gradient that is not finite does is stop and skip"),
    "--train": (MODEL, {}, {"--train": "fc1"}, "the program of the step"),
    "--freeze": (MODEL, {}, {"--freeze": "fc1"}, "the program of the step"),
    "--batch-norm": ("norms/resnet", {"--batch-norm": "sync", "--leaves": 2}, {"--batch-norm": "local"}, "the program of the step"),
    "--precision": (MODEL, {}, HALF, "the program of the step"),
    "--reduce-precision": (MODEL, HALF, {"--reduce-precision": "f32"}, "--reduce-precision=f32"),
    "--loss-scale": (MODEL, {}, {"--loss-scale": 8}, "--loss-scale=8"),
    "--reduce-order": (MODEL, {}, {"--reduce-order": "ring"}, "the order of sums over GPUs is tree and ring"),
    "--gemm-epilogues": (MODEL, {}, {"--gemm-epilogues": "on"}, "the program of the step"),
    "--cpu": (MODEL, {"--cpu": "x86-64-v4"}, {"--cpu": "x86-64-v3"}, "the target is cpu for x86-64-v4"),
    "--target": (MODEL, {}, {"--target": "cpu,cuda:sm_90"}, "--target=cpu,cuda:sm_90"),
    "--bucket-size": (MODEL, {}, {"--bucket-size": 4096}, "the number of buckets is"),
    # They decide shapes, and so the program: no small model here has a dimension or an input of the kind.
    "--bind": None,
    "--rows": None,
    "--const": None,
}
FREE = {"-o", "--ranks", "--ranks-per-node", "--secondary-shards", "--deepspeed", "--ignore", "--like", "--micro-batches", "--reduce",
        "--zero", "--no-weight-hashes", "--eval", "--eval-only", "--max-threads-per-rank", "--profile", "--memory-limit", "--recompute",
        "--prefetch", "--keep", "--offload", "--update-on", "--host-memory", "--file-space", "--file-generations", "--compile-to", "--format", "--no-graph", "--verbose", "--quiet", "--help"}
SETTLED_LATER = {"--lr-schedule", "--clip-norm", "--loss-scale", "--reduce-precision", "--target"}
# Ways to compile what the base computes.
LAYOUTS = [(1, 0, ()), (1, 0, ("--micro-batches", 4)), (1, 0, ("--micro-batches", 2)), (2, 0, ()), (2, 1, ("--eval",)),
           (2, 3, ("--recompute", "all")), (4, 1, ("--memory-limit", "1GiB")), (4, 2, ("--prefetch", 0)), (4, 3, ("--profile", "h100")),
           (4, 3, ("--ranks-per-node", 2)), (4, "node=3,world=0", ("--ranks-per-node", 2))] + [
               (2, z, ("--micro-batches", 2, "--reduce", r)) for z, r in ((0, "last"), (1, "each"), (2, "last"), (3, "each"))]

# The same with eight leaves, with six and with twelve: leaves of two rows of the batch, and of four.
DIVISIONS = {8: [(8, 1, ()), (8, 0, ("--ranks-per-node", 2)), (8, "node=3,world=1", ("--ranks-per-node", 4)), (4, 3, ()),
                 (4, 2, ("--micro-batches", 2, "--reduce", "each")), (4, 3, ("--ranks-per-node", 2, "--micro-batches", 2)),
                 (2, 3, ("--micro-batches", 4, "--reduce", "last")), (2, 1, ("--micro-batches", 2)), (2, 2, ()), (1, 0, ()),
                 (1, 0, ("--micro-batches", 8))],
             6: [(6, 1, ()), (6, "node=3,world=0", ("--ranks-per-node", 2)), (3, 3, ()), (3, 0, ("--micro-batches", 2))],
             12: [(12, 1, ()), (12, "node=3,world=0", ("--ranks-per-node", 4)), (6, 2, ("--micro-batches", 2, "--reduce", "last")),
                  (3, 0, ("--micro-batches", 4)), (3, 3, ()), (6, "node=3,world=1", ("--ranks-per-node", 2))]}
# Plans whose mutants are distinguished: options, ranks, stage and division.
MUTATED = [({}, 2, 1, ()), ({}, 2, 2, ("--micro-batches", 2, "--reduce", "each")), ({}, 2, 0, ("--micro-batches", 2, "--reduce", "last")),
           ({}, 1, 0, ()), (HALF, 2, 3, ()), ({"--precision": "f16", "--clip-norm": 0.1}, 4, "node=3,world=1", ("--ranks-per-node", 2)),
           ({"--batch": 36, "--leaves": 18}, 3, 1, ("--micro-batches", 6))]


def cases(session):
    for model, name in enumerate(("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")):
        for setting, (what, options) in enumerate((("f32", {}), ("bf16", HALF), ("f16-clipped", {"--precision": "f16", "--clip-norm": 0.1}))):
            turn = setting + model if setting and model else None
            yield Case(f"same/{name}/{what}", lambda c=CONFIGS[name], o=options, t=turn: layouts(session, c, o, t))
    for name in ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny"):
        for leaves in DIVISIONS:
            yield Case(f"same/divisions/{name}/{leaves}", lambda c=CONFIGS[name], v=leaves: divisions(session, c, v))
    for number, plan in enumerate(MUTATED):
        yield Case(f"same/mutants/{number}", lambda p=plan: mutants(session, *p))
    yield Case("same/misstated", lambda: misstated(session))
    for option, decision in DECIDES.items():
        if decision:
            yield Case(f"same/differs/{option[2:]}", lambda o=option, d=decision: differs(session, o, *d))
    yield Case("same/options", lambda: every_option(session))
    yield Case("same/defaults", lambda: defaults(session))
    yield Case("same/models", lambda: other_models(session))
    yield Case("same/edited", lambda: edited(session))
    yield Case("same/usage", lambda: usage(session))
    yield Case("same/elastic", lambda: elastic(session))
    yield Case("same/elastic-refused", lambda: elastic_refused(session))


def words(options):
    return tuple(word for name, value in options.items() for word in ((name,) if value is None else (name, value)))


def compiled(session, model, ranks, zero, options, more=()):
    command = ("--ranks", ranks, "--zero", zero, *words({**BASE, **options}), *more)

    def compile_it():
        path = session.folder() / "out.plan"
        session.succeed("sheaf", "compile", session.graph(model), "-o", path, *command)
        return path

    return session.once(("same", model, command), compile_it)


def layouts(session, config, options, turn):
    """All are the same as the first: as compiled each by itself, and as compiled --like it. With a turn, the three larger models divide the
    layouts among each other."""
    more = {**options, "--optimizer": config.options[config.options.index("--optimizer") + 1]}
    base = compiled(session, config.model, 4, 2, more)
    chosen = LAYOUTS[::3] if session.quick else LAYOUTS if turn is None else in_turn(session, LAYOUTS, turn, 3)
    plans = [compiled(session, config.model, n, z, more, m) for n, z, m in chosen]
    out = session.succeed("sheaf", "same", base, *plans).out
    expect(f"the same bits, with {LEAVES} leaves of {BATCH // LEAVES} rows" in out, out)
    likes = []
    for (n, z, m), plan in zip(chosen, plans):
        likes.append(session.folder() / "like.plan")
        session.succeed("sheaf", "compile", session.graph(config.model), "-o", likes[-1], "--like", base, "--ranks", n, "--zero", z, *m)
        expect(f"{n} rank" in out and str(plan) in out, out)
    session.succeed("sheaf", "same", base, *likes)
    answer = json.loads(session.succeed("sheaf", "same", base, plans[0], "--format", "json").out)
    expect(answer["same"] and [p["leaves"] for p in answer["plans"]] == [LEAVES, LEAVES] and "difference" not in answer, answer)


def divisions(session, config, leaves):
    """Every division of the leaves is proved to compute what the first does."""
    more = {"--leaves": leaves, "--batch": 16 if leaves == 8 else 24, "--optimizer": config.options[config.options.index("--optimizer") + 1]}
    plans = [compiled(session, config.model, n, z, more, m) for n, z, m in DIVISIONS[leaves][:: 3 if session.quick else 1]]
    out = session.succeed("sheaf", "same", *plans).out
    expect(f"the same bits, with {leaves} leaves" in out and all(str(plan) in out for plan in plans), out)


def mutants(session, options, ranks, zero, division):
    """Good plans that compute something else are distinguished; see sheaf-leaf-mutants. Samples, unless all mutants are asked for."""
    tool = "../test/bin/sheaf-leaf-mutants"
    if not (session.tools / tool).exists():
        raise Skip("sheaf-leaf-mutants is not built")
    every = () if session.every_mutant else ("--sample", 40)
    models = (MODEL, "cnn", "gpt2-tiny") if session.every_mutant else (MODEL, "gpt2-tiny")
    plans = [compiled(session, model, ranks, zero, options, division) for model in models]
    session.succeed(tool, *plans, *every, timeout=7200 if session.every_mutant else 300)


def misstated(session):
    """A kernel's statement that does not fit its operands is refused before anything is proved of it."""
    base, where = compiled(session, MODEL, 2, 1, {}), session.folder()
    text = session.succeed("sheaf", "inspect", base, "--format", "text").out
    changed = re.sub(r'("operand f32 \d+x)', r"\g<1>2x", re.sub(r'plan.digests "kernels".*\n', "", text))
    expect(changed != text, "no kernel states what it computes")
    (where / "x.mlir").write_text(changed)
    session.succeed("sheaf", "assemble", where / "x.mlir", "-o", base.parent / "other.plan")
    expect_short_error(session.call("sheaf", "same", base, base.parent / "other.plan"), ["line 0 of its program"], 1)


def differs(session, option, model, both, second, message):
    """The difference is named, and --like refuses the option as well as the plan that it would make."""
    first = compiled(session, model, 2, 1, both)
    other = compiled(session, model, 2, 1, {**both, **second})
    out = session.call("sheaf", "same", first, other)
    expect_short_error(out, ["do not compute the same bits", message], 1)
    expect(option in out.err, f"{option} is not named: {out.err}")
    answer = session.call("sheaf", "same", first, other, "--format", "json")
    expect(answer.code == 1 and not json.loads(answer.out)["same"] and option in json.loads(answer.out)["difference"]["options"], answer.out)
    like = ("sheaf", "compile", session.graph(model), "-o", session.folder() / "x.plan", "--ranks", 2, "--zero", 1)
    # Where the default follows from the model, only the plans show whether what is given differs from it.
    wrong = (["does not compute the same bits", option], 1) if option in SETTLED_LATER else ([option, "contradicts --like"], 2)
    expect_short_error(session.call(*like, "--like", first, *words(second)), *wrong)
    session.succeed(*like, "--like", other)
    session.succeed(*like, "--like", other, *words(second))


def every_option(session):
    """An option that is added is put into one of the two lists."""
    page = session.succeed("sheaf", "compile", "--help=markdown").out
    known = set(re.findall(r"^\| `(--?[\w-]+)", page, re.MULTILINE))
    expect(known == set(DECIDES) | FREE, f"in one list only: {known ^ (set(DECIDES) | FREE)}")
    expect(not set(DECIDES) & FREE, "in both lists")


def defaults(session):
    """--like takes options that say what the plan has by default, and names what an evaluation lacks."""
    base = session.folder() / "base.plan"
    session.succeed("sheaf", "compile", session.graph(MODEL), "-o", base, "--ranks", 2, "--batch", BATCH)
    like = ("sheaf", "compile", session.graph(MODEL), "-o", session.folder() / "x.plan", "--ranks", 1)
    session.succeed(*like, "--like", base, "--optimizer", "adamw", "--lr-schedule", "constant", "--loss-scale", "none")
    half = compiled(session, MODEL, 2, 1, HALF)
    session.succeed(*like, "--like", half, "--reduce-precision", HALF["--precision"])
    expect_short_error(session.call(*like, "--like", base, "--eval-only"), ["the training step is there and missing"], 1)


def other_models(session):
    base = compiled(session, MODEL, 2, 1, {})
    other = compiled(session, "cnn", 2, 1, {})
    expect_short_error(session.call("sheaf", "same", base, other), ["the model is", "mlp.onnx with parameters", "cnn.onnx with parameters"], 1)
    expect_short_error(session.call("sheaf", "compile", session.graph("cnn"), "-o", session.folder() / "x.plan", "--like", base, "--ranks", 2),
                       ["does not compute the same bits as", "the model is", "mlp.onnx with parameters"], 1)
    # The weights of a model are part of what it computes.
    where = session.folder()
    graph = where / "mlp.onnx"
    content = session.graph(MODEL).read_bytes()
    source = re.search(r'plan.parameter "fc2.weight".*source \[0, (\d+), (\d+)', session.succeed("sheaf", "inspect", base, "--format", "text").out)
    at = int(source.group(1)) + 8
    graph.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1:])
    session.succeed("sheaf", "compile", graph, "-o", where / "a.plan", "--ranks", 2, "--zero", 1, *words(BASE))
    expect_short_error(session.call("sheaf", "same", base, where / "a.plan"), ["the initial values of parameter 'fc2.weight'"], 1)
    # Those of a frozen parameter as well, whether there is an evaluation or not.
    for options in ((), ("--eval",)):
        frozen = [where / "b.plan", where / "c.plan"]
        for model, plan in zip((session.graph(MODEL), graph), frozen):
            session.succeed("sheaf", "compile", model, "-o", plan, "--ranks", 2, "--zero", 1, *words(BASE), "--freeze", "fc2|fc3", *options)
        expect_short_error(session.call("sheaf", "same", *frozen), ["the initial values of parameter 'fc2.weight'"], 1)
    # Without hashes nothing is known of most of them.
    plans = [where / "d.plan", where / "e.plan"]
    for plan in plans:
        session.succeed("sheaf", "compile", session.graph(MODEL), "-o", plan, "--ranks", 2, "--zero", 1, *words(BASE), "--no-weight-hashes")
    expect_short_error(session.call("sheaf", "same", base, plans[0]), ["the initial values", "--no-weight-hashes"], 1)
    done = session.succeed("sheaf", "same", *plans)
    expect("first 64 KiB alone" in done.out + done.err, f"nothing is said of what was not compared: {done.out}")


def edited(session):
    """A plan that was edited is no longer what it was compiled from."""
    base, where = compiled(session, MODEL, 2, 1, {}), session.folder()
    text = session.succeed("sheaf", "inspect", base, "--format", "text").out
    changed = text.replace("plan.origin leaves 4", "plan.origin leaves 8")
    expect(changed != text, "no leaves in the text")
    other = re.sub(r'(plan.origin_program.*hashes \[")(.)', lambda m: m[1] + ("1" if m[2] == "0" else "0"), text, count=1)
    decay = re.sub(r"(plan.scalar \w+ )(\S+)", r"\g<1>0.5", text, count=1)
    for number, (new, options, message) in enumerate(((changed, (), "what the plan was compiled from"),
                                                     (other, (), "what the plan was compiled from"),
                                                     (decay, ("--redigest",), "does not state what it was compiled from"))):
        expect(new != text, f"edit {number} changes nothing")
        (where / "x.mlir").write_text(new)
        session.succeed("sheaf", "assemble", where / "x.mlir", "-o", base.parent / f"x{number}.plan", *options)
        expect_short_error(session.call("sheaf", "same", base, base.parent / f"x{number}.plan"), [message], 1)
    (where / "x.mlir").write_text(text)
    session.succeed("sheaf", "assemble", where / "x.mlir", "-o", base.parent / "again.plan", "--redigest")
    session.succeed("sheaf", "same", base, base.parent / "again.plan")


def usage(session):
    base = compiled(session, MODEL, 2, 1, {})
    expect_short_error(session.call("sheaf", "same", base), ["two plans"], 2)
    expect_short_error(session.call("sheaf", "same", base, "missing.plan"), ["missing.plan"], 1)
    expect_short_error(session.call("sheaf", "compile", session.graph(MODEL), "-o", "x.plan", "--like", "missing.plan"), ["missing.plan"], 1)


def elastic_plans(session, config):
    first = session.plan(config.model, 8, 3, BATCH, ("--optimizer", config.options[1], "--bucket-size", 64 << 10))
    plans = {8: first}
    for ranks, more in ((4, ("--zero", 2)), (2, ("--zero", 1, "--micro-batches", 2))):
        plans[ranks] = session.folder() / f"p{ranks}.plan"
        session.succeed("sheaf", "compile", session.graph(config.model), "-o", plans[ranks], "--like", first, "--ranks", ranks, *more)
    return plans


def elastic(session):
    """Eight processes, then four, then two, as a launcher restarts them with one command: the bits of eight undisturbed ranks."""
    config, where = CONFIGS["gpt2-tiny"], session.folder()
    plans = elastic_plans(session, config)
    data = data_arguments(config)
    session.succeed("sheaf-run", plans[8], *data, "--steps", 9, "--save", where / "expected")
    for launcher in ("torchrun", "kubernetes"):
        state, steps = where / f"state-{launcher}", []
        for part, count in enumerate((8, 4, 2), 1):
            resume = ("--resume", state) if state.exists() else ()
            log = where / f"log-{launcher}-{count}"
            with Job(session, count, *plans.values(), *data, "--steps", 3 * part, "--save-state", state, *resume, "--save", where / "w", "--log", log,
                     launcher=launcher) as job:
                job.succeed()
            start = json.loads(log.read_text().splitlines()[0])
            expect((start["ranks"], start["processes"], start["plan"]) == (count, count, str(plans[count])), start)
        expect(digest(where / "w") == digest(where / "expected"), f"{launcher}: other weights than those of eight ranks")
    # In one process, by number; and more ranks than before.
    state = where / "state"
    for part, ranks in enumerate((2, 8, 4), 1):
        session.succeed("sheaf-run", *plans.values(), "--ranks", ranks, *data, "--steps", 3 * part, "--save-state", state, "--save", where / "w",
                        *(("--resume", state) if state.exists() else ()))
    expect(digest(where / "w") == digest(where / "expected"), "other weights in one process")


def elastic_refused(session):
    config = CONFIGS["gpt2-tiny"]
    plans = elastic_plans(session, config)
    run = [*data_arguments(config), "--steps", 1]
    out = session.call("sheaf-run", *plans.values(), *run)
    expect_short_error(out, ["no plan is for 1 rank; the plans are for 2, 4 or 8", "--ranks"], 1)
    with Job(session, 3, *plans.values(), *run) as job:
        codes = job.wait()
        expect(codes == [1, 1, 1] and "no plan is for 3 ranks; the plans are for 2, 4 or 8" in job.processes[0].error_text(),
               job.processes[0].error_text())
    expect_short_error(session.call("sheaf-run", plans[8], "--ranks", 4, *run), ["no plan is for 4 ranks; the plans are for 8"], 1)
    other = session.plan(config.model, 4, 3, BATCH, ("--leaves", 8, "--optimizer", config.options[1], "--bucket-size", 64 << 10, "--seed", 5))
    expect_short_error(session.call("sheaf-run", plans[8], other, "--ranks", 4, *run), ["do not compute the same bits: the seed is 0 and 5"], 1)
