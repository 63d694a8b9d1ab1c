"""A short, seeded part of `make fuzz`: mutated models, plans, their texts, data, weights and states crash nothing."""
import subprocess
import sys

from harness import ROOT, Case, Skip, expect, shorten

TARGETS = ("onnx", "export", "plan", "text", "data", "weights", "state", "simulate")


def cases(session):
    for target in TARGETS:
        yield Case(f"fuzzing/{target}", lambda t=target: fuzz(session, t))


def corpus(session):
    def make():
        out = session.folder() / "corpus"
        script = ROOT / "test" / "fuzz" / "corpus.py"
        made = subprocess.run([sys.executable, script, "--tools", session.tools, "--out", out], capture_output=True, text=True)
        expect(made.returncode == 0, f"corpus.py: {made.stderr}")
        return out

    return session.once("fuzz corpus", make)


def fuzz(session, target):
    if not (session.tools / "../test/bin/sheaf-fuzz").exists():
        raise Skip("sheaf-fuzz is not built")
    done = session.call("../test/bin/sheaf-fuzz", "--corpus", corpus(session), "--only", target, "--jobs", 1,
                        "--runs", 200 if session.quick else 1000)
    expect(done.code == 0, shorten(done.out + done.err, 20))
