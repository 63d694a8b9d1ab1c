"""Calibrating the simulator where it is not: probes that `sheaf profile --target` makes and `sheaf-run --measure` measures
with, on an emulated GPU, and what becomes of them."""
import json
import shutil
import subprocess
import sys

from cases.cuda import environment, library
from harness import ROOT, Case, expect, expect_short_error
from jobs import Job
from training import CONFIGS

BOTH = ("--target", "cpu,cuda:sm_90")


def cases(session):
    yield Case("measuring/gpu", lambda: gpu(session))
    yield Case("measuring/virtual-ranks", lambda: virtual_ranks(session))
    yield Case("measuring/processes", lambda: processes(session))
    yield Case("measuring/nodes", lambda: nodes(session))
    yield Case("measuring/cpu", lambda: cpu(session), alone=True)
    yield Case("measuring/probe", lambda: inspected(session))
    yield Case("measuring/refused", lambda: refused(session))
    yield Case("measuring/predict-kit", lambda: predict_kit(session))


def probe(session, *options):
    def make():
        path = session.folder() / "probe.plan"
        session.succeed("sheaf", "profile", "-o", path, *options)
        return path

    return session.once(("probe", options), make)


def check(path, ranks, *kinds):
    """A profile, complete and in order. kinds: of transfers in addition to those of memory."""
    machine = json.loads(path.read_text())
    expect(machine["name"] == path.stem and machine["ranks"] == ranks, f"{machine['name']} of {machine['ranks']} ranks")
    compute, = machine["compute"]
    expect({(g["type"], g.get("tf32", False), g["layout"]) for g in compute["gemm"]} ==
           {(kind, tf32, layout) for kind, tf32 in (("f32", False), ("f32", True), ("bf16", False)) for layout in ("nn", "nt", "tn")},
           "not every product is measured")
    expect({(a["type"], a["gradient"]) for a in compute["attention"]} ==
           {(kind, gradient) for kind in ("f32", "bf16") for gradient in (False, True)}, "not all attention is measured")
    expect(len(compute["kernels"]["bandwidth"]) > 2 and len(compute["moves"]["bandwidth"]) > 1, "too few sizes of what moves bytes")
    expect({t["kind"] for t in machine["transfers"]} == {"to_device", "to_host", *kinds}, "not every transfer is measured")
    for transfer in machine["transfers"]:
        expect(0 < transfer["latency"] < 1 and len(transfer["bandwidth"]) > 2, f"{transfer}")
    expect(machine["host_memory"]["bandwidth"] >= 28 * machine["host_updates"]["rate"] * 0.999 > 0, "what updates on the host move is more than memory")
    if ranks > 1:
        expect({c["op"] for c in machine["collectives"]} == {"all_gather", "reduce_scatter", "all_reduce"}, "not every collective")
    return machine


def measured(session, ranks, *options):
    def measure():
        path = session.folder() / "card.json"
        plan = probe(session, *BOTH, *(("--ranks", ranks) if ranks > 1 else ()))
        session.succeed("sheaf-run", plan, "--device", "cuda", "--measure", path, *options, env=environment(session), timeout=600)
        return path

    return session.once(("measured", ranks, options), measure)


def use(session, path, ranks):
    """What reads profiles reads this one."""
    plan = session.plan("gpt2-tiny", ranks, 0, 8, CONFIGS["gpt2-tiny"].options)
    report = json.loads(session.succeed("sheaf", "simulate", plan, "--profile", path, "--json").out)
    expect(0 < report["step_seconds"] < 600, f"a step of {report['step_seconds']} s")
    out = session.folder() / "scheduled.plan"
    model = session.graph("gpt2-tiny")
    session.succeed("sheaf", "compile", model, "-o", out, "--batch", 8, "--ranks", ranks, "--profile", path)
    session.succeed("sheaf", "fit", model, "--ranks", ranks, "--batch", 8, "--memory", "4GiB", "--profile", path)


