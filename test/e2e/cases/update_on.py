"""Updates on the host: the same bits as on the device, of less traffic, chosen where that is quicker."""
import dataclasses
import json
import re

from cases.cuda import TARGETS
from cases.offload import everything, run_options
from harness import ROOT, Case, digest, expect, expect_short_error, plan_bytes
from jobs import Job
from training import ADAMW_LM, CONFIGS, data_arguments, expect_reference, in_turn, train

STEPS = 10
HOST = ("--update-on", "host")
WAYS = ("optimizer=host", "optimizer=host,parameters=host", everything("host"), "optimizer=file", everything("file"),
        "optimizer=host,gradients=file,parameters=file")
SETTINGS = {
    "clipped": ("--clip-norm", "1"),
    "bf16": ("--precision", "bf16"),
    "f16": ("--precision", "f16", "--clip-norm", "1"),
    "skipping": ("--on-nan", "skip"),
    "micro-batches": ("--micro-batches", "2"),
    "leaves": ("--leaves", "4"),
    "nodes": ("--ranks-per-node", "2"),
    "recomputing": ("--recompute", "all"),
    "groups": ("--no-decay",),
}


OPTIMIZERS = ("sgd:lr=0.05,momentum=0.9", "lion:lr=1e-4", "adam:lr=1e-3")


def cases(session):
    for model, name in enumerate(("mlp-adamw", "gpt2-tiny", "llama-tiny")):
        turn = model
        for ranks, stages in ((1, (0,)), (2, (0, 1, 2)), (4, (1, 3))):
            for zero in stages if not session.quick else stages[-1:]:
                turn += 1
                yield Case(f"update-on/bits/{name}/ranks-{ranks}/zero-{zero}",
                           lambda n=name, r=ranks, z=zero, t=turn if model else None: bits(session, CONFIGS[n], r, z, t))
    for what in SETTINGS:
        yield Case(f"update-on/with/{what}", lambda w=what: combined(session, w))
    for optimizer in OPTIMIZERS:
        yield Case(f"update-on/optimizer/{optimizer.split(':')[0]}", lambda o=optimizer: other_optimizer(session, o))
    yield Case("update-on/processes", lambda: processes(session))
    yield Case("update-on/resumed", lambda: resumed(session))
    yield Case("update-on/traffic", lambda: traffic(session))
    yield Case("update-on/under-a-limit", lambda: under_a_limit(session))
    yield Case("update-on/files-under-a-limit", lambda: files_under_a_limit(session))
    yield Case("update-on/same-on-gpus", lambda: same_on_gpus(session))
    yield Case("update-on/gradients-in-files", lambda: gradients_in_files(session))
    yield Case("update-on/auto", lambda: automatic(session))
    yield Case("update-on/text", lambda: text(session))
    yield Case("update-on/image", lambda: image(session))
    yield Case("update-on/refused", lambda: refused(session))


def on_host(session, config, ranks, zero, way, options=(), more=(), steps=STEPS):
    made = train(session, config, ranks, zero, steps, ("--offload", way, *HOST, *options), (*run_options(session, way), *more))
    found = session.inspect(session.plan(config.model, ranks, zero, 8, (*config.options, "--offload", way, *HOST, *options)))["updates"]
    expect(0 < found["buckets"] == found["on_host"], f"{way}: of the buckets are updated on the host: {found}")
    simulated(session, session.plan(config.model, ranks, zero, 8, (*config.options, "--offload", way, *HOST, *options)), "cpu")
    return made


def simulated(session, plan, profile):
    report = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", profile, "--json").out)
    expect(report["step_seconds"] >= report["bound_seconds"] * 0.999999, f"step {report['step_seconds']} s, bound {report['bound_seconds']} s")
    return report


def expect_same(trained, others):
    for what, other in others:
        expect([(s["loss"], s["grad_norm"]) for s in other.steps] == [(s["loss"], s["grad_norm"]) for s in trained.steps], f"{what}: other losses")
        expect(digest(other.weights) == digest(trained.weights), f"{what} leaves other weights")


def bits(session, config, ranks, zero, turn):
    """With a turn, the two language models divide the ways among each other."""
    plain = train(session, config, ranks, zero, STEPS)
    expect_reference(config, plain.steps)
    ways = WAYS[:1] + WAYS[3:] if session.quick else WAYS if turn is None else in_turn(session, WAYS, turn, 2)
    expect_same(plain, [(way, on_host(session, config, ranks, zero, way)) for way in ways])


def combined(session, what):
    config, options = CONFIGS["gpt2-tiny"], SETTINGS[what]
    ranks = 2 if what == "leaves" else 4
    for zero in (1, 3):
        plain = train(session, config, ranks, zero, STEPS, options)
        expect_same(plain, [(way, on_host(session, config, ranks, zero, way, options)) for way in ("optimizer=host", everything("file"))])


