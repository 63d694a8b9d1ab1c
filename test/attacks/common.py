"""Running jobs under attack, and judging how they end."""
import dataclasses
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time

from jobs import variables
from training import CONFIGS, data_arguments

CONFIG = CONFIGS["mlp-sgd"]
OTHER_USER = 65534


def plan(session, ranks):
    return session.plan(CONFIG.model, ranks, 3, 8, CONFIG.options)


@dataclasses.dataclass
class End:
    """The end of one process: code is None if it hung."""
    code: int | None
    text: str

    @property
    def good(self):
        """In order, or with one error on stderr."""
        return self.code == 0 or self.code == 1 and "sheaf-run: error: " in self.text


def sockets(pids):
    """Inodes of the sockets and other nameless files that these processes have open."""
    inodes = set()
    for pid in pids:
        try:
            inodes |= {os.readlink(f)[8:-1] for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            pass
    return inodes


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def limiting(limits, user=None):
    """Returns a function for a child that is to become a program: it takes limits {resource: most}, soft and hard, and another user's id."""

    def apply():
        for what, most in limits.items():
            resource.setrlimit(what, (most, most))
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)

    return apply


class Processes:
    """A job's processes. more(rank): variables of one; limits: of each; user(rank): that of one (limiting); first(): called when process 0 has been started."""

    def __init__(self, session, count, ranks, *arguments, limit, port=None, more=lambda rank: {}, limits=None, user=lambda rank: None, steps=2, first=lambda: None):
        self.port, self.limit, where = port or free_port(), limit, session.folder()
        command = [session.tools / "sheaf-run", plan(session, ranks), *data_arguments(CONFIG), "--steps", steps, *arguments]
        self.errors = [where / f"err-{rank}" for rank in range(count)]
        self.popen = []
        for rank, path in enumerate(self.errors):
            given = {**(variables("torchrun", rank, count, self.port) if count > 1 else {}), "SHEAF_TIMEOUT": limit, **more(rank)}
            with open(path, "wb") as err:
                self.popen.append(subprocess.Popen(
                    list(map(str, command)), stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                    env={**os.environ, **{k: str(v) for k, v in given.items()}},
                    preexec_fn=limiting(limits or {}, user(rank))))
            if rank == 0:
                first()

    def ends(self, seconds):
        """Waits so long for all; those that remain hang, and are killed."""
        until = time.monotonic() + seconds
        result = []
        for popen, path in zip(self.popen, self.errors):
            try:
                code = popen.wait(max(0.01, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            result.append((popen, code, path))
        for popen, code, _ in result:
            if code is None:
                popen.send_signal(signal.SIGKILL)
                popen.wait()
        return [End(code, path.read_text(errors="replace")) for _, code, path in result]


def tally(ends):
    """Counts for a report: hangs, ends without a message, errors, ends in order."""
    return {"hung": sum(e.code is None for e in ends), "without a message": sum(e.code is not None and not e.good for e in ends),
            "with an error": sum(e.code == 1 and e.good for e in ends), "in order": sum(e.code == 0 for e in ends)}


def text(counts):
    return ", ".join(f"{number} {what}" for what, number in counts.items())
