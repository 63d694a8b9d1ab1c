"""The simulator: what `sheaf simulate` predicts of plans on machines, what `sheaf profile` measures, and what both refuse."""
import json
import re

from formats import read_log
from harness import ROOT, Case, expect
from training import CONFIGS, data_arguments

KINDS = ("compute", "communication", "cycle", "memory")
FLOORS = ("products", "state", "communication")
MACHINES = {"h100": 8, "a100": 8, "rtx4090": 8, "gb200": 72}  # ranks of a node


def cases(session):
    for profile in ("cpu", "h100", "a100", "rtx4090", "gb200"):
        for ranks, zero in ((1, 0), (4, 0), (4, 1), (4, 2), (4, 3)):
            yield Case(f"simulating/{profile}/ranks-{ranks}/zero-{zero}",
                       lambda p=profile, r=ranks, z=zero: simulated(session, p, r, z))
    yield Case("simulating/text", lambda: text(session))
    yield Case("simulating/floor-of-models", lambda: floor_of_models(session))
    yield Case("simulating/floor-doubled-products", lambda: doubled_products(session))
    yield Case("simulating/floor-recomputation", lambda: recomputation(session))
    yield Case("simulating/floor-not-stated", lambda: no_floor(session))
    yield Case("simulating/other-ranks", lambda: other_ranks(session))
    for machine in MACHINES:
        yield Case(f"simulating/machines/{machine}", lambda m=machine: any_number_of_nodes(session, m))
    yield Case("simulating/former-names", lambda: former_names(session))
    yield Case("simulating/no-network", lambda: no_network(session))
    yield Case("simulating/memory-limit", lambda: memory_limit(session))
    yield Case("simulating/edited-profile", lambda: edited_profile(session))
    yield Case("simulating/profile", lambda: measured(session), alone=True)
    for name, arguments in REFUSED.items():
        yield Case(f"simulating/refused/{name}", lambda a=arguments: refused(session, *a))
    for name, (content, words) in PROFILES.items():
        yield Case(f"simulating/refused-profile/{name}", lambda c=content, w=words: refused_profile(session, c, w))
    yield Case("simulating/refused-plan", lambda: refused_plan(session))
    for name, arguments in MEASURING.items():
        yield Case(f"simulating/refused-measuring/{name}", lambda a=arguments: refused_measuring(session, *a))


def plan_of(session, ranks, zero):
    return session.plan("gpt2-tiny", ranks, zero, 8, CONFIGS["gpt2-tiny"].options)


def simulate(session, plan, *options):
    return json.loads(session.succeed("sheaf", "simulate", plan, "--json", *options).out)


def simulated(session, machine, ranks, zero):
    plan = plan_of(session, ranks, zero)
    report = simulate(session, plan, "--profile", machine)
    expect(report["bound_by"] in KINDS, f"bound by {report['bound_by']}")
    expect(0 < report["bound_seconds"] <= report["step_seconds"] * (1 + 1e-9), f"bound {report['bound_seconds']}, step {report['step_seconds']}")
    expect(report["bound_seconds"] >= max(report["bounds"].values()), "the bound is not the largest of its terms")
    expect(report["floor_by"] in FLOORS and report["floor_seconds"] == max(report["floors"].values()), f"floors {report['floors']}")
    expect(0 < report["floor_seconds"] <= report["bound_seconds"] * (1 + 1e-9), f"floor {report['floor_seconds']}, bound {report['bound_seconds']}")
    expect((report["floors"]["communication"] > 0) == (ranks > 1), f"a floor of communication on {ranks} ranks: {report['floors']}")
    expect(report["peak_bytes"] == session.inspect(plan)["memory"]["peak_bytes"], f"peak {report['peak_bytes']}")
    exposed = report["step_seconds"] - report["compute_seconds"]
    expect(abs(report["exposed_communication_seconds"] - exposed) < 1e-9, f"exposed {report['exposed_communication_seconds']}")
    total = sum(report["seconds_by_kind"].values())
    expect(total >= report["compute_seconds"] + report["communication_seconds"] - 1e-9, "the parts do not add up")
    if ranks == 1:
        expect(report["communication_seconds"] < 0.1 * report["step_seconds"], "one rank communicates")