def other_optimizer(session, optimizer):
    config = dataclasses.replace(CONFIGS["gpt2-tiny"], name=f"gpt2-tiny {optimizer}", options=("--optimizer", optimizer))
    expect_same(train(session, config, 2, 3, STEPS), [("optimizer=host", on_host(session, config, 2, 3, "optimizer=host"))])


def processes(session):
    """Ranks in processes of their own, with files that outlive the run."""
    config = CONFIGS["gpt2-tiny"]
    plain = train(session, config, 2, 3, STEPS)
    for way in ("optimizer=host", "optimizer=file,parameters=file"):
        where = session.folder()
        plan = session.plan(config.model, 2, 3, 8, (*config.options, "--offload", way, *HOST))
        with Job(session, 2, plan, *data_arguments(config), "--steps", STEPS, "--save", where / "w", *run_options(session, way)) as job:
            job.succeed()
        expect(digest(where / "w") == digest(plain.weights), f"{way}: other weights")


def resumed(session):
    """A state is resumed by a plan that updates elsewhere."""
    config, half = CONFIGS["gpt2-tiny"], STEPS // 2
    whole = train(session, config, 4, 3, STEPS)
    for before, after in ((HOST, ()), ((), HOST)):
        state = session.folder() / "state"

        def run(steps, options, *more):
            return train(session, config, 4, 3, steps, ("--offload", "optimizer=host", *options), more)

        run(half, before, "--save-state", state)
        rest = run(STEPS, after, "--resume", state)
        expect(digest(rest.weights) == digest(whole.weights), f"{before} then {after}: other weights")


def traffic(session):
    """On the host with master weights: per element a gradient of bf16 there and a parameter of bf16 back, no state."""
    config, options = CONFIGS["gpt2-tiny"], ("--precision", "bf16", "--offload", "optimizer=host")
    found = {where: session.inspect(session.plan(config.model, 4, 3, 8, (*config.options, *options, "--update-on", where))) for where in ("device", "host")}
    state = found["device"]["memory"]["spaces"]["host"]["by_kind"]["optimizer"]
    fetched, stored = (found["device"]["transfers"][kind]["bytes"] for kind in ("to_device", "to_host"))
    expect(fetched == stored == state, f"on the device: {fetched} and {stored} bytes of {state}")
    moved = found["host"]["transfers"]
    part = state // 6  # the state is 12 bytes an element
    expect(moved["to_device"]["bytes"] == part, f"to the device: {moved}, {part} are the parameters")
    expect(part <= moved["to_host"]["bytes"] <= part + 4096, f"to the host: {moved}, {part} are the gradients")
    there = found["host"]["memory"]["spaces"]["host"]["by_kind"]
    expect(there["optimizer"] == state, f"{there}")
    expect(found["host"]["memory"]["peak_bytes"] < found["device"]["memory"]["peak_bytes"], "updates on the host need images on the device")


def under_a_limit(session):
    """As many buckets as the limit asks for are updated on the host, the others on the device."""
    config = CONFIGS["gpt2-tiny"]
    plain = session.inspect(session.plan(config.model, 1, 0, 8, config.options))["memory"]
    trained, before = train(session, config, 1, 0, STEPS), 0
    for part in (0.5, 0.3):
        limit = int(plain["peak_bytes"] * part)
        options = ("--offload", "auto", *HOST, "--memory-limit", str(limit), "--recompute", "none", "--bucket-size", "65536")
        found = session.inspect(session.plan(config.model, 1, 0, 8, config.options + options))
        expect(found["memory"]["peak_bytes"] <= limit, f"{found['memory']['peak_bytes']} bytes are over the limit of {limit}")
        updates = found["updates"]
        expect(before < updates["on_host"] <= updates["buckets"], f"at {part}: {updates}")
        before = updates["on_host"]
        expect(any("updated on the host" in d for d in found["decisions"]), f"{found['decisions']}")
        other = train(session, config, 1, 0, STEPS, options)
        expect(digest(other.weights) == digest(trained.weights), f"a limit of {limit}: other weights")


