#!/usr/bin/env python3
"""The demo: a byte-level GPT is compiled for four ranks at every ZeRO stage, initialized, and trained on tiny Shakespeare for two
minutes. It ends with a chart of the loss, the memory of all stages, text that the trained model writes, and what to try next.

    python3 tools/demo/demo.py --tools build/bin --out build/demo [--seconds 110]
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.append(str(ROOT / "test" / "models"))

import report  # noqa: E402
import unpack  # noqa: E402

RANKS, BATCH, SEQUENCE = 4, 32, 128
OPTIMIZER = "adamw:lr=3e-3,beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.1"
PROMPT, CHARACTERS = "ROMEO:", 300


def shown(path):
    return os.path.relpath(path)


class Demo:
    def __init__(self, tools, out):
        self.tools, self.out = pathlib.Path(tools), pathlib.Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        models = unpack.unpack()
        self.model, self.text = models / "shakespeare.onnx", models / "shakespeare.txt"
        self.tokens = self.out / "shakespeare.u8"
        self.weights = self.out / "initial.safetensors"
        self.log = self.out / "run.jsonl"

    def call(self, tool, *args, show=True):
        """Runs a tool with its stderr on the terminal; returns its stdout."""
        command = [shown(self.tools / tool), *[shown(a) if isinstance(a, pathlib.Path) else str(a) for a in args]]
        if show:
            print("$ " + " ".join(f"'{c}'" if "(" in c else c for c in command), flush=True)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def plan(self, stage):
        return self.out / f"gpt-zero{stage}.plan"

    def compile(self, stage):
        self.call("sheaf", "compile", self.model, "-o", self.plan(stage), *([] if stage == 3 else ["--quiet"]), "--ranks", RANKS, "--zero", stage, "--batch", BATCH,
                  "--optimizer", OPTIMIZER, "--clip-norm", "1.0")

    def run(self, steps, *more, show=True):
        begin = time.monotonic()
        self.call("sheaf-run", self.plan(3), "--weights", self.weights, "--data", f"input_ids,labels={shown(self.tokens)}",
                  "--shuffle", 1, "--steps", steps, "--log", self.log, *more, show=show)
        return time.monotonic() - begin

    def copy_text(self):
        """The text under a name that says how it is read: each byte is a token."""
        self.tokens.write_bytes(self.text.read_bytes())
        print(f"Text: tiny Shakespeare, {self.tokens.stat().st_size:,} bytes, one token per byte.", flush=True)

    def sample(self):
        """Prints what the trained model writes."""
        plan = self.out / "sample.plan"
        self.call("sheaf", "compile", self.model, "-o", plan, "--ranks", 1, "--batch", 1, "--eval")
        command = [sys.executable, shown(ROOT / "tools" / "demo" / "sample.py"), shown(plan), shown(self.out / "trained.safetensors"), "--prompt", PROMPT,
                   "--characters", str(CHARACTERS), "--tools", shown(self.tools)]
        print("$ python3 " + " ".join(command[1:]), flush=True)
        subprocess.run(command, check=True)

    def step_objects(self):
        return [o for o in map(json.loads, self.log.read_text().splitlines()) if "event" not in o]

    def steps_for(self, seconds):
        """How many steps take about that long here: by the median of a short run."""
        self.run(8, show=False)
        times = sorted(o["seconds"] for o in self.step_objects()[2:])
        return max(20, round(seconds / times[len(times) // 2]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=110, help="how long to train (default: %(default)s)")
    args = parser.parse_args()
    demo = Demo(args.tools, args.out)

    print("\n1. A GPT of 4 layers, width 128, exported from PyTorch, compiled for four ranks at every ZeRO stage.", flush=True)
    stages = {}
    for stage in range(4):
        demo.compile(stage)
        stages[stage] = json.loads(demo.call("sheaf", "inspect", demo.plan(stage), "--format", "json", show=False))

    print("\n2. The graph came without weights: they are initialized. The model learns to continue text of Shakespeare's plays.", flush=True)
    demo.call("sheaf", "init", demo.plan(3), "--scheme", "normal:std=0.02", "--seed", 1, "-o", demo.weights)
    demo.copy_text()
    steps = demo.steps_for(args.seconds)

    print(f"\n3. Trained at stage 3 for {steps} steps of {BATCH} x {SEQUENCE} bytes.", flush=True)
    for state in (demo.out / "state").glob("step-*"):  # an earlier demo left them
        shutil.rmtree(state)
    seconds = demo.run(steps, "--lr-schedule", f"cosine:warmup={max(1, steps // 10)},steps={steps},min=0.1",
                       "--save", demo.out / "trained.safetensors", "--save-state", demo.out / "state")

    taken = demo.step_objects()
    losses = [o["loss"] for o in taken]
    rate = BATCH * SEQUENCE * len(taken) / sum(o["seconds"] for o in taken)
    last = report.mean(losses[-20:])
    facts = [("parameters", f"{stages[3]['parameters']:,}"), ("ranks", f"{RANKS} on this machine, ZeRO stage 3"),
             ("steps", f"{len(taken)} of {BATCH} x {SEQUENCE} bytes in {seconds:.0f} s"), ("speed", f"{rate:,.0f} bytes per second"),
             ("loss", f"{losses[0]:.3f} at first (random bytes: 5.545), {last:.3f} over the last twenty steps"),
             ("bits per byte", f"{last / 0.6931471805599453:.2f}")]
    commands = [f"{shown(demo.tools / 'sheaf')} inspect {shown(demo.plan(3))}                  # memory and communication, every stage",
                f"{shown(demo.tools / 'sheaf')} inspect {shown(demo.plan(3))} --format text    # the plan, an instruction a line",
                f"{shown(demo.tools / 'sheaf')} compile {shown(demo.model)} -o gpt.plan --ranks 2 --zero 1 --batch 8 --verbose",
                f"{shown(demo.tools / 'sheaf-run')} {shown(demo.plan(1))} --resume {shown(demo.out / 'state')} "
                f"--data input_ids,labels={shown(demo.tokens)} --steps {len(taken) + 20}   # 20 more at another stage"]
    chart = report.loss_chart(losses, "Training loss, nats per byte", f"{len(taken)} steps, {rate:,.0f} bytes per second on {RANKS} ranks")
    (demo.out / "loss.svg").write_text(chart)
    (demo.out / "summary.html").write_text(report.page(chart, stages, facts, commands))

    print("\n4. What it took.\n")
    for name, value in facts:
        print(f"   {name:>12}  {value}")
    print("\nMemory of one rank at each stage:\n" + report.text_table(*report.memory_rows(stages)))
    print("\nCommunication of one step:\n" + report.text_table(*report.communication_rows(stages)))
    print(f"\nThe chart of the loss: {shown(demo.out / 'loss.svg')}; all of this on a page: {shown(demo.out / 'summary.html')}", flush=True)
    demo.call("sheaf", "report", demo.plan(3), "-o", demo.out / "report.html")
    print(f"The plan to look at, in a browser: {shown(demo.out / 'report.html')}")
    print("\n5. Text that the trained model writes, at temperature 0.8.\n", flush=True)
    demo.sample()
    print("\nTo try next:\n  " + "\n  ".join(commands))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as e:
        sys.exit(f"demo: {e.cmd[0]} ended with {e.returncode}")
