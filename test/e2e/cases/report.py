"""sheaf report: what the page shows is what the plan says; the graph in its file; measured steps; traces for Perfetto."""
import base64
import html.parser
import json
import pathlib
import re
import statistics
import subprocess
import sys
import zlib

from formats import protobuf_fields
from harness import ROOT, Case, Skip, expect, expect_short_error, plan_bytes
from training import CONFIGS, data_arguments

sys.path.insert(0, str(ROOT / "test"))
from skips import Machine, browser_python  # noqa: E402

# Plans that views are tried on: all ranks in one node, a language model at stage 3, convolutions, nodes with micro-batches,
# state in host memory and files.
PLANS = {
    "mlp": ("mlp-adamw", 2, 3, ()),
    "gpt2-tiny": ("gpt2-tiny", 4, 3, ()),
    "cnn": ("cnn-adamw", 2, 1, ()),
    "nodes": ("gpt2-tiny", 4, 3, ("--ranks-per-node", "2", "--micro-batches", "2", "--clip-norm", "1")),
    "offload": ("gpt2-tiny", 2, 3, ("--offload", "optimizer=file,parameters=host")),
}


def cases(session):
    for name in PLANS:
        yield Case(f"report/contents/{name}", lambda n=name: contents(session, n))
        yield Case(f"report/lifetimes/{name}", lambda n=name: lifetimes(session, n))
        yield Case(f"report/graph/{name}", lambda n=name: graph(session, n))
        yield Case(f"report/browser/{name}", lambda n=name: browser(session, n))
        yield Case(f"report/perfetto/{name}", lambda n=name: perfetto(session, n))
    yield Case("report/page", lambda: page(session))
    yield Case("report/no-graph", lambda: no_graph(session))
    yield Case("report/measured", lambda: measured(session))
    yield Case("report/perfetto-schema", lambda: perfetto_schema(session))
    yield Case("report/refused", lambda: refused(session))
    yield Case("report/onnx", lambda: onnx_graphs(session))
    yield Case("report/onnx-checker", lambda: onnx_checker(session))
    yield Case("report/netron", lambda: in_netron(session))


def compiled(session, name):
    config, ranks, stage, more = PLANS[name]
    return session.plan(CONFIGS[config].model, ranks, stage, 8, CONFIGS[config].options + more)


def report(session, plan, *options):
    """What the page shows, as JSON."""
    out = session.folder() / "report.json"
    session.succeed("sheaf", "report", plan, "-o", out, "--json", *options)
    return json.loads(out.read_text())


def shown(session, name):
    return session.once(("report", name), lambda: report(session, compiled(session, name)))


def simulated(session, plan):
    """(What `sheaf simulate` prints, its trace's events)."""
    trace = session.folder() / "trace.json"
    printed = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", "cpu", "--json", "--trace", trace).out)
    return printed, [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]


def instructions(session, plan):
    """The lines of a step's instructions in the plan's text: of all turns, then the body."""
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    blocks = {m[1]: m[2] for m in re.finditer(r'^ +plan\.(part "\w+"|body) \{\n(.*?)^ +\}', text, re.MULTILINE | re.DOTALL)}
    turns = re.search(r"turns = array<i64: ([\d, ]+)>", text)
    parts = [name for name in blocks if name != "body"]
    order = [parts[int(part)] for part in turns[1].split(", ")[::2]] if turns else []
    return [line.strip() for name in order + ["body"] for line in blocks[name].splitlines() if line.strip().startswith("plan.")], text


