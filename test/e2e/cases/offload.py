"""Buffers in host memory and in files: the same bits as on the device, and the bytes that the plan declares."""
import json
import os
import subprocess
import time

from formats import read_log
from harness import ROOT, Case, Failure, digest, expect, expect_short_error, plan_bytes
from training import CONFIGS, data_arguments, in_turn, train

STEPS = 10
KINDS = ("optimizer", "parameters", "gradients", "activations")
MODELS = ("mlp-adamw", "gpt2-tiny", "llama-tiny")
# With these every kind of combination is compiled once.
SETTINGS = {
    "clipped": ("--clip-norm", "1"),
    "bf16": ("--precision", "bf16"),
    "micro-batches": ("--micro-batches", "2"),
    "leaves": ("--leaves", "4"),
    "nodes": ("--ranks-per-node", "2"),
    "recomputing": ("--recompute", "all"),
    "prefetch": ("--prefetch", "1"),
}


def everything(space):
    return ",".join(f"{kind}={space}" for kind in KINDS)


def cases(session):
    for model, name in enumerate(MODELS):
        turn = model
        for ranks, stages in ((1, (0,)), (2, (0, 3)), (4, (1, 2, 3))):
            for zero in stages if not session.quick else stages[-1:]:
                turn += 1
                yield Case(f"offload/bits/{name}/ranks-{ranks}/zero-{zero}",
                           lambda n=name, r=ranks, z=zero, t=turn if model else None: bits(session, CONFIGS[n], r, z, t))
    for what in SETTINGS:
        yield Case(f"offload/with/{what}", lambda w=what: combined(session, w))
    yield Case("offload/with/evaluation", lambda: evaluated(session))
    for name in ("gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, 0), (4, 1), (4, 3)):
            yield Case(f"offload/memory/{name}/ranks-{ranks}/zero-{zero}",
                       lambda n=name, r=ranks, z=zero: memory(session, CONFIGS[n], r, z))
    for name in ("gpt2-tiny", "llama-tiny"):
        for ranks, zero in ((1, "0"), (2, "1"), (4, "3"), (4, "auto")):
            yield Case(f"offload/auto/{name}/ranks-{ranks}/zero-{zero}",
                       lambda n=name, r=ranks, z=zero: automatic(session, CONFIGS[n], r, z))
    yield Case("offload/touched", lambda: touched(session))
    yield Case("offload/limits", lambda: limits(session))
    yield Case("offload/late", lambda: late(session))
    yield Case("offload/chosen", lambda: chosen(session))
    yield Case("offload/resumed", lambda: resumed(session))
    yield Case("offload/digests", lambda: digests(session))
    yield Case("offload/text", lambda: text(session))
    yield Case("offload/simulated", lambda: simulated(session))
    yield Case("offload/folders", lambda: folders(session))
    yield Case("offload/busy-folder", lambda: busy(session))
    yield Case("offload/refused", lambda: refused(session))


def late(session):
    """Where computation is late because of files, compiling ends: fetches that may wait for as long as it is late once waited for ever."""
    for zero in range(4):
        session.succeed("sheaf", "compile", session.graph("tutorial"), "-o", session.folder() / "a.plan", "--ranks", 4, "--batch", 16, "--zero", zero,
                        "--memory-limit", "2MiB", "--offload", "optimizer=file,parameters=file", timeout=100)


def run_options(session, offload):
    if "file" not in offload:
        return ()
    return ("--offload-dir", session.folder())


def with_offload(session, config, ranks, zero, offload, steps=STEPS, options=(), more=()):
    # The folder is not part of what is run: a run is made once for each plan.
    def run():
        return train(session, config, ranks, zero, steps, ("--offload", offload, *options), (*run_options(session, offload), *more))
    return session.once(("offload", config.name, ranks, zero, offload, steps, options, tuple(map(str, more))), run)


def expect_same(trained, others):
    for what, other in others:
        expect([s["loss"] for s in other.steps] == [s["loss"] for s in trained.steps], f"{what}: other losses")
        expect(digest(other.weights) == digest(trained.weights), f"{what} leaves other weights")


def bits(session, config, ranks, zero, turn):
    """With a turn, the two language models divide the ways among each other."""
    ways = [f"{kind}=host" for kind in KINDS] + [everything("host"), everything("file"),
                                                "optimizer=file,parameters=host,activations=file"]
    if session.quick:
        ways = ways[-3:]
    elif turn is not None:
        ways = in_turn(session, ways, turn, len(MODELS) - 1)
    expect_same(train(session, config, ranks, zero, STEPS),
                [(way, with_offload(session, config, ranks, zero, way)) for way in ways])


def combined(session, what):
    config, options = CONFIGS["gpt2-tiny"], SETTINGS[what]
    ranks = 2 if what == "leaves" else 4  # so that leaves share a rank
    plain = train(session, config, ranks, 3, STEPS, options)
    expect_same(plain, [(way, with_offload(session, config, ranks, 3, way, options=options))
                        for way in (everything("host"), everything("file"))])


def evaluated(session):
    """An evaluation fetches what it reads, and changes nothing."""
    config = CONFIGS["gpt2-tiny"]
    evaluation = ("--eval-every", 5, *(f"--eval-{a[2:]}" if a == "--data" else a for a in data_arguments(config)))
    logs = []
    for offload in (None, everything("host"), everything("file")):
        where = session.folder()
        plan = session.plan(config.model, 2, 3, 8, (*config.options, "--eval", *(("--offload", offload) if offload else ())))
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", STEPS, *evaluation, "--log", where / "run.jsonl",
                        "--save", where / "weights.safetensors", *run_options(session, offload or ""))
        steps, events = read_log(where / "run.jsonl")
        logs.append(([s["loss"] for s in steps], [(e["step"], e["loss"]) for e in events if e["event"] == "eval"],
                     digest(where / "weights.safetensors")))
    expect(len(logs[0][1]) == 2, f"evaluations: {logs[0][1]}")
    expect(logs[1] == logs[0] and logs[2] == logs[0], f"other results: {logs}")


