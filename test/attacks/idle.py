"""OtherConnections keep connections to a job's TCP ports that say nothing, and renew those that are closed."""
import os
import pathlib
import resource
import select
import signal
import socket
import time

from common import Processes, free_port, sockets, tally, text

LIMIT = 20
RENDEZVOUS, DATA, TRIES = (300, 1100, 6000), 1100, 6
LISTEN = "0A"  # in /proc/net/tcp


def allow(descriptors):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, hard) if hard != resource.RLIM_INFINITY else descriptors, hard))


def hold(ports, count, seconds):
    """Keeps `count` connections to each port; those that are closed are replaced."""
    allow(len(ports) * count + 100)
    until, held, watch = time.monotonic() + seconds, {}, select.epoll()
    lacking = [port for port in ports for _ in range(count)]
    while time.monotonic() < until:
        for port in lacking[:200]:
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            held[one.fileno()] = (one, port)
            watch.register(one, select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        del lacking[:200]
        for number, _ in watch.poll(0.01):
            one, port = held.pop(number)
            watch.unregister(number)
            one.close()
            lacking.append(port)


def child(function, *arguments):
    process = os.fork()
    if process == 0:
        try:
            function(*arguments)
        finally:
            os._exit(0)
    return process


def end(process):
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def rendezvous(session):
    """Connections to process 0, before the others come."""
    bad, said = 0, []
    for count in RENDEZVOUS:
        port, attackers = free_port(), []

        def come(port=port, count=count, attackers=attackers):
            until = time.monotonic() + 10
            while not connections(port, LISTEN) and time.monotonic() < until:
                time.sleep(0.01)
            attackers.append(child(hold, [port], count, 2 * LIMIT + 10))
            time.sleep(2)

        job = Processes(session, 4, 4, limit=LIMIT, port=port, first=come)
        begin = time.monotonic()
        ends = job.ends(2 * LIMIT + 10)
        end(attackers[0])
        bad += any(e.code != 0 for e in ends)
        said.append(f"{count}: {text({k: v for k, v in tally(ends).items() if v})} after {time.monotonic() - begin:.1f} s")
    return {"tries": len(RENDEZVOUS), "bad": bad, "text": "; ".join(said)}


def table():
    """The system's TCP sockets: (port, state, inode) of each."""
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            yield int(words[1].split(":")[1], 16), words[3], words[9]


def connections(port, state):
    return sum(p == port and s == state for p, s, _ in table())


def listeners(pids):
    """TCP ports on which these processes listen."""
    inodes = sockets(pids)
    return {port for port, state, inode in table() if state == LISTEN and inode in inodes}


def data(session):
    """Connections to the ports for collectives, of all but the last process, which is stopped when one of them listens."""
    bad, said, attacked, hit = 0, {}, 0, 0
    for _ in range(TRIES):
        before = {port for port, state, _ in table() if state == LISTEN}
        job = Processes(session, 4, 4, limit=LIMIT, more=lambda rank: {"SHEAF_HOST": rank})
        pids, until, before = [p.pid for p in job.popen], time.monotonic() + 20, before | {job.port}
        while not (found := any(state == LISTEN and port not in before for port, state, _ in table())) and time.monotonic() < until:
            if job.popen[3].poll() is not None:
                break
            # The last process is slow, so that the others listen before it does.
            job.popen[3].send_signal(signal.SIGCONT)
            time.sleep(0.001)
            job.popen[3].send_signal(signal.SIGSTOP)
            time.sleep(0.02)
        time.sleep(1 if found else 0)
        ports = listeners(pids[:3]) - {job.port}
        hit += bool(ports)
        attacked += len(ports)
        attacker = child(hold, sorted(ports), DATA, 2 * LIMIT + 10)
        time.sleep(2)
        job.popen[3].send_signal(signal.SIGCONT)
        ends = job.ends(2 * LIMIT + 10)
        end(attacker)
        bad += any(e.code != 0 for e in ends)
        for what, number in tally(ends).items():
            said[what] = said.get(what, 0) + number
    return {"tries": TRIES, "bad": bad, "text": f"{DATA} to each of {attacked} ports of {hit} jobs; processes: {text(said)}"}


ATTACKS = {"idle-rendezvous": rendezvous, "idle-data": data}