def contents(session, name):
    """The page's numbers against the simulator's, the summary's and the plan's text."""
    plan, data = compiled(session, name), shown(session, name)
    printed, events = simulated(session, plan)
    prediction, ops, texts = data["prediction"], data["ops"], data["texts"]
    for ours, theirs in ((prediction["step"], "step_seconds"), (prediction["bound"]["seconds"], "bound_seconds"), (prediction["bound"]["by"], "bound_by"),
                         (prediction["exposed"], "exposed_communication_seconds"), (data["memory"]["arena"], "peak_bytes"),
                         (data["memory"]["limit"], "memory_limit")):
        expect(ours == printed[theirs], f"{theirs}: {ours}, the simulator says {printed[theirs]}")
    expect([l["bytes"] for l in prediction["links"]] == [printed["links"][l]["bytes"] for l in ("node", "network")][:len(prediction["links"])],
           f"links {prediction['links']}")
    expect(len(ops["label"]) == len(events), f"{len(ops['label'])} ops, the trace has {len(events)}")
    for op, event in enumerate(events):
        expect(texts[ops["label"][op]] == event["name"] and texts[ops["kind"][op]] == event["cat"] and ops["stream"][op] == event["tid"]
               and abs(ops["begin"][op] - event["ts"] * 1e3) < 1 and abs(ops["time"][op] - event["dur"] * 1e3) < 2, f"op {op} is not {event}")
    lines, text = instructions(session, plan)
    places = [i for i, line in enumerate(lines) if not re.match(r"plan\.(record|wait) ", line)]
    expect(ops["instruction"] == places, "ops are not the instructions without events")
    for op, place in enumerate(places):
        operands = {n.strip('"') for n in re.findall(r"%([\w.$-]+)\[", lines[place])}
        uses = data["ops"]["usesBuffer"][ops["usesStart"][op]:ops["usesStart"][op + 1]]
        expect(len(uses) == len(operands), f"op {op} uses {[data['buffers']['name'][u] for u in uses]}: {lines[place]}")
    declared = re.findall(r'plan\.buffer "([^"]+)" (\w+)(?: in (\w+))? offset (\d+) bytes (\d+)( persistent)?', text)
    kinds = data["memory"]["kinds"]
    spaces = {s["space"]: s["name"] for s in data["memory"]["spaces"]}
    buffers = zip(*(data["buffers"][c] for c in ("name", "kind", "space", "offset", "bytes", "persistent")))
    expect([(n, k, s or "device", int(o), int(b), int(bool(p))) for n, k, s, o, b, p in declared]
           == [(n, kinds[k], spaces[s], o, b, p) for n, k, s, o, b, p in buffers], "other buffers")
    summary = session.inspect(plan)
    expect([{k: s[k] for k in ("parameters", "gradients", "optimizer", "total")} for s in data["stages"][:4]]
           == [{k: s[k] for k in ("parameters", "gradients", "optimizer", "total")} for s in summary["stages"]], f"stages {data['stages']}")
    expect(data["decisions"] == summary["decisions"], "other decisions")
    sent = sum(data["communication"]["sent"])
    expect(sent == sum(summary["sent"].values()) if "sent" in summary else sent >= 0, f"{sent} bytes are sent, the summary says {summary.get('sent')}")
    # A wait's cause has ended before the wait does, and no other op that is waited for ends later.
    for op, blocker in enumerate(ops["blocker"]):
        ends = {source: ops["begin"][source] + ops["time"][source] - distance * prediction["step"] * 1e9
                for source, distance in zip(*(ops[c][ops["waitsStart"][op]:ops["waitsStart"][op + 1]] for c in ("waitsFrom", "waitsDistance")))}
        expect(all(end <= ops["begin"][op] + 2 for end in ends.values()), f"op {op} begins before what it waits for ends: {ends}")
        expect((blocker < 0) == (not ends) and all(end <= ends[blocker] + 2 for end in ends.values()), f"op {op}: {blocker} is not the last of {ends}")


def lifetimes(session, name):
    """Buffers that share bytes never live at the same time, but where an instruction writes one in place of the other; what is read
    lives; and at no time do more bytes live than the arena has."""
    data = shown(session, name)
    lives, buffers, ops = data["lives"], data["buffers"], data["ops"]
    count = len(ops["label"])
    spans = [(b, f, count if l < 0 else l) for b, f, l in zip(lives["buffer"], lives["first"], lives["last"])]
    place = lambda b: (buffers["space"][b], buffers["offset"][b])
    by_place = sorted(spans, key=lambda s: place(s[0]))
    shared = 0
    for i, (a, first, last) in enumerate(by_place):
        for b, other_first, other_last in by_place[i + 1:]:
            if place(b) >= (buffers["space"][a], buffers["offset"][a] + buffers["bytes"][a]):
                break
            if a == b:
                expect(last < other_first or other_last < first, f"{buffers['name'][a]} lives twice at a time")
                continue
            shared += 1
            expect(last <= other_first or other_last <= first, f"{buffers['name'][a]} ({first} to {last}) and {buffers['name'][b]} ({other_first} to {other_last})")
    alive = {}
    for buffer, first, last in spans:
        alive.setdefault(buffer, []).append((first, last))
    for op in range(count):
        for buffer in ops["usesBuffer"][ops["usesStart"][op]:ops["usesStart"][op + 1]]:
            expect(any(first <= op <= last for first, last in alive.get(buffer, ())), f"op {op} uses {buffers['name'][buffer]} outside of its lives")
    # In the issue order: bytes that are alive together fit into the arena, because they are disjoint.
    memory = data["memory"]
    device, *others = memory["spaces"]
    for space in memory["spaces"]:
        columns = zip(*(buffers[c] for c in ("bytes", "kind", "space", "persistent")))
        kept = [0] * len(memory["kinds"])
        for size, kind, place, persistent in columns:
            kept[kind] += size if persistent and place == space["space"] else 0
        # On the device there may be images of what lies elsewhere, besides.
        least = [min(space["byKind"][k]) for k in (1, 3)]
        expect(all(l == kept[k] or (others and space is device and l > kept[k]) for l, k in zip(least, (1, 3))), f"state lives from step to step: {kept}, {least}")
    expect(shared > 0 and len(device["time"]) == len(device["byKind"][1]), "no two buffers share bytes")