def files_under_a_limit(session):
    """Plans whose parameters are read from files for layers and for updates keep a limit, and can be simulated."""
    for model, ranks, zero, options in (("gpt2-tiny", 1, 0, ("--offload", "optimizer=file,parameters=file", "--profile", "h100", "--update-on", "auto")),
                                        ("llama-tiny", 1, 0, ("--offload", "optimizer=file,parameters=file", "--memory-limit", "64MiB", *HOST)),
                                        ("llama-tiny", 2, 3, ("--offload", "optimizer=file,parameters=file", "--memory-limit", "64MiB", *HOST)),
                                        ("mlp-adamw", 1, 0, ("--offload", "auto", "--memory-limit", "1200KiB", "--host-memory", "1200KiB", "--bucket-size", "65536",
                                                             "--recompute", "none", *HOST))):
        config = CONFIGS[model]
        plan = session.plan(config.model, ranks, zero, 8, (*config.options, *options))
        simulated(session, plan, "cpu")
        files = ("--offload-dir", session.folder()) if "file" in session.inspect(plan)["memory"]["spaces"] else ()
        expect_same(train(session, config, ranks, zero, STEPS), [(options, train(session, config, ranks, zero, STEPS, options, files))])
    # Images of state in files take host memory, too.
    done = session.call("sheaf", "compile", session.graph("mlp"), "--batch", 8, *CONFIGS["mlp-adamw"].options, *options[:5], "400KiB", *options[6:], "-o",
                        session.folder() / "a.plan")
    expect_short_error(done, ["--host-memory", "--update-on device"])


def same_on_gpus(session):
    """Plans for GPUs compute the same bits wherever they update."""
    config, target = CONFIGS["mlp-adamw"], ("--target", "cuda:sm_90")
    plain = session.plan(config.model, 1, 0, 8, (*config.options, *target))
    host = session.plan(config.model, 1, 0, 8, (*config.options, *target, "--offload", "optimizer=host", *HOST))
    session.succeed("sheaf", "same", plain, host)
    session.succeed("sheaf", "compile", session.graph(config.model), "--batch", 8, "--like", plain, *target, "--offload", "optimizer=host", *HOST, "-o",
                    session.folder() / "like.plan")


def gradients_in_files(session):
    """A gradient that is updated with as soon as it is reduced makes no detour."""
    config = CONFIGS["mlp-adamw"]
    found = session.inspect(session.plan(config.model, 1, 0, 8, (*config.options, "--offload", "optimizer=host,gradients=file", *HOST)))
    expect(set(found["transfers"]) == {"to_device", "to_host"} and "file" not in found["memory"]["spaces"], f"{found['transfers']}")


def automatic(session):
    """auto updates on the host where the profile of a GPU says that it is quicker; on CPU ranks never."""
    config = CONFIGS["gpt2-tiny"]

    def compiled(*options):
        return session.inspect(session.plan(config.model, 1, 0, 8, (*config.options, "--precision", "bf16", "--offload", "optimizer=host", *options)))["updates"]

    expect(compiled()["on_host"] == 0, "updates of CPU ranks are on the host")
    expect(compiled("--profile", "h100")["on_host"] > 0, "for an H100 state is fetched")
    expect(compiled("--profile", "h100", "--update-on", "device")["on_host"] == 0, "--update-on device is not followed")

    def seconds(where):
        plan = session.plan(config.model, 1, 0, 8, (*config.options, "--precision", "bf16", "--offload", "optimizer=host", "--profile", "h100", "--update-on", where))
        return simulated(session, plan, "h100")

    auto, device, host = seconds("auto"), seconds("device"), seconds("host")
    expect(auto["step_seconds"] <= min(device["step_seconds"], host["step_seconds"]) * 1.001, f"auto {auto['step_seconds']}")
    resources = {r["name"]: r for r in host["resources"]}
    expect("host compute" in resources and host["bounds"]["host_compute"] > 0, f"updates on the host take no time: {sorted(resources)}")
    expect("host compute" not in {r["name"] for r in device["resources"]}, "updates on the device take the host's time")
    # Where the host has no room for images, the device updates.
    mlp, limit = CONFIGS["mlp-adamw"], ("--offload", "optimizer=host", "--profile", "h100", "--host-memory", "700KiB", "--bucket-size", "1MiB")
    found = session.inspect(session.plan(mlp.model, 1, 0, 8, (*mlp.options, *limit)))["updates"]
    expect(found["on_host"] == 0, f"{found}")
    done = session.call("sheaf", "compile", session.graph(mlp.model), "--batch", 8, *mlp.options, *limit, *HOST, "-o", session.folder() / "a.plan")
    expect_short_error(done, ["--host-memory", "--update-on device"])


