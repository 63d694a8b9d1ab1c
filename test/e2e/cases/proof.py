"""The proof of plans: every plan of the small models is proved, and what changes an order, a byte or a table is not."""
import re

from harness import Case, Skip, expect
from training import CONFIGS, data_arguments


def cases(session):
    for name in ("mlp-adamw", "gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)):
            yield Case(f"proof/{name}/ranks-{ranks}/zero-{zero}", lambda n=name, r=ranks, z=zero: proved(session, n, r, z))
    for name in CONFIGS:
        for zero in (0, 1, 2, 3):
            yield Case(f"proof/mutants/{name}/zero-{zero}", lambda n=name, z=zero: mutants(session, n, z))
    for space in ("host", "file"):
        for zero in (0, 1, 2, 3):
            yield Case(f"proof/mutants/offload-{space}/zero-{zero}", lambda s=space, z=zero: offloaded_mutants(session, s, z))
            yield Case(f"proof/mutants/update-on-host-{space}/zero-{zero}",
                       lambda s=space, z=zero: offloaded_mutants(session, s, z, ("--update-on", "host")))
    yield Case("proof/run-refuses", lambda: run_refuses(session))
    yield Case("proof/attacks", lambda: attacks(session))
    yield Case("proof/attacks/results-on-operands", lambda: results_on_operands(session))
    yield Case("proof/attacks/ranks-parts", lambda: ranks_parts(session))
    yield Case("proof/attacks/gaps", lambda: gaps(session))
    yield Case("proof/freedoms", lambda: freedoms(session))
    yield Case("proof/unproved", lambda: unproved(session))
    yield Case("proof/kernel-access", lambda: kernel_access(session))
    yield Case("proof/memory-kinds", lambda: memory_kinds(session))
    yield Case("proof/damaged-weights", lambda: damaged_weights(session))


def proved(session, name, ranks, zero):
    config = CONFIGS[name]
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    expect("no races" in session.succeed("sheaf", "verify", plan).out, "sheaf verify does not say what it proved")


def text_of(session, name, zero, ranks=4):
    config = CONFIGS[name]
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    return session.succeed("sheaf", "inspect", plan, "--format", "text").out.split("\n")


def assemble(session, where, lines):
    (where / "mutant.mlir").write_text("\n".join(lines))
    session.succeed("sheaf", "assemble", where / "mutant.mlir", "-o", where / "mutant.plan")
    return where / "mutant.plan"


def mutants(session, name, zero):
    """What changes an order or a byte is refused, and no wait could be spared: see sheaf-mutants. Samples, unless all
    mutants are asked for."""
    config = CONFIGS[name]
    clip, evaluation = ("--clip-norm", "1"), ("--eval",)
    jobs = [(2, clip), (4, evaluation)] + ([(2, ()), (4, clip)] if session.every_mutant else [])
    plans = [session.plan(config.model, ranks, zero, 8, config.options + options) for ranks, options in jobs]
    return judge_mutants(session, plans)


def offloaded_mutants(session, space, zero, more=()):
    """The same of plans whose buffers lie elsewhere: transfers and updates there are proved like all instructions."""
    offload = ("--offload", ",".join(f"{kind}={space}" for kind in ("optimizer", "parameters", "gradients", "activations")))
    config = CONFIGS["mlp-adamw"]
    plans = [session.plan(config.model, ranks, zero, 8, config.options + offload + more + options)
             for ranks, options in ((2, ("--eval",)), (4, ("--clip-norm", "1")))]
    return judge_mutants(session, plans)


def judge_mutants(session, plans):
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    every = [] if session.every_mutant else ["--sample", 6]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def run_refuses(session):
    """sheaf-run applies the proof to what it loads, before it looks at data."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0)
    at = next(i for i, line in enumerate(lines) if "plan.wait" in line)
    plan = assemble(session, where, lines[:at] + lines[at + 1:])
    result = session.call("sheaf-run", plan, "--data", "x=none.npy", "--data", "labels=none.npy", "--steps", 1)
    expect(result.code == 1, f"exit code {result.code}")
    expect("may race" in result.err or "may deadlock" in result.err or "not written" in result.err, result.err[:300])
    expect("none.npy" not in result.err, result.err[:300])


def attacks(session):
    """What decides results cannot be changed by accident: each edit of the text is refused by table and entry, by both
    programs, and accepted once its digests are restated."""
    def swap(first, second):  # of two groups of one match each
        def edit(text):
            a, b = re.search(first, text), re.search(second, text)
            (a, b) = sorted((a.span(1), b.span(1)))
            return text[:a[0]] + text[b[0]:b[1]] + text[a[1]:b[0]] + text[a[0]:a[1]] + text[b[1]:]
        return edit

    def replace(pattern, new):
        return lambda text: re.sub(pattern, new, text, count=1)

    weight, bias = r'plan.parameter "fc1.bias".*', r'plan.parameter "fc2.bias".*'
    edits = {
        "weight decay": (replace(r'(plan.scalar +one_minus_lr_times) 1.0+e-02', r"\1 1.0"),
                         "step scalar 0 (one_minus_lr_times) (table scalars, entry 0)"),
        "beta": (replace(r'(plan.scalar +lr_over_bias_correction) 9.0+e-01', r"\1 0.5"), "(table scalars, entry 2)"),
        "seed": (replace(r"seed = 0 : i64", "seed = 1 : i64"), "the training's settings (table training, entry 0)"),
        "inputs": (swap(r'(plan.input "x".*)', r'(plan.input "labels".*)'), "input 'labels' (table inputs, entry 0)"),
        "input names": (swap(r'plan.input ("x")', r'plan.input ("labels")'), "(table inputs, entry 0)"),
        "initial bytes": (swap(weight + r"source (\[.*\])", bias + r"source (\[.*\])"),
                          "parameter 'fc1.bias' (table parameters, entry 1)"),
        "places": (swap(weight + r"(bucket \d+ at \d+)", bias + r"(bucket \d+ at \d+)"),
                   "parameter 'fc1.bias' (table parameters, entry 1)"),
        "states": (swap(r'plan.bucket "bucket0".*states\((%[\w.]+),', r'plan.bucket "bucket0".*states\([^,]*, (%[\w.]+)\)'),
                   "of the parameters of bucket 'bucket0' (table dataflow, entry 3)"),
        "file": (replace(r'(plan.file ".*" size \d+ hash -?\d)(\d)', lambda m: m[1] + str((int(m[2]) + 1) % 10)),
                 "(table files, entry 0)"),
        "kernel entry": (replace(r"offsets \[0, \d+", "offsets [0, 0"), "kernel 'fusion_0' in image 'cpu' (table kernel_entries"),
        "kernel entries": (replace(r"offsets \[(\d+), (\d+)", r"offsets [\2, \1"), "kernel 'fusion_0' in image 'cpu' (table kernel_entries"),
        "code": (replace(r'code "(.)', lambda m: 'code "' + chr(ord(m[1]) ^ 1)), "(table kernel_entries, entry 0)"),
        "kernels": (swap(r'(plan.kernel "fusion_0".*)', r'(plan.kernel "fusion_1".*)'),
                    "kernel 'fusion_1' (table kernels, entry 0)"),
        "floor": (replace(r"(floor = .*?f32 = )(\d+)", lambda m: m[1] + str(int(m[2]) - 1)),
                  "the floor of a step's work (table floor, entry 0)"),
        "attribute": (replace(r"(k = 256 : i64, [^}]*n = 256 : i64, [^}]*transpose_b = )1", r"\g<1>0"),
                      "the loss (table dataflow, entry 1)"),
    }
    where, text = session.folder(), "\n".join(text_of(session, "mlp-adamw", 0, ranks=1))
    for name, (edit, words) in edits.items():
        edited = edit(text)
        expect(edited != text, f"{name}: the text is not changed")
        plan = assemble(session, where, edited.split("\n"))
        refused(session, plan, name, words, "--redigest")
        redigested = session.call("sheaf", "assemble", where / "mutant.mlir", "-o", plan, "--redigest")
        if name == "inputs":  # of other sizes, which the instructions do not read
            expect(redigested.code == 1 and "(read_input 'x'" in redigested.err, f"{name}: {redigested.err}")
            continue
        expect(redigested.code == 0, f"{name}: {redigested.err}")
        session.succeed("sheaf", "verify", plan)


def moved(text, buffer, offset):
    """The text with a buffer at another place of the arena."""
    edited = re.sub(rf'(plan.buffer "{re.escape(buffer)}" \w+ offset )\d+', rf"\g<1>{offset}", text)
    expect(edited != text, f"buffer {buffer} does not move")
    top = max(int(at) + int(size) for at, size in re.findall(r'plan.buffer ".*" \w+ offset (\d+) bytes (\d+)', edited))
    return re.sub(r"peak_bytes = \d+", f"peak_bytes = {top}", edited)


def results_on_operands(session):
    """A product whose result covers what it multiplies, in bytes that nothing else uses at the time."""
    where, text = session.folder(), "\n".join(text_of(session, "mlp-adamw", 0, ranks=1))
    product = re.search(r'plan.call "gemm" .*\(r %([\w.]+)\[.*w %bucket0.gradients\[', text)
    onto = re.search(rf'plan.buffer "{re.escape(product[1])}" .*offset (\d+)', text)
    plan = assemble(session, where, moved(text, "bucket0.gradients", int(onto[1]) - 38912).split("\n"))
    refused(session, plan, "gemm", "(gemm 'node_linear' on stream compute)",
            "writes operand 2 (c) in buffer 'bucket0.gradients'", f"operand 0 (a) in buffer '{product[1]}' lies")


def ranks_parts(session):
    """Zeros at places that the first and the last rank may do without, and those between may not."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 1)
    at = lines.index(next(line for line in lines if "plan.wait 3 stream 0" in line)) + 1
    for place, words in (("70016 : 40960 + rank * 20480", ("(zero on stream", "operand 0 (destination)", "'bucket1.gradients'",
                                                           "reach into the next rank's part")),
                         ("0 : 20480 + rank * 20480", ("into parts of 20480 bytes, another operand into parts of",))):
        zeros = f'      plan.call "zero" {{}}(w %bucket1.gradients[{place}]) stream 0 ""'
        refused(session, assemble(session, where, lines[:at] + [zeros] + lines[at:]), place, *words)


def gaps(session):
    """What a strided copy leaves out is what it was: another buffer's, or what the step before has left."""
    where, text = session.folder(), "\n".join(text_of(session, "llama-tiny", 0, ranks=1))
    name = "node_scaled_dot_product_attention"
    second, reader, between = re.search(
        rf'(.*plan.call "copy" .*w %{name}.2\[64 : .*\n)(.*plan.launch .*r %{name}.2\[.*\n)((?:.*\n)*?.*w %{name}.6\[.*\n)', text).groups()
    words = ("reads what was not written", f"of buffer '{name}.2'", "as operand 3")
    plan = assemble(session, where, text.replace(second + reader, reader + second).split("\n"))
    session.succeed("sheaf", "assemble", where / "mutant.mlir", "-o", plan, "--redigest")
    refused(session, plan, "the step before", *words)
    # The copy's buffer and another one, alone at the top of the arena, while both are in use.
    text = text.replace(second + reader + between, between + second + reader)
    top = (int(re.search(r"peak_bytes = (\d+)", text)[1]) + 127) // 128 * 128
    size = {b: int(re.search(rf'plan.buffer "{name}.{b}" .* bytes (\d+)', text)[1]) for b in (1, 2, 4)}
    apart = moved(moved(moved(text, f"{name}.2", top), f"{name}.1", top + size[2]), f"{name}.4", top + size[2] + size[1])
    session.succeed("sheaf", "verify", assemble(session, where, apart.split("\n")))
    shared = moved(apart, f"{name}.4", top + 128)
    refused(session, assemble(session, where, shared.split("\n")), "another buffer", *words)


def refused(session, plan, name, *words):
    """Both programs refuse a plan, before they look at data, and say the words."""
    for done in (session.call("sheaf", "verify", plan),
                 session.call("sheaf-run", plan, "--data", "x=none.npy", "--data", "labels=none.npy", "--steps", 1)):
        expect(done.code == 1, f"{name}: exit code {done.code}\n{done.out}{done.err}")
        for word in words:
            expect(word in done.err, f"{name}: no '{word}' in:\n{done.err}")


def freedoms(session):
    """The learning rate, its schedule and the order of independent instructions may be edited as they are."""
    where, text = session.folder(), "\n".join(text_of(session, "mlp-adamw", 0, ranks=1))
    reads = re.findall(r"      plan.read_input .*\n", text)
    expect(len(reads) == 2 and "".join(reads) in text, "the plan does not read its inputs one after the other")
    for edit in (lambda t: re.sub(r"learning_rate = [\d.e-]+", "learning_rate = 0.5", t),
                 lambda t: t.replace('schedule = "constant"', 'schedule = "cosine:steps=9"'),
                 lambda t: t.replace("".join(reads), "".join(reversed(reads)))):
        expect(edit(text) != text, "the text is not changed")
        session.succeed("sheaf", "verify", assemble(session, where, edit(text).split("\n")))


def unproved(session):
    """A plan that lacks digests is run if that is asked for; one whose digests are wrong is not."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0, ranks=1)
    run = [*data_arguments(CONFIGS["mlp-adamw"]), "--steps", 1]
    for table in ("dataflow", "inputs", "kernel_entries"):
        without = [line for line in lines if f'plan.digests "{table}"' not in line]
        expect(len(without) == len(lines) - 1, f"no line with the digests of {table}")
        plan = assemble(session, where, without)
        refused(session, plan, table, f"no digests of its table {table},", "--redigest")
        result = session.call("sheaf-run", plan, *run, "--unproved")
        expect(result.code == 0 and f"warning: the plan has no digests of its table {table}" in result.err, result.err)
    result = session.call("sheaf-run", assemble(session, where, [l for l in lines if "plan.digests" not in l]), *run, "--unproved")
    expect(result.code == 0, result.err)
    tables = re.findall(r'plan.digests "(\w+)"', "\n".join(lines))
    expect(len(tables) > 8 and f"no digests of its tables {', '.join(tables)}, so it" in result.err, result.err)
    edited = [re.sub(r'(plan.scalar +one_minus_lr_times) 1.0+e-02', r"\1 1.0", line) for line in lines]
    result = session.call("sheaf-run", assemble(session, where, edited), *run, "--unproved")
    expect(result.code == 1 and "(table scalars, entry 0)" in result.err, result.err)


def kernel_access(session):
    """An instruction declares what its kernel does: nothing else is taken, with the digests of before and with new ones."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0, ranks=1)
    at = next(i for i, line in enumerate(lines) if "plan.launch" in line and "updates_bucket" in line)
    update = re.sub(r" \{updates_bucket = \d+ : i64\}", "", lines[at])
    kernel = re.search(r"launch kernel (\d+)", update)[1]
    attacks = {
        # What it writes seems to be read, so that nothing seems to come of it; then the update runs twice.
        "read": (lines[:at + 1] + [re.sub(r"\bw %", "r %", update)] + lines[at + 1:],
                 f"is declared as read, kernel 'fusion_{kernel}' has it written"),
        "written": (lines[:at + 1] + [update] + lines[at + 1:], "and is not declared as its update"),
        "more": (lines[:at] + [re.sub(r"\br %", "rw %", lines[at], count=1)] + lines[at + 1:],
                 f"operand 0 is declared as read and written, kernel 'fusion_{kernel}' has it read"),
    }
    for name, (edited, words) in attacks.items():
        refused(session, assemble(session, where, edited), name, "body instruction", "kernel 'update ", words)
        result = session.call("sheaf", "assemble", where / "mutant.mlir", "-o", where / "mutant.plan", "--redigest")
        expect(result.code == 1 and words in result.err, f"{name}, digests restated: exit code {result.code}\n{result.err}")
    # The kernel's own statement is one of the plan's tables.
    access = next(i for i, line in enumerate(lines) if f'plan.kernel "fusion_{kernel}"' in line)
    edited = lines[:access] + [lines[access].replace(", w]", ", r]", 1)] + lines[access + 1:]
    refused(session, assemble(session, where, edited), "statement", f"kernel 'fusion_{kernel}' (table kernels, entry {kernel})")


def memory_kinds(session):
    """The bytes of every kind of buffer are declared."""
    where, text = session.folder(), "\n".join(text_of(session, "mlp-adamw", 0, ranks=1))
    for pattern, new in ((r"by_kind = \{[^}]*\}", "by_kind = {}"), (r"optimizer = \d+ : i64, ", "")):
        edited = re.sub(pattern, new, text, count=1)
        expect(edited != text, "the text is not changed")
        refused(session, assemble(session, where, edited.split("\n")), new, "memory.by_kind: no bytes of")


def damaged_weights(session):
    """A byte of initial weights anywhere in their file, if the file was there when the plan was made."""
    # A folder deeper than the plan's, from which the plan's path does not lead to the model.
    config, where = CONFIGS["mlp-adamw"], session.folder() / "weights"
    where.mkdir()
    plan, whole = session.plan(config.model, 4, 3, 8, config.options), session.graph(config.model).read_bytes()
    run = [*data_arguments(config), "--steps", 1, "--weights-dir", where]
    file = where / session.graph(config.model).name
    file.write_bytes(whole)
    session.succeed("sheaf-run", plan, *run)
    for at in (100000, 300000):
        damaged = bytearray(whole)
        damaged[at] ^= 64
        damaged[at + 1] ^= 64
        file.write_bytes(damaged)
        result = session.call("sheaf-run", plan, *run)
        expect(result.code == 1 and "has changed since the plan was made: its bytes [" in result.err, f"{at}: exit code {result.code}\n{result.err}")
    # Without the hashes it is not noticed, and the plan says so.
    blind = session.folder() / "blind.plan"
    session.succeed("sheaf", "compile", session.graph(config.model), "-o", blind, "--ranks", 4, "--zero", 3, "--batch", 8,
                    *config.options, "--no-weight-hashes")
    session.succeed("sheaf-run", blind, *run)
