"""Nodes: sums and gathers in two hops, and a stage within nodes and one between them, leave the bits of plans without nodes."""
import json

from cases.bits import same_bits
from harness import ROOT, Case, Skip, digest, expect, expect_short_error
from jobs import Job
from training import CONFIGS, data_arguments, expect_reference, in_turn, train

MODELS = ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny")
SETTINGS = (("f32", ()), ("bf16", ("--precision", "bf16")), ("f16", ("--precision", "f16")), ("clipped", ("--clip-norm", "0.1")))
PAIRS = tuple(f"node={s},world={t}" for s in range(4) for t in range(s))
STEPS = 10


def cases(session):
    for model, name in enumerate(MODELS):
        for setting, (what, options) in enumerate(SETTINGS):
            turn = setting + model if setting and model else None
            yield Case(f"nodes/{name}/{what}", lambda c=CONFIGS[name], o=options, t=turn: two_by_two(session, c, o, t))
        yield Case(f"nodes/{name}/eight", lambda c=CONFIGS[name]: eight(session, c))
        yield Case(f"nodes/{name}/micro-batches", lambda c=CONFIGS[name], t=model: micro_batches(session, c, t))
        yield Case(f"nodes/{name}/leaves", lambda c=CONFIGS[name]: leaves(session, c))
        yield Case(f"nodes/{name}/reference", lambda c=CONFIGS[name]: reference(session, c))
    yield Case("nodes/secondary-shards", lambda: secondary_shards(session))
    yield Case("nodes/three-nodes", lambda: three_nodes(session))
    yield Case("nodes/gradients", lambda: gradients(session))
    for zero in (1, 3, "node=3,world=0", "node=3,world=1"):
        yield Case(f"nodes/resumed/{zero}", lambda z=zero: resumed(session, z))
        yield Case(f"nodes/processes/{zero}", lambda z=zero: processes(session, z))
    yield Case("nodes/evaluation", lambda: evaluation(session))
    yield Case("nodes/auto", lambda: auto(session))
    yield Case("nodes/auto-secondary-shards", lambda: auto_secondary_shards(session))
    yield Case("nodes/mutants", lambda: mutants(session))
    yield Case("nodes/bytes", lambda: sent_bytes(session))
    yield Case("nodes/refused", lambda: refused(session))


def buckets(*options):
    return ("--bucket-size", 64 << 10, *options)


def nodes(session, config, ranks, each, zero, options=(), steps=STEPS, **more):
    return train(session, config, ranks, zero, steps, buckets("--ranks-per-node", each, *options), **more)


def two_by_two(session, config, options, turn):
    """Four ranks on two nodes, at every pair of stages; and on nodes of one and of four ranks. In f32 every model runs all of them, with
    other settings the perceptron does; with a turn, the other three models divide them among each other."""
    expected = train(session, config, 4, 3, STEPS, buckets(*options))
    runs = [(2, z) for z in (0, 1, 2, 3, *PAIRS)] + [(1, 3), (4, 3), (1, 1), (4, 0)]
    runs = runs[::3] if session.quick else runs if turn is None else in_turn(session, runs, turn, len(MODELS) - 1)
    same_bits(expected, [(f"nodes of {e} at stage {z}", nodes(session, config, 4, e, z, options)) for e, z in runs])


def eight(session, config):
    expected = train(session, config, 8, 3, STEPS, buckets())
    runs = [(e, z) for e in (2, 4) for z in (0, 1, 2, 3, "node=3,world=0", "node=3,world=1")]
    runs = runs[::3] if session.quick else runs
    same_bits(expected, [(f"nodes of {e} at stage {z}", nodes(session, config, 8, e, z)) for e, z in runs])


def micro_batches(session, config, turn):
    """Eight leaves of one row, as micro-batches of four ranks. The perceptron runs all ways, the other models divide them."""
    expected = train(session, config, 8, 3, STEPS, buckets())
    runs = [(z, ("--micro-batches", 2, "--reduce", r)) for z in (0, 1, 2, 3, *PAIRS) for r in ("each", "last")]
    runs = runs[::4] if session.quick else in_turn(session, runs, turn, len(MODELS) - 1) if turn else runs
    same_bits(expected, [(f"{' '.join(map(str, o))} at stage {z}", nodes(session, config, 4, 2, z, o)) for z, o in runs])


