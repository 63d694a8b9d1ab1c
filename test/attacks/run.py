#!/usr/bin/env python3
"""Attacks on jobs of sheaf-run by other programs of the host and by limits of the system: `make attacks`.

Each attack is a function of a file here. It makes a number of tries, and a try ends well or not; none may hang, end without a message
or start something that lasts longer than the attack. As root everything runs in a network name space of its own, in which there is
only the loopback address; without root, nothing leaves that address either.

    python3 test/attacks/run.py --tools build/release/bin --scratch build/attacks [--only NAME]
"""
import argparse
import ctypes
import fcntl
import importlib
import os
import pathlib
import socket
import struct
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

from harness import Session  # noqa: E402

MODULES = ("backlogs", "chains", "descriptors", "files", "idle", "limits")


def unshare_network():
    """A name space of its own, for root: true if there is one now."""
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        return False
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    args = parser.parse_args()
    print("in a network name space of its own" if unshare_network() else "on the loopback address of this host", flush=True)
    session, bad = Session(args.tools, args.scratch, quick=True), 0
    for module in MODULES:
        for name, attack in importlib.import_module(module).ATTACKS.items():
            if args.only not in name:
                continue
            begin = time.monotonic()
            outcome = attack(session)  # tries, those that went wrong, and what happened
            bad += outcome["bad"]
            print(f"{name}: {outcome['tries']} tries, {outcome['bad']} bad; {outcome['text']} ({time.monotonic() - begin:.0f} s)", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