def text(session):
    out = session.succeed("sheaf", "simulate", plan_of(session, 4, 3), "--profile", "h100").out
    first = out.splitlines()[0]
    expect(first.startswith("step ") and " bound " in first and " gap " in first, first)
    second = out.splitlines()[1]
    expect(re.match(r"floor \S+ \S+ \((products|state|communication)\): the least time of any plan", second), second)
    expect("the bound is " in second and " times that" in second, second)
    for word in ("communication not hidden", "peak", "gemm", "kernel", "all_gather", "reduce_scatter"):
        expect(word in out, f"no '{word}' in\n{out}")


def floor_of_models(session):
    """Every plan's instructions do what its model needs, and without recomputation no other products than these, but for
    the scores that the gradient of attention computes again."""
    for name, config in CONFIGS.items():
        for ranks, zero in ((1, 0), (2, 0), (2, 1), (4, 2), (4, 3)):
            report = session.inspect(session.plan(config.model, ranks, zero, 8, config.options))
            floor, issued = report["floor"], report["issued"]
            where = f"{name} on {ranks} ranks at stage {zero}: {floor}, {issued}"
            # The parameters of these models are f32; AdamW and momentum keep states, plain SGD none.
            whole = 4 * (report["parameters"] + report["frozen_parameters"])
            trained = 4 * report["parameters"]
            states = floor["state_bytes"] * (ranks if zero else 1) / trained
            expect(abs(states - round(states)) < 1e-3 and round(states) in (3, 5, 7), f"{states} words of state an element: {where}")
            gathered = 0 if ranks == 1 else whole if zero == 3 else trained
            expect((floor["reduced_bytes"], floor["gathered_bytes"]) == (trained if ranks > 1 else 0, gathered), where)
            attention = "gpt2" in config.model or "llama" in config.model or "mistral" in config.model
            for word, flops in issued["products"].items():
                more = flops / floor["products"][word]
                expect(1 < more < 1.2 if attention else more == 1, f"{more} times the products: {where}")
            for key in ("state_bytes", "reduced_bytes", "gathered_bytes"):
                expect(floor[key] <= issued[key], where)
            # Padding apart (small models have much of it), what is issued is what is needed, except for second gathers.
            expect(issued["reduced_bytes"] <= 1.5 * floor["reduced_bytes"] + 4096 * ranks, where)


def doubled_products(session):
    """A plan that issues every product twice has a bound to match, and no gap; its floor shows what it wastes."""
    where, plan = session.folder(), plan_of(session, 4, 3)
    lines = session.succeed("sheaf", "inspect", plan, "--format", "text").out.split("\n")
    product = re.compile(r' *plan\.call "(gemm|attention|attention_grad)"')
    (where / "twice.mlir").write_text("\n".join(line for one in lines for line in ([one, one] if product.match(one) else [one])))
    session.succeed("sheaf", "assemble", where / "twice.mlir", "-o", where / "twice.plan", "--redigest")
    session.succeed("sheaf", "verify", where / "twice.plan")
    once, twice = (simulate(session, p, "--profile", "cpu") for p in (plan, where / "twice.plan"))
    seconds = sum(once["seconds_by_kind"][kind] for kind in ("gemm", "attention", "attention_grad"))
    expect(twice["floor_seconds"] == once["floor_seconds"] and twice["floors"] == once["floors"], "the floor moves")
    for key in ("bound_seconds", "step_seconds"):
        expect(twice[key] - once[key] > 0.99 * seconds, f"{key}: {once[key]} and twice {twice[key]}, products take {seconds}")
    first, second = (session.inspect(p) for p in (plan, where / "twice.plan"))
    expect(second["floor"] == first["floor"], "inspect tells another floor")
    expect(second["issued"]["products"] == {k: 2 * v for k, v in first["issued"]["products"].items()}, f"{second['issued']}")
    for key in ("state_bytes", "reduced_bytes", "gathered_bytes"):
        expect(second["issued"][key] == first["issued"][key], f"{key} of {second['issued']}")
    row = re.search(r"f32 products .* (\S+) x\n", session.succeed("sheaf", "inspect", where / "twice.plan").out)
    expect(row and 2 <= float(row[1]) < 2.4, "the summary does not show products issued twice")


