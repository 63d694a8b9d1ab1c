"""Gradients at zeros, bounds, ties, and ends of ranges, where those of compositions go wrong, against PyTorch's.

test/models/special_points.py makes the graphs and the values and says how. Graphs of one exporter and opset are put together into models,
which are compiled and run as any other. A result must be PyTorch's, in f32 or in f64, up to the rounding of f32: NaN where that is NaN,
infinite where that is infinite. It differs from PyTorch's on purpose for one reason only: PyTorch's gradient is NaN because an incoming
gradient of 0 was multiplied by a factor that is not finite, or because a root of a sum of squares is 0. There it is what PyTorch's backward
pass gives if these products are 0.

Gradients are compared where the value is a number. Beyond the range of f32 (operands of FAR or more, whose squares overflow, and infinite
values) NaN is right as well where PyTorch has it.
"""
import array
import functools
import json
import math
import struct

from formats import read_safetensors, write_npy
from harness import MODELS, Case, expect
from onnxwriter import FLOAT, appended, node, summed, value

GRAPHS_PER_MODEL = 64
RELATIVE, LEAST = 1e-5, 4 * 2.0**-149  # tolerance of finite values; LEAST is a few times the smallest number of f32
ROUNDING = 1e-3  # PyTorch's results in f32 and f64 differ by rounding if they differ by less
FAR = 1e18
FEWEST = 340_000  # elements that are compared
# Functions with elements that are not PyTorch's: how many of a graph, and why.
PRODUCT = "its gradient is y / x and not the product of the other elements: other products overflow, and infinity / infinity gives NaN"
DIVISOR = "the gradient of a divisor is (g / y) * (x / y), and g / y overflows at divisors and norms near the smallest numbers"
SUBNORMAL = "its gradient is 0 where it is below the smallest normal number"
LEFT = {
    "prod": (16, PRODUCT), "ReduceProd": (16, PRODUCT), "ReduceProd opset 13": (16, PRODUCT), "softplus": (3, SUBNORMAL), "softplus-beta": (1, SUBNORMAL),
    "div": (2, DIVISOR), "Div": (2, DIVISOR), "ratio-of-sum": (4, DIVISOR), "x/sum": (2, DIVISOR), "x/norm": (4, DIVISOR), "x/(norm+eps)": (4, DIVISOR),
    "cosine-by-hand": (3, DIVISOR), "LpNormalization 1": (5, DIVISOR), "LpNormalization 2": (4, DIVISOR),
}


def cases(session):
    for exporter, opset, number in batches():
        yield Case(f"special-points/{exporter}-{opset}/{number}", functools.partial(passes, session, (exporter, opset, number)))
    yield Case("special-points/counts", lambda: counts(session))


@functools.cache
def stored():
    """The header and the data of the file."""
    raw = (MODELS / "special-points").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + length]), memoryview(raw)[8 + length:]


def numbers(span, code="f"):
    return array.array(code, bytes(stored()[1][slice(*span)]))


