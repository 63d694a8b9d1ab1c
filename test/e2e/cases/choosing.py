"""What the compiler chooses when it is left the choice, and what it says when nothing fits: sheaf compile and sheaf fit."""
import json

from harness import MODELS, ROOT, Case, expect, expect_short_error

MODEL = MODELS / "gpt2-mini.onnx"


def cases(session):
    yield Case("choosing/auto", lambda: auto(session))
    yield Case("choosing/memory-limit", lambda: memory_limit(session))
    yield Case("choosing/too-little-memory", lambda: too_little(session))
    yield Case("choosing/recompute", lambda: recompute(session))
    yield Case("choosing/overrides", lambda: overrides(session))
    yield Case("choosing/retention", lambda: retention(session))
    yield Case("choosing/baselines", lambda: baselines(session))
    yield Case("choosing/baselines-on-nodes", lambda: baselines_on_nodes(session))
    yield Case("choosing/short-steps", lambda: short_steps(session))
    yield Case("choosing/fit", lambda: fit(session))
    yield Case("choosing/fit-offload", lambda: fit_offload(session))
    yield Case("choosing/fit-generations", lambda: fit_generations(session))
    yield Case("choosing/fit-one-node", lambda: fit_one_node(session))
    yield Case("choosing/fit-errors", lambda: fit_errors(session))


def compiled(session, *options):
    """The summary and the path of a plan, which is made once for each set of options."""
    def compile_it():
        out = session.folder() / "out.plan"
        session.succeed("sheaf", "compile", MODEL, "-o", out, "--ranks", 4, "--batch", 8, *options)
        return session.inspect(out), out

    return session.once(("choosing", options), compile_it)


def auto(session):
    """Without --zero the plan is the best one, and never slower than any stage by itself."""
    _, chosen = compiled(session)
    best = simulated(session, chosen)["step_seconds"]
    for stage in range(4):
        _, fixed = compiled(session, "--zero", stage)
        expect(best <= simulated(session, fixed)["step_seconds"] * 1.002, f"stage {stage} would be faster than what was chosen")


def simulated(session, plan, profile="cpu"):
    return json.loads(session.succeed("sheaf", "simulate", plan, "--profile", profile, "--json").out)


def memory_limit(session):
    """A limit is kept to the byte, by a higher stage or by recomputing no more than it takes."""
    free, _ = compiled(session, "--zero", 3)
    peak = free["memory"]["peak_bytes"]
    times = []
    for percent in (100, 85, 70, 62):
        limit = peak * percent // 100
        plan, path = compiled(session, "--memory-limit", limit)
        expect(plan["memory"]["peak_bytes"] <= limit, f"{plan['memory']['peak_bytes']} bytes are over the limit of {limit}")
        times.append(simulated(session, path)["step_seconds"])
    expect(times == sorted(times), f"less memory gave faster steps: {times}")


def too_little(session):
    out = session.folder() / "no.plan"
    done = session.call("sheaf", "compile", MODEL, "-o", out, "--ranks", 4, "--batch", 8, "--memory-limit", "20MiB")
    expect_short_error(done, ["recomputing everything", "bytes) too much", "--ranks"])
    expect(not out.exists(), "something is left at -o")


def recompute(session):
    """Recomputation saves activations and costs time; the summary shows both."""
    plain, fast = compiled(session, "--zero", 3)
    full, small = compiled(session, "--zero", 3, "--recompute", "all")
    kinds = [plan["memory"]["by_kind"]["activations"] for plan in (plain, full)]
    expect(kinds[1] < 0.5 * kinds[0], f"activations fell only from {kinds[0]} to {kinds[1]}")
    seconds = [simulated(session, plan)["step_seconds"] for plan in (fast, small)]
    expect(1.05 < seconds[1] / seconds[0] < 1.5, f"recomputation changes the predicted step from {seconds[0]} to {seconds[1]}")


