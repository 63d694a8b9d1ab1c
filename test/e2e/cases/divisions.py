"""One batch of eight leaves, divided in every way: ranks, micro-batches, stages, threads and processes leave the same weights.

`make test` runs a set in which every two settings that go together occur together; `make bits` runs all of them for 100 steps,
with six and twelve leaves and with changes of the number of ranks in mid-run.
"""
import itertools

from formats import read_log
from harness import Case, digest, expect
from jobs import Job
from training import CONFIGS, data_arguments, train

ROWS = 2  # of a leaf
LEAVES = 8
SETTINGS = {
    "model": ("mlp-adamw", "cnn-adamw", "gpt2-tiny", "llama-tiny"),
    "precision": ("f32", "bf16", "f16"),
    "clip": (None, 0.1),
    "division": tuple((n, m) for n in (1, 2, 4, 8) for m in (1, 2, 4, 8) if 1 < n * m <= LEAVES),  # ranks x micro-batches
    "node": (None, 2, 4),  # ranks
    "zero": (0, 1, 2, 3, "node=3,world=0", "node=3,world=1"),
    "reduce": (None, "each", "last"),
    "where": ("threads", "processes", "hosts"),  # hosts: processes without memory in common
    "resumed": (False, True),
}


def allowed(ranks, micro, node, zero, reduce, where):
    if isinstance(zero, str) and not (node and node < ranks):
        return False
    return (ranks > 1 or (zero == 0 and where == "threads")) and (micro > 1) == bool(reduce) and (not node or ranks % node == 0)


def cases(session):
    if session.every_division:
        yield from every(session)
        return
    for model, precision in itertools.product(SETTINGS["model"], SETTINGS["precision"]):
        yield Case(f"divisions/{model}/{precision}", lambda m=model, p=precision: some_ways(session, m, p))


def covering():
    """A small list of settings, in which each pair of values that any allowed settings have occurs at least once."""
    every = [c for c in (dict(zip(SETTINGS, values)) for values in itertools.product(*SETTINGS.values()))
             if allowed(*c["division"], c["node"], c["zero"], c["reduce"], c["where"])]
    having = {}
    for i, one in enumerate(every):
        for pair in itertools.combinations(one.items(), 2):
            having.setdefault(pair, []).append(i)
    chosen, missing = [], dict.fromkeys(having)
    while missing:
        # Of the settings with the rarest pair that is missing, those with the most missing ones.
        rarest = min(missing, key=lambda pair: len(having[pair]))
        best = max(having[rarest][:500], key=lambda i: sum(p in missing for p in itertools.combinations(every[i].items(), 2)))
        chosen.append(every[best])
        for pair in itertools.combinations(every[best].items(), 2):
            missing.pop(pair, None)
    return chosen


def options_of(leaves, precision, clip, division, node, reduce):
    ranks, micro = division
    return ("--bucket-size", 64 << 10, *(("--leaves", leaves) if ranks * micro < leaves else ()), "--precision", precision,
            *(("--clip-norm", clip) if clip else ()), *(("--micro-batches", micro) if micro > 1 else ()),
            *(("--reduce", reduce) if reduce else ()), *(("--ranks-per-node", node) if node else ()))


def undivided(leaves):
    """The fewest ranks that `leaves` can be divided among: the odd factor."""
    return leaves // (leaves & -leaves)


def plan(session, leaves, model, precision, clip, division, node, zero, reduce, **_):
    config = CONFIGS[model]
    return session.plan(config.model, division[0], zero, leaves * ROWS, config.options + options_of(leaves, precision, clip, division, node, reduce))


def run(session, leaves, steps, model, precision, clip, division, node, zero, reduce, where, more=()):
    """The weights after `steps`."""
    ranks, config = division[0], CONFIGS[model]
    if where == "threads":
        options = options_of(leaves, precision, clip, division, node, reduce)
        return train(session, config, ranks, zero, steps, options, more, batch=leaves * ROWS).weights
    made, folder = plan(session, leaves, model, precision, clip, division, node, zero, reduce), session.folder()
    hosts = "abcdefghijkl"[:ranks] if where == "hosts" else "a" * ranks
    with Job(session, ranks, made, *data_arguments(config), "--steps", steps, "--save", folder / "weights", "--log", folder / "log",
             *more, environment=lambda rank: {"SHEAF_HOST": hosts[rank]}) as job:
        job.succeed()
    start = read_log(folder / "log")[1][0]
    expect(start["nodes"] == len(set(hosts)), f"the log begins with {start}")
    return folder / "weights"