def unpacked_graph(plan):
    data = pathlib.Path(plan).read_bytes()
    rest = data[len(plan_bytes(plan)):]
    expect(rest[:8] == b"SHEAFGRF" and int.from_bytes(rest[8:16], "little") == len(rest) - 24, "no graph follows the plan")
    return json.loads(zlib.decompress(rest[24:]))


def graph(session, name):
    """The graph in the plan's file against the compiler's text of the same phases."""
    config, ranks, stage, more = PLANS[name]
    plan = compiled(session, name)
    found = unpacked_graph(plan)
    options = [o for option in session.inspect(plan)["options"] for o in option.split("=", 1)]
    for graph, phase in zip(found["graphs"], ("train", "zero")):
        text = session.succeed("sheaf", "compile", session.graph(CONFIGS[config].model), "-o", "-", "--compile-to", phase, *options).out
        step = re.search(r"^  func\.func @step\(.*?^  \}", text, re.MULTILINE | re.DOTALL)[0]
        # The regions of an op are not of the step itself.
        listed = re.findall(r"^    (?:%[\w:, %]+ = )?((?:train|zero)\.\w+)", step, re.MULTILINE)
        ours = [found["texts"][op] for op in graph["op"]]
        expect(ours == [op for op in listed if op != "train.constant"], f"{phase}: other ops")
        expect(all(i < node for node in range(len(ours)) for i in graph["in"][graph["inStart"][node]:graph["inStart"][node + 1]]), "an edge goes back")
        reads = sum(len(re.findall(r"%\d+", line.split("=", 1)[-1])) for line in step.splitlines())
        expect(0 < len(graph["in"]) <= reads, f"{len(graph['in'])} edges, {reads} operands")
        labels = {found["texts"][label] for label in graph["label"]}
        parameters = {p for p in re.findall(r"train\.parameter @([\w.]+)", text)}
        expect(parameters <= labels, f"{phase}: {sorted(parameters - labels)[:3]} are nowhere")
    sharded = found["graphs"][1]
    gathers = sum(found["texts"][op] == "zero.all_gather" for op in sharded["op"])
    expect((gathers > 0) == (stage == 3), f"{gathers} gathers at stage {stage}")
    passes = [sum(p == which for p in sharded["pass"]) for which in range(3)]
    expect(all(passes), f"nodes of forward, backward, update: {passes}")
    if name == "gpt2-tiny":
        expect({"m.transformer.h.3.attn", "m.transformer.h.0.mlp.act"} <= set(found["scopes"]), f"modules {found['scopes']}")
        # What the timeline runs is found in the graph: but for the host's instructions, and sums over ranks.
        data = shown(session, name)
        labels = {found["texts"][label] for label in sharded["label"]}
        missing = {data["texts"][label] for label in data["ops"]["label"]} - labels
        missing -= {"gradient norm", "step scalars", "loss", "input_ids", "labels"} | {f"update {bucket['name']}" for bucket in data["buckets"]}
        expect(not missing, f"not in the graph: {sorted(missing)}")


class Scripts(html.parser.HTMLParser):
    """The page's blocks of data, and every address that it names."""

    def __init__(self):
        super().__init__()
        self.blocks, self.addresses, self.block = {}, [], None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.addresses += [attributes[a] for a in ("src", "href") if a in attributes]
        self.block = attributes.get("id") if tag == "script" else None

    def handle_data(self, data):
        if self.block:
            self.blocks[self.block] = self.blocks.get(self.block, "") + data


