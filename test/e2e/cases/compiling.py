"""Compilation depends on the graph alone: its result and its memory on large models. Its time: test/bench/compiling.py."""
import collections
import os
import re

from harness import Case, expect

LARGE = ("gpt-7.5b", "llama-2-13b", "llama-3-8b")
OPERATION = re.compile(r"^\s*(?:%[^=]*= )?\"?([a-z_]+\.[a-z_0-9]+)", re.MULTILINE)


def cases(session):
    yield Case("compiling/gpt2-124m/ranks-8", lambda: compiled(session, "gpt2-124m", 8, 8))
    yield Case("compiling/llama-2-70b/ranks-64-and-4096", lambda: large_world(session))
    for name in LARGE:
        yield Case(f"compiling/{name}/to-zero", lambda n=name: to_zero(session, n))
    yield Case("compiling/llama-long/sequences", lambda: long_sequences(session))
    yield Case("compiling/processor", lambda: processor(session))


def compiled(session, name, ranks, batch, *options):
    """Compiles at stage 3, in 2 GiB at most; the file, which is not empty."""
    out = session.folder() / "out"
    done = session.succeed("sheaf", "compile", session.graph(name), "-o", out, "--ranks", ranks, "--zero", 3, "--batch", batch,
                           *options)
    expect(session.quick or done.peak_kib <= 2 << 20, f"{done.peak_kib >> 10} MiB")  # instrumented tools take more
    expect(out.stat().st_size, "nothing was written")
    return out


def operations(session, name, ranks, batch):
    """How often each operation occurs in the sharded step."""
    out = compiled(session, name, ranks, batch, "--compile-to", "zero")
    counts = collections.Counter(OPERATION.findall(out.read_text()))
    os.unlink(out)
    expect(counts["zero.all_gather"] and counts["zero.reduce_scatter"], f"no collectives among {dict(counts)}")
    return counts


def large_world(session):
    """The step of 4,096 ranks has the operations of that of 64: nothing is written out for each rank."""
    few, many = (operations(session, "llama-2-70b", ranks, 4096) for ranks in (64, 4096))
    expect(few == many, f"64 ranks have {few - many} more, 4,096 ranks {many - few} more")
    return f"{few.total():,} operations"


def to_zero(session, name):
    return f"{operations(session, name, 64, 64).total():,} operations"


def long_sequences(session):
    """What a token takes does not grow with the sequence: a causal mask is never written out."""
    per_token = {}
    for length in (2048, 8192, 131072):
        out = compiled(session, "llama-long", 1, 1, "--bind", f"sequence={length}")
        report = session.inspect(out)
        expect("lifted 2 causal attentions" in report["decisions"], f"sequences of {length}: {report['decisions']}")
        per_token[length] = report["memory"]["by_kind"]["activations"] / length
    expect(max(per_token.values()) <= 1.02 * min(per_token.values()), f"bytes of activations a token: {per_token}")
    return f"{per_token[131072]:,.0f} bytes of activations a token"


def processor(session):
    """Kernels are for the processor that the tests are limited to; without a limit, for this one."""
    given, own = (session.plan("mlp", 1, 0, 8, more) for more in ((), ("--cpu", session.cpu or "host")))
    images = [re.findall(r'plan\.image "cpu" "([^"]+)"', session.succeed("sheaf", "inspect", plan, "--format", "text").out) for plan in (given, own)]
    expect(images[0] == images[1] and len(images[0]) == 1, f"kernels are for {images}")
    expect(session.cpu in (None, *images[0]), f"kernels are for {images[0]}, the tests are limited to {session.cpu}")