def use_offloaded(session, path, ranks):
    """Plans that keep state and activations in host memory are scheduled with it."""
    out = session.folder() / "offloaded.plan"
    for where in ("host", "device"):
        session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", out, "--batch", 8, "--ranks", ranks,
                        "--profile", path, "--target", "cuda:sm_90", "--offload", "optimizer=host,activations=host", "--update-on", where)
        report = json.loads(session.succeed("sheaf", "simulate", out, "--profile", path, "--json").out)
        expect(report["step_seconds"] > 0 and report["bounds"]["to_device"] > 0, f"{report['step_seconds']} s, {report['bounds']}")


def gpu(session):
    disk = session.folder()
    path = measured(session, 1, "--offload-dir", disk)
    machine = check(path, 1, "read_file", "write_file")
    expect(machine["persist"]["seconds"] > 0 and not list(disk.iterdir()), "the disk is not measured, or a file is left")
    expect("Emulated GPU" in machine["description"] and "collectives" not in machine, machine["description"])
    use(session, path, 1)
    use_offloaded(session, path, 1)


def virtual_ranks(session):
    path = measured(session, 2)
    expect("share" in check(path, 2)["description"], "nothing says that the ranks share a GPU")
    use(session, path, 2)
    use_offloaded(session, path, 2)


def measured_by_two(session, hosts):
    """By two processes, each on the host of its letter."""
    def measure():
        path = session.folder() / "card.json"
        with Job(session, 2, probe(session, *BOTH), "--device", "cuda", "--measure", path, environment=lambda rank: {
                "SHEAF_CUDA_LIBRARY": library(session), "SHEAF_EMULATED_DEVICES": 2, "SHEAF_HOST": hosts[rank]}) as job:
            codes = job.wait(seconds=600)
            expect(not any(codes), "\n".join(process.error_text() for process in job.processes))
        return check(path, 2)

    return session.once(("measured by two", hosts), measure)


def processes(session):
    machine = measured_by_two(session, "aa")
    expect(machine["ranks_per_node"] == 2 and not any(c.get("network") for c in machine["collectives"]), "one node is not one")


def nodes(session):
    """Two nodes are connected by a network, and NCCL takes less memory for connections there: 2 channels of 12 MiB instead of 32."""
    one, two = measured_by_two(session, "aa"), measured_by_two(session, "ab")
    expect(two["ranks_per_node"] == 1 and all(c.get("network") for c in two["collectives"]), "two nodes are not two")
    expect(two["memory"]["bytes"] - one["memory"]["bytes"] == (32 - 2) * 12 << 20,
           f"{one['memory']['bytes']} bytes on one node, {two['memory']['bytes']} on two")


def cpu(session):
    path, disk = session.folder() / "here.json", session.folder()
    session.succeed("sheaf-run", probe(session, "--target", "cpu", "--ranks", 2), "--measure", path, "--threads-per-rank", 1,
                    "--offload-dir", disk, timeout=600)
    machine = json.loads(path.read_text())
    expect(machine["cores"] >= 1 and machine["ranks"] == 2 and len(machine["compute"]) == 1, "not this machine")
    expect({t["kind"] for t in machine["transfers"]} == {"read_file", "write_file"} and not list(disk.iterdir()), "the disk is not measured, or a file is left")
    for transfer in machine["transfers"]:
        expect(transfer["at_once"]["ranks"] == 2 and 1 <= transfer["at_once"]["times"] <= 2, f"{transfer}")
    slowdowns = machine["compute"][0]["files"]["slowdown"]
    expect([size for size, _ in slowdowns] == [1 << 16, 1 << 19, 1 << 22] and all(s >= 0 for _, s in slowdowns), f"{slowdowns}")
    # That of one rank has no collectives, and is good for one.
    alone = session.folder() / "alone.json"
    alone.write_text(json.dumps({key: value for key, value in machine.items() if key != "collectives"} | {"name": "alone", "ranks": 1}))
    use(session, alone, 1)
    plan = session.plan("gpt2-tiny", 1, 0, 8, CONFIGS["gpt2-tiny"].options)
    expect_short_error(session.call("sheaf", "simulate", plan, "--profile", alone, "--ranks", 2), ["alone", "collectives", "--ranks 2"])
    expect_short_error(session.call("sheaf", "compile", session.graph("gpt2-tiny"), "-o", session.folder() / "p", "--batch", 8,
                                    "--ranks", 2, "--profile", alone), ["alone", "collectives", "--ranks 2"])


