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
    yield Case("proof/run-refuses", lambda: run_refuses(session))
    yield Case("proof/attacks", lambda: attacks(session))
    yield Case("proof/freedoms", lambda: freedoms(session))
    yield Case("proof/unproved", lambda: unproved(session))
    yield Case("proof/kernel-access", lambda: kernel_access(session))
    yield Case("proof/memory-kinds", lambda: memory_kinds(session))
    yield Case("proof/damaged-weights", lambda: damaged_weights(session))


def proved(session, name, ranks, zero):
    config = CONFIGS[name]
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    expect("race-free" in session.succeed("sheaf", "verify", plan).out, "sheaf verify does not say what it proved")


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
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    config = CONFIGS[name]
    clip = ("--clip-norm", "1")
    jobs = [(2, clip), (4, ())] + ([(2, ()), (4, clip)] if session.every_mutant else [])
    plans = [session.plan(config.model, ranks, zero, 8, config.options + options) for ranks, options in jobs]
    every = [] if session.every_mutant else ["--sample", 6]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def run_refuses(session):
    """sheaf-run applies the proof to what it loads, before it looks at data."""
    where, lines = session.folder(), text_of(session, "mlp-adamw", 0)
    at = next(i for i, line in enumerate(lines) if "plan.wait" in line)
    plan = assemble(session, where, lines[:at] + lines[at + 1:])
    told = session.call("sheaf-run", plan, "--data", "x=none.npy", "--data", "labels=none.npy", "--steps", 1)
    expect(told.code == 1, f"exit code {told.code}")
    expect("may race" in told.err or "may deadlock" in told.err or "not written" in told.err, told.err[:300])
    expect("none.npy" not in told.err, told.err[:300])


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
        "inputs": (lambda t: swap(r"plan.read_input (0)", r"plan.read_input (1)")(swap(r'(plan.input "x".*)', r'(plan.input "labels".*)')(t)),
                   "input 'labels' (table inputs, entry 0)"),
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
        "attribute": (replace(r"(k = 256 : i64, [^}]*n = 256 : i64, [^}]*transpose_b = )1", r"\g<1>0"),
                      "the loss (table dataflow, entry 1)"),
    }
    where, text = session.folder(), "\n".join(text_of(session, "mlp-adamw", 0, ranks=1))
    for name, (edit, words) in edits.items():
        edited = edit(text)
        expect(edited != text, f"{name}: the text is not changed")
        plan = assemble(session, where, edited.split("\n"))
        refused(session, plan, name, words, "--redigest")
        session.succeed("sheaf", "assemble", where / "mutant.mlir", "-o", plan, "--redigest")
        session.succeed("sheaf", "verify", plan)


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
                 lambda t: t.replace('schedule = #plan<schedule constant>', 'schedule = #plan<schedule cosine>').replace("steps = 0 :", "steps = 9 :"),
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
        told = session.call("sheaf-run", plan, *run, "--unproved")
        expect(told.code == 0 and f"warning: the plan has no digests of its table {table}" in told.err, told.err)
    told = session.call("sheaf-run", assemble(session, where, [l for l in lines if "plan.digests" not in l]), *run, "--unproved")
    expect(told.code == 0, told.err)
    tables = re.findall(r'plan.digests "(\w+)"', "\n".join(lines))
    expect(len(tables) > 8 and f"no digests of its tables {', '.join(tables)}, so that" in told.err, told.err)
    edited = [re.sub(r'(plan.scalar +one_minus_lr_times) 1.0+e-02', r"\1 1.0", line) for line in lines]
    told = session.call("sheaf-run", assemble(session, where, edited), *run, "--unproved")
    expect(told.code == 1 and "(table scalars, entry 0)" in told.err, told.err)


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
        told = session.call("sheaf", "assemble", where / "mutant.mlir", "-o", where / "mutant.plan", "--redigest")
        expect(told.code == 1 and words in told.err, f"{name}, digests restated: exit code {told.code}\n{told.err}")
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
        told = session.call("sheaf-run", plan, *run)
        expect(told.code == 1 and "has changed since the plan was made: its bytes [" in told.err, f"{at}: exit code {told.code}\n{told.err}")
    # Without the hashes it is not noticed, and the plan says so.
    blind = session.folder() / "blind.plan"
    session.succeed("sheaf", "compile", session.graph(config.model), "-o", blind, "--ranks", 4, "--zero", 3, "--batch", 8,
                    *config.options, "--no-weight-hashes")
    session.succeed("sheaf-run", blind, *run)