def recomputation(session):
    """What a plan computes again is in its bound and not in its floor."""
    options = CONFIGS["gpt2-tiny"].options
    plain, again = (session.plan("gpt2-tiny", 4, 3, 8, options + ("--recompute", what)) for what in ("none", "all"))
    first, second = session.inspect(plain), session.inspect(again)
    expect(first["floor"] == second["floor"], f"floors {first['floor']} and {second['floor']}")
    more = second["issued"]["products"]["f32"] / first["issued"]["products"]["f32"]
    expect(1.2 < more < 1.4, f"recomputing everything multiplies products by {more}")
    report = [simulate(session, p, "--profile", "cpu") for p in (plain, again)]
    expect(report[0]["floor_seconds"] == report[1]["floor_seconds"], "the floor moves")
    gaps = [t["bound_seconds"] / t["floor_seconds"] for t in report]
    expect(gaps[1] > 1.1 * gaps[0] >= 1.1, f"bounds of {gaps} times the floor")
    # Where plans are compared, the compiler tells it, too.
    summary = session.succeed("sheaf", "inspect", plain).out
    expect(re.search(r"(?m)^  schedule: .*, bound \S+ \S+ \(\w+\), floor \S+ \S+ \(\w+\)$", summary), summary)


def no_floor(session):
    """A plan by hand need not state one, and then none is made up."""
    where, plan = session.folder(), plan_of(session, 4, 3)
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    less = re.sub(r'plan\.digests "floor".*\n', "", re.sub(r"floor = \{[^}]*\{[^}]*\}[^}]*\}, ", "", text))
    expect("floor = {" in text and 'digests "floor"' in text, "the text has no floor")
    expect("floor = {" not in less and 'digests "floor"' not in less, "the text has a floor still")
    (where / "none.mlir").write_text(less)
    session.succeed("sheaf", "assemble", where / "none.mlir", "-o", where / "none.plan")
    session.succeed("sheaf", "verify", where / "none.plan")
    report = simulate(session, where / "none.plan", "--profile", "cpu")
    expect(report["floor_seconds"] is None and report["floor_by"] is None and report["floors"] is None, f"{report}")
    out = session.succeed("sheaf", "simulate", where / "none.plan", "--profile", "cpu").out
    expect("floor: the plan states none" in out, out)
    expect(session.inspect(where / "none.plan")["floor"] is None, "inspect makes up a floor")
    expect("states no floor" in session.succeed("sheaf", "inspect", where / "none.plan").out, "inspect does not say so")


def other_ranks(session):
    """More ranks: more hops for a collective, smaller shards."""
    plan = plan_of(session, 4, 3)
    few, many = (simulate(session, plan, "--profile", "h100", "--ranks", n) for n in (2, 64))
    expect((few["ranks"], many["ranks"]) == (2, 64), "other ranks than asked for")
    expect(few["communication_seconds"] < many["communication_seconds"], "more ranks communicate faster")
    expect(few["peak_bytes"] > many["peak_bytes"], "more ranks hold no less")


