"""Training runs of a plan."""
from __future__ import annotations

import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union, overload

import numpy.typing as npt

from ._data import Data, Feeder, Rows, file_arguments
from ._plan import Plan
from ._tools import Error, Option, arguments_of, error_of, path_of, tool, warn
from ._weights import read_weights

# A line of the log (docs/training.md): of a step with the keys step, loss, grad_norm, lr, seconds; others have "event".
Record = dict[str, Any]
Callback = Callable[[Record], object]

# Exit statuses of a run that SIGHUP, SIGINT or SIGTERM has ended in order.
_INTERRUPTED = (129, 130, 143)

# Runs that an interrupt stops.
_alive: weakref.WeakSet[Run] = weakref.WeakSet()
_before: Any = None  # the handler of SIGINT that ours calls


def _on_interrupt(number: int, frame: Any) -> Any:
    for run in list(_alive):
        if run.stop():
            print(f"sheaf: interrupted: {run.how_to_resume()}", file=sys.stderr)
    if callable(_before):
        return _before(number, frame)
    raise KeyboardInterrupt


def _watch_interrupts() -> None:
    """Has an interrupt of this program, such as that of a notebook's cell, stop the runs. Notebooks set a handler of their own
    for each cell, so each step asks again.
    """
    global _before
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    # A program that ignores the signal, or has a handler that is not Python's, keeps it.
    if handler is not _on_interrupt and callable(handler):
        _before = handler
        signal.signal(signal.SIGINT, _on_interrupt)