def page(session):
    """The page has the data as JSON has it, names nothing outside of itself, and d3's licence."""
    plan, out = compiled(session, "gpt2-tiny"), session.folder() / "report.html"
    session.succeed("sheaf", "report", plan, "-o", out)
    text = out.read_text()
    parser = Scripts()
    parser.feed(text)
    expect(parser.addresses == ["data:,"], f"the page names {parser.addresses}")
    expect("default-src 'none'" in text, "no policy")
    expect((ROOT / "tools" / "report" / "LICENSE.d3").read_text() in text, "d3 without its licence")
    unpacked = {name: json.loads(zlib.decompress(base64.b64decode(block))) for name, block in parser.blocks.items()}
    expect(unpacked == {"report-data": shown(session, "gpt2-tiny"), "report-graph": unpacked_graph(plan)}, f"the page has {list(unpacked)}")
    again = out.with_name("again.html")
    session.succeed("sheaf", "report", plan, "-o", again)
    expect(again.read_bytes() == out.read_bytes(), "two pages of one plan differ")


def no_graph(session):
    """--no-graph leaves out the graph and nothing else; a damaged or cut one is an error."""
    with_graph, where = compiled(session, "mlp"), session.folder()
    session.succeed("sheaf", "compile", session.graph("mlp"), "-o", where / "mlp.plan", "--no-graph", *(o for option in session.inspect(with_graph)["options"] for o in option.split("=", 1)))
    without = (where / "mlp.plan").read_bytes()
    expect(without == plan_bytes(with_graph), "--no-graph changes the plan")
    data = report(session, where / "mlp.plan")
    expect(not data["hasGraph"] and any("--no-graph" in w for w in data["warnings"]), f"warnings {data['warnings']}")
    whole = bytearray(with_graph.read_bytes())
    whole[-1] ^= 1
    (where / "damaged.plan").write_bytes(whole)
    (where / "damaged.plan.data").write_bytes(b"")
    expect_short_error(session.call("sheaf", "report", where / "damaged.plan", "-o", where / "x.html"), ["damaged.plan", "damaged", "graph"])
    expect(not (where / "x.html").exists(), "a page was written")
    for cut, word in ((1, "truncated"), (len(whole) - len(without) - 20, "followed")):
        (where / "cut.plan").write_bytes(with_graph.read_bytes()[:-cut])
        expect_short_error(session.call("sheaf", "report", where / "cut.plan", "-o", where / "x.html"), ["cut.plan", word])


def measured(session):
    """A measured step: its medians, and the ten largest differences in order."""
    config = CONFIGS["gpt2-tiny"]
    plan, trace = compiled(session, "gpt2-tiny"), session.folder() / "trace.json"
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 6, "--trace", trace)
    out = session.folder() / "report.json"
    done = session.succeed("sheaf", "report", plan, "-o", out, "--json", "--measured", trace)
    data = json.loads(out.read_text())
    ops, found = data["ops"], data["measured"]
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    op_of = {instruction: op for op, instruction in enumerate(ops["instruction"])}
    events = [e for e in events if e["args"]["instruction"] in op_of]
    steps = sorted({e["args"]["step"] for e in events})[1:]
    expect(found["steps"] == len(steps) == 5 and found["rank"] == 0, f"steps {found['steps']} of rank {found['rank']}")
    starts = {s: min(e["ts"] for e in events if e["args"]["step"] == s) for s in steps}
    expect(abs(found["step"] * 1e6 - median([b - a for a, b in zip(starts.values(), list(starts.values())[1:])])) < 1, f"a step of {found['step']}")
    for op in range(len(ops["label"])):
        mine = [e for e in events if op_of[e["args"]["instruction"]] == op and e["args"]["step"] in starts]
        expect(len(mine) == 5 and abs(found["time"][op] - 1e3 * median([e["dur"] for e in mine])) < 3
               and abs(found["begin"][op] - 1e3 * median([e["ts"] - starts[e["args"]["step"]] for e in mine])) < 3, f"op {op} is not the median of {mine}")
    sizes = sorted((abs(t - p) for t, p in zip(found["time"], ops["time"])), reverse=True)[:10]
    listed = [abs(d["measured"] - d["predicted"]) * 1e9 for d in found["differences"]]
    expect(len(listed) == 10 and all(abs(a - b) < 5 for a, b in zip(listed, sizes)), f"differences {listed}, not {sizes}")
    lines = done.out.splitlines()
    expect(len(lines) == 12 and all(f"'{data['texts'][ops['label'][d['op']]]}'" in line for d, line in zip(found["differences"], lines[2:])), done.out)
    other, page = compiled(session, "mlp"), session.folder() / "report.html"
    expect_short_error(session.call("sheaf", "report", other, "-o", page, "--measured", trace), ["--measured", "another plan"])
    trace.write_text("{}")
    expect_short_error(session.call("sheaf", "report", plan, "-o", page, "--measured", trace), ["traceEvents"])