def memory(session, config, ranks, zero):
    """What is moved leaves the device and is all that there is elsewhere; images come to the device for their use only."""
    def inspect(offload):
        extra = ("--offload", offload) if offload else ()
        return session.inspect(session.plan(config.model, ranks, zero, 8, config.options + extra))["memory"]

    plain = inspect(None)
    moved = plain["by_kind"]["optimizer"]
    for space in ("host", "file"):
        found = inspect(f"optimizer={space}")
        there = found["spaces"][space]
        expect(there["by_kind"] == {"optimizer": moved}, f"in {space}: {there['by_kind']}, moved were {moved}")
        expect(moved <= there["peak_bytes"] <= moved + (4096 * 64 if space == "file" else 0), f"{space}: peak {there['peak_bytes']}")
        images = found["by_kind"]["optimizer"]
        expect(0 < images <= 0.6 * moved, f"{images} bytes of images, {moved} of state")
        saved = plain["peak_bytes"] - found["peak_bytes"]
        expect(0.5 * moved <= saved <= moved, f"{saved} bytes saved of {moved}, images have {images}")
        others = {k: v for k, v in found["by_kind"].items() if k != "optimizer"}
        expect(others["parameters"] == plain["by_kind"]["parameters"], f"{others}")
    both = inspect("optimizer=host,parameters=file")
    expect(both["spaces"]["host"]["by_kind"] == {"optimizer": moved}, f"{both}")
    expect(both["spaces"]["file"]["by_kind"] == {"parameters": plain["by_kind"]["parameters"]}, f"{both}")


def touched(session):
    """A run touches no byte after the device's arena."""
    config = CONFIGS["gpt2-tiny"]
    for offload in (everything("host"), everything("file")):
        where = session.folder()
        plan = session.plan(config.model, 4, 3, 8, config.options + ("--offload", offload))
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 3, "--poison", "--log", where / "run.jsonl",
                        *run_options(session, offload))
        arenas = [e for e in read_log(where / "run.jsonl")[1] if e["event"] == "arena"]
        expect(len(arenas) == 4, f"{arenas}")
        expect(all(0 < a["highest_touched_byte"] <= a["peak_bytes"] for a in arenas), f"{arenas}")


