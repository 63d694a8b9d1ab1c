"""Memory is known to the byte: what each stage holds of parameters, gradients and optimizer state, and what a run takes."""
import array
import json
import re

from formats import read_log, write_npy
from harness import Case, Skip, digest, expect
from training import CONFIGS, data_arguments

RANKS = 4
STATE = {"mlp-sgd": 0, "mlp-momentum": 1, "mlp-adamw": 2, "gpt2-tiny": 2, "llama-tiny": 2}  # f32 values per parameter


def cases(session):
    for name in STATE:
        for zero in range(4):
            yield Case(f"memory/shares/{name}/zero-{zero}", lambda n=name, z=zero: shares(session, n, z))
    yield Case("memory/parameters-counted-once", lambda: counted_once(session))
    yield Case("memory/communication", lambda: communication(session))
    yield Case("memory/files", lambda: files(session))
    for name, ranks, zero in (("mlp-momentum", 2, 1), ("gpt2-tiny", 1, 0), ("gpt2-tiny", 4, 3), ("llama-tiny", 4, 2)):
        yield Case(f"memory/touched/{name}/ranks-{ranks}/zero-{zero}", lambda n=name, r=ranks, z=zero: touched(session, n, r, z))
    for name, ranks, zero in (("gpt2-tiny", 1, 0), ("gpt2-tiny", 4, 3), ("llama-tiny", 4, 3), ("llama-tiny", 2, 1)):
        yield Case(f"memory/resident/{name}/ranks-{ranks}/zero-{zero}",
                   lambda n=name, r=ranks, z=zero: resident(session, n, r, z))


def shares(session, name, zero):
    """As in the ZeRO paper: optimizer state is a quarter from stage 1, gradients at most that from 2, parameters at 3;
    padding under 1 %."""
    config = CONFIGS[name]
    report = session.inspect(session.plan(config.model, RANKS, zero, 8, config.options))
    whole, kinds = 4 * report["parameters"], report["memory"]["by_kind"]

    def share(kind, bytes_whole, divided):
        exact = bytes_whole / (RANKS if divided else 1)
        slack = 0.01 * exact + 256  # offsets are multiples of 128 bytes
        expect(exact <= kinds[kind] <= exact + slack, f"{kind}: {kinds[kind]} bytes, expected {exact:.0f}")

    share("parameters", whole, zero >= 3)
    share("optimizer", whole * STATE[name], zero >= 1)
    # Gradients may take less: storage of one that an update has consumed serves another.
    most = 1.01 * whole / (RANKS if zero >= 2 else 1) + 256
    expect(0 < kinds["gradients"] <= most, f"gradients: {kinds['gradients']} bytes, allowed are {most:.0f}")
    expect(report["memory"]["peak_bytes"] >= max(kinds.values()), "the peak is below one kind's bytes")


def counted_once(session):
    """A tied weight counts once, padding not at all: the figures of PyTorch."""
    for name, expected in (("mlp-adamw", 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10), ("gpt2-tiny", 834304)):
        config = CONFIGS[name]
        for ranks, zero in ((1, 0), (4, 3)):
            report = session.inspect(session.plan(config.model, ranks, zero, 8, config.options))["parameters"]
            expect(report == expected, f"{name}: {report} parameters, PyTorch has {expected}")


def communication(session):
    """What each stage sends: gradients are reduced once, parameters gathered once, at stage 3 once more at most (the tied
    embedding twice more). Padding is under 1 %."""
    config = CONFIGS["gpt2-tiny"]
    expected = {0: {"all_reduce"}, 1: {"all_reduce", "reduce_scatter", "all_gather"}, 2: {"reduce_scatter", "all_gather"},
                3: {"reduce_scatter", "all_gather"}}
    for zero, allowed in expected.items():
        report = session.inspect(session.plan(config.model, RANKS, zero, 8, config.options))
        large = [c for c in report["communication"] if c["bytes"] > 4096]
        expect(large, f"stage {zero} has no collectives")
        expect({c["op"] for c in large} <= allowed, f"stage {zero} has {sorted({c['op'] for c in large})}")
        for entry in report["communication"]:
            expect(set(entry) >= {"op", "bucket", "bytes", "phase"}, f"a collective has only {sorted(entry)}")
        whole = 4 * report["parameters"]
        sent = {op: sum(c["bytes"] for c in large if c["op"] == op) / whole for op in ("all_reduce", "reduce_scatter", "all_gather")}
        gathered = {0: (0, 0), 1: (1, 1), 2: (1, 1), 3: (1, 2 + 4 * 256 * 128 / whole)}[zero]
        for op, (least, most) in (("all_reduce", (zero == 0, zero == 0)), ("reduce_scatter", (zero > 0, zero > 0)), ("all_gather", gathered)):
            expect(0.99 * least <= sent[op] <= 1.01 * most, f"stage {zero}: {op} sends {sent[op]:.3f} times the parameters")


