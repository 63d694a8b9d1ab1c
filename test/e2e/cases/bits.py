"""Parallelism never changes the answer: with the same ranks the saved weights are the same bits, however they are made."""
import array

from formats import read_log, write_npy
from harness import MODELS as FOLDER
from harness import Case, digest, expect
from training import CONFIGS, expect_other_instructions, short, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")


def cases(session):
    ranks = (4,) if session.quick else (1, 2, 4)
    for name in MODELS:
        config = CONFIGS[name]
        for n in ranks:
            yield Case(f"bits/{name}/ranks-{n}/stages", lambda c=config, n=n: stages(session, c, n))
            yield Case(f"bits/{name}/ranks-{n}/threads", lambda c=config, n=n: threads(session, c, n))
            yield Case(f"bits/{name}/ranks-{n}/idle-clipping", lambda c=config, n=n: idle_clipping(session, c, n))
            yield Case(f"bits/{name}/ranks-{n}/schedules", lambda c=config, n=n: schedules(session, c, n))
            yield Case(f"bits/{name}/ranks-{n}/resumed", lambda c=config, n=n: resumed(session, c, n))
    yield Case("bits/resnet-18", lambda: images(session))
    repeats = 3 if session.quick else 10
    for name in MODELS:
        yield Case(f"bits/{name}/ranks-4/repeats", lambda c=CONFIGS[name]: repeated(session, c, repeats))


def same_bits(trained, others):
    expected = digest(trained.weights)
    for what, other in others:
        expect(digest(other.weights) == expected, f"{what} leaves other weights")


def run(session, config, ranks, zero=3, **more):
    return train(session, config, ranks, zero, short(session), **more)


def plain(session, config, ranks, zero=3):
    """The run at a stage that numerics.py compares with PyTorch's; at stage 0 that one is longer."""
    return run(session, config, ranks, zero, gradients=True)


def stages(session, config, ranks):
    others = [(f"stage {z}", plain(session, config, ranks, z)) for z in ((3,) if session.quick else (1, 2, 3))]
    same_bits(plain(session, config, ranks, 0), others)


def threads(session, config, ranks):
    others = [(f"{t} threads a rank", run(session, config, ranks, run_options=("--threads-per-rank", t))) for t in (1, 2)]
    same_bits(plain(session, config, ranks), others)


def idle_clipping(session, config, ranks):
    clipped = run(session, config, ranks, compile_options=("--clip-norm", "1e6"))
    same_bits(plain(session, config, ranks), [("clipping that does not bite", clipped)])


def ways(config, ranks):
    """Options that give each another schedule of the same arithmetic: recomputation, gathers at use, parameters that stay
    gathered, other buckets, another machine's costs."""
    small, whole = ("--bucket-size", 4096), ("--bucket-size", "64MiB")
    if config.name.startswith(("mlp", "cnn")):
        vectors = [small, ("--bucket-size", 4096, "--prefetch", 0), ("--profile", "h100"),
                   small + ("--profile", "h100") if config.name.startswith("cnn") else ("--profile", "rtx4090")]
        return vectors if ranks > 1 else [small]
    recompute = ("--recompute", "all")
    return [recompute, small, whole, small + recompute] if ranks == 1 else [
        recompute, ("--keep", "."), ("--profile", "h100"), ("--profile", "h100", "--prefetch", 0), whole, small + ("--keep", ".")]


def schedules(session, config, ranks):
    made = {" ".join(map(str, way)): way for way in ((), *ways(config, ranks))}
    expect_other_instructions(session, {what: session.plan(config.model, ranks, 3, 8, config.options + way)
                                        for what, way in made.items()})
    same_bits(plain(session, config, ranks), [(what, run(session, config, ranks, compile_options=way)) for what, way in made.items() if way])


def resumed(session, config, ranks):
    whole, state = plain(session, config, ranks), session.folder() / "state"
    half = len(whole.steps) // 2
    train(session, config, ranks, 3, steps=half, run_options=("--save-state", state))
    rest = train(session, config, ranks, 3, steps=len(whole.steps), run_options=("--resume", state))
    expect(rest.steps[0]["step"] == whole.steps[half]["step"], f"the resumed run begins at step {rest.steps[0]['step']}")
    same_bits(whole, [("a run in two halves", rest)])


def repeated(session, config, repeats):
    others = [(f"repetition {r}", run(session, config, 4, run_options=("--threads-per-rank", 1 + r % 2), repeat=r)) for r in range(1, repeats)]
    same_bits(plain(session, config, 4), others)


def images(session):
    """Convolutions of every kind of piece, on ranks that share out 12 images: stages and numbers of threads."""
    where, rows = session.folder(), 12
    noise = array.array("f", (((i * 2654435761) % 65521 / 65521 - 0.5) for i in range(3 * 64 * 64)))
    write_npy(where / "x.npy", "<f4", (rows, 3, 64, 64), b"".join(array.array("f", ((1 + r / rows) * v for v in noise)).tobytes() for r in range(rows)))
    write_npy(where / "labels.npy", "<i8", (rows,), array.array("q", (83 * r for r in range(rows))).tobytes())
    expected, first = None, None
    for ranks, zero, threads in ((2, 0, 1), (2, 3, 1), (2, 3, 2), (2, 1, 5), (2, 2, 3)):
        plan = where / f"zero-{zero}.plan"
        session.succeed("sheaf", "compile", FOLDER / "resnet-18.onnx", "-o", plan, "--ranks", ranks, "--zero", zero, "--batch", rows,
                        "--optimizer", "sgd:lr=0.01")
        if not expected:
            session.succeed("sheaf", "init", plan, "--seed", 1, "-o", where / "initial.safetensors")
        session.succeed("sheaf-run", plan, "--weights", where / "initial.safetensors", "--data", f"x={where / 'x.npy'}", "--data",
                        f"labels={where / 'labels.npy'}", "--steps", 3, "--threads-per-rank", threads, "--log", where / "run.jsonl",
                        "--save", where / "weights.safetensors")
        losses = [step["loss"] for step in read_log(where / "run.jsonl")[0]]
        bits = digest(where / "weights.safetensors")
        expected, first = expected or bits, first or losses
        expect(losses == first and losses[2] < losses[0], f"losses {losses}, at first {first}")
        expect(bits == expected, f"stage {zero} on {threads} threads leaves other weights")