def inspected(session):
    """A probe is a plan: it is proved, and its text is its bytes."""
    plan = probe(session, *BOTH)
    expect("no races" in session.succeed("sheaf", "verify", plan).out, "the probe is not proved")
    where = session.folder()
    (where / "probe.mlir").write_text(session.succeed("sheaf", "inspect", plan, "--format", "text").out)
    session.succeed("sheaf", "assemble", where / "probe.mlir", "-o", where / "again.plan")
    expect((where / "again.plan").read_bytes() == plan.read_bytes(), "assembling the text gives other bytes")
    expect(session.inspect(plan)["memory"]["peak_bytes"] > 1 << 20, "no room for what is measured")


def refused(session):
    where, plan = session.folder(), probe(session, *BOTH)
    trains = session.plan("gpt2-tiny", 1, 0, 8, CONFIGS["gpt2-tiny"].options)
    only = probe(session, "--target", "cuda:sm_90")

    def run(words, *options, code=1):
        done = session.call("sheaf-run", *options, env=environment(session))
        expect(done.code == code, f"exit {done.code}: {done.err}")
        expect_short_error(done, words, code)

    run(["is a probe", "--measure"], plan, "--steps", 1)
    run(["training plan", "sheaf profile"], trains, "--measure", where / "a.json")
    run(["cuda:sm_90", "none for --device cpu"], only, "--device", "cpu", "--measure", where / "a.json")
    run(["--measure", "nowhere"], plan, "--device", "cuda", "--measure", where / "nowhere" / "a.json")
    run(["--steps cannot be combined with --measure"], plan, "--measure", where / "a.json", "--steps", 3, code=2)
    run(["one --offload-dir"], plan, "--device", "cuda", "--measure", where / "a.json", "--offload-dir", where, "--offload-dir", where)
    run(["no PLAN is given"], "--measure", where / "a.json", code=2)
    (where / "broken.plan").write_bytes(plan.read_bytes()[:-1])
    run(["truncated"], where / "broken.plan", "--measure", where / "a.json")
    for options, words in ((("--target", "cuda:sm_1"), ["--target"]), (("--target", "cpu", "--threads-per-rank", "2"), ["--threads-per-rank"]),
                           (("--cpu", "host"), ["--cpu", "--target"])):
        done = session.call("sheaf", "profile", "-o", where / "p", *options)
        expect(done.code == 2 and len(done.err.splitlines()) == 1, done.err)
        for word in words:
            expect(word in done.err, f"no '{word}' in: {done.err}")


def predict_kit(session):
    """Predicted and measured steps, from the results of the kit for GPU machines."""
    where = session.folder()
    (where / "plans").mkdir()
    shutil.copy(session.plan("gpt2-tiny", 1, 0, 8, CONFIGS["gpt2-tiny"].options), where / "plans" / "a.plan")
    shutil.copy(ROOT / "passes" / "schedule" / "profiles" / "h100.json", where / "card.json")
    report = json.loads(session.succeed("sheaf", "simulate", where / "plans" / "a.plan", "--profile", where / "card.json", "--json").out)
    (where / "steps.json").write_text(json.dumps([{"name": "a", "plan": "plans/a.plan", "step_seconds": report["step_seconds"] * 1.25}]))
    script = [sys.executable, ROOT / "test" / "bench" / "predict.py", "--tools", session.tools, "--kit"]
    done = subprocess.run([*script, where, "--json", where / "out.json"], capture_output=True, text=True)
    expect(done.returncode == 0 and "-20.0 %" in done.stdout and "MISSED" in done.stdout, done.stdout + done.stderr)
    expect(json.loads((where / "out.json").read_text())[0]["setting"] == "a", "the figures are not in the file")
    done = subprocess.run([*script, where / "plans"], capture_output=True, text=True)
    expect(done.returncode == 1 and "card.json" in done.stderr, done.stderr)
