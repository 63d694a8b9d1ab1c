"""Plans with offload on one GPU: the bits of the plan without, as graphs and one by one, and what they cost in time."""
import json
import statistics

from job_runs import folder_in

STEPS = 25  # of which the first fifth warms up


def compare_offload(runner, job, data):
    """The plan without offload, then each with, of one model on the same data."""
    job = {**job, "data": data}
    plain = measured(runner, job, job["plain"], f"{job['name']}-without")
    runner.check(f"offload/{job['name']}-without", not plain["why"], plain["why"] or figures(plain))
    found = {"without": plain}
    for way, plan in job["ways"].items():
        for options in ((), ("--no-graphs",)):
            name = way + "".join(options)
            found[name] = run = measured(runner, job, plan, f"{job['name']}-{name}", *options)
            why = run["why"] or ("" if run["digest"] == plain["digest"] else "other bits than without offload")
            runner.check(f"offload/{job['name']}-{name}", not why, why or figures(run))
    kept = ("step_seconds", "predicted_seconds", "device")
    runner.results.setdefault("offload", {})[job["name"]] = {name: {key: run[key] for key in kept if key in run} for name, run in found.items()}


def measured(runner, job, plan, name, *options):
    """Digest, seconds of a step, the event `device`; or why not."""
    if plan["files"]:
        options = (*options, "--offload-dir", folder_in(runner, name))
    steps = job.get("steps", STEPS)
    _, digest, why = runner.train({**job, "plan": plan["path"]}, steps, name, *options)
    if why:
        return {"why": why, "digest": None}
    entries = [json.loads(line) for line in (runner.out / f"{name}.jsonl").read_text().splitlines()]
    seconds = [e["seconds"] for e in entries if "loss" in e][steps // 5:]
    device = next((e for e in entries if e.get("event") == "device"), {})
    kept = ("graphs", "pinned_bytes", "pinned_on_node", "file_input_output")
    return {"why": "", "digest": digest, "step_seconds": statistics.median(seconds), "predicted_seconds": plan["predicted_seconds"],
            "device": {key: device[key] for key in kept if key in device}}


def figures(run):
    return f"{1e3 * run['step_seconds']:.2f} ms a step, {1e3 * run['predicted_seconds']:.2f} ms predicted for an H100; {json.dumps(run['device'])}"
