"""A torch.nn.Module as an ONNX file, with the options that training needs (docs/onnx.md)."""
from __future__ import annotations

import inspect
import os
import pathlib
import re
import warnings
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Union

from ._tools import Error

if TYPE_CHECKING:
    import torch

Inputs = Union[Sequence[Any], Mapping[str, Any]]


def is_module(model: object) -> bool:
    """Whether it is a torch.nn.Module, without importing torch where that has not been done."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.modules.module.Module" for kind in type(model).__mro__)


def named_inputs(module: torch.nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The inputs by the names of forward's parameters, in their order."""
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(**inputs) if isinstance(inputs, Mapping) else signature.bind(*inputs)
    except TypeError as error:
        raise Error(f"the inputs do not fit {type(module).__name__}.forward{signature}: {error}") from None
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            raise Error(f"{type(module).__name__}.forward takes *{name}: give the inputs names, as a dictionary")
        else:
            named[name] = value
    return named


def batch_of(inputs: Mapping[str, Any]) -> int:
    """The rows of the example: the leading dimension of the first input that has one."""
    for value in inputs.values():
        if getattr(value, "ndim", 0) > 0:
            return int(value.shape[0])
    raise Error("no input has rows: the first dimension of an input is that of the batch")


def _apart(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The exporter takes one tensor that is given as two inputs, such as labels=input_ids, for one input."""
    import torch

    found: dict[str, Any] = {}
    for name, value in inputs.items():
        again = isinstance(value, torch.Tensor) and any(value is other for other in found.values())
        found[name] = value.clone() if again else value
    return found


def export(module: torch.nn.Module, inputs: Inputs, path: Union[str, os.PathLike[str]], *, train: bool = True,
           output_names: Sequence[str] | None = None) -> set[str]:
    """Writes the module as `path`, in training mode unless `train` is false, with a symbolic batch. The module stays as it is.
    Returns the names of the parameters and buffers that the file has.
    """
    import torch

    named = _apart(named_inputs(module, inputs))
    batch = torch.export.Dim.DYNAMIC
    shapes = {name: {0: batch} if isinstance(value, torch.Tensor) and value.ndim > 0 else None for name, value in named.items()}
    modes = [(part, part.training) for part in module.modules()]
    module.train(train)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Exporting a model while it is in training mode")
            # Without `optimize` parameters keep their names, and a tied weight stays one.
            program = torch.onnx.export(module, (), os.fspath(path), kwargs=named, dynamo=True, optimize=False, verbose=False,
                              input_names=[name for name, value in named.items() if isinstance(value, torch.Tensor)],
                              output_names=output_names, dynamic_shapes=shapes)
    except Exception as error:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without colours
        raise Error(f"torch.onnx.export cannot export {type(module).__name__}: {text}") from error
    finally:
        for part, mode in modes:
            part.training = mode
    assert program is not None
    return set(program.model.graph.initializers)


def frozen_patterns(module: torch.nn.Module, names: set[str]) -> list[str]:
    """Regular expressions that match those of `names` whose parameters have requires_grad=False, and no other parameter. A part of
    the module without any other parameter is one expression.
    """
    frozen = {name for name, value in module.named_parameters(remove_duplicate=False) if not value.requires_grad} & names
    trained = {name for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}

    def patterns(prefix: str, part: torch.nn.Module) -> list[str]:
        within = [name for name in frozen if name.startswith(prefix)]
        if within and prefix and not any(name.startswith(prefix) for name in trained):
            return ["^" + _escaped(prefix)]
        own = [name for name, _ in part.named_parameters(prefix.rstrip("."), recurse=False, remove_duplicate=False) if name in frozen]
        found = [f"^{_escaped(name)}$" for name in own]
        for name, child in part.named_children():
            if any(other.startswith(f"{prefix}{name}.") for other in within):
                found += patterns(f"{prefix}{name}.", child)
        return found

    return patterns("", module)


def _escaped(name: str) -> str:
    return re.sub(r"([\\.\[\]{}()*+?^$|])", r"\\\1", name)
