#!/usr/bin/env python3
"""Packs what a machine with a GPU needs to run the `gpu` tests and benchmarks: the runtime, test programs, plans, data.

    python3 test/gpu/kit.py --build build/release [--cuda12 build/cuda12 --toolkit /usr/local/cuda-12.8] --out build/gpu-kit.tar.xz

There, with a driver, cuBLAS and Python 3 (PyTorch for the comparison), and neither MLIR nor ONNX nor this tree:

    tar xf gpu-kit.tar.xz && python3 gpu-kit/run.py

The archive has at most LARGEST bytes, because some machines take 64 MiB with this tree. It has no CPU device, no MPI and no graphs: plans
there run on GPUs alone.

What CUDA 13 builds needs a driver of version 580 or later. With --cuda12 the kit has the device and the tests as CUDA 12.8
builds them, too, and plans whose kernels its ptxas made: drivers from 525 on take those, and newer ones.
"""
import argparse
import json
import lzma
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "e2e"), str(ROOT / "tools")]

import dist  # noqa: E402
import onnxwriter as onnx  # noqa: E402
from formats import write_npy  # noqa: E402
from harness import MODELS, unpack  # noqa: E402
from training import CONFIGS, data_arguments  # noqa: E402

TARGET = "cuda:sm_90,cuda:sm_80,cpu"  # the CPU for the emulated device
LARGEST = 16 << 20
HAVE_WEIGHTS = ("mlp.onnx", "mistral-tiny.onnx")  # graphs that are read with their plans, for their weights
TRAINED = ("mlp-adamw", "gpt2-tiny", "llama-tiny", "mistral-tiny")
LAYOUTS = [(1, 0), (1, 3)] + [(ranks, stage) for ranks in (2, 4, 8) for stage in range(4)]
# What ranks with a GPU each train: messages as large as those of real models, which the small ones never send.
NATIVE = [("mlp-wide", "f32", stage) for stage in range(4)] + [("gpt2-mini", "bf16", stage) for stage in (1, 3)]
NATIVE_RANKS = (2, 4, 8)
LEAST_BUCKET, WIDTHS = 8 << 20, {"f32": 4, "bf16": 2}  # bytes; of an element
BUCKETS = {"mlp-wide": "8MiB", "gpt2-mini": "11MiB"}
WIDE, ROWS = (256, 8192), 800  # of mlp-wide: widths of its layers; of its data
OPTIMIZER = "adamw:lr=3e-4,beta1=0.9,beta2=0.95,eps=1e-8,weight_decay=0.01"


def compile_plan(tools, kit, name, model, *options):
    path = kit / "plans" / f"{name}.plan"
    # A plan finds its weights relative to its own folder.
    graph = kit / "models" / f"{model}.onnx"
    for file in (graph.name, f"{model}.safetensors"):
        if not (kit / "models" / file).exists() and (MODELS / file).exists():
            shutil.copy(MODELS / file, kit / "models")
    subprocess.run([tools / "sheaf", "compile", graph, "-o", path, "--no-graph", "--cpu", "x86-64-v3", *map(str, options)], check=True)
    return str(path.relative_to(kit))


def training_jobs(tools, kit):
    """Every model at every stage and number of ranks, in f32, and two in bf16: what to run and what PyTorch's losses are."""
    for name in TRAINED:
        config = CONFIGS[name]
        losses = json.loads((kit / "models" / f"{config.reference}.json").read_text())["runs"][f"{config.run}.f64"]["loss"]
        data = [a if a == "--data" else a.replace(str(MODELS), "models") for a in data_arguments(config)]
        # A single row of the MLP's batch of 8 cannot be distinguished from a scalar.
        layouts = [("f32", ranks, stage) for ranks, stage in LAYOUTS if name != "mlp-adamw" or ranks < 8]
        if name != "mlp-adamw":
            layouts += [("bf16", 4, stage) for stage in range(4)]
        for precision, ranks, stage in layouts:
            label = f"{name}-{precision}-{ranks}-zero{stage}"
            plan = compile_plan(tools, kit, label, config.model, "--batch", 8, "--ranks", ranks, "--zero", stage,
                                "--precision", precision, "--target", TARGET, *config.options)
            yield {"name": label, "config": name, "precision": precision, "ranks": ranks, "stage": stage, "plan": plan,
                   "data": data, "losses": losses}