def any_number_of_nodes(session, machine):
    """A profile is of a type of machine: one node of it, and many, of which each collective's hops are between some."""
    plan, per_node = plan_of(session, 4, 3), MACHINES[machine]
    one, two, many = (simulate(session, plan, "--profile", machine, "--ranks", per_node * nodes) for nodes in (1, 2, 64))
    expect([r["ranks"] for r in (one, two, many)] == [per_node, 2 * per_node, 64 * per_node], "other ranks than asked for")
    expect(one["communication_seconds"] < two["communication_seconds"] < many["communication_seconds"],
           f"{[r['communication_seconds'] for r in (one, two, many)]} s of communication on 1, 2 and 64 nodes")


def former_names(session):
    """Names that profiles had when each was of a number of ranks."""
    plan = plan_of(session, 4, 3)
    for former, name, ranks in (("h100x8", "h100", 8), ("h100x64", "h100", 64), ("a100x8", "a100", 8), ("rtx4090x8", "rtx4090", 8)):
        expect(simulate(session, plan, "--profile", former, "--ranks", ranks) == simulate(session, plan, "--profile", name, "--ranks", ranks),
               f"{former} is not {name}")


def no_network(session):
    """A node that was measured by itself cannot tell what several do."""
    path = session.folder() / "node.json"
    machine = json.loads((ROOT / "passes" / "schedule" / "profiles" / "h100.json").read_text())
    machine["collectives"] = [c for c in machine["collectives"] if not c.get("network")]
    path.write_text(json.dumps(machine))
    simulate(session, plan_of(session, 4, 3), "--profile", path, "--ranks", 8)
    refused(session, ("--profile", path, "--ranks", 16), ["one node of 8", "knows no network", "such as h100"])


def memory_limit(session):
    plan = plan_of(session, 4, 3)
    report = simulate(session, plan, "--profile", "h100")
    expect(report["fits"] and report["memory_limit"] == 80_000_000_000, f"limit {report['memory_limit']}")
    report = simulate(session, plan, "--profile", "h100", "--memory-limit", "1MiB")
    expect(not report["fits"] and report["memory_limit"] == 1 << 20, f"limit {report['memory_limit']}")
    out = session.succeed("sheaf", "simulate", plan, "--profile", "h100", "--memory-limit", "1MiB").out
    expect("too much for 1.0 MiB" in out, out)


def edited_profile(session):
    """A machine of half the speed takes twice as long."""
    where, plan = session.folder(), plan_of(session, 1, 0)
    fast = {"sheaf_profile": 1, "name": "fast", "ranks": 1, "memory": {"bytes": 1 << 30, "source": "made up"},
            "compute": [{"overhead": {"seconds": 1e-6, "source": "made up"},
                         "kernels": {"bandwidth": 1e10, "operations": 1e10, "source": "made up"},
                         "moves": {"bandwidth": 1e10, "source": "made up"},
                         "gemm": [{"type": "f32", "rate": 1e11, "half": [0, 0, 0], "source": "made up"}],
                         "attention": [{"type": "f32", "rate": 1e11, "source": "made up"}],
                         "convolution": {"part": 1, "source": "made up"}}],
            "collectives": [{"op": "any", "latency": 1e-6, "bandwidth": 1e10, "source": "made up"}],
            "slowdown": {"value": 0, "source": "made up"}}
    slow = json.loads(json.dumps(fast))
    compute = slow["compute"][0]
    compute["overhead"]["seconds"] *= 2
    compute["kernels"]["operations"] /= 2
    for entry, key in ((compute["kernels"], "bandwidth"), (compute["moves"], "bandwidth"), (compute["gemm"][0], "rate"),
                       (compute["attention"][0], "rate"), (slow["collectives"][0], "bandwidth")):
        entry[key] /= 2
    slow["collectives"][0]["latency"] *= 2
    seconds = []
    for name, machine in (("fast", fast), ("slow", slow)):
        (where / f"{name}.json").write_text(json.dumps(machine))
        seconds.append(simulate(session, plan, "--profile", where / f"{name}.json")["step_seconds"])
    expect(abs(seconds[1] / seconds[0] - 2) < 1e-6, f"{seconds[1] / seconds[0]} times as long")