def leaves(session, config):
    """Eight leaves of two rows, of which a rank has two."""

    def run(zero, *options):
        plan, where = session.plan(config.model, 4, zero, 16, config.options + buckets("--leaves", 8, *options)), session.folder()
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", STEPS, "--save", where / "w")
        return digest(where / "w")

    expected = run(3)
    for zero in (0, 1, 3) if session.quick else (0, 1, 2, 3, *PAIRS):
        expect(run(zero, "--ranks-per-node", 2) == expected, f"stage {zero}: other weights")


def reference(session, config):
    expect_reference(config, nodes(session, config, 4, 2, "node=3,world=1", steps=session.steps).steps)


def secondary_shards(session):
    """The result of a gather's first hop is kept for the backward pass: less crosses the network, and the bits are the same."""
    for config in (CONFIGS["gpt2-tiny"], CONFIGS["llama-tiny"]):
        expected = train(session, config, 8, 3, STEPS, buckets())
        keeps = {what: nodes(session, config, 8, 4, 3, ("--secondary-shards", what)) for what in ("none", "all")}
        same_bits(expected, list(keeps.items()))
        same_bits(expected, [("micro-batches", nodes(session, config, 4, 2, 3, ("--secondary-shards", "all", "--micro-batches", 2)))])
        sent = {}
        for what in keeps:
            plan = session.plan(config.model, 8, 3, 8, config.options + buckets("--ranks-per-node", 4, "--secondary-shards", what))
            sent[what] = session.inspect(plan)["sent_bytes"]
        expect(sent["all"]["network"] < sent["none"]["network"] and sent["all"]["node"] == sent["none"]["node"], f"a rank sends {sent}")


def three_nodes(session):
    """The root of the tree has three subtrees, which nodes do not cut."""
    data = data_arguments(CONFIGS["mlp-adamw"])
    weights = set()
    for options in ((), *(("--ranks-per-node", e, "--zero", z) for e in (1, 2) for z in (0, 3))) + (
            ("--ranks-per-node", 2, "--zero", "node=3,world=1"),):
        where = session.folder()
        session.succeed("sheaf", "compile", session.graph("mlp"), "-o", where / "x.plan", "--ranks", 6, "--batch", 12, "--optimizer",
                        "adamw:lr=1e-3", *buckets(), *options)
        session.succeed("sheaf-run", where / "x.plan", *data, "--steps", STEPS, "--save", where / "w")
        weights.add(digest(where / "w"))
    expect(len(weights) == 1, "nodes change the weights of six ranks")


def gradients(session):
    """--dump-gradients puts every rank's part in its place."""
    config = CONFIGS["gpt2-tiny"]
    expected = digest(train(session, config, 4, 3, STEPS, buckets(), gradients=True).gradients)
    for zero in (0, 1, 3, *PAIRS):
        found = digest(nodes(session, config, 4, 2, zero, gradients=True).gradients)
        expect(found == expected, f"stage {zero}: other gradients")


def resumed(session, zero):
    """A state that a plan with nodes has saved is gone on with by one without, and the other way round."""
    config, half = CONFIGS["gpt2-tiny"], STEPS // 2
    expected = digest(train(session, config, 4, 3, STEPS, buckets()).weights)
    with_nodes = session.plan(config.model, 4, zero, 8, config.options + buckets("--ranks-per-node", 2))
    without = session.plan(config.model, 4, 3, 8, config.options + buckets())
    for first, second in ((with_nodes, without), (without, with_nodes)):
        where = session.folder()
        session.succeed("sheaf-run", first, *data_arguments(config), "--steps", half, "--save-state", where / "state")
        session.succeed("sheaf-run", second, *data_arguments(config), "--steps", STEPS, "--resume", where / "state", "--save", where / "w")
        expect(digest(where / "w") == expected, f"stage {zero}: other weights after resuming {first} by {second}")