def write_mlp_wide(kit):
    """Four layers of 8 MiB in f32, whose products are small. Its weights are references, and written where it runs."""
    narrow, wide = WIDE
    shapes = [(narrow, wide), (wide, narrow), (narrow, wide), (wide, narrow)]
    nodes, value = [], "x"
    for layer, _ in enumerate(shapes):
        nodes.append(onnx.node("MatMul", [value, f"w{layer}"], [f"h{layer}"]))
        value = f"h{layer}"
        if layer + 1 < len(shapes):
            nodes.append(onnx.node("Relu", [value], [f"r{layer}"]))
            value = f"r{layer}"
    nodes.append(onnx.node("SoftmaxCrossEntropyLoss", [value, "labels"], ["loss"]))
    (kit / "models" / "mlp-wide.onnx").write_bytes(onnx.model(
        nodes, [onnx.value("x", onnx.FLOAT, ["N", narrow]), onnx.value("labels", onnx.INT64, ["N"])],
        [onnx.value("loss", onnx.FLOAT, [])],
        [onnx.weight(f"w{layer}", shape, location="mlp-wide.weights") for layer, shape in enumerate(shapes)]))
    generator = random.Random(0)
    write_npy(kit / "models" / "mlp-wide.x.npy", "<f4", (ROWS, narrow),
              struct.pack(f"<{ROWS * narrow}f", *(generator.gauss(0, 1) for _ in range(ROWS * narrow))))
    write_npy(kit / "models" / "mlp-wide.labels.npy", "<i8", (ROWS,),
              struct.pack(f"<{ROWS}q", *(generator.randrange(narrow) for _ in range(ROWS))))
    return ["--data", "x=models/mlp-wide.x.npy", "--data", "labels=models/mlp-wide.labels.npy"]


def write_text(kit):
    generator = random.Random(0)
    tokens = ROWS * 256 + 1
    (kit / "models" / "gpt2-mini.u16").write_bytes(struct.pack(f"<{tokens}H", *(generator.randrange(256) for _ in range(tokens))))
    return ["--data", "input_ids,labels=models/gpt2-mini.u16"]


def native_jobs(tools, kit, targets=TARGET, ranks=NATIVE_RANKS, chosen=tuple(NATIVE)):
    """Jobs of ranks with a GPU each. Every bucket has at least LEAST_BUCKET bytes."""
    data = {"mlp-wide": write_mlp_wide(kit), "gpt2-mini": write_text(kit)}
    for count in ranks:
        for model, precision, stage in chosen:
            label = f"native-{model}-{precision}-{count}-zero{stage}"
            options = ("--batch", 8, "--ranks", count, "--zero", stage, "--precision", precision, "--target", targets, "--bucket-size",
                       BUCKETS[model], "--optimizer", OPTIMIZER)
            plan = compile_plan(tools, kit, label, model, *options)
            report = json.loads(subprocess.run([tools / "sheaf", "inspect", kit / plan, "--format", "json"], check=True,
                                               capture_output=True, text=True).stdout)
            least = min(bucket["elements"] * WIDTHS[bucket["type"]] for bucket in report["buckets"])
            if least < LEAST_BUCKET:
                raise RuntimeError(f"a bucket of {plan} has {least} bytes, not {LEAST_BUCKET}")
            offloaded = {space: compile_plan(tools, kit, f"{label}-{space}", model, *options, "--offload", f"optimizer={space},parameters={space}")
                         for space in ("host", "file")} if stage == 3 else {}
            yield {"name": label, "model": model, "precision": precision, "ranks": count, "stage": stage, "plan": plan, "offloaded": offloaded,
                   "data": data[model], "weights": weights_of(tools, kit / plan), "least_bucket_bytes": least}


