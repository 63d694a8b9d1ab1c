#!/usr/bin/env python3
"""Names the processor that the tests run on, and the instruction set that they may use.

    python3 test/processor.py [avx2|avx512]     (make test CPU=...)

Prints both. Ends with an error if this processor lacks the named set.
"""
import dataclasses
import os
import pathlib
import sys


@dataclasses.dataclass(frozen=True)
class InstructionSet:
    """name: as in CPU=. library: the limit on oneDNN and on our own loops. kernels: what `sheaf compile --cpu` takes.
    flags: what /proc/cpuinfo says of a processor that has the set."""
    name: str
    library: str
    kernels: str
    flags: tuple


# The widest comes first.
SETS = (
    InstructionSet("avx512", "AVX512_CORE", "x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    InstructionSet("avx2", "AVX2", "x86-64-v3", ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")),
)
NAMES = ", ".join(s.name for s in SETS)


class Lacking(Exception):
    """This processor cannot run with the set that was asked for; the text says why."""


def fields(cpuinfo=None):
    """Returns the fields of the first processor in /proc/cpuinfo: {name: value}."""
    text = pathlib.Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def described(known):
    """The model's name; families and models in addition, because a virtual machine may hide the name's number."""
    numbers = [f"{key} {known[key]}" for key in ("cpu family", "model") if key in known]
    return known.get("model name", "unknown processor") + (f" ({', '.join(numbers)})" if numbers else "")


def sets_of(known):
    """The sets that the processor has, the widest first."""
    flags = set(known.get("flags", "").split())
    return [s for s in SETS if flags.issuperset(s.flags)]


def chosen(name, known=None):
    """The set of that name, in capitals or not; None if the name is empty, which limits nothing."""
    known = fields() if known is None else known
    if not name:
        return None
    found = next((s for s in SETS if s.name == name.lower()), None)
    if not found:
        raise Lacking(f"CPU is '{name}', which is not one of {NAMES}")
    if found not in sets_of(known):
        flags = set(known.get("flags", "").split())
        missing = ", ".join(flag for flag in found.flags if flag not in flags)
        raise Lacking(f"CPU={found.name}: this processor, {described(known)}, lacks {missing}")
    return found


def limited(environment, instructions):
    """The environment in which tests use no other instructions than these. SHEAF_TEST_CPU is read by the tests alone:
    by test/codegen/HostCpu.h, for kernels that a GoogleTest compiles, by test/e2e/run.py and by test/fuzz/corpus.py."""
    kept = {k: v for k, v in environment.items() if k not in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "SHEAF_TEST_CPU")}
    if instructions is None:
        return kept
    return {**kept, "ONEDNN_MAX_CPU_ISA": instructions.library, "SHEAF_TEST_CPU": instructions.kernels}


def sentence(instructions, known=None):
    known = fields() if known is None else known
    widest = next((s.name for s in sets_of(known)), "less than avx2")
    limit = f"limited to {instructions.name}, by CPU={instructions.name}" if instructions else f"{widest}, not limited"
    return f"processor: {described(known)}; instruction set: {limit}"


def main():
    try:
        print(sentence(chosen(" ".join(sys.argv[1:]))))
    except Lacking as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
