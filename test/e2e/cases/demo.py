"""tools/demo/sample.py: what it writes is what the model says of the text so far, and the seed decides it."""
import importlib.util
import random
import tempfile

from harness import ROOT, Case, expect

PROMPT, CHARACTERS = b"ROMEO:", 10


def cases(session):
    yield Case("demo/sample", lambda: sample(session))


def sample(session):
    spec = importlib.util.spec_from_file_location("sample", ROOT / "tools" / "demo" / "sample.py")
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    where = session.folder()
    session.succeed("sheaf", "compile", session.graph("shakespeare"), "-o", where / "sample.plan", "--ranks", 1, "--batch", 1, "--eval")
    session.succeed("sheaf", "init", where / "sample.plan", "--scheme", "normal:std=0.2", "--seed", 3, "-o", where / "w.safetensors")
    run = [session.tools / "sheaf-run", where / "sample.plan", "--weights", where / "w.safetensors"]
    # At a temperature near 0 each byte is the likeliest one after the bytes before it, wherever the text ends.
    text = sample.continued(PROMPT, CHARACTERS, run, 1e-3, random.Random(1))
    expect(text.startswith(PROMPT) and len(text) == len(PROMPT) + CHARACTERS, f"the text is {text}")
    with tempfile.TemporaryDirectory() as folder:
        for end in range(len(PROMPT), len(text)):
            logits = sample.logits_after(text[:end], run, folder)
            expect(text[end] == max(range(256), key=logits.__getitem__), f"byte {end} of {text} is not the likeliest")
    drawn = [sample.continued(PROMPT, CHARACTERS, run, 0.8, random.Random(seed)) for seed in (1, 1, 2)]
    expect(drawn[0] == drawn[1] != drawn[2], f"the seed does not decide the text: {drawn}")
    # More than the context: only its last bytes count.
    long = bytes(random.Random(4).choices(range(32, 127), k=sample.CONTEXT + 5))
    with tempfile.TemporaryDirectory() as folder:
        expect(sample.logits_after(long, run, folder) == sample.logits_after(long[5:], run, folder), "bytes before the context count")
