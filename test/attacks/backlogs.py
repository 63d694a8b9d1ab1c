"""An unrelated process on the host of a job whose processes share memory fills the backlogs of their UNIX sockets and says nothing."""
import os
import pathlib
import signal
import socket
import time

from common import OTHER_USER, Processes, sockets, tally, text

JOBS, PROCESSES, LIMIT = 12, 8, 5


def listening(pids):
    """Names of abstract sockets of these processes; of all, where they are the only ones that this name space has."""
    inodes = sockets(pids)
    lines = (line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:])
    return {words[7][1:] for words in lines if len(words) == 8 and words[7].startswith("@sheaf-") and words[6] in inodes}


def fill(pids):
    """Connects to what the processes listen on until no more connections are taken, as long as a job may take."""
    until = time.monotonic() + 3 * LIMIT + 10
    while time.monotonic() < until:
        for name in listening(pids):
            if os.getuid() == 0:
                os.seteuid(OTHER_USER)
            # A connection keeps its place when it is closed.
            for _ in range(20000):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                    one.setblocking(False)
                    if one.connect_ex("\0" + name) != 0:
                        break
            os.seteuid(os.getuid())


def backlogs(session):
    ends, jobs = [], 0
    for _ in range(JOBS):
        job = Processes(session, PROCESSES, PROCESSES, limit=LIMIT, more=lambda rank: {"SHEAF_SECRET": "what all know, at length"})
        attacker = os.fork()
        if attacker == 0:
            try:
                fill([p.pid for p in job.popen])
            finally:
                os._exit(1)
        # The last process is held up until the others' backlogs are full.
        pids, until = [p.pid for p in job.popen], time.monotonic() + 10
        while not listening(pids[:-1]) and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(pids[-1], signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(pids[-1], signal.SIGCONT)
        these = job.ends(2 * LIMIT + 5)
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
        ends += these
        jobs += not all(e.good for e in these)
        time.sleep(0.1)
    who = "of another user" if os.getuid() == 0 else "of the same user (another one needs root)"
    return {"tries": JOBS, "bad": jobs, "text": f"jobs of {PROCESSES} under an unrelated process {who}; processes: {text(tally(ends))}"}


ATTACKS = {"backlogs": backlogs}
