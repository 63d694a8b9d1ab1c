"""Plans: compiled, and what is known of them before they run."""
from __future__ import annotations

import html
import json
import os
import pathlib
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, Sequence, Union

from . import _export
from ._tools import Error, Option, arguments_of, call, path_of

if TYPE_CHECKING:
    import torch

Path = Union[str, os.PathLike[str]]
Model = Union[Path, "torch.nn.Module"]

# The options of `sheaf compile` that `sheaf fit` has, too.
_OF_FIT = ("ranks", "batch", "micro_batches", "reduce", "bind", "const", "loss", "optimizer", "clip_norm", "on_nan", "train", "freeze", "batch_norm", "precision",
           "profile", "ranks_per_node", "offload", "host_memory", "file_space")


class Plan:
    """A training plan.

    path: the file, for `sheaf-run` and the other tools. model: the ONNX file that it was compiled from, which has the initial
    weights; None if that is not known.
    """

    def __init__(self, path: Path, model: Path | None = None) -> None:
        self.path = pathlib.Path(path)
        self.model = None if model is None else pathlib.Path(model)
        self._options: dict[str, Option] = {}
        if not self.path.exists():
            raise Error(f"there is no plan {self.path}")

    def __repr__(self) -> str:
        facts = self.inspect()
        return f"<sheaf.Plan {self.path}: {facts['model']}, {facts['ranks']} ranks, ZeRO stage {facts['zero']}, batch {facts['batch']}>"

    def summary(self) -> str:
        """Parameters, memory by kind and by stage, and communication, as `sheaf inspect` prints them."""
        return call("sheaf", "inspect", path_of(self.path))

    def inspect(self) -> dict[str, Any]:
        """The same for programs: `sheaf inspect --format json`."""
        facts: dict[str, Any] = json.loads(call("sheaf", "inspect", path_of(self.path), "--format", "json"))
        return facts

    def verify(self) -> str:
        """Proves the plan, as is done whenever it is loaded, and returns what `sheaf verify` prints."""
        return call("sheaf", "verify", path_of(self.path))

    def fit(self, memory: str, **options: Option) -> dict[str, Any]:
        """Memory and step time of the model at each ZeRO stage on ranks with so much memory each ("24GiB"): `sheaf fit --json`.

        The options are those that the plan was compiled with, unless others are given.
        """
        if self.model is None:
            raise Error(f"the model of {self.path} is not known; give it to the plan: sheaf.Plan(path, model=...)")
        known = {name: value for name, value in self._options.items() if name in _OF_FIT}
        known = {"ranks": self.inspect()["ranks"], **known, **options}
        layouts: dict[str, Any] = json.loads(call("sheaf", "fit", path_of(self.model), "--memory", memory, "--json", *arguments_of(known),
                                                 answers_by_status=True))
        return layouts

    def simulate(self, profile: Path, *, ranks: int | None = None, memory_limit: str | None = None) -> dict[str, Any]:
        """The step on a machine, by the name of a shipped profile or a file of `sheaf profile`: `sheaf simulate --json`."""
        options = arguments_of({"ranks": ranks, "memory_limit": memory_limit})
        predicted: dict[str, Any] = json.loads(call("sheaf", "simulate", path_of(self.path), "--profile", path_of(profile), "--json", *options))
        return predicted

    def export(self, weights: Path, output: Path) -> pathlib.Path:
        """The ONNX model with trained weights, or with an `output` that ends in .safetensors these alone: `sheaf export`."""
        model = [] if self.model is None else ["--model", path_of(self.model)]
        call("sheaf", "export", path_of(self.path), "--weights", path_of(weights), *model, "-o", path_of(output))
        return pathlib.Path(output)

    def report(self, output: Path) -> pathlib.Path:
        """Writes the report as one HTML page."""
        call("sheaf", "report", path_of(self.path), "-o", path_of(output))
        return pathlib.Path(output)

    def _repr_html_(self) -> str:
        """For notebooks: the report."""
        with tempfile.TemporaryDirectory(prefix="sheaf-") as folder:
            page = self.report(pathlib.Path(folder) / "report.html").read_text(encoding="utf-8")
        # Names in the page come from models. Without allow-same-origin the page is of an origin of its own, not of the notebook's.
        return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" style="width: 100%; height: 48em; border: 0"></iframe>'


def compile(model: Model, inputs: _export.Inputs | None = None, *, ranks: int = 1, batch: int | None = None, optimizer: str | None = None,
            loss: str | None = None, output: Path | None = None, train_mode: bool = True, output_names: list[str] | None = None,
            **options: Option) -> Plan:
    """Compiles the training step of a model: `sheaf compile`.

    model: an ONNX file, or a torch.nn.Module, which is exported. inputs: examples of the module's inputs, as forward takes them
    (a sequence, or a mapping by name); their first dimension is the batch. batch: the global batch; of a module the example's
    rows, unless it is given. loss: such as "cross_entropy(logits)", where the model's output is not the loss already; the
    outputs are named by `output_names`. output: the plan's file, next to which the module is exported; without it both last as
    long as the plan object. Parameters with requires_grad=False are frozen, unless train= says what is trained. train_mode: whether dropout and batch norms of a module are exported as in training.

    All other options of `sheaf compile` by name, with underscores: zero=3, lr_schedule="cosine:warmup=100", clip_norm=1.0,
    no_decay=True, group=["head:lr=0.1"], bind={"sequence": 128}.
    """
    named: dict[str, Option] = {"ranks": ranks, "batch": batch, "optimizer": optimizer, "loss": loss, **options}
    if output is not None:
        return _compile(model, inputs, pathlib.Path(output), train_mode, output_names, named)
    folder = tempfile.mkdtemp(prefix="sheaf-")
    try:
        plan = _compile(model, inputs, pathlib.Path(folder) / "model.plan", train_mode, output_names, named)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(plan, shutil.rmtree, folder, ignore_errors=True)
    return plan


def _compile(model: Model, inputs: _export.Inputs | None, path: pathlib.Path, train_mode: bool, output_names: list[str] | None,
             named: dict[str, Option]) -> Plan:
    if _export.is_module(model):
        module: Any = model
        if inputs is None:
            raise Error("a module is exported with examples of its inputs: sheaf.compile(module, (x, labels), ...)")
        if named["batch"] is None:
            named["batch"] = _export.batch_of(_export.named_inputs(module, inputs))
        graph = path.with_suffix(".onnx")
        names = _export.export(module, inputs, graph, train=train_mode, output_names=output_names)
        frozen = _export.frozen_patterns(module, names)
        # The option train= wins over the module.
        if frozen and not named.get("train"):
            given = named.get("freeze")
            more = [given] if isinstance(given, (str, os.PathLike)) else list(given) if isinstance(given, Sequence) else []
            named["freeze"] = [*more, *frozen]
    elif isinstance(model, (str, os.PathLike)):
        if inputs is not None or output_names is not None:
            raise Error("inputs and output_names are those of a torch.nn.Module; an ONNX file has its own")
        graph = pathlib.Path(model)
    else:
        raise Error(f"a model is the path of an ONNX file or a torch.nn.Module, not a {type(model).__name__}")
    call("sheaf", "compile", path_of(graph), "-o", path_of(path), *arguments_of(named))
    plan = Plan(path, graph)
    plan._options = named
    return plan