def overrides(session):
    gathers = lambda plan: sum(c["op"] == "all_gather" for c in plan["communication"])
    plain, _ = compiled(session, "--zero", 3)
    kept, _ = compiled(session, "--zero", 3, "--keep", "h.0")
    all_kept, _ = compiled(session, "--zero", 3, "--keep", ".")
    large, _ = compiled(session, "--zero", 3, "--bucket-size", "64MiB")
    counts = [gathers(p) for p in (plain, kept, all_kept, large)]
    expect(counts[0] > counts[1] > counts[2] > counts[3], f"gathers of plain, partly kept, kept, one bucket: {counts}")
    for options, words, code in (
            (("--keep", "nothing-like-it"), "matches no parameter", 1), (("--keep", "("), "--keep", 1), (("--profile", "h100x9"), "h100x9", 1),
            (("--prefetch", "-1"), "--prefetch", 2), (("--zero", "4"), "expected auto, a stage from 0 to 3", 2),
            (("--memory-limit", "much"), "--memory-limit", 2), (("--recompute", "some"), "expected one of auto, none, kernels, all", 2)):
        done = session.call("sheaf", "compile", MODEL, "-o", session.folder() / "no.plan", "--ranks", 4, "--batch", 8, *options)
        expect_short_error(done, [words], code)


