"""Rows of odd length are padded in memory, and nothing else changes: a classifier whose widths are not multiples of a
vector's trains as plain loops in f64 say, whatever the ranks, stages and schedule, and leaves the same bits."""
import functools
import math
import random
import struct

from formats import read_log, write_npy
from harness import Case, digest, expect
from onnxwriter import FLOAT, INT64, model, node, value, weight
from training import expect_other_instructions

ROWS, INPUTS, HIDDEN, CLASSES, STEPS, RATE = 8, 16, 263, 1021, 3, 0.5
# Elements from row to row that the hidden layer and the logits have in f32, as runtime/plan/RowPitch.h has it.
PITCHES = {HIDDEN: 264, CLASSES: 1024}


def cases(session):
    for ranks in ((4,) if session.quick else (1, 2, 4)):
        for zero in ((3,) if session.quick else (0, 3)):
            yield Case(f"numerics/padding/ranks-{ranks}/zero-{zero}", lambda n=ranks, z=zero: trains(session, n, z))
    yield Case("bits/padding/schedules", lambda: schedules(session))
    yield Case("precision/padding", lambda: narrow(session))
    yield Case("memory/padding", lambda: counted(session))


def numbers(count, scale, seed):
    generator = random.Random(seed)
    # What f32 holds, so that the reference starts from the same weights.
    return [struct.unpack("f", struct.pack("f", generator.gauss(0, scale)))[0] for _ in range(count)]


@functools.cache
def weights():
    return numbers(INPUTS * HIDDEN, 0.3, 1), numbers(HIDDEN * CLASSES, 0.1, 2), numbers(CLASSES, 0.1, 3)


@functools.cache
def data():
    generator = random.Random(5)
    return numbers(ROWS * STEPS * INPUTS, 1, 4), [generator.randrange(CLASSES) for _ in range(ROWS * STEPS)]


def rows_of(flat, width):
    return [list(flat[i:i + width]) for i in range(0, len(flat), width)]


def product(a, b_columns):
    return [[sum(map(float.__mul__, row, column)) for column in b_columns] for row in a]


def columns_of(rows):
    return [list(column) for column in zip(*rows)]


@functools.cache
def reference():
    """Losses and gradient norms of the steps, by loops in f64."""
    first, second, bias = rows_of(weights()[0], HIDDEN), rows_of(weights()[1], CLASSES), list(weights()[2])
    inputs, labels = data()
    steps = []
    for step in range(STEPS):
        x = rows_of(inputs[step * ROWS * INPUTS:(step + 1) * ROWS * INPUTS], INPUTS)
        wanted = labels[step * ROWS:(step + 1) * ROWS]
        hidden = [[math.tanh(v) for v in row] for row in product(x, columns_of(first))]
        logits = [[v + b for v, b in zip(row, bias)] for row in product(hidden, columns_of(second))]
        loss, gradient = 0.0, []
        for row, label in zip(logits, wanted):
            most = max(row)
            sum_exp = most + math.log(sum(math.exp(v - most) for v in row))
            loss += (sum_exp - row[label]) / ROWS
            gradient.append([(math.exp(v - sum_exp) - (i == label)) / ROWS for i, v in enumerate(row)])
        hidden_gradient = [[g * (1 - h * h) for g, h in zip(gs, hs)] for gs, hs in zip(product(gradient, second), hidden)]
        second_gradient = product(columns_of(hidden), columns_of(gradient))
        first_gradient = product(columns_of(x), columns_of(hidden_gradient))
        bias_gradient = [sum(column) for column in zip(*gradient)]
        square = sum(g * g for rows in (first_gradient, second_gradient, [bias_gradient]) for row in rows for g in row)
        steps.append((loss, math.sqrt(square)))
        for matrix, change in ((first, first_gradient), (second, second_gradient), ([bias], [bias_gradient])):
            for row, changes in zip(matrix, change):
                row[:] = [w - RATE * g for w, g in zip(row, changes)]
    return steps