def limits(session):
    """A limit is kept with offload where it cannot be without, and one that nothing meets names the instruction."""
    config = CONFIGS["gpt2-tiny"]
    graph = session.graph(config.model)
    compile_it = ("compile", graph, "--ranks", 1, "--batch", 8, "--recompute", "none", "--bucket-size", 65536, *config.options)
    plain = session.inspect(session.plan(config.model, 1, 0, 8, config.options))["memory"]
    where = session.folder()
    limit = plain["peak_bytes"] - plain["by_kind"]["optimizer"] * 3 // 4
    done = session.call("sheaf", *compile_it, "--memory-limit", limit, "-o", where / "a.plan")
    expect_short_error(done, ["--offload", "instruction", "needs"])
    session.succeed("sheaf", *compile_it, "--memory-limit", limit, "--offload", "optimizer=host", "-o", where / "b.plan")
    found = session.inspect(where / "b.plan")["memory"]
    expect(found["peak_bytes"] <= limit, f"{found['peak_bytes']} bytes are over the limit of {limit}")
    done = session.call("sheaf", *compile_it, "--memory-limit", limit // 16, "--offload", everything("host"), "-o", where / "c.plan")
    expect_short_error(done, ["body", "instruction", "needs", "bytes"])
    moved = found["spaces"]["host"]["peak_bytes"]
    for option, offload in (("--host-memory", "optimizer=host"), ("--file-space", "optimizer=file")):
        done = session.call("sheaf", *compile_it, option, moved // 2, "--offload", offload, "-o", where / "d.plan")
        expect_short_error(done, [option, "--offload"])


def chosen(session):
    """With auto nothing moves that need not; under a limit as much as it takes, by cost, and it is kept."""
    config = CONFIGS["gpt2-tiny"]
    plain = session.inspect(session.plan(config.model, 1, 0, 8, config.options))["memory"]
    free = session.inspect(session.plan(config.model, 1, 0, 8, config.options + ("--offload", "auto")))["memory"]
    expect(free == plain, f"something moves without a limit: {free}")
    before = None
    for part in (0.9, 0.5):
        limit = int(plain["peak_bytes"] * part)
        options = ("--offload", "auto", "--memory-limit", str(limit), "--recompute", "none")
        found = session.inspect(session.plan(config.model, 1, 0, 8, config.options + options))
        expect(found["memory"]["peak_bytes"] <= limit, f"{found['memory']['peak_bytes']} bytes are over the limit of {limit}")
        moved = found["memory"]["spaces"]["host"]["peak_bytes"]
        expect(moved >= plain["peak_bytes"] - limit, f"{moved} bytes moved for a limit of {limit}")
        expect(before is None or moved > before, "a tighter limit moves less")
        expect(any("in host memory" in d for d in found["decisions"]), f"{found['decisions']}")
        before = moved
        expect_same(train(session, config, 1, 0, STEPS), [(f"a limit of {limit}", train(session, config, 1, 0, STEPS, options))])
    tight = session.inspect(session.plan(config.model, 1, 0, 8, config.options + options + ("--host-memory", str(before // 2))))["memory"]
    expect(tight["spaces"]["host"]["peak_bytes"] <= before // 2 if "host" in tight["spaces"] else True, f"{tight}")
    expect("file" in tight["spaces"], f"host memory is full and nothing is in files: {tight['spaces']}")


def automatic(session, config, ranks, zero):
    """auto keeps every limit that moving whole kinds keeps, in no more time, with the same bits."""
    graph, where = session.graph(config.model), session.folder()
    compile_it = ("compile", graph, "--ranks", ranks, "--batch", 8, "--zero", zero, "--bucket-size", 262144, *config.options)
    session.succeed("sheaf", *compile_it, "-o", where / "plain.plan")
    peak = session.inspect(where / "plain.plan")["memory"]["peak_bytes"]

    def seconds(plan):
        return json.loads(session.succeed("sheaf", "simulate", plan, "--profile", "cpu", "--json").out)["step_seconds"]

    def weights(plan):
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 3, "--save", where / "weights.safetensors")
        return digest(where / "weights.safetensors")

    plain = weights(where / "plain.plan")
    for part in (60,) if session.quick else (60, 40, 25):
        limit = peak * part // 100
        named = session.call("sheaf", *compile_it, "--memory-limit", limit, "--offload", everything("host"), "-o", where / "named.plan")
        done = session.call("sheaf", *compile_it, "--memory-limit", limit, "--offload", "auto", "-o", where / "auto.plan")
        if done.code != 0:
            expect(named.code != 0, f"whole kinds fit {part} %, auto does not: {done.err}")
            expect_short_error(done, ["instruction", "needs", "bytes"])
            continue
        found = session.inspect(where / "auto.plan")["memory"]["peak_bytes"]
        expect(found <= limit, f"{found} bytes are over the limit of {limit}")
        if named.code == 0:
            auto, whole = seconds(where / "auto.plan"), seconds(where / "named.plan")
            expect(auto <= whole * 1.001, f"at {part} % auto takes {auto} s, whole kinds {whole} s")
        expect(weights(where / "auto.plan") == plain, f"at {part} % auto leaves other weights")


def resumed(session):
    """A state may be resumed with and without offload, saved by a run with or without."""
    config, half = CONFIGS["gpt2-tiny"], STEPS // 2
    whole = train(session, config, 4, 3, STEPS)
    offloads = {"none": "none", "host": everything("host"), "file": everything("file")}
    states = {}
    for what, offload in offloads.items():
        states[what] = session.folder() / "state"
        with_offload(session, config, 4, 3, offload, half, more=("--save-state", states[what]))
    for before, after in (("none", "host"), ("host", "none"), ("host", "file"), ("file", "host"), ("file", "file")):
        rest = with_offload(session, config, 4, 3, offloads[after], STEPS, more=("--resume", states[before]))
        expect(digest(rest.weights) == digest(whole.weights), f"saved with {before}, resumed with {after}: other weights")


def digests(session):
    """The plan states the same digests of what it computes, wherever its buffers lie."""
    config = CONFIGS["llama-tiny"]

    def dataflow(offload):
        plan = session.plan(config.model, 4, 3, 8, config.options + (("--offload", offload) if offload else ()))
        lines = session.succeed("sheaf", "inspect", plan, "--format", "text").out.splitlines()
        return [line for line in lines if 'plan.digests "dataflow"' in line]

    plain = dataflow(None)
    expect(len(plain) == 1, f"{plain}")
    for offload in (everything("host"), everything("file")):
        expect(dataflow(offload) == plain, f"{offload}: other digests")
    a = session.plan(config.model, 4, 3, 8, config.options)
    b = session.plan(config.model, 4, 3, 8, config.options + ("--offload", everything("file")))
    session.succeed("sheaf", "same", a, b)


def text(session):
    """The text has spaces and transfers, and is read back to the same bytes."""
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, config.options + ("--offload", "optimizer=host,parameters=file"))
    where = session.folder()
    printed = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    for line in ("plan.transfer to_device(r %", "plan.transfer to_host(r %", "plan.transfer read_file(r %", "plan.transfer write_file(r %",
                 " optimizer in host offset ", " parameters in file offset "):
        expect(line in printed, f"no {line!r}")
    (where / "a.mlir").write_text(printed)
    session.succeed("sheaf", "assemble", where / "a.mlir", "-o", where / "b.plan")
    expect(plan_bytes(where / "b.plan") == plan_bytes(plan), "the text is assembled to another plan")
    lines = printed.splitlines()
    stores = [i for i, line in enumerate(lines) if "plan.transfer to_host" in line]
    (where / "c.mlir").write_text("\n".join(lines[:stores[0]] + lines[stores[0] + 1:]))
    session.succeed("sheaf", "assemble", where / "c.mlir", "-o", where / "c.plan")
    expect_short_error(session.call("sheaf", "verify", where / "c.plan"), ["updated", "state"])


def simulated(session):
    """The simulator prices transfers, and names what binds."""
    config = CONFIGS["gpt2-tiny"]
    where = session.folder()
    plan = session.plan(config.model, 4, 3, 8, config.options + ("--offload", "optimizer=file,parameters=host"))
    report = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", "cpu", "--json").out)
    for unit in ("to_device", "read_file", "write_file"):
        expect(report["seconds_by_kind"][unit] > 0, f"{unit}: {report['seconds_by_kind']}")
    for unit in ("to_device", "to_host", "file_in", "file_out"):
        expect(report["bounds"][unit] <= report["bound_seconds"] * 1.000001, f"{unit}: {report['bounds']}")
    resources = {r["name"]: r for r in report["resources"]}
    expect(set(resources) == {"compute", "between ranks", "to_device", "to_host", "file_in", "file_out", "host memory"}, f"{sorted(resources)}")
    moved = {unit: session.inspect(plan)["transfers"][kind]["bytes"] for unit, kind in
             (("to_device", "to_device"), ("file_in", "read_file"), ("file_out", "write_file"))}
    expect(all(resources[unit]["bytes"] == size for unit, size in moved.items()), f"{resources}, {moved}")
    expect(report["written"]["step_bytes"] == 4 * moved["file_out"], f"{report['written']}")
    text = session.succeed("sheaf", "simulate", plan, "--profile", "cpu").out
    expect(f"bottleneck: {report['resources'][0]['name']} (" in text, text)
    expect(report["bounds"]["file_in"] > 0 and report["step_seconds"] >= report["bound_seconds"], f"{report}")
    lacking = json.loads((ROOT / "passes/schedule/profiles/gb200.json").read_text())
    lacking["transfers"] = [t for t in lacking["transfers"] if t["kind"] != "to_device"]
    (where / "lacking.json").write_text(json.dumps(lacking))
    done = session.call("sheaf", "simulate", plan, "--profile", where / "lacking.json")
    expect_short_error(done, ["gb200", "to_device", "transfers"])


def folders(session):
    """Each mistake with the folder is one clear error; several folders are striped."""
    config = CONFIGS["gpt2-tiny"]
    offload = "optimizer=file"
    plan = session.plan(config.model, 2, 1, 8, config.options + ("--offload", offload))
    where = session.folder()
    run = ("sheaf-run", plan, *data_arguments(config), "--steps", 2)
    expect_short_error(session.call(*run), ["--offload-dir"])
    expect_short_error(session.call(*run, "--offload-dir", where / "nowhere"), ["--offload-dir", "nowhere", "folder"])
    (where / "file").write_text("")
    expect_short_error(session.call(*run, "--offload-dir", where / "file"), ["--offload-dir", "folder"])
    plain = session.plan(config.model, 2, 1, 8, config.options)
    expect_short_error(session.call("sheaf-run", plain, *data_arguments(config), "--steps", 2, "--offload-dir", where), ["--offload-dir", "--offload"])
    (where / "one").mkdir(), (where / "two").mkdir()
    expect_short_error(session.call(*run, "--offload-dir", where / "one", "--offload-dir", where / "one" / "."), ["given twice"])
    # What others have put there is neither written nor removed.
    (where / "victim").write_text("precious")
    for link in (os.symlink, os.link):
        link(where / "victim", where / "one" / "rank-0.arena")
        expect_short_error(session.call(*run, "--offload-dir", where / "one"), ["rank-0.arena", "remove it"])
        expect((where / "victim").read_text() == "precious" and (where / "one" / "rank-0.arena").exists(), "a file that is not its own was changed")
        (where / "one" / "rank-0.arena").unlink()
    os.mkfifo(where / "one" / "rank-0.arena")
    expect_short_error(session.call(*run, "--offload-dir", where / "one"), ["rank-0.arena", "remove it"])
    (where / "one" / "rank-0.arena").unlink()
    session.succeed(*run, "--offload-dir", where / "one", "--offload-dir", where / "two", "--save", where / "striped.safetensors")
    session.succeed(*run, "--offload-dir", where / "one", "--save", where / "single.safetensors")
    expect(digest(where / "striped.safetensors") == digest(where / "single.safetensors"), "two folders change the weights")
    left = [str(path) for folder in ("one", "two") for path in (where / folder).iterdir()]
    expect(not left, f"files are left: {left}")


def busy(session):
    """Two runs cannot use one folder."""
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 1, 0, 8, config.options + ("--offload", "optimizer=file"))
    where = session.folder()
    run = (plan, *data_arguments(config), "--offload-dir", where)
    first = subprocess.Popen([str(session.tools / "sheaf-run"), *map(str, run), "--steps", "100000"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60 * session.slowdown
        while not (where / "rank-0.arena").exists():
            if time.monotonic() > deadline or first.poll() is not None:
                raise Failure("the first run does not begin")
            time.sleep(0.01)
        expect_short_error(session.call("sheaf-run", *run, "--steps", 2), ["another", "run", "--offload-dir"])
    finally:
        first.terminate()
        first.wait()
    session.succeed("sheaf-run", *run, "--steps", 2)


def refused(session):
    config = CONFIGS["gpt2-tiny"]
    compile_it = ("compile", session.graph(config.model), "--batch", 8, "-o", os.devnull, *config.options)
    for wrong in ("auto,optimizer=host", "optimizer", "optimizer=disk", "weights=host", "optimizer=host,optimizer=file", "", "optimizer=host,"):
        expect_short_error(session.call("sheaf", *compile_it, "--offload", wrong), ["--offload"], code=2)
