"""Rows from files, arrays and generators give the same bytes; and every error is an exception with the tool's text."""
import contextlib
import io
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import warnings

import numpy as np

import sheaf

models = pathlib.Path(sys.argv[1])
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[2]))
files = {"x": models / "mlp.x.npy", "labels": models / "mlp.labels.npy"}
x, labels = np.load(files["x"]), np.load(files["labels"])
plan = sheaf.compile(models / "mlp.onnx", ranks=2, batch=8, zero=3, optimizer="sgd:lr=0.1", eval=True, bucket_size="64KiB", output=folder / "mlp.plan")
STEPS = 12


def weights(data, steps=STEPS, **options):
    run = sheaf.train(plan, data, steps, **options).wait()
    return run.weights.read_bytes(), run


def batches(sizes, error=None):
    first = 0
    for size in sizes:
        yield {"x": x[first:first + size], "labels": labels[first:first + size]}
        first += size
    if error:
        raise error


expected, run = weights(files)
assert len(run.losses) == STEPS and run.losses[-1] < run.losses[0]
assert weights({"x": x, "labels": labels})[0] == expected
assert weights({"x": x[::1].astype(np.float64), "labels": labels.astype(np.int32)})[0] == expected
assert weights(batches([1, 3, 8, 0, 84]))[0] == expected, "another result through a pipe"


def endless():
    at = 0
    while True:
        index = np.arange(at, at + 5) % len(x)
        at += 5
        yield {"labels": labels[index], "x": np.asfortranarray(x[index])}


assert weights(endless())[0] == expected
assert sheaf.train(plan, files, STEPS, output=folder / "out").wait().weights == folder / "out" / "weights.safetensors"
evaluated = [r for r in weights(files, eval_data=files, eval_every=6)[1].records if r.get("event") == "eval"]
assert [r["step"] for r in evaluated] == [6, 12] and 0 <= evaluated[0]["accuracy"] <= 1

arrays = run.read_weights()
assert sum(a.size for a in arrays.values()) == plan.inspect()["parameters"]
assert run.export(folder / "trained.onnx").stat().st_size > 0

fits = plan.fit("24GiB")
assert [s["stage"] for s in fits["stages"]] == [0, 1, 2, 3] and fits["batch"] == 8 and fits["stages"][3]["fits"]
assert not plan.fit("64KiB", batch=800)["stages"][0]["fits"]
predicted = plan.simulate("h100")
assert predicted["step_seconds"] >= predicted["bound_seconds"] > 0 and predicted["ranks"] == 2
assert plan.simulate("h100", ranks=8)["ranks"] == 8
page = plan._repr_html_()
assert page.startswith('<iframe sandbox="allow-scripts" srcdoc=') and "report-data" in page
# Paths that look like options are paths.
before = os.getcwd()
os.chdir(folder)
shutil.copy(plan.path, "--help")
assert sheaf.Plan("--help").inspect() == plan.inspect() and sheaf.Plan("--help").report("-o").exists()
assert sheaf.train("--help", {"x": x, "labels": labels}, 1, output="--eval", save_state="--shuffle").wait().weights.exists() and os.path.isdir("--shuffle")
os.chdir(before)
# The page is escaped: with a program in the place of `sheaf`.
(folder / "tools").mkdir()
(folder / "tools" / "sheaf").write_text("""#!/bin/sh
case "$1" in
  report) [ "$3" = -o ] && printf '<p title="a & b">%s</p>' "$2" > "$4" ;;
esac
""")
(folder / "tools" / "sheaf").chmod(0o755)
os.environ["SHEAF_TOOLS"] = str(folder / "tools")
assert f"srcdoc=\"&lt;p title=&quot;a &amp; b&quot;&gt;{plan.path}&lt;/p&gt;\"" in plan._repr_html_(), plan._repr_html_()
del os.environ["SHEAF_TOOLS"]
assert "2 ranks, ZeRO stage 3, batch 8" in repr(plan)
plan.verify()


def refused(action, *words, kind=sheaf.Error):
    try:
        action()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error!s}"
        assert not str(error).startswith("sheaf"), f"the error begins with the tool's name: {error}"
        return
    raise AssertionError(f"no {kind.__name__}: {words}")