def processes(session, zero):
    """Eight ranks in two nodes of four and four of two, by processes of one, two and four ranks, each node or process a host of its own."""
    config = CONFIGS["gpt2-tiny"]
    expected = train(session, config, 8, 3, STEPS, buckets(), gradients=True)
    layouts = [(4, 2, "ab"), (4, 4, "aabb"), (4, 4, "abcd"), (2, 2, "ab"), (2, 4, "abcd"), (4, 2, "aa"), (4, 8, "aaaabbbb"), (2, 8, "abcdefgh")]
    for each, count, hosts in layouts[:4] if session.quick else layouts:
        plan = session.plan(config.model, 8, zero, 8, config.options + buckets("--ranks-per-node", each))
        where = session.folder()
        with Job(session, count, plan, *data_arguments(config), "--steps", STEPS, "--save", where / "w", "--dump-gradients", where / "g",
                 "--save-state", where / "state", "--poison", environment=lambda rank, h=hosts: {"SHEAF_HOST": h[rank]}) as job:
            job.succeed()
        what = f"stage {zero}, nodes of {each}, hosts {hosts}"
        expect(digest(where / "w") == digest(expected.weights), f"{what}: other weights")
        expect(digest(where / "g") == digest(expected.gradients), f"{what}: other gradients")


def evaluation(session):
    """The evaluation gathers as the step does."""
    config = CONFIGS["gpt2-tiny"]
    found = set()
    for zero, more in ((3, ()), (3, ("--ranks-per-node", 2)), ("node=3,world=0", ("--ranks-per-node", 2))):
        plan = session.plan(config.model, 4, zero, 8, config.options + buckets("--eval", *more))
        data = ["--eval-data" if a == "--data" else a for a in data_arguments(config)]
        found.add(session.succeed("sheaf-run", plan, *data, "--eval").out)
    expect(len(found) == 1, f"the evaluations are {found}")


def network_profile(session, times):
    """Nodes of 8 H100 with a network that is so many times as fast as 20 GB/s."""
    path = session.folder() / "profile.json"
    machine = json.loads((ROOT / "passes/schedule/profiles/h100.json").read_text())
    for entry in machine["collectives"]:
        if entry.get("network"):
            entry.update(bandwidth=2e10 * times, network_share=1e10 * times, latency=1e-5 / times, hop=0, network_hop=1e-6 / times)
    path.write_text(json.dumps(machine))
    return path


def auto(session):
    """The nodes of a profile are taken where hops make the predicted step shorter, and never otherwise."""
    graph, slow, fast = session.graph("gpt2-tiny"), network_profile(session, 0.1), network_profile(session, 1e6)

    def nodes_of(profile, ranks, *options):
        plan = session.folder() / "a.plan"
        session.succeed("sheaf", "compile", graph, "-o", plan, "--batch", 48, "--ranks", ranks, "--profile", profile, *options)
        return session.inspect(plan).get("ranks_per_node", 0)

    expect(nodes_of(slow, 16, "--zero", 3, "--ranks-per-node", "auto") == 8, "hops over a slow network are not chosen")
    expect(nodes_of(fast, 16, "--zero", 3, "--ranks-per-node", "auto") == 0, "hops are chosen where all ranks are as near")
    expect(nodes_of(slow, 16, "--zero", "node=3,world=0", "--ranks-per-node", "auto") == 8, "two stages have no nodes")
    for ranks in (8, 12):
        expect(nodes_of(slow, ranks, "--zero", 3, "--ranks-per-node", "auto") == 0, f"{ranks} ranks fill no two nodes")
    expect(nodes_of(slow, 16, "--zero", 3) == 0, "without the option there are nodes")
    out = session.call("sheaf", "compile", graph, "-o", session.folder() / "a.plan", "--batch", 48, "--ranks", 12, "--profile", slow,
                       "--zero", "node=3,world=0", "--ranks-per-node", "auto")
    expect_short_error(out, ["--ranks 12 do not fill several nodes of the profile h100"])
    fit = json.loads(session.succeed("sheaf", "fit", graph, "--ranks", 16, "--memory", "80GiB", "--profile", slow, "--json").out)
    expect("nodes of 8 ranks" in fit["stages"][3]["without_recompute"]["plan"], fit["stages"][3]["without_recompute"])