def text(session):
    """The text names them, and is read back to the same bytes; what is left out or on the wrong side is refused."""
    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, (*config.options, "--precision", "bf16", "--offload", "optimizer=host", *HOST))
    where = session.folder()
    printed = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    launches = re.findall(r"plan\.launch kernel \d+ on host rows .* stream (\d+) ", printed)
    streams = re.search(r"streams = \[(.*?)\]", printed)[1].replace('"', "").split(", ")
    expect(launches and {streams[int(s)] for s in launches} == {"host_compute"}, f"streams of the updates: {launches} of {streams}")
    (where / "a.mlir").write_text(printed)
    session.succeed("sheaf", "assemble", where / "a.mlir", "-o", where / "b.plan")
    expect(plan_bytes(where / "b.plan") == plan_bytes(plan), "the text is assembled to another plan")
    lines = printed.splitlines()

    def refused_without(find, change, words):
        at = next(i for i, line in enumerate(lines) if find(line))
        (where / "c.mlir").write_text("\n".join(lines[:at] + change(lines[at]) + lines[at + 1:]))
        session.succeed("sheaf", "assemble", where / "c.mlir", "-o", where / "c.plan")
        expect_short_error(session.call("sheaf", "verify", where / "c.plan"), words)

    refused_without(lambda line: "on host rows" in line, lambda line: [line.replace("on host ", "")], ["in space host", "launches on the host"])
    refused_without(lambda line: "plan.launch" in line and "on host" not in line, lambda line: [line.replace(" rows", " on host rows", 1)],
                    ["on the host"])
    gradients = re.compile(r"plan\.transfer to_host\(r %\S*reduced")
    refused_without(gradients.search, lambda line: [], ["host"])


def images_of(printed):
    """Target, processor, offsets of the kernels and code of each image of a plan's text."""
    found = re.findall(r'plan\.image "([^"]+)" "([^"]*)" \[.*?\] offsets (?:\[|array<i64: ?)(.*?)[\]>] .*? code "((?:[^"\\]|\\.)*)"', printed)
    # MLIR's strings: a backslash before two hexadecimal digits, or before itself.
    code = re.compile(rb"\\(\\|[0-9A-Fa-f]{2})")

    def raw(text):
        return code.sub(lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 16)]), text.encode())
    return [(target, cpu, [int(o) for o in offsets.split(",")], raw(text)) for target, cpu, offsets, text in found]


def image(session):
    """A plan for GPUs alone has the kernels of its updates for the host's processors, and runs on GPUs only."""
    config = CONFIGS["mlp-adamw"]
    offloaded = (*config.options, "--offload", "optimizer=host", *HOST)
    plan = session.plan(config.model, 1, 0, 8, (*offloaded, "--target", "cuda:sm_90"))
    printed = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    (gpu, _, _, _), (host, cpu, offsets, code) = images_of(printed)
    expect((gpu, host, cpu) == ("cuda:sm_90", "host", "x86-64-v3"), f"images for {gpu} and {host} ({cpu})")
    launched = {int(kernel) for kernel in re.findall(r"plan\.launch kernel (\d+) on host", printed)}
    expect({k for k, offset in enumerate(offsets) if offset < len(code)} == launched, f"kernels {launched} are launched, offsets are {offsets}")
    # They are those of a plan for such a processor.
    other = session.succeed("sheaf", "inspect", session.plan(config.model, 1, 0, 8, (*offloaded, "--cpu", cpu)), "--format", "text").out
    [(_, _, _, whole)] = images_of(other)
    for kernel in launched:
        end = min([o for o in offsets if o > offsets[kernel]] + [len(code)])
        expect(code[offsets[kernel]:end].rstrip(b"\0") in whole, f"kernel {kernel} has other code than for the CPU")
    expect_short_error(session.call("sheaf-run", plan, *data_arguments(config), "--steps", 1, "--device", "cpu"), ["none for the CPU", "--target"])
    both = session.plan(config.model, 1, 0, 8, (*config.options, *TARGETS, "--offload", "optimizer=host", *HOST))
    printed = session.succeed("sheaf", "inspect", both, "--format", "text").out
    expect('plan.image "host"' not in printed, "a plan for the CPU has an image for the host besides")


def refused(session):
    config = CONFIGS["gpt2-tiny"]
    compile_it = ("compile", session.graph(config.model), "--batch", 8, "-o", session.folder() / "a.plan", "--optimizer", ADAMW_LM)
    expect_short_error(session.call("sheaf", *compile_it, "--update-on", "gpu"), ["--update-on", "auto, device"], code=2)
    machine = json.loads((ROOT / "passes/schedule/profiles/h100.json").read_text())
    del machine["host_updates"]
    machine["name"] = "unknown"
    profile = session.folder() / "unknown.json"
    profile.write_text(json.dumps(machine))
    expect_short_error(session.call("sheaf", *compile_it, "--offload", "optimizer=host", *HOST, "--profile", profile), ["profile unknown", "host_updates"])
    session.succeed("sheaf", *compile_it, "--offload", "optimizer=host", "--profile", profile)
