#!/usr/bin/env python3
"""Steps on nodes with a slow network, all on this machine: measured, and predicted with its profile and the network's rate.

    cmake --build build/release --target transport_bench
    python3 test/bench/nodes.py --tools build/bin [--profile P.json] [--rate BYTES] [--steps N] [--transports sockets,openmpi,mpich]

A node is a process with its ranks; SHEAF_NETWORK_RATE limits what each sends to the others, and SHEAF_HOST keeps them from sharing
memory. gpt2-mini at stage 3 on 2 x 4, 4 x 2 and 8 x 1 ranks. The bytes are those of a step of all processes: what `sheaf inspect` says
of the plan, and what the transports have counted. Nothing else should run meanwhile.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import sides as b

RANKS, MODEL, BATCH, ZERO = 8, "gpt2-mini", 8, 3
SPLITS = (2, 4, 8)  # nodes
GOAL = 0.15
MPIS = {"openmpi": ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"], "mpich": ["mpirun.mpich"]}
# Of a message on an idle loopback device, as transport_bench measures it.
MESSAGE_SECONDS = 1e-5


def cores_per_byte(bench, rate):
    """Seconds of a core to send a byte at the rate and to receive one, as transport_bench measures it between two processes."""
    command = [bench.tools.parent / "test/bin/transport_bench", "sockets", rate]
    port = b.free_port()
    said = [p.communicate()[0] for p in [bench.process(command, b.launched(rank, 2, port)) for rank in range(2)]]
    return float(said[0].splitlines()[-1].split()[-1]) * 1e-9


def on_nodes(profile, nodes, rate, cores):
    """The profile of this machine, whose ranks are divided into nodes that exchange at the rate; `cores` as cores_per_byte() gives it."""
    machine = json.loads(pathlib.Path(profile).read_text())
    each = RANKS // nodes
    latency = max(entry["latency"] for entry in machine["collectives"])
    machine.update(ranks=RANKS, ranks_per_node=each)
    machine["collectives"].append({
        "op": "any", "network": True, "latency": latency, "network_hop": MESSAGE_SECONDS, "bandwidth": rate,
        "network_share": rate / each, "source": "SHEAF_NETWORK_RATE; the latency within this machine"})
    # The sockets of all nodes use the cores that compute.
    busy = min(nodes * rate * cores / machine["cores"], 0.9)
    machine["slowdown"]["network"] = busy / (1 - busy)
    return machine


def start(bench, setting, transport, rate, steps, log):
    command = [bench.tools / "sheaf-run", bench.plan(setting), "--weights", bench.weights(setting), *bench.data(setting.model),
               "--steps", steps + b.WARM, "--threads-per-rank", setting.threads, "--log", log]
    limit, rendezvous = {"SHEAF_NETWORK_RATE": str(rate)}, {"SHEAF_RENDEZVOUS": f"127.0.0.1:{b.free_port()}"}
    nodes = setting.processes
    if transport == "sockets":
        port = b.free_port()
        return [bench.process(command, {**b.launched(rank, nodes, port), **rendezvous, **limit, "SHEAF_HOST": f"node{rank}"})
                for rank in range(nodes)]
    # Of the two MPIs' variables one is empty.
    own = ["sh", "-c", 'SHEAF_HOST="node$OMPI_COMM_WORLD_RANK$PMI_RANK" exec "$@"', "sh"]
    return [bench.process([*MPIS[transport], "-np", nodes, *own, *command, "--transport", "mpi"], {**rendezvous, **limit})]


def run(bench, setting, transport, rate, steps):
    """Seconds of a step, and the bytes that all processes sent."""
    log = bench.scratch / "nodes.jsonl"
    for process in start(bench, setting, transport, rate, steps, log):
        _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"sheaf-run ended with {process.returncode}:\n{said}")
    lines = list(map(json.loads, log.read_text().splitlines()))
    taken = [line["seconds"] for line in lines if "event" not in line]
    end = next(line for line in lines if line.get("event") == "end")
    return statistics.median(taken[b.WARM:]), end["network"]["bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--profile", default=b.ROOT / "passes/schedule/profiles/cpu.json", help="of this machine; the shipped one is of another")
    parser.add_argument("--rate", type=int, default=200_000_000, help="bytes a second that each process sends")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--transports", default="sockets")
    args = parser.parse_args()
    print("| nodes x ranks | transport | planned, MB a step | counted | predicted, ms | bound | measured, ms | error |\n|---|---|---|---|---|---|---|---|")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="sheaf-nodes-") as scratch:
        bench = b.Bench(args.tools, scratch)
        cores = cores_per_byte(bench, args.rate)
        print(f"a byte sent and one received take {1e9 * cores:.2f} ns of a core", file=sys.stderr)
        for nodes in SPLITS:
            machine = pathlib.Path(scratch) / f"{nodes}.json"
            machine.write_text(json.dumps(on_nodes(args.profile, nodes, args.rate, cores)))
            setting = b.Setting(MODEL, RANKS, ZERO, BATCH, 1, processes=nodes,
                                options=("--ranks-per-node", str(RANKS // nodes), "--profile", str(machine)))
            plan = bench.plan(setting)
            predicted = json.loads(bench.tool("sheaf", "simulate", plan, "--profile", machine, "--json"))
            planned = json.loads(bench.tool("sheaf", "inspect", plan, "--format", "json"))["network_bytes"]
            for transport in args.transports.split(","):
                if transport in MPIS and not shutil.which(MPIS[transport][0]):
                    continue
                _, few = run(bench, setting, transport, args.rate, 1)
                measured, many = run(bench, setting, transport, args.rate, args.steps)
                counted = (many - few) / (args.steps - 1)
                error = predicted["step_seconds"] / measured - 1
                missed += abs(error) > GOAL
                print(f"| {nodes} x {RANKS // nodes} | {transport} | {planned / 1e6:.3f} | {'the same' if counted == planned else f'{counted / 1e6:.3f}'} "
                      f"| {predicted['step_seconds'] * 1e3:,.0f} | {predicted['bound_seconds'] * 1e3:,.0f} ({predicted['bound_by']}) "
                      f"| {measured * 1e3:,.0f} | {100 * error:+.1f} % |", flush=True)
    print(f"\nwithin {100 * GOAL:.0f} %: {'all' if not missed else f'not {missed}'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as e:
        sys.exit(f"nodes: {e}")