def weights_of(tools, plan):
    """Names and shapes of a plan's weights, as the file of weights has them."""
    text = subprocess.run([tools / "sheaf", "inspect", plan, "--format", "text"], check=True, capture_output=True, text=True).stdout
    weights = []
    for weight, shape, order in re.findall(r'plan\.parameter "([^"]*)" \w+ \[([^\]]*)\].* permutation \[([^\]]*)\]', text):
        shape, order = [int(n) for n in shape.split(",")], [int(n) for n in order.split(",") if n]
        named = list(shape)
        for here, there in enumerate(order):
            named[there] = shape[here]
        weights.append({"name": weight, "shape": named})
    if not weights:
        raise RuntimeError(f"the text of {plan} names no weights")
    return weights


def offload_plan(tools, kit, name, model, *options):
    """A plan, and what the simulator says of it on an H100."""
    path = compile_plan(tools, kit, name, model, *options)
    report = json.loads(subprocess.run([tools / "sheaf", "simulate", kit / path, "--profile", "h100", "--json"], check=True,
                                       capture_output=True, text=True).stdout)
    return {"path": path, "files": any("=file" in str(o) for o in options), "predicted_seconds": report["step_seconds"]}


def offload_jobs(tools, kit, targets=TARGET, models=("gpt2-tiny-f32-1", "gpt2-tiny-bf16-2", "gpt2-124m"), data=None):
    """Plans without and with offload, whose bits and times are compared. One rank runs in graphs, two that share a GPU do not."""
    everything = {space: ",".join(f"{kind}={space}" for kind in ("optimizer", "parameters", "gradients", "activations")) for space in ("host", "file")}
    for model in models:
        if model == "gpt2-124m":
            graph, ways = model, {"optimizer-host": "optimizer=host", "optimizer-file": "optimizer=file", "all-host": everything["host"]}
            options = ("--batch", 16, "--zero", 0, "--precision", "bf16", "--optimizer", OPTIMIZER, "--target", "cuda:sm_90", "--profile", "h100")
        else:
            graph, precision, ranks = model.rsplit("-", 2)
            ways = {"all-host": everything["host"], "all-file": everything["file"], "mixed": "optimizer=file,parameters=host,activations=file"}
            options = ("--batch", 8, "--ranks", ranks, "--zero", 3 if int(ranks) > 1 else 0, "--precision", precision, "--target", targets,
                       *CONFIGS[graph].options)
        yield {"name": model, "model": graph, "data": data or [],
               "plain": offload_plan(tools, kit, f"offload-{model}-without", graph, *options),
               "ways": {way: offload_plan(tools, kit, f"offload-{model}-{way}", graph, *options, "--offload", offload) for way, offload in ways.items()}}


def bench_job(tools, kit, name, rows, layers, width, parameters):
    plan = compile_plan(tools, kit, name, name, "--batch", rows, "--zero", 0, "--precision", "bf16", "--target", "cuda:sm_90",
                        "--optimizer", OPTIMIZER, "--profile", "h100")
    predicted = f"plans/{name}.predicted.json"
    subprocess.run([tools / "sheaf", "simulate", kit / plan, "--profile", "h100", "--trace", kit / predicted], check=True,
                   stdout=subprocess.DEVNULL)
    return {"plan": plan, "predicted": predicted, "model": name, "rows": rows, "tokens": 1024, "vocabulary": 50257,
            "weights": weights_of(tools, kit / plan), "layers": layers, "width": width, "parameters": parameters}


def probe(tools, kit):
    """What the card is measured with, for the simulator."""
    path = kit / "plans" / "probe.plan"
    subprocess.run([tools / "sheaf", "profile", "-o", path, "--target", TARGET], check=True)
    return str(path.relative_to(kit))