def measured(session):
    """A profile measured here predicts about the right time for a step measured here (test/bench/predict.py prints the error)."""
    where = session.folder()
    done = session.succeed("sheaf", "profile", "-o", where / "here.json", "--ranks", 2, "--threads-per-rank", 1, timeout=600)
    expect(not done.out, f"stdout has {done.out[:200]}")
    machine = json.loads((where / "here.json").read_text())
    expect(machine["name"] == "here" and machine["ranks"] == 2 and machine["cores"] >= 1, "not this machine")
    rate = max(g["rate"] for c in machine["compute"] for g in c["gemm"])
    expect(1e8 < rate < 1e13, f"matrix products at {rate} flops a second")
    plan = plan_of(session, 2, 3)
    report = simulate(session, plan, "--profile", where / "here.json")["step_seconds"]
    session.succeed("sheaf-run", plan, *data_arguments(CONFIGS["gpt2-tiny"]), "--steps", 50, "--threads-per-rank", 1, "--log", where / "log")
    took = min(step["seconds"] for step in read_log(where / "log")[0])
    expect(session.slowdown > 1 or took / 3 < report < took * 3, f"a step of {report} s is predicted, the fastest took {took} s")
    return f"predicted {1e3 * report:.2f} ms, measured {1e3 * took:.2f} ms"


REFUSED = {
    "no-profile": ((), ["--profile", "h100", "sheaf profile"], 2),
    "unknown-profile": (("--profile", "h1000"), ["h1000", "did you mean h100?"]),
    "missing-file": (("--profile", "nowhere/p.json"), ["nowhere/p.json"]),
    "folder": (("--profile", "/"), ["it is a folder"]),
    "ranks": (("--profile", "h100", "--ranks", "0"), ["--ranks"], 2),
    "limit": (("--profile", "h100", "--memory-limit", "much"), ["--memory-limit", "24GiB"], 2),
    "option": (("--profil", "h100"), ["did you mean --profile?"], 2),
}

PROFILES = {
    "empty": ("", []),
    "not-json": ("{", ["JSON"]),
    "another-thing": ('{"models": []}', ["models", "unknown key"]),
    "later-format": ('{"sheaf_profile": 2}', ["sheaf_profile", "format 1"]),
    "no-name": ('{"sheaf_profile": 1}', ["name", "missing"]),
    "list": ("[1, 2]", ["object"]),
}

MEASURING = {
    "no-output": ((), ["-o"], 2),
    "missing-folder": (("-o", "nowhere/p.json", "--ranks", "2"), ["nowhere"]),
    "ranks": (("-o", "p.json", "--ranks", "0"), ["--ranks"], 2),
    "argument": (("-o", "p.json", "here"), ["here"], 2),
}


def expect_error(done, words, code=1):
    expect(done.code == code, f"exit {done.code}, not {code}: {done.err}")
    expect(done.err.startswith("sheaf: error: ") and len(done.err.splitlines()) == 1, done.err)
    for word in words:
        expect(word in done.err, f"no '{word}' in: {done.err}")


def refused(session, options, words, code=1):
    expect_error(session.call("sheaf", "simulate", plan_of(session, 4, 3), *options), words, code)


def refused_profile(session, content, words):
    path = session.folder() / "p.json"
    path.write_text(content)
    done = session.call("sheaf", "simulate", plan_of(session, 4, 3), "--profile", path)
    expect_error(done, [str(path), *words])


def refused_plan(session):
    path = session.folder() / "p.plan"
    path.write_bytes(plan_of(session, 4, 3).read_bytes()[:-1])
    expect_error(session.call("sheaf", "simulate", path, "--profile", "h100"), ["p.plan"])


def refused_measuring(session, options, words, code=1):
    expect_error(session.call("sheaf", "profile", *options, cwd=session.folder()), words, code)