def median(values):
    """Of an even number the upper one."""
    return statistics.median_high(values)


def refused(session):
    where = session.folder()
    expect_short_error(session.call("sheaf", "report", compiled(session, "mlp")), ["-o"], 2)
    expect_short_error(session.call("sheaf", "report", compiled(session, "mlp"), "-o", where / "none" / "x.html"), ["none"])
    expect_short_error(session.call("sheaf", "report", where / "x.plan", "-o", where / "x.html"), ["x.plan"])
    expect_short_error(session.call("sheaf", "report", compiled(session, "mlp"), "-o", where / "x.html", "--profile", "abacus"), ["abacus"])
    evaluation = where / "eval.plan"
    session.succeed("sheaf", "compile", session.graph("mlp"), "-o", evaluation, "--batch", 8, "--eval-only")
    expect_short_error(session.call("sheaf", "report", evaluation, "-o", where / "x.html"), ["--eval-only"])
    expect_short_error(session.call("sheaf", "simulate", compiled(session, "mlp"), "--profile", "cpu", "--format", "perfetto"), ["--trace"], 2)


def perfetto_trace(session, name):
    def write():
        out = session.folder() / "trace.perfetto"
        session.succeed("sheaf", "simulate", compiled(session, name), "--profile", "cpu", "--json", "--trace", out, "--format", "perfetto")
        return out
    return session.once(("perfetto", name), write)


def perfetto(session, name):
    """Slices and counters against the page's data, read by field numbers."""
    tracks, slices, counts = {}, {}, {}
    for _, packet in protobuf_fields(perfetto_trace(session, name).read_bytes()):
        packet = dict(protobuf_fields(packet))
        if 60 in packet:
            track = dict(protobuf_fields(packet[60]))
            thread, counter = track.get(4), 8 in track
            tracks[track[1]] = track[2].decode() if counter else dict(protobuf_fields(thread))[5].decode() if thread else None
            continue
        event = dict(protobuf_fields(packet[11]))
        where, kind = tracks[event[11]], event[9]
        if kind == 4:
            counts.setdefault(where, []).append((packet[8], event[30]))
        else:
            slices.setdefault(where, []).append((kind, packet[8], event.get(23, b"").decode(), event.get(22, b"").decode()))
    expect_perfetto(shown(session, name), slices, counts)
    expect_perfetto(shown(session, name), *chrome(session, name))


def chrome(session, name):
    """The slices and counters of the same step in Chrome's format."""
    trace = session.folder() / "trace.json"
    session.succeed("sheaf", "simulate", compiled(session, name), "--profile", "cpu", "--json", "--trace", trace)
    events, slices, counts = json.loads(trace.read_text())["traceEvents"], {}, {}
    streams = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for event in events:
        begin = round(event.get("ts", 0) * 1e3)
        if event["ph"] == "X":
            slices.setdefault(streams[event["tid"]], []).extend([(1, begin, event["name"], event["cat"]),
                                                                 (2, round((event["ts"] + event["dur"]) * 1e3), "", "")])
        elif event["ph"] == "C":
            counts.setdefault(event["name"], []).append((begin, event["args"]["bytes"]))
    return slices, counts