def touched(session, name, ranks, zero):
    """In a poisoned arena nothing above the peak is touched, the highest byte touched lies in the topmost buffer, and the
    poison changes no bit."""
    config, where = CONFIGS[name], session.folder()
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    left = {}
    for poison in ((), ("--poison",)):
        session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 3, "--log", where / "log", "--save", where / "w", *poison)
        steps, events = read_log(where / "log")
        left[poison] = [(s["loss"], s["grad_norm"]) for s in steps], digest(where / "w")
    expect(left[()] == left[("--poison",)], f"other losses or weights in a poisoned arena: {left}")
    report, peak = [e for e in events if e["event"] == "arena"], session.inspect(plan)["memory"]["peak_bytes"]
    expect(len(report) == ranks, f"{len(report)} ranks of {ranks} tell what they touched")
    text = session.succeed("sheaf", "inspect", plan, "--format", "text").out
    buffers = [(int(m[1]), int(m[2])) for m in re.finditer(r"plan\.buffer .*?offset (\d+) bytes (\d+)", text)]
    expect(buffers, "the text names no buffers")
    top = max(buffers, key=lambda b: b[0] + b[1])
    for entry in report:
        last = entry["highest_touched_byte"]
        expect(top[0] < last <= peak, f"rank {entry['rank']} touched up to {last}; the topmost buffer begins at {top[0]}, the peak is {peak}")


def resident(session, name, ranks, zero):
    """Resident memory less mapped files is at most ranks x (peak + library) + 64 MiB."""
    if session.slowdown > 1:
        raise Skip("sanitizers keep shadow memory of their own")
    config, peak = CONFIGS[name], 0
    plan = session.plan(config.model, ranks, zero, 8, config.options)
    memory = session.inspect(plan)["memory"]

    def watch(process):
        nonlocal peak
        try:
            with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as status:
                fields = dict(line.split(":", 1) for line in status)
            peak = max(peak, sum(int(fields[k].split()[0]) for k in ("RssAnon", "RssShmem")) * 1024)
        except (OSError, KeyError):
            pass

    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 20, watch=watch)
    allowed = ranks * (memory["peak_bytes"] + memory["library_bytes"]) + (64 << 20)
    expect(0 < peak <= allowed, f"{peak} bytes resident, allowed are {allowed}: {json.dumps(memory)}")


def files(session):
    """Weights and states that are read once are not kept in memory: of 41 MiB of weights and 124 MiB of state, little is mapped at any time."""
    where, plan = session.folder(), session.plan("gpt2-mini", 1, 0, 1, ())
    session.succeed("sheaf", "init", plan, "--seed", 1, "-o", where / "w")
    for name in ("input_ids", "labels"):
        write_npy(where / f"{name}.npy", "<i8", (2, 256), array.array("q", range(256)).tobytes() * 2)
    data = [word for name in ("input_ids", "labels") for word in ("--data", f"{name}={where / name}.npy")]
    for steps, options in ((1, ("--weights", where / "w", "--save-state", where / "state")), (2, ("--resume", where / "state"))):
        mapped = 0

        def watch(process):
            nonlocal mapped
            try:
                with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as status:
                    mapped = max([mapped, *(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile:"))])
            except OSError:
                pass

        session.succeed("sheaf-run", plan, *data, "--steps", steps, *options, watch=watch)
        expect(0 < mapped < 30 << 20, f"{options}: {mapped} bytes of files in memory")