def auto_secondary_shards(session):
    """Under a limit as many buckets keep secondary shards as fit, if that makes the predicted step shorter."""
    config, where, slow = CONFIGS["gpt2-tiny"], session.folder(), network_profile(session, 0.1)

    def compiled(*options):
        session.succeed("sheaf", "compile", session.graph(config.model), "-o", where / "a.plan", "--batch", 16, "--ranks", 16, "--zero", 3,
                        "--ranks-per-node", 8, "--profile", slow, "--keep", "none", "--prefetch", 1, *buckets(*options))
        return session.inspect(where / "a.plan")

    none, every = compiled("--secondary-shards", "none"), compiled("--secondary-shards", "all")
    expect(none["sent_bytes"]["network"] > every["sent_bytes"]["network"], "secondary shards save nothing")
    roomy = compiled("--memory-limit", 1 << 30)
    expect(roomy["sent_bytes"] == every["sent_bytes"], f"with room for all: {roomy['sent_bytes']}, not {every['sent_bytes']}")
    # As few bytes as all of them take, and a little less.
    least = compiled("--secondary-shards", "all", "--memory-limit", roomy["memory"]["peak_bytes"] * 4 // 5)["memory"]["peak_bytes"]
    some = compiled("--memory-limit", least * 99 // 100)
    expect(some["memory"]["peak_bytes"] <= least * 99 // 100, f"{some['memory']['peak_bytes']} bytes, where all take {least}")
    expect(every["sent_bytes"]["network"] < some["sent_bytes"]["network"] < none["sent_bytes"]["network"], some["sent_bytes"])


def mutants(session):
    """Changes of axes, strides and communicators are refused; see sheaf-mutants."""
    if not (session.tools / "../test/bin/sheaf-mutants").exists():
        raise Skip("sheaf-mutants is not built")
    config = CONFIGS["mlp-adamw"]
    plans = [session.plan(config.model, 4, z, 8, config.options + buckets("--ranks-per-node", 2, *o))
             for z, o in ((3, ()), (1, ()), ("node=3,world=1", ()), ("node=3,world=0", ()), (3, ("--secondary-shards", "all")))]
    every = [] if session.every_mutant else ["--sample", 8]
    done = session.call("../test/bin/sheaf-mutants", *plans, *every, timeout=7200 if session.every_mutant else 300)
    expect(done.code == 0, "\n".join(l for l in (done.out + done.err).split("\n") if ": survivor: " not in l))
    return done.out


def sent_bytes(session):
    """Between nodes pass the bytes of one rank of each node: L times fewer than all ranks' own."""
    config = CONFIGS["gpt2-tiny"]
    for ranks, each in ((4, 2), (8, 2), (8, 4)):
        count = ranks // each
        plan = session.plan(config.model, ranks, 3, 8, config.options + buckets("--ranks-per-node", each))
        plan_facts = session.inspect(plan)
        bytes_of = {axis: sum(c["bytes"] for c in plan_facts["communication"] if c["axis"] == axis and c["bucket"]) for axis in ("node", "network")}
        expect(bytes_of["network"] * each == bytes_of["node"], f"{ranks} ranks in nodes of {each}: whole arrays of {bytes_of}")
        network = sum(c["bytes"] * (count - 1) // count for c in plan_facts["communication"] if c["axis"] == "network")
        expect(plan_facts["sent_bytes"]["network"] == network, f"{plan_facts['sent_bytes']}, not {network} between nodes")
        text = session.succeed("sheaf", "inspect", plan).out
        expect("between nodes" in text and f"{count} nodes of {each}" in text, text)


def refused(session):
    graph = session.graph("mlp")
    for options, words in (
            (("--ranks-per-node", 3), "--ranks-per-node 3 is not a power of two that divides --ranks 4: give 1, 2, 4"),
            (("--ranks-per-node", 8), "--ranks-per-node 8 is not a power of two that divides --ranks 4: give 1, 2, 4"),
            (("--zero", "node=3,world=1"), "a stage within nodes and one between them need --ranks-per-node"),
            (("--zero", "node=3,world=1", "--ranks-per-node", 4), "two stages need several nodes of several ranks"),
            (("--secondary-shards", "all"), "--secondary-shards all needs --ranks-per-node")):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", 4, "--optimizer", "sgd:lr=0.1", *options)
        expect_short_error(out, words.split(), 1)
    for stages in ("node=1,world=3", "node=4,world=1", "world=1", "node=3"):
        out = session.call("sheaf", "compile", graph, "-o", session.folder() / "x.plan", "--batch", 8, "--ranks", 4, "--ranks-per-node", 2, "--zero", stages)
        expect_short_error(out, ["node=S,world=T"], 2)
    config = CONFIGS["mlp-adamw"]
    plan = session.plan(config.model, 6, 3, 12, config.options + buckets("--ranks-per-node", 2))
    with Job(session, 2, plan, *data_arguments(config), "--steps", 1, environment=lambda rank: {"SHEAF_HOST": "ab"[rank]}) as job:
        expect(job.wait() == [1, 1] and "one must divide the other" in job.processes[0].error_text(), job.processes[0].error_text())