class Run:
    """A run under way, or at its end: an iterator over its log's records, as they come.

    Iterating calls the callbacks. At the end the run's error, if it has one, is raised, or that of the data. wait() does all
    this without a loop. As a context manager it ends the run when the block is left. An interrupt (Ctrl-C, or that of a
    notebook's cell) stops it as stop() does. Its warnings are given to Python's `warnings`.
    """

    def __init__(self, plan: Plan, process: subprocess.Popen[str], log: int, folder: pathlib.Path, feeder: Feeder | None,
                 callbacks: Sequence[Callback], state: Option = None) -> None:
        self.plan = plan
        self.state = state  # the folder that the same call with resume= goes on from
        self.records: list[Record] = []
        self.weights = folder / "weights.safetensors"
        self._process, self._feeder, self._callbacks = process, feeder, callbacks
        self._queue: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._stderr = ""
        self._ended = False
        self._threads = [threading.Thread(target=self._read_log, args=(log,), daemon=True),
                         threading.Thread(target=self._read_messages, daemon=True)]
        for thread in self._threads:
            thread.start()
        _alive.add(self)
        _watch_interrupts()

    def _read_log(self, log: int) -> None:
        with open(log, encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record.get("event") == "start":
                    self.state = record["state"]
                self._queue.put(record)
        self._queue.put(None)

    def _read_messages(self) -> None:
        assert self._process.stderr
        self._stderr = self._process.stderr.read()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not self._ended:
            _watch_interrupts()
        record = None if self._ended else self._queue.get()
        if record is None:
            self._end()
            raise StopIteration
        self.records.append(record)
        if record.get("event") == "warning":
            warn(str(record.get("message")))
        for callback in self._callbacks:
            callback(record)
        return record

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        _alive.discard(self)
        code = self._process.wait()
        if code in _INTERRUPTED:
            code = 0
        for thread in self._threads:
            thread.join()
        if self._feeder:
            self._feeder.join()
            if self._feeder.error and code:
                raise self._feeder.error
        if code:
            error = error_of(self._stderr, "sheaf-run", code)
            raise self._feeder.named(error) if self._feeder else error

    def wait(self) -> Run:
        """Runs to the end. Raises Error with the tool's text if the run has failed."""
        for _ in self:
            pass
        return self

    def stop(self) -> bool:
        """Asks for an orderly end after the step under way, as Ctrl-C does. Returns False if the run has ended already."""
        alive = self._process.poll() is None
        if alive:
            self._process.terminate()
        return alive

    def how_to_resume(self) -> str:
        """Says how training goes on after this run was stopped."""
        if not self.state:
            return "no state is saved; save_state='DIR' saves one"
        rows = ", with data that leave out the rows read before" if self._feeder else ""
        return f"the same call with resume={str(self.state)!r} goes on{rows}"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @property
    def losses(self) -> list[float]:
        """The loss of each step so far."""
        return [record["loss"] for record in self.records if "event" not in record]

    def read_weights(self) -> dict[str, npt.NDArray[Any]]:
        """The trained weights by name, after the end."""
        self.wait()
        return read_weights(self.weights)

    def export(self, output: Union[str, os.PathLike[str]]) -> pathlib.Path:
        """The model with the trained weights, as ONNX."""
        self.wait()
        return self.plan.export(self.weights, output)


@overload
def train(plan: Plan | str | os.PathLike[str], data: Mapping[str, Rows], steps: int | None = None, *, epochs: int | None = None,
          callbacks: Sequence[Callback] = (), eval_data: Mapping[str, Rows] | None = None,
          output: str | os.PathLike[str] | None = None, **options: Option) -> Run: ...


@overload
def train(plan: Plan | str | os.PathLike[str], data: Iterable[Mapping[str, npt.ArrayLike]], steps: int | None = None, *,
          epochs: int | None = None, callbacks: Sequence[Callback] = (), eval_data: Mapping[str, Rows] | None = None,
          output: str | os.PathLike[str] | None = None, **options: Option) -> Run: ...


def train(plan: Plan | str | os.PathLike[str], data: Data, steps: int | None = None, *, epochs: int | None = None,
          callbacks: Sequence[Callback] = (), eval_data: Mapping[str, Rows] | None = None,
          output: str | os.PathLike[str] | None = None, **options: Option) -> Run:
    """Trains a plan on this machine, all ranks in one process of `sheaf-run`. Returns at once; the run is iterated or waited for.

    data: for each input a file (.npy, or "input_ids,labels": a file of tokens), or an array of all rows. Or an iterable of
    batches, such as a generator or a torch DataLoader that gives dictionaries: arrays of rows by input, in any numbers. They
    pass through a pipe in this order, without --shuffle, and a run reads steps times the plan's batch; the iterable is
    advanced in a thread. callbacks: called with each record. eval_data: rows of the evaluation, with eval_every. output: a
    folder for the trained weights, weights.safetensors; without it they last as long as the run object.

    steps, epochs: the length of the whole training. A run with resume= does what is left of it: the same call goes on.

    All other options of `sheaf-run` by name: shuffle=1, lr=1e-3, save_state="state", resume="state", threads_per_rank=2.
    """
    plan = plan if isinstance(plan, Plan) else Plan(plan)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-"))
    try:
        folder = scratch if output is None else pathlib.Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        run = _start(plan, data, scratch, folder, callbacks, eval_data, {"steps": steps, "epochs": epochs, **options})
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    weakref.finalize(run, shutil.rmtree, scratch, ignore_errors=True)
    return run


def _start(plan: Plan, data: Data, scratch: pathlib.Path, folder: pathlib.Path, callbacks: Sequence[Callback],
           eval_data: Mapping[str, Rows] | None, options: dict[str, Option]) -> Run:
    for taken in ("log", "save", "data"):
        if taken in options:
            raise Error(f"{taken}= is not an option here: a run's records, weights and data are the object's own")
    feeder: Feeder | None = None
    if isinstance(data, Mapping):
        arguments = file_arguments(data, scratch, "--data")
    else:
        if options.get("epochs") is not None:
            raise Error("epochs= needs files or arrays, since an iterable of batches has no known number of rows: give steps=")
        feeder = Feeder(data)
        arguments = feeder.arguments()
    if eval_data is not None:
        arguments += file_arguments(eval_data, scratch, "--eval-data")
    log, log_writer = os.pipe()
    command = [str(tool("sheaf-run")), path_of(plan.path), *arguments, *arguments_of(options), "--log", f"/dev/fd/{log_writer}",
               "--save", path_of(folder / "weights.safetensors")]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   errors="replace", pass_fds=(log_writer, *((feeder.reader,) if feeder else ())))
    except BaseException:
        os.close(log)
        if feeder:
            feeder.cancel()
        raise
    finally:
        os.close(log_writer)
    if feeder:
        feeder.start()
    return Run(plan, process, log, folder, feeder, callbacks, options.get("save_state"))
