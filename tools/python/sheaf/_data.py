"""Rows for a run: files as they are, arrays as files, and batches of an iterable through a pipe."""
from __future__ import annotations

import os
import pathlib
import re
import threading
from typing import IO, Any, Iterable, Iterator, Mapping, Union

import numpy as np
import numpy.typing as npt

from ._tools import Error

# A file, or all rows: a numpy array, or what numpy makes one of, such as a torch.Tensor.
Rows = Union[str, "os.PathLike[str]", npt.ArrayLike]
# By input; or batches of any number of rows by input, one after the other.
Data = Union[Mapping[str, Rows], Iterable[Mapping[str, npt.ArrayLike]]]


def array_of(value: Any) -> npt.NDArray[Any]:
    """A plain array in C order, also of a tensor that has a gradient or lies on a GPU."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise Error(f"an array of {array.dtype} cannot be given to a run; numbers can")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.require(array, requirements="C")


def file_arguments(data: Mapping[str, Rows], folder: pathlib.Path, option: str) -> list[str]:
    """--data or --eval-data for each input; arrays are written into the folder."""
    arguments: list[str] = []
    for number, (name, rows) in enumerate(data.items()):
        if not isinstance(rows, (str, os.PathLike)):
            path = folder / f"{option.lstrip('-')}-{number}.npy"
            np.save(path, array_of(rows), allow_pickle=False)
            rows = path
        arguments += [option, f"{name}={os.fspath(rows)}"]
    return arguments


class Feeder:
    """Writes batches into a pipe, in a thread, as `sheaf-run` asks for them."""

    def __init__(self, batches: Iterable[Mapping[str, npt.ArrayLike]]) -> None:
        self.error: BaseException | None = None  # of the iterable, or of what it gives
        self._batches: Iterator[Mapping[str, npt.ArrayLike]] = iter(batches)
        try:
            self._first = next(self._batches)
        except StopIteration:
            raise Error("the data has no batch") from None
        if not isinstance(self._first, Mapping) or not self._first:
            raise Error(f"a batch is a mapping from inputs to arrays, not a {type(self._first).__name__}")
        self._names = list(self._first)
        self.reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._feed, name="sheaf-data", daemon=True)

    def arguments(self) -> list[str]:
        return ["--data", f"{','.join(self._names)}=/dev/fd/{self.reader}"]

    def named(self, error: Error) -> Error:
        """The error of a run in which the pipe's path is that of a file, as one about the iterable."""
        return Error(re.sub(r"--data: /dev/fd/\d+|/dev/fd/\d+", "the iterable of data", str(error)).replace("fewer --steps", "fewer steps="))

    def start(self) -> None:
        """After the run has the reader's end: what it no longer reads ends the thread."""
        os.close(self.reader)
        self._thread.start()

    def cancel(self) -> None:
        """Instead of start(), where there is no run."""
        os.close(self.reader)
        os.close(self._writer)

    def join(self) -> None:
        """After the run has ended. An iterable that waits for something else is not waited for."""
        self._thread.join(timeout=10)

    def _feed(self) -> None:
        try:
            with open(self._writer, "wb") as pipe:
                self._write(pipe, self._first)
                for batch in self._batches:
                    self._write(pipe, batch)
        except BrokenPipeError:
            pass  # the run has what it needs, or has ended
        except BaseException as error:  # raised again where the run is waited for
            self.error = error
        close = getattr(self._batches, "close", None)
        if close and self.error is None:
            close()

    def _write(self, pipe: IO[bytes], batch: Mapping[str, npt.ArrayLike]) -> None:
        if set(batch) != set(self._names):
            raise Error(f"a batch has {', '.join(map(str, batch))}; the first one has {', '.join(self._names)}")
        for name in self._names:
            array = array_of(batch[name])
            # Not numpy.save, which wants to know its position in a file.
            np.lib.format.write_array_header_1_0(pipe, np.lib.format.header_data_from_array_1_0(array))
            pipe.write(array.tobytes())
        pipe.flush()