def expect_perfetto(data, slices, counts):
    """slices: {stream: [(1 for begin and 2 for end, nanoseconds, name, kind)]}, counts: {kind of buffer: [(nanoseconds, bytes)]}."""
    ops, texts = data["ops"], data["texts"]
    for stream, name in enumerate(data["streams"]):
        expected = []
        for op in range(len(ops["label"])):
            if ops["stream"][op] == stream:
                expected += [(1, ops["begin"][op], texts[ops["label"][op]], texts[ops["kind"][op]]), (2, ops["begin"][op] + ops["time"][op], "", "")]
        found = slices.get(name, [])
        expect(len(found) == len(expected) and all(a[0] == b[0] and abs(a[1] - b[1]) <= 2 and a[2:] == b[2:] for a, b in zip(found, expected)),
               f"stream {name}: {found[:3]}, not {expected[:3]}")
        expect([f[1] for f in found] == sorted(f[1] for f in found), f"stream {name} goes back in time")
    memory = data["memory"]
    device = memory["spaces"][0]
    for kind, values in zip(memory["kinds"], device["byKind"]):
        expected, last = [], 0
        for time, value in zip(device["time"], values):
            if value != last:
                expected.append((time, value))
                last = value
        found = counts.get(kind, [])
        expect([v for _, v in found] == [v for _, v in expected] and all(abs(a[0] - b[0]) <= 2 for a, b in zip(found, expected)), f"counter {kind}")


PERFETTO = """
import json, sys
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
trace = schema.Trace.FromString(open(sys.argv[1], "rb").read())
tracks, slices, counts, unknown = {}, {}, {}, 0
for packet in trace.packet:
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        tracks[track.uuid] = track.name if track.HasField("counter") else track.thread.thread_name
        assert not track.HasField("counter") or track.counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
        assert track.HasField("process") or track.parent_uuid in tracks
        continue
    event = packet.track_event
    if event.type == schema.TrackEvent.TYPE_COUNTER:
        counts.setdefault(tracks[event.track_uuid], []).append((packet.timestamp, event.counter_value))
    else:
        if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
            assert {note.name for note in event.debug_annotations} == {"instruction", "alone", "flops", "bytes", "type"}
        slices.setdefault(tracks[event.track_uuid], []).append((event.type, packet.timestamp, event.name, "".join(event.categories)))
print(json.dumps([slices, counts]))
"""


def viewers(session):
    """A Python that has the packages of the viewers, where there is Chromium, too."""
    if not Machine(session.tools, False).has_browser():
        raise Skip("no browser: `make test-browser` installs Chromium, and what a Python needs to drive it")
    return browser_python()


def perfetto_schema(session):
    """The same by Perfetto's own schema."""
    python = viewers(session)
    for name in PLANS:
        done = subprocess.run([python, "-c", PERFETTO, perfetto_trace(session, name)], capture_output=True, text=True)
        expect(done.returncode == 0, done.stderr)
        slices, counts = json.loads(done.stdout)
        expect_perfetto(shown(session, name), {k: [tuple(s) for s in v] for k, v in slices.items()}, {k: [tuple(c) for c in v] for k, v in counts.items()})


def browser(session, name):
    """Every view in Chromium: test/browser/check_page.py."""
    python = viewers(session)
    plan, folder = compiled(session, name), session.folder()
    more = []
    if name == "gpt2-tiny":
        session.succeed("sheaf-run", plan, *data_arguments(CONFIGS["gpt2-tiny"]), "--steps", 4, "--trace", folder / "trace.json")
        more = ["--measured", folder / "trace.json"]
    session.succeed("sheaf", "report", plan, "-o", folder / "report.html", *more)
    done = subprocess.run([python, ROOT / "test" / "browser" / "check_page.py", folder / "report.html", "--screenshots", folder], capture_output=True, text=True)
    expect(done.returncode == 0, f"{done.stdout}\n{done.stderr}")
    return done.stdout


PHASES = ("import", "train", "zero", "fuse", "plan")


def compile_onnx(session, name, phase):
    """The graph of a phase as an ONNX model, and the options of the plan."""
    def make():
        out = session.folder() / f"{name}-{phase}.onnx"
        options = [o for option in session.inspect(compiled(session, name))["options"] for o in option.split("=", 1)]
        session.succeed("sheaf", "compile", session.graph(CONFIGS[PLANS[name][0]].model), "-o", out, "--compile-to", phase, "--format", "onnx", *options)
        return out, options
    return session.once(("onnx", name, phase), make)


def messages(data, field):
    """The fields of a protobuf message that have a number."""
    return [value for number, value in protobuf_fields(data) if number == field]


