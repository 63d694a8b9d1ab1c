"""The examples of docs/cluster.md, as they stand there: with the launcher itself where Debian has it, otherwise with a script
in its place that sets the variables which its documentation names. Names of hosts, files and ports are put in."""
import contextlib
import os
import re
import shutil
import socket
import subprocess

from harness import ROOT, Case, Skip, digest, expect
from jobs import RANKS, SECONDS, STEPS, common, plan, whole

PAGE = ROOT / "docs" / "cluster.md"
EXAMPLES = {"torchrun": "sh", "Open MPI": "sh", "MPICH": "sh", "Slurm": "sh", "Kubernetes": "yaml"}

# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
TORCHRUN = """
options = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--") and "=" in word)
assert options["rdzv-backend"] == "c10d" and options["rdzv-id"], options
command = sys.argv[sys.argv.index("--no-python") + 1:]
nodes, local, node = int(options["nnodes"]), int(options["nproc-per-node"]), int(os.environ["TEST_NODE"])
host, _, port = options["rdzv-endpoint"].partition(":")
start(command, [{"RANK": node * local + i, "LOCAL_RANK": i, "GROUP_RANK": node, "WORLD_SIZE": nodes * local,
                 "LOCAL_WORLD_SIZE": local, "MASTER_ADDR": host, "MASTER_PORT": int(port) + 1,
                 "TORCHELASTIC_RUN_ID": options["rdzv-id"]} for i in range(local)])
"""
# https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
SRUN = """
nodes, local = int(os.environ["TEST_NODES"]), int(os.environ["TEST_TASKS_PER_NODE"])
command = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("--")):]
start(command, [{"SLURM_PROCID": i, "SLURM_NTASKS": nodes * local, "SLURM_STEP_NUM_TASKS": nodes * local, "SLURM_LOCALID": i % local,
                 "SLURM_NODEID": i // local, "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_JOB_NODELIST": "localhost",
                 "SLURM_STEP_NODELIST": "localhost"} for i in range(nodes * local)])
"""
START = """#!/usr/bin/env python3
import os, subprocess, sys
def start(command, environments):
    processes = [subprocess.Popen(command, env={**os.environ, **{k: str(v) for k, v in e.items()}}) for e in environments]
    sys.exit(max(process.wait() for process in processes))
"""


def cases(session):
    for launcher in EXAMPLES:
        yield Case(f"launchers/documented/{launcher.replace(' ', '-')}", lambda v=launcher: as_documented(session, v))


def example(launcher):
    """The first block of code below the launcher's heading."""
    section = PAGE.read_text().partition(f"\n### {launcher}\n")[2].partition("\n### ")[0]
    found = re.search(rf"^```{EXAMPLES[launcher]}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    expect(found, f"{PAGE.name} has no example for {launcher}")
    return found.group(1)


def replaced(text, changes):
    """Every change must find something to change."""
    for old, new in changes.items():
        expect(old in text, f"the example does not have '{old}':\n{text}")
        text = text.replace(old, str(new))
    return text


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def as_documented(session, launcher):
    where, expected, port = session.folder(), whole(session), free_port()
    text = replaced(example(launcher), {"model.plan": plan(session), "1000": STEPS, "x=x.npy": common()[1], "labels=labels.npy": common()[3]})
    environment = {**os.environ, "PATH": f"{where}:{session.tools}:{os.environ['PATH']}", "SHEAF_TIMEOUT": str(SECONDS * session.slowdown)}
    scripts = {"torchrun": torchrun, "Slurm": srun, "Kubernetes": indexed_job}.get(launcher, by_mpirun)(where, text, port, environment)
    with contextlib.ExitStack() as stack:
        processes = []
        for number, (command, more) in enumerate(scripts):
            out = stack.enter_context(open(where / f"output-{number}", "wb"))
            process = subprocess.Popen(list(map(str, command)), cwd=where, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                       env={**environment, **{k: str(v) for k, v in more.items()}})
            stack.callback(lambda p=process: (p.kill(), p.wait()))
            processes.append(process)
        codes = [process.wait(SECONDS * session.slowdown) for process in processes]
    said = "\n".join(path.read_text() for path in sorted(where.glob("output-*")))
    expect(not any(codes), f"exits {codes}:\n{text}\n{said}")
    expect(digest(where / "trained.safetensors") == digest(expected.weights), "other weights than of one process")


def fake(where, name, script):
    (where / name).write_text(START + script)
    (where / name).chmod(0o755)


def torchrun(where, text, port, environment):
    fake(where, "torchrun", TORCHRUN)
    (where / "job.secret").write_text("what all machines have\n")
    text = replaced(text, {"node0:29400": f"127.0.0.1:{port}"})
    return [(["bash", "-ec", text], {"TEST_NODE": node}) for node in range(2)]


def by_mpirun(where, text, port, environment):
    openmpi = "--hostfile" in text
    real = shutil.which("mpirun.openmpi" if openmpi else "mpirun.mpich")
    if not real:
        raise Skip("Debian's packages openmpi-bin and mpich have the launchers")
    (where / "mpirun").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (where / "mpirun").chmod(0o755)
    (where / "hosts").write_text("localhost slots=4\n" if openmpi else "localhost:4\n")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1}
    return [(["bash", "-ec", replaced(text, {"node0:29400": f"127.0.0.1:{port}"})], root)]


def srun(where, text, port, environment):
    fake(where, "srun", SRUN)
    script = where / "job.sh"
    script.write_text(text)
    sizes = dict(re.findall(r"^#SBATCH --([\w-]+)=(\d+)$", text, re.MULTILINE))
    return [(["bash", "-e", script], {"TEST_NODES": sizes["nodes"], "TEST_TASKS_PER_NODE": sizes["ntasks-per-node"]})]


def indexed_job(where, text, port, environment):
    """What the Job controller and the kubelet do: a process for each index, with the variables of the manifest."""
    completions = int(re.search(r"completions: (\d+)", text).group(1))
    expect(completions == RANKS and f"parallelism: {completions}" in text and "completionMode: Indexed" in text, text)
    command = [word.strip().strip('"') for word in re.search(r"command: \[(.*)\]", text).group(1).split(",")]
    variables = dict(re.findall(r'\{name: (\w+), value: "(.*?)"\}', text))
    job, service = re.search(r"kind: Job\nmetadata: \{name: (\w+)\}", text).group(1), re.search(r"subdomain: (\w+)", text).group(1)
    expect(f"kind: Service\nmetadata: {{name: {service}}}" in text and f"job-name: {job}}}" in text, "the Service is not the Job's")
    expect(variables.pop("SHEAF_RENDEZVOUS").startswith(f"{job}-0.{service}:"), "another process than the first is met")
    expect("{name: SHEAF_SECRET, valueFrom: {secretKeyRef:" in text, "the secret is not Kubernetes'")
    variables |= {"SHEAF_RENDEZVOUS": f"127.0.0.1:{port}", "SHEAF_SECRET": "what the Secret of Kubernetes has"}
    return [(command, {**variables, "JOB_COMPLETION_INDEX": index}) for index in range(completions)]
