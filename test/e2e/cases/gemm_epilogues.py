"""Products with epilogues: PyTorch's losses and gradients, the same bits whatever the stage, the schedule and the threads."""
from cases.precision import BF16, expect_near
from harness import Case, digest, expect
from training import CONFIGS, expect_gradients, expect_other_instructions, expect_reference, short, train

ON = ("--gemm-epilogues", "on")
# A model, and how many of its products get an epilogue: bias and GELU of each layer forward, GELU's gradient and two sums
# backward; only the biases before ReLUs and the loss; llama has none.
PRODUCTS = {"mlp-adamw": 3, "gpt2-tiny": 28, "gpt2-tiny-optimized": 28, "gpt2-tiny-logits": 28, "llama-tiny": 0}


def cases(session):
    for name in PRODUCTS:
        yield Case(f"gemm-epilogues/loss/{name}", lambda n=name: loss(session, n))
    for precision in ((), BF16):
        where = "bf16" if precision else "f32"
        yield Case(f"gemm-epilogues/stages/{where}", lambda p=precision: stages(session, p))
        yield Case(f"gemm-epilogues/ways/{where}", lambda p=precision: ways(session, p))
    yield Case("gemm-epilogues/off", lambda: off(session))


def loss(session, name):
    config = CONFIGS[name]
    for ranks in (1, 2):
        run = train(session, config, ranks, 2 if ranks > 1 else 0, compile_options=ON, gradients=True)
        expect_reference(config, run.steps)
        expect_gradients(config, run.gradients)
    text = session.folder() / "train.mlir"
    session.succeed("sheaf", "compile", session.graph(config.model), "-o", text, "--batch", 8, "--compile-to", "train",
                    *config.options, *ON)
    count = text.read_text().count("= train.matmul_epilogue ")
    expect(count == PRODUCTS[name], f"{count} products have an epilogue, not {PRODUCTS[name]}")


def stages(session, precision):
    config, first = CONFIGS["gpt2-tiny"], None
    for zero in range(4):
        run = train(session, config, 4, zero, short(session), (*precision, *ON))
        if precision:
            expect_near(config, run.steps)
        else:
            expect_reference(config, run.steps)
        first = first or digest(run.weights)
        expect(digest(run.weights) == first, f"stage {zero} leaves other weights than stage 0")


def ways(session, precision):
    """Nothing that only decides when something is computed changes a bit."""
    config, steps = CONFIGS["gpt2-tiny"], short(session)
    expected = digest(train(session, config, 2, 0, steps, (*precision, *ON)).weights)
    made = (("--recompute", "all"), ("--keep", "."), ("--profile", "h100"), ("--profile", "h100", "--prefetch", 0))
    expect_other_instructions(session, {" ".join(map(str, options)): session.plan(
        config.model, 2, 3, 8, (*config.options, *precision, *ON, *options)) for options in ((), *made)})
    for options in made:
        run = train(session, config, 2, 3, steps, (*precision, *ON, *options))
        expect(digest(run.weights) == expected, f"{' '.join(map(str, options))} leaves other weights")
    for threads in (1, 2):
        run = train(session, config, 2, 3, steps, (*precision, *ON), ("--threads-per-rank", threads))
        expect(digest(run.weights) == expected, f"{threads} threads a rank leave other weights")


def off(session):
    """Without a GPU among the targets there are none unless they are asked for."""
    folder = session.folder()
    for name, options in (("usual", ()), ("off", ("--gemm-epilogues", "off"))):
        session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", folder / name, "--batch", 8,
                        "--compile-to", "train", *options)
    expect((folder / "usual").read_text() == (folder / "off").read_text(), "a CPU's plan has epilogues")
    expect("matmul_epilogue" not in (folder / "usual").read_text(), "--gemm-epilogues off has epilogues")
