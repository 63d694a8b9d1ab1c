"""Trained weights: reading them, and back into the module that was compiled."""
from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from ._tools import Error

if TYPE_CHECKING:
    import torch

    from ._run import Run

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1", "BOOL": "|b1"}


def read_weights(path: Union[str, os.PathLike[str]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a safetensors file by name; bf16, which numpy lacks, as float32."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or begin > len(data):
        raise Error(f"{os.fspath(path)} is not a safetensors file")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        piece = data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(piece, "<u2").astype("<u4") << 16).view("<f4")
        elif entry["dtype"] in _TYPES:
            values = np.frombuffer(piece, _TYPES[entry["dtype"]]).copy()
        else:
            raise Error(f"{os.fspath(path)}: tensor '{name}' is of {entry['dtype']}, which is not read here")
        arrays[name] = values.reshape(entry["shape"])
    return arrays


def load_into(module: torch.nn.Module, run: Union[Run, str, os.PathLike[str]]) -> list[str]:
    """Copies trained weights, of a run after its end or of a safetensors file, into the module.

    Running statistics of batch norms are among them; a tied weight is copied once and seen under all its names. Returns the
    names of the module's parameters that the weights do not have, which stay as they are: `forward` does not use them.
    """
    import torch

    arrays = read_weights(run) if isinstance(run, (str, os.PathLike)) else run.read_weights()
    tensors: dict[str, torch.Tensor] = {**dict(module.named_buffers(remove_duplicate=False)),
                                        **dict(module.named_parameters(remove_duplicate=False))}
    for name, array in arrays.items():
        if name not in tensors:
            raise Error(f"{type(module).__name__} has no parameter '{name}', which the trained weights have; "
                        "give the module that the plan was compiled from")
        if tuple(tensors[name].shape) != array.shape:
            raise Error(f"parameter '{name}' has shape {list(tensors[name].shape)}, the trained one {list(array.shape)}")
    with torch.no_grad():
        for name, array in arrays.items():
            tensors[name].copy_(torch.from_numpy(array))
    loaded = {id(tensors[name]) for name in arrays}
    return [name for name, tensor in module.named_parameters() if id(tensor) not in loaded]