def onnx_nodes(path):
    """(domain.op_type, inputs, outputs, name) of the graph's nodes, by the field numbers of ONNX's schema; and its functions."""
    model = path.read_bytes()
    graph, = messages(model, 7)
    text = lambda data, field: [value.decode() for value in messages(data, field)]
    nodes = [(text(n, 7)[0] + "." + text(n, 4)[0], text(n, 1), text(n, 2), "".join(text(n, 3))) for n in messages(graph, 1)]
    return nodes, {text(f, 10)[0] + "." + text(f, 1)[0] for f in messages(model, 25)}


def onnx_graphs(session):
    """Nodes are the ops of the text, each name is given once and before it is taken, and each op has a function."""
    for name in ("mlp", "gpt2-tiny"):
        for phase in PHASES:
            path, options = compile_onnx(session, name, phase)
            nodes, functions = onnx_nodes(path)
            expect({op for op, *_ in nodes} <= functions, f"{phase}: no function for {sorted({op for op, *_ in nodes} - functions)}")
            given = set(text for value in messages(messages(path.read_bytes(), 7)[0], 11) for text in [messages(value, 1)[0].decode()])
            for op, inputs, outputs, _ in nodes:
                expect(set(inputs) <= given, f"{phase}: {op} takes {sorted(set(inputs) - given)}, which nothing gives")
                expect(not given & set(outputs), f"{phase}: {op} gives {sorted(given & set(outputs))} again")
                given |= set(outputs)
            if phase == "plan":
                continue
            text = session.succeed("sheaf", "compile", session.graph(CONFIGS[PLANS[name][0]].model), "-o", "-", "--compile-to", phase, *options).out
            step = re.search(r"^  func\.func @step\(.*?^  \}", text, re.MULTILINE | re.DOTALL)[0]
            listed = re.findall(r"^    (?:%[\w:, %]+ = )?((?:train|zero)\.\w+)", step, re.MULTILINE)
            expect([op.removeprefix("sheaf.") for op, *_ in nodes] == listed, f"{phase}: other nodes than the text's ops")
        plan = compiled(session, name)
        shown = session.folder() / "inspect.onnx"
        shown.write_bytes(subprocess.run([session.tools / "sheaf", "inspect", plan, "--format", "onnx"], capture_output=True, check=True).stdout)
        data = report(session, plan)
        nodes, _ = onnx_nodes(shown)
        kinds = [op.split(".")[-1] for op, *_ in nodes]
        for kind in ("all_gather", "reduce_scatter", "gemm"):
            expect(kinds.count(kind) >= sum(data["texts"][k] == kind for k in data["ops"]["kind"]) > 0, f"{kinds.count(kind)} of {kind}")
        _, text = instructions(session, plan)
        sections = re.search(r"plan\.prologue \{.*", text, re.DOTALL)[0]
        expect(len(nodes) == len(re.findall(r"^ {6}plan\.", sections, re.MULTILINE)), f"{len(nodes)} nodes of a plan's run")
    expect_short_error(session.call("sheaf", "compile", session.graph("mlp"), "-o", session.folder() / "x", "--batch", 8, "--format", "onnx"), ["--compile-to"], 2)


CHECKER = """
import sys, onnx
for path in sys.argv[1:]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    declared = {(f.domain, f.name, f.overload): (len(f.input), len(f.output), set(f.attribute)) for f in model.functions}
    def check(graph):
        for node in graph.node:
            inputs, outputs, attributes = declared[node.domain, node.op_type, node.overload]
            assert (len(node.input), len(node.output)) == (inputs, outputs) and {a.name for a in node.attribute} <= attributes, node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH: check(attribute.g)
    check(model.graph)
    types = {v.name for v in [*model.graph.value_info, *model.graph.input, *model.graph.output]}
    assert sum(o in types for n in model.graph.node for o in n.output) > 0
"""


def onnx_checker(session):
    """ONNX's own checker, with inference of shapes; and each node is as its function declares."""
    python = viewers(session)
    paths = [compile_onnx(session, name, phase)[0] for name in PLANS for phase in PHASES]
    done = subprocess.run([python, "-c", CHECKER, *paths], capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)


def in_netron(session):
    """Netron draws them: test/browser/check_netron.py."""
    python = viewers(session)
    paths = [compile_onnx(session, "mlp", phase)[0] for phase in PHASES] + [compile_onnx(session, "gpt2-tiny", "fuse")[0]]
    done = subprocess.run([python, ROOT / "test" / "browser" / "check_netron.py", *paths], capture_output=True, text=True)
    expect(done.returncode == 0, f"{done.stdout}\n{done.stderr}")
    return done.stdout