def files(session):
    def write():
        where = session.folder()
        first, second, bias = weights()
        nodes = [node("MatMul", ["x", "first"], ["h"], "up"), node("Tanh", ["h"], ["t"], "tanh"),
                 node("MatMul", ["t", "second"], ["m"], "head"), node("Add", ["m", "bias"], ["y"], "add"),
                 node("SoftmaxCrossEntropyLoss", ["y", "labels"], ["loss"], "loss")]
        (where / "odd.onnx").write_bytes(model(
            nodes, [value("x", FLOAT, ["N", INPUTS]), value("labels", INT64, ["N"])], [value("loss", FLOAT, [])],
            [weight("first", [INPUTS, HIDDEN], first), weight("second", [HIDDEN, CLASSES], second),
             weight("bias", [CLASSES], bias)]))
        inputs, labels = data()
        write_npy(where / "x.npy", "<f4", (ROWS * STEPS, INPUTS), struct.pack(f"<{len(inputs)}f", *inputs))
        write_npy(where / "labels.npy", "<i8", (ROWS * STEPS,), struct.pack(f"<{len(labels)}q", *labels))
        return where

    return session.once("padding", write)


def compiled(session, ranks, zero, *options):
    def compile_it():
        plan = session.folder() / "odd.plan"
        session.succeed("sheaf", "compile", files(session) / "odd.onnx", "-o", plan, "--batch", ROWS, "--ranks", ranks,
                        "--zero", zero, "--optimizer", f"sgd:lr={RATE}", *options)
        return plan

    return session.once(("padding", ranks, zero, options), compile_it)


def train(session, ranks, zero, *options):
    where = session.folder()
    session.succeed("sheaf-run", compiled(session, ranks, zero, *options), "--steps", STEPS, "--data", f"x={files(session) / 'x.npy'}", "--data",
                    f"labels={files(session) / 'labels.npy'}", "--log", where / "run.jsonl", "--save", where / "weights.safetensors")
    return read_log(where / "run.jsonl")[0], where / "weights.safetensors"


def text_of(session, plan):
    return session.succeed("sheaf", "inspect", plan, "--format", "text").out


def expect_padded(session, plan):
    text = text_of(session, plan)
    for pitch in PITCHES.values():
        expect(f"ldc = {pitch} : i64" in text, f"no product writes rows {pitch} elements apart")
        expect(f"lda = {pitch} : i64" in text, f"no product reads rows {pitch} elements apart")


def trains(session, ranks, zero):
    expect_padded(session, compiled(session, ranks, zero))
    steps, _ = train(session, ranks, zero)
    for i, (entry, (loss, norm)) in enumerate(zip(steps, reference(), strict=True)):
        expect(abs(entry["loss"] - loss) <= 1e-5, f"step {i}: loss {entry['loss']}, loops in f64 give {loss}")
        expect(abs(entry["grad_norm"] - norm) <= 1e-4 * norm, f"step {i}: norm {entry['grad_norm']}, loops give {norm}")


def schedules(session):
    _, weights_left = train(session, 2, 0)
    made = ((3,), (3, "--prefetch", 0), (3, "--profile", "h100"), (3, "--bucket-size", 4096), (2,), (2, "--profile", "h100"))
    expect_other_instructions(session, {" ".join(map(str, options)): compiled(session, 2, *options) for options in made})
    for options in made:
        expect(digest(train(session, 2, *options)[1]) == digest(weights_left), f"{options} leaves other weights")


def narrow(session):
    steps, _ = train(session, 2, 3, "--precision", "bf16")
    differences = [abs(entry["loss"] - loss) for entry, (loss, _) in zip(steps, reference(), strict=True)]
    expect(1e-6 < max(differences) < 5e-2, f"the losses differ by {differences} from those of loops in f64")


def counted(session):
    """The logits' buffer holds the padding, and their gradient takes it over: no other is as large."""
    text = text_of(session, compiled(session, 1, 0))
    padded = ROWS * PITCHES[CLASSES] * 4
    buffers = [line for line in text.splitlines() if "plan.buffer" in line and f" bytes {padded}" in line]
    expect(len(buffers) == 1, f"{len(buffers)} buffers of {padded} bytes:\n" + "\n".join(buffers))