def some_ways(session, model, precision):
    ways = [{k: v for k, v in c.items() if k not in ("model", "precision")} for c in session.once("covering", covering)
            if (c["model"], c["precision"]) == (model, precision)]
    for way in ways:
        same(session, LEAVES, 10, model, precision, **way)
    return "\n".join(map(described, ways))


def described(way):
    words = (f"{key} {value}" for key, value in way.items() if key != "division" and value not in (None, False))
    return "{} ranks x {} micro-batches".format(*way["division"]) + "".join(f", {word}" for word in words)


def whole_batch(leaves, model, precision, clip=None):
    """What all divisions must leave the weights of: as few ranks as possible, without micro-batches."""
    return dict(model=model, precision=precision, clip=clip, division=(undivided(leaves), 1), node=None, zero=0, reduce=None, where="threads")


def same(session, leaves, steps, model, precision, clip=None, resumed=False, **divided):
    whole = whole_batch(leaves, model, precision, clip)
    # Known before anything has run.
    plans = [plan(session, leaves, **kind) for kind in (whole, whole | divided)]
    session.once(("same", *plans), lambda: session.succeed("sheaf", "same", *plans))
    expected, more = digest(run(session, leaves, steps, **whole)), ()
    if resumed:
        state = session.once(("state", leaves, steps, model, precision, clip), lambda: saved(session, leaves, steps // 2, whole))
        more = ("--resume", state)
    weights = run(session, leaves, steps, model, precision, clip, **divided, more=more)
    expect(digest(weights) == expected, f"{described(divided)}: other weights than those of as few ranks as possible")


def saved(session, leaves, steps, whole):
    state = session.folder() / "state"
    run(session, leaves, steps, **whole, more=("--save-state", state))
    return state


def every(session):
    for leaves in (LEAVES, 6, 12):
        counts = [n for n in range(undivided(leaves), leaves + 1) if leaves % n == 0 and n % undivided(leaves) == 0]
        for model, precision, ranks in itertools.product(SETTINGS["model"], SETTINGS["precision"], counts):
            yield Case(f"divisions/{leaves}-leaves/{model}/{precision}/{ranks}-ranks",
                       lambda a=(leaves, model, precision, ranks): every_way(session, *a))
        for model, precision in itertools.product(SETTINGS["model"], SETTINGS["precision"]):
            yield Case(f"divisions/{leaves}-leaves/{model}/{precision}/elastic",
                       lambda a=(leaves, model, precision, counts): elastic(session, *a))


def every_way(session, leaves, model, precision, ranks):
    count = 0
    others = (SETTINGS[name] for name in ("node", "zero", "reduce", "where"))
    for micro, node, zero, reduce, where in itertools.product((1, 2, 4, 8), *others):
        if leaves % (ranks * micro) or not allowed(ranks, micro, node, zero, reduce, where):
            continue
        if reduce == "each" and ranks & (ranks - 1):
            continue  # needs a power of two
        same(session, leaves, session.steps, model, precision, division=(ranks, micro), node=node, zero=zero, reduce=reduce, where=where)
        count += 1
    return f"{count} ways"


def elastic(session, leaves, model, precision, counts):
    """The number of ranks, the stage and the micro-batches change at every fifth of the run."""
    expected = digest(run(session, leaves, session.steps, **whole_batch(leaves, model, precision)))
    state, weights, part = None, None, session.steps // 5
    for leg in range(5):
        ranks = counts[(3 * leg + len(counts) - 1) % len(counts)]
        micro = 2 if leg % 2 and leaves % (2 * ranks) == 0 else 1
        after = session.folder() / "state"
        weights = run(session, leaves, (leg + 1) * part, model, precision, None, (ranks, micro), None, 0 if ranks == 1 else 3 - leg % 4, "last" if micro > 1 else None,
                      "threads", ("--save-state", after, *(("--resume", state) if state else ())))
        state = after
    expect(digest(weights) == expected, "other weights than those of an undisturbed run")