refused(lambda: sheaf.compile(models / "none.onnx", batch=8), "none.onnx")
refused(lambda: sheaf.compile(models / "mlp.onnx", batch=8, optimiser="sgd"), "unknown option optimiser=", "did you mean optimizer=")
refused(lambda: sheaf.compile(models / "mlp.onnx", batchsize=8), "unknown option batchsize=", "did you mean batch=")
refused(lambda: sheaf.compile(models / "mlp.onnx", batch=8, optimizer=object()), 'optimizer= takes text or numbers, such as "adamw:lr=1e-3", not a object')
refused(lambda: sheaf.compile(models / "mlp.onnx", batch=8, loss=print), 'loss= takes text or numbers, such as "cross_entropy(logits)"')
refused(lambda: sheaf.train(plan, batches([8, 8]), epochs=1), "epochs= needs files or arrays", "steps=")
refused(lambda: sheaf.compile(models / "mlp.onnx", batch=8, zero=4), "--zero 4")
refused(lambda: sheaf.compile(models / "mlp.onnx", (x,)), "ONNX file")
refused(lambda: sheaf.compile(3, batch=8), "not a int")
refused(lambda: sheaf.Plan(folder / "none.plan"), "none.plan")
refused(lambda: sheaf.Plan(plan.path).fit("1GiB"), "model=")
refused(lambda: plan.fit("much"), "--memory much")
refused(lambda: plan.simulate("none"), "none")
refused(lambda: weights({"x": x}), "input 'labels'")
refused(lambda: weights({"x": x[:, :3], "labels": labels}), "[800, 3]", "[rows, 64]")
refused(lambda: weights({"x": x, "labels": labels[:7]}), "7 rows")
refused(lambda: weights(files, log="x"), "log=")
refused(lambda: weights(batches([8, 8])), "the iterable of data ended after 16 rows", "fewer steps=")
refused(lambda: weights(iter([])), "no batch")
refused(lambda: weights(iter([x])), "mapping")
refused(lambda: weights(batches([8, 8]), shuffle=1), "--shuffle")
refused(lambda: weights({"x": x, "y": labels}.items()), "mapping")
refused(lambda: weights([{"x": x[:8], "labels": labels[:8]}, {"x": x[:8]}]), "the first one has x, labels")
refused(lambda: weights(batches([8, 8], KeyError("of the user's")), ), "of the user's", kind=KeyError)
refused(lambda: weights(files, lr=1e38, steps=STEPS), "not finite")
refused(lambda: sheaf.read_weights(models / "mlp.onnx"), "safetensors")
with sheaf.train(plan, files, 10**9) as endless_run:
    for record in endless_run:
        if record.get("step") == 3 and "event" not in record:
            break
assert endless_run._process.poll() is not None, "leaving the block does not end the run"
stopped = sheaf.train(plan, files, 10**9, callbacks=[lambda r: stopped.stop() if r.get("step") == 3 else None])
assert "interrupted" in [r.get("event") for r in stopped.wait().records] and len(stopped.losses) < 10**6
# An interrupt stops the runs, also one that comes while the user's own loop body runs, and whatever handler a notebook has set since.
def interrupted_in_the_loop(run):
    for record in run:
        if record.get("step") == 3 and "event" not in record:
            signal.raise_signal(signal.SIGINT)


def interrupted_in_another_cell(run):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    run.wait()


for interrupted, options, how in (
        (interrupted_in_the_loop, {}, "no state is saved; save_state='DIR' saves one"),
        (interrupted_in_another_cell, {"save_state": folder / "cut"}, f"the same call with resume='{folder / 'cut'}' goes on")):
    endless_run = sheaf.train(plan, files, 10**9, **options)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            interrupted(endless_run)
    except KeyboardInterrupt:
        assert endless_run._process.wait(timeout=60) == 128 + signal.SIGTERM, "the run goes on, or has not ended in order"
    else:
        raise AssertionError("no KeyboardInterrupt")
    assert printed.getvalue() == f"sheaf: interrupted: {how}\n", printed.getvalue()
    assert "interrupted" in [r.get("event") for r in endless_run.wait().records]
# The same call goes on to its end: the length is that of the whole training.
half = sheaf.train(plan, files, 6, save_state=folder / "half").wait()
rest = sheaf.train(plan, files, 10, resume=folder / "half").wait()
assert (len(rest.losses), rest.losses) == (4, sheaf.train(plan, files, 10).wait().losses[6:]), rest.losses


# Warnings of the tools are Python's, of the line that called.
def warned(action, *words):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    texts = [str(w.message) for w in seen if issubclass(w.category, sheaf.ToolWarning)]
    assert any(all(word in text for word in words) for text in texts), f"{words} is not in {texts}"
    assert all(w.filename == __file__ for w in seen), [w.filename for w in seen]


(folder / "tools" / "sheaf").write_text("""#!/bin/sh
echo 'sheaf: note: not this one' >&2
echo 'sheaf: warning: model.onnx: a trap' >&2
""")
os.environ["SHEAF_TOOLS"] = str(folder / "tools")
warned(plan.verify, "model.onnx: a trap")
warned(lambda: sheaf.compile(models / "mlp.onnx", batch=8, output=plan.path), "model.onnx: a trap")
del os.environ["SHEAF_TOOLS"]
saved = sheaf.train(plan, files, 2, save_state=folder / "state").wait()
warned(lambda: sheaf.train(plan, files, 3, resume=folder / "state", weights=saved.weights).wait(), "--weights has no effect")
print("as expected")