def retention(session):
    """With a given stage, buckets stay gathered where that is faster and a memory limit leaves room; --keep decides otherwise."""
    gathers = lambda plan: sum(c["op"] == "all_gather" and c["phase"] != "update" for c in plan["communication"])
    out = session.folder() / "out.plan"

    def compiled(*options):
        session.succeed("sheaf", "compile", MODEL, "-o", out, "--ranks", 8, "--batch", 8, "--zero", 3, "--profile", "rtx4090", *options)
        return session.inspect(out), simulated(session, out, "rtx4090")["step_seconds"]

    chosen, fast = compiled()
    none, slow = compiled("--keep", "none")
    expect(fast < 0.95 * slow and gathers(chosen) < gathers(none), f"keeping takes {fast} s, not keeping {slow} s")
    expect(none["buckets"] == chosen["buckets"], "retention changes the buckets")
    every, all_kept = compiled("--keep", ".")
    expect(gathers(every) == gathers(chosen) and abs(all_kept / fast - 1) < 1e-3, "there was room for all")
    # Room for some of them only, and for none.
    peaks = [plan["memory"]["peak_bytes"] for plan in (none, chosen)]
    some, between = compiled("--memory-limit", (peaks[0] + peaks[1]) // 2)
    expect(some["memory"]["peak_bytes"] <= (peaks[0] + peaks[1]) // 2, "the limit is not kept")
    expect(gathers(chosen) < gathers(some) < gathers(none) and fast < between < slow, f"{gathers(some)} gathers, {between} s")
    # Without a limit a given stage keeps what it saves.
    session.succeed("sheaf", "compile", MODEL, "-o", out, "--ranks", 8, "--batch", 8, "--zero", 3)
    expect(gathers(session.inspect(out)) == gathers(none), "buckets stay without a memory limit")


def slowed(session, name, factor):
    """The path of a profile like a shipped one on which everything takes `factor` times as long."""
    def scale(value, by):
        return [scale(v, by) for v in value] if isinstance(value, list) else value * by

    def slow(entry):
        for key, value in entry.items():
            if key in ("seconds", "latency", "hop", "network_hop"):
                entry[key] = scale(value, factor)
            elif key in ("rate", "bandwidth", "operations", "network_share"):
                entry[key] = [[size, scale(v, 1 / factor)] for size, v in value] if isinstance(value, list) else value / factor
            else:
                for inner in value if isinstance(value, list) else [value]:
                    if isinstance(inner, dict):
                        slow(inner)

    machine = json.loads((ROOT / "passes" / "schedule" / "profiles" / f"{name}.json").read_text())
    slow(machine)
    path = session.folder() / f"{name}.json"
    path.write_text(json.dumps(machine))
    return path


def short_steps(session):
    """Other systems are compared with steps from 1 ms on. Below, a line and a key say why they are not."""
    graph, plan = session.graph("gpt2-tiny"), session.plan("gpt2-tiny", 4, 3, 8)
    unit = simulated(session, plan, "h100")["step_seconds"]
    fit = lambda profile, *options: session.succeed("sheaf", "fit", graph, "--ranks", 4, "--batch", 8, "--memory", "4GiB", "--profile", profile, *options).out
    fit_unit = json.loads(fit("h100", "--json"))["fastest"]["step_seconds"]
    names = {"fsdp2", "deepspeed", "deepcompile", "ddp", "eager"}
    line = "\nother systems: not compared, since the step is below 1 ms"
    for milliseconds, compared in ((0.98, False), (1.02, True)):
        profile, fit_profile = (slowed(session, "h100", milliseconds * 1e-3 / seconds) for seconds in (unit, fit_unit))
        report, fastest = simulated(session, plan, profile), json.loads(fit(fit_profile, "--json"))["fastest"]
        for command, object, text in (("simulate", report, session.succeed("sheaf", "simulate", plan, "--profile", profile).out),
                                      ("fit", fastest, fit(fit_profile))):
            step = object["step_seconds"]
            expect(abs(step * 1e3 / milliseconds - 1) < 0.01, f"{command}: the step takes {step} s on a machine made for {milliseconds} ms")
            expect(set(object["baselines"]) == (names if compared else set()), f"{command}: {step} s, baselines {sorted(object['baselines'])}")
            expect(object["baselines_left_out"] == (None if compared else "the step is below 1 ms"), f"{command}: {object['baselines_left_out']}")
            expect((line in text) == (not compared) and all((f"\n  {name} " in text) == compared for name in names), f"{command}: {text}")
    # They are not modelled for several micro-batches, however long the step is.
    reason = "other systems are not modelled for several micro-batches"
    report = simulated(session, session.plan("gpt2-tiny", 4, 3, 8, ("--micro-batches", 2)), profile)
    expect(not report["baselines"] and report["baselines_left_out"] == reason, f"micro-batches: {report['baselines_left_out']}")
    # On one rank there are no other systems to leave out.
    alone = session.plan("gpt2-tiny", 1, 0, 8)
    report = simulated(session, alone, "h100")
    expect(report["step_seconds"] < 1e-3 and report["baselines_left_out"] is None and not report["baselines"], f"one rank: {report}")
    expect("other systems" not in session.succeed("sheaf", "simulate", alone, "--profile", "h100").out, "one rank: other systems are left out")


def baselines_on_nodes(session):
    """Where the profile has several nodes, HSDP, MiCS and hpZ stand in the table: state within a node needs more memory."""
    plan, profile = session.plan("gpt2-tiny", 16, 3, 16), slowed(session, "h100", 100)  # by itself the step is too short to be compared
    report = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", profile, "--json").out)
    theirs = report["baselines"]
    expect(set(theirs) == {"fsdp2", "hsdp", "deepspeed", "mics", "hpz", "deepcompile", "ddp", "eager"}, f"baselines: {sorted(theirs)}")
    expect("2 replicas of 8 shards" in theirs["hsdp"]["knobs"], theirs["hsdp"]["knobs"])
    expect("mics_shard_size 8" in theirs["mics"]["knobs"], theirs["mics"]["knobs"])
    expect("zero_hpz_partition_size 8" in theirs["hpz"]["knobs"], theirs["hpz"]["knobs"])
    text = session.succeed("sheaf", "simulate", plan, "--profile", profile).out
    expect(all(f"\n  {name} " in text for name in theirs), text)
    links = report["links"]
    expect(links["node"]["bytes"] > links["network"]["bytes"] > 0 and "\n  network " in text, f"links: {links}")
    fit = json.loads(session.succeed("sheaf", "fit", session.graph("gpt2-tiny"), "--ranks", 16, "--memory", "4GiB", "--profile", profile, "--json").out)
    fastest = fit["fastest"]
    expect(set(fastest["baselines"]) == set(theirs) and fastest["links"]["network"]["seconds"] > 0, f"fastest: {fastest}")
    expect(fastest["step_seconds"] == min(s["step_seconds"] for s in fit["stages"] if s["fits"]), f"fastest: {fastest}")


def baselines(session):
    """Within our bytes no other system's schedule is faster, whatever its knobs; with more bytes none is by 0.5 %."""
    _, plan = compiled(session)
    report = simulated(session, plan)
    expect(set(report["baselines"]) == {"fsdp2", "deepspeed", "deepcompile", "ddp", "eager"}, f"baselines: {sorted(report['baselines'])}")
    for name, baseline in report["baselines"].items():
        expect(baseline["fits"] and baseline["knobs"], f"{name}: {baseline}")
        expect(report["step_seconds"] <= baseline["step_seconds"] * 1.005, f"{name} takes {baseline['step_seconds']}, ours {report['step_seconds']}")
    within = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", "cpu", "--memory-limit", report["peak_bytes"], "--json").out)
    for name, baseline in within["baselines"].items():
        faster = baseline["step_seconds"] < report["step_seconds"] * (1 - 1e-3)
        expect(not (baseline["fits"] and faster), f"{name} takes {baseline['step_seconds']} in {baseline['peak_bytes']} bytes, ours {report['step_seconds']}")


def fitted(session, *arguments):
    """Returns what fit prints, and expects the exit status to say whether a stage fits."""
    done = session.call("sheaf", "fit", *arguments)
    fits = done.out and (any(s["fits"] for s in json.loads(done.out)["stages"]) if "--json" in arguments else "It fits." in done.out)
    expect(done.out and done.code == (0 if fits else 1), f"exit {done.code}\n{done.out}{done.err}")
    return done.out


def fit(session):
    """fit's figures are those of the plans it speaks of."""
    out = fitted(session, MODEL, "--ranks", 4, "--batch", 8, "--memory", "100MiB", "--json")
    report = json.loads(out)
    expect([s["stage"] for s in report["stages"]] == [0, 1, 2, 3], "the stages are not 0 to 3")
    for stage in report["stages"]:
        plan, _ = compiled(session, "--zero", stage["stage"], "--recompute", "none")
        peak = stage["without_recompute"]["peak_bytes"]
        expect(peak == plan["memory"]["peak_bytes"], f"stage {stage['stage']}: {peak} bytes, the plan has {plan['memory']['peak_bytes']}")
        needed = stage["without_recompute"]["needed_bytes"]
        whole = peak + plan["memory"]["library_bytes"]
        expect(needed == whole > peak, f"stage {stage['stage']}: needs {needed} bytes, sheaf-run counts {whole}")
        for kind in ("without_recompute", "with_recompute"):
            layout = stage[kind]
            expect(layout["fits"] == (layout["needed_bytes"] <= 100 << 20), f"stage {stage['stage']}, {kind}: fits is {layout['fits']}")
    expect({s["fits"] for s in report["stages"]} == {True, False}, "100 MiB fit every stage or none")
    # Room for the arena alone is not enough, and what is needed is.
    _, smallest = min((s["with_recompute"]["needed_bytes"], s["stage"]) for s in report["stages"])
    for slack, fits in ((0, True), (-1, False)):
        memory = min(s["with_recompute"]["needed_bytes"] for s in report["stages"]) + slack
        again = json.loads(fitted(session, MODEL, "--ranks", 4, "--batch", 8, "--memory", memory, "--json"))
        expect(again["stages"][smallest]["with_recompute"]["fits"] >= fits, f"{memory} bytes: does not fit")
        if not fits:
            layout = again["stages"][smallest]["with_recompute"]
            expect(layout["fits"] == (layout["needed_bytes"] <= memory), f"{memory} bytes: {layout}")
    ranks = report["smallest_ranks"]
    expect(ranks > 1, "100 MiB fit one rank")
    for n, fits in ((ranks, True), (ranks - 1, False)):
        again = json.loads(fitted(session, MODEL, "--ranks", n, "--batch", 2 * n, "--memory", "100MiB", "--json"))
        expect(any(s["fits"] for s in again["stages"]) == fits, f"{n} ranks: fits is not {fits}")
    text = fitted(session, MODEL, "--ranks", 4, "--memory", "24GiB")
    expect("It fits." in text and "ZeRO-3" in text, f"the text does not say it: {text}")


def fit_generations(session):
    """fit counts as many places of a state in files as its plan has."""
    def files(*options):
        return json.loads(session.succeed("sheaf", "fit", session.graph("gpt2-tiny"), "--ranks", 2, "--batch", 8, "--memory", "4GiB", "--profile", "cpu",
                                          "--offload", "optimizer=file,parameters=file", "--json", *options).out)["stages"][3]["with_offload"]["file_bytes"]

    expect(files() == files("--file-generations", 2) == 2 * files("--file-generations", 1), "not twice the files for two generations")


def fit_offload(session):
    """fit says what has to be elsewhere, what binds, and what a disk is worn by; it counts frozen parameters and clipping."""
    graph = session.graph("gpt2-tiny")
    machine = slowed(session, "rtx4090", 100)  # by itself the step is too short to be compared with other systems'

    def run(*options):
        return ("fit", graph, "--ranks", 4, "--batch", 8, "--profile", machine, *options)

    plain = json.loads(session.succeed("sheaf", *run("--memory", "24GiB", "--json")).out)["stages"][3]["with_recompute"]
    besides = plain["needed_bytes"] - plain["peak_bytes"]
    limits = ("--memory", besides + plain["peak_bytes"] * 85 // 100, "--offload", "auto", "--host-memory", "256KiB", "--file-space", "64MiB")
    report = json.loads(session.succeed("sheaf", *run(*limits, "--json")).out)
    stage = report["stages"][3]
    expect(not stage["without_recompute"]["fits"] and not stage["with_recompute"]["fits"], f"it fits without offload: {stage}")
    moved = stage["with_offload"]
    expect(moved["fits"] and moved["host_bytes"] <= 256 << 10 and moved["file_bytes"] > 0, f"{moved}")
    fastest = report["fastest"]
    names = [r["name"] for r in fastest["resources"]]
    expect({"compute", "between ranks", "to_device", "to_host", "file_in", "file_out"} <= set(names), f"resources: {names}")
    bounds = [r["bound_seconds"] for r in fastest["resources"]]
    expect(bounds == sorted(bounds, reverse=True) and bounds[0] <= fastest["bound_seconds"] * 1.000001, f"bounds: {bounds}")
    written = fastest["written"]
    expect(written["step_bytes"] > 0, f"{written}")
    expect(abs(written["day_bytes"] * fastest["step_seconds"] / 86400 / written["step_bytes"] - 1) < 1e-6, f"{written}")
    expect({"zero-offload", "zero-infinity", "superoffload"} <= set(fastest["baselines"]), f"{sorted(fastest['baselines'])}")
    for name, baseline in fastest["baselines"].items():
        expect(not baseline["fits"] or baseline["host_bytes"] <= 256 << 10, f"{name}: {baseline}")
    text = session.succeed("sheaf", *run(*limits)).out
    for words in ("offloading", "in files", f"bottleneck: {names[0]}", "TB a day"):
        expect(words in text, f"no {words!r} in {text}")

    def peak(*options):
        return json.loads(session.succeed("sheaf", *run("--memory", "24GiB", "--json", *options)).out)["stages"][0]["without_recompute"]["peak_bytes"]

    expect(peak("--freeze", "h\\.") < peak() < peak("--clip-norm", "1"), "frozen parameters or clipping are not counted")


def fit_one_node(session):
    """A profile that was measured on one node says which of its ranks do, and nothing of more."""
    path = session.folder() / "node.json"
    machine = json.loads((ROOT / "passes" / "schedule" / "profiles" / "h100.json").read_text())
    machine["collectives"] = [c for c in machine["collectives"] if not c.get("network")]
    path.write_text(json.dumps(machine))

    def run(memory, *options):
        return fitted(session, MODEL, "--ranks", 2, "--batch", 4, "--memory", memory, "--profile", path, *options)

    enough = json.loads(run("80GiB", "--json"))
    expect(1 <= enough["smallest_ranks"] <= 2, f"80 GiB take {enough.get('smallest_ranks')} ranks")
    none = run("1MiB")
    expect("It does not fit." in none and "on up to 8 ranks" in none and "such as h100" in none, none)
    expect("smallest_ranks" not in json.loads(run("1MiB", "--json")), "8 ranks fit")
    expect_short_error(session.call("sheaf", "fit", MODEL, "--ranks", 16, "--memory", "80GiB", "--profile", path),
                       ["one node of 8", "knows no network"])


def fit_errors(session):
    for arguments, words, code in (((MODEL, "--ranks", 4), "--memory SIZE is missing", 2), ((MODEL, "--memory", "1GiB"), "--ranks N is missing", 2),
                                   ((MODEL, "--ranks", 4, "--memory", "lots"), "expected a size in bytes", 2),
                                   ((MODEL, "--ranks", 4, "--batch", 3, "--memory", "1GiB"), "batch", 1)):
        expect_short_error(session.call("sheaf", "fit", *arguments), [words], code)