def batches():
    """{(exporter, opset, number): graphs} of each model."""
    kinds = {}
    for graph in stored()[0]["graphs"]:
        kinds.setdefault((graph["exporter"], graph["opset"]), []).append(graph)
    return {(*kind, k // GRAPHS_PER_MODEL): graphs[k:k + GRAPHS_PER_MODEL]
            for kind, graphs in sorted(kinds.items()) for k in range(0, len(graphs), GRAPHS_PER_MODEL)}


def name_of(number):
    return stored()[0]["cases"][number]["name"]


def step_of(graphs):
    """A model of several graphs. Its input `zero` is for graphs without any: a step needs one."""
    data = b"".join(bytes(stored()[1][slice(*g["graph"])]) for g in graphs)
    data += appended([node("ReduceSum", ["zero"], ["nothing"], keepdims=0)], [value("zero", FLOAT, [1, 1])])
    losses = [f"c{g['case']}.total" for g in graphs]
    return summed(data, [*losses, "nothing"], graphs[0]["opset"], "" if graphs[0]["exporter"] == "onnx" else "pytorch")


def attempt(session, graphs):
    """The gradients of a model of these graphs, or the complaint of compiler or runtime."""
    folder = session.folder()
    (folder / "model.onnx").write_bytes(step_of(graphs))
    done = session.call("sheaf", "compile", folder / "model.onnx", "-o", folder / "plan", "--batch", 1, "--optimizer", "sgd:lr=1",
                        "--on-nan", "skip", "--no-weight-hashes", timeout=600)
    if done.code:
        return None, done.err
    given = {"zero": ("f4", [1, 1], struct.pack("<f", 0))}
    for graph in graphs:
        for i in graph["data"]:
            kind, shape, span = stored()[0]["cases"][graph["case"]]["inputs"][i]
            given[f"c{graph['case']}.x{i}.row"] = kind, [1, *shape], bytes(stored()[1][slice(*span)])
    wanted = {i["name"] for i in session.inspect(folder / "plan")["inputs"]}
    arguments = []
    for k, (name, (kind, shape, content)) in enumerate(given.items()):
        if name in wanted:
            write_npy(folder / f"{k}.npy", "<" + kind, shape, content)
            arguments += ["--data", f"{name}={folder / f'{k}.npy'}"]
    done = session.call("sheaf-run", folder / "plan", *arguments, "--steps", 1, "--dump-gradients", folder / "gradients", timeout=600)
    if done.code:
        return None, done.err
    return read_safetensors(folder / "gradients"), ""


class Comparison:
    """The elements of a graph's results, compared: how many are PyTorch's, and lines for those that are not."""

    def __init__(self):
        self.elements = self.on_purpose = self.of_form = 0
        self.lines = []

    def compare(self, graph, key, found):
        case = stored()[0]["cases"][graph["case"]]
        f32, f64, plain = case["results"][key]
        single = numbers(f32)
        double, plain = (numbers(span) if span else single for span in (f64, plain))
        form = [numbers(span or graph["form"][key][0]) for span in graph["form"][key]] if key in graph["form"] else []
        shape = shape_of(case, key)
        size, lost = math.prod(shape[1:]), set(case["lost"].get(key, []))
        far, undefined = far_rows(graph["case"]), undefined_rows(graph)
        for i, ours in enumerate(found):
            place = i // size if shape[0] == len(far) else None
            if key != "y" and (i // size in lost or math.isnan(single[i]) or place in undefined):
                continue
            self.elements += 1
            noise = noise_at(case, single, i, shape[-1])
            if agrees(ours, single[i], double[i], noise):
                self.on_purpose += math.isnan(plain[i]) and not math.isnan(single[i])
            elif math.isnan(ours) and math.isnan(plain[i]) and (place is None or far[place]):
                pass
            elif form and agrees(ours, form[0][i], form[1][i], noise):
                self.of_form += 1
            else:
                what = "value" if key == "y" else f"gradient of x{key}"
                values = dict.fromkeys(f"{a[i]:.9g}" for a in (single, double, *form))
                self.lines.append(f"{case['name']} ({graph['exporter']}): {what} at {described(case, key, i)}: {ours:.9g}, not {' or '.join(values)}")


@functools.cache
def far_rows(number):
    """Marks the leading places of a function that have an operand of FAR or more, or an infinite value."""
    case = stored()[0]["cases"][number]
    floats = [(shape, numbers(span)) for kind, shape, span in case["inputs"] if kind == "f4"] + [(case["shape"], [0 if math.isfinite(v) else v for v in numbers(case["results"]["y"][0])])]
    far = [False] * case["shape"][0]
    for shape, values in floats:
        for i, v in enumerate(values):
            if abs(v) >= FAR and shape[0] == len(far):
                far[i // math.prod(shape[1:])] = True
    return far


def undefined_rows(graph):
    """The leading places whose gradients are not compared, because the exported graph has no value there, or far away another one."""
    case = stored()[0]["cases"][graph["case"]]
    y, far = numbers(case["results"]["y"][0]), far_rows(graph["case"])
    form = numbers(graph["form"]["y"][0]) if "y" in graph["form"] else y
    size = math.prod(case["shape"][1:])
    return {i // size for i, v in enumerate(form) if math.isnan(v) and not math.isnan(y[i]) or far[i // size] and not v == y[i]}


def shape_of(case, key):
    return case["shape"] if key == "y" else case["inputs"][int(key)][1]


def noise_at(case, expected, i, columns):
    if not case["noise"]:
        return 0
    row = expected[i - i % columns:i - i % columns + columns] if columns <= 8 else expected[i:i + 1]
    return case["noise"] * max([1, *(abs(e) for e in row if math.isfinite(e))])


def agrees(ours, single, double, noise):
    """PyTorch's result in f32 or f64, up to a few times the difference of the two if that is rounding."""
    rounding = abs(single - double) if math.isfinite(single) and math.isfinite(double) else math.inf
    margin = LEAST + noise + (4 * rounding if rounding < ROUNDING * abs(double) else 0)
    return any(ours == e or math.isnan(ours) and math.isnan(e) or math.isfinite(ours) and math.isfinite(e) and abs(ours - e) <= RELATIVE * abs(e) + margin
               for e in (single, double))


def described(case, key, i):
    """Returns the operands and the incoming gradient at an element."""
    def at(name, span, shape, code="f"):
        """The element, or the row, that corresponds to element i of the result `key`."""
        mine, content = shape_of(case, key), numbers(span, code)
        if shape == mine:
            return f"{name} {content[i]:.9g}"
        row, width = i // max(1, math.prod(mine[1:])), math.prod(shape[1:])
        if shape and mine and shape[0] == mine[0] and width <= 16:
            return f"{name} [{', '.join(f'{v:.9g}' for v in content[row * width:(row + 1) * width])}]"
        return ""

    operands = [at(f"x{k}", span, shape, "q" if kind == "i8" else "f") for k, (kind, shape, span) in enumerate(case["inputs"])]
    shape = shape_of(case, key)
    if len(shape) == 2 and key != "y":
        width, row = shape[1], i // shape[1]
        kind, _, span = case["inputs"][int(key)]
        operands[int(key)] = f"x{key}[{i % width}] of [{', '.join(f'{v:.9g}' for v in numbers(span)[row * width:(row + 1) * width])}]"
    return ", ".join(filter(None, [*operands, at("incoming", case["grad"], case["shape"])]))


def compared(graph, gradients):
    number, result = graph["case"], Comparison()
    case = stored()[0]["cases"][number]
    for key in case["results"]:
        name = f"c{number}." + ("g" if key == "y" else f"x{key}")
        if name in gradients:
            result.compare(graph, key, gradients[name].values)
        elif any(numbers(case["results"][key][0])):  # not trained: all zeros
            result.lines.append(f"{case['name']} ({graph['exporter']}): it is not trained: x{key}")
    return result


def outcomes(session, key):
    """{case number: Comparison} of a model; where it does not compile, of its halves."""
    def several(graphs):
        gradients, complaint = attempt(session, graphs)
        if gradients is not None:
            return {graph["case"]: compared(graph, gradients) for graph in graphs}
        if len(graphs) == 1:
            result = Comparison()
            result.lines.append(f"{name_of(graphs[0]['case'])} ({key[0]}): {complaint.strip().splitlines()[0]}")
            return {graphs[0]["case"]: result}
        half = len(graphs) // 2
        return several(graphs[:half]) | several(graphs[half:])

    return session.once(("special points", key), lambda: several(batches()[key]))


def passes(session, key):
    wrong = {number: result.lines for number, result in outcomes(session, key).items()}
    lines = [line for number, some in wrong.items() if len(some) > LEFT.get(name_of(number), (0, ""))[0] for line in some]
    first = {line.split(" (")[0]: line for line in reversed(lines)}
    expect(not lines, f"{len(lines)} elements of {len(first)} functions are not PyTorch's. The first of each:\n" + "\n".join(list(first.values())[::-1]))


def counts(session):
    """The file has what it had when this was written, and what is left out differs."""
    found = [result for key in batches() for result in outcomes(session, key).values()]
    wrong = {name_of(number) for key in batches() for number, result in outcomes(session, key).items() if result.lines}
    expect(not (right := LEFT.keys() - wrong), f"take off the list: {sorted(right)}")
    elements, purpose, form = (sum(getattr(r, name) for r in found) for name in ("elements", "on_purpose", "of_form"))
    left = sum(len(result.lines) for result in found)
    expect(elements >= FEWEST, f"{elements} elements")
    return (f"{len(stored()[0]['cases'])} functions, {len(found)} graphs, {elements} elements; {purpose} differ from PyTorch on purpose, "
            f"{form} are PyTorch's of the exported graph, which is another function there, {left} differ and are left")
