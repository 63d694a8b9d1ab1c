"""Sheaf from Python: compile an ONNX model or a torch.nn.Module into a training plan, train it on ranks, take the weights back.

    plan = sheaf.compile(module, (x, labels), ranks=4, optimizer="adamw:lr=1e-3")
    print(plan.summary())
    run = sheaf.train(plan, {"x": x, "labels": labels}, steps=1000)
    for record in run:
        if "event" not in record:
            print(record["step"], record["loss"])
    sheaf.load_into(module, run)

The package runs the tools `sheaf` and `sheaf-run`, which it contains; docs/python.md describes it.
"""
from ._plan import Plan, compile
from ._run import Record, Run, train
from ._tools import Error, ToolWarning, version
from ._weights import load_into, read_weights

__all__ = ["Error", "Plan", "Record", "Run", "ToolWarning", "compile", "load_into", "read_weights", "train", "version"]
__version__ = version()