def install_runtime(build, cuda12, kit):
    """sheaf-run with the CUDA device and the libraries of the runtime itself, and the tests of it."""
    dist.install(build, kit / "runtime")
    if not (kit / "runtime" / "lib" / "libsheaf_cuda.so").exists():
        raise RuntimeError("the build has no CUDA device (libsheaf_cuda.so); it needs a CUDA toolkit")
    for library in (kit / "runtime" / "lib").iterdir():
        if library.name not in ("libsheaf_cuda.so", "libsheaf_measure.so", "libsheaf_same.so"):
            library.unlink()
    for folder, name in ((build, "cuda13"), (cuda12, "cuda12")):
        if not folder:
            continue
        (kit / "tests" / name).mkdir()
        for test in sorted((folder / "test" / "bin").glob("cuda*_gpu_test")):
            subprocess.run(["strip", test, "-o", kit / "tests" / name / test.name], check=True)
    if cuda12:
        (kit / "runtime" / "lib" / "cuda12").mkdir()
        subprocess.run(["strip", cuda12 / "lib" / "libsheaf_cuda.so", "-o", kit / "runtime" / "lib" / "cuda12" / "libsheaf_cuda.so"], check=True)


def write_archive(kit, out, preset=9 | lzma.PRESET_EXTREME):
    """Packs the kit's folder as one archive, without graphs that are not read again, and returns its size."""
    for model in (kit / "models").glob("*.onnx"):
        if model.name not in HAVE_WEIGHTS:
            model.unlink()
    dist.write_archive(kit, out, preset)
    return out.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--cuda12", type=pathlib.Path, help="a build with CUDA 12.8 or 12.9")
    parser.add_argument("--toolkit", type=pathlib.Path, help="that toolkit")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    if args.toolkit:
        os.environ["CUDA_HOME"] = str(args.toolkit)  # whose ptxas compiles the plans' kernels
    unpack.unpack()
    with tempfile.TemporaryDirectory(dir=args.out.parent, prefix="gpu-kit-") as folder:
        make(args, pathlib.Path(folder) / "gpu-kit")


def make(args, kit):
    tools = args.build / "bin"
    for folder in ("plans", "models", "tests"):
        (kit / folder).mkdir(parents=True)
    install_runtime(args.build, args.cuda12, kit)
    for config in map(CONFIGS.get, TRAINED):
        for file in [f"{config.reference}.json", *(f"{f}.npy" for _, f in config.data)]:
            shutil.copy(MODELS / file, kit / "models")
    jobs, native = list(training_jobs(tools, kit)), list(native_jobs(tools, kit))
    (kit / "jobs.json").write_text(json.dumps({
        "training": jobs,
        "native": native,
        "offload": list(offload_jobs(tools, kit, data=next(job["data"] for job in jobs if job["config"] == "gpt2-tiny"))),
        "bench": {"gpt2-124m": bench_job(tools, kit, "gpt2-124m", 16, 12, 768, 124_439_808),
                  "gpt2-1.5b": bench_job(tools, kit, "gpt2-1.5b", 8, 48, 1600, 1_557_611_200)},
        "probe": probe(tools, kit)}))
    for script in ("run.py", "job_runs.py", "offload_runs.py", "weights.py"):
        shutil.copy(pathlib.Path(__file__).with_name(script), kit)
    for script in ("pytorch_baseline.py", "roofline.py"):
        shutil.copy(ROOT / "test" / "bench" / script, kit)
    whole = sum(f.stat().st_size for f in kit.rglob("*") if f.is_file())
    size = write_archive(kit, args.out)
    print(f"{args.out}: {len(jobs) + len(native)} jobs, {size / 2**20:.1f} MiB, unpacked {whole / 2**20:.0f} MiB")
    if size > LARGEST:
        raise RuntimeError(f"the archive is larger than {LARGEST >> 20} MiB")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"kit: {e}")
