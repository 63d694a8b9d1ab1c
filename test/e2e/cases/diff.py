"""sheaf diff: what differs between two plans, the option that makes the difference first."""
import json

from harness import Case, expect, expect_short_error

COMMON = ("--optimizer", "adamw:lr=1e-3", "--bucket-size", 64 << 10)
# An option, its value, and the sections that it must have an effect on.
ONE_OPTION = (
    (("--zero", 1), {"settings", "memory", "communication"}),
    (("--bucket-size", 128 << 10), {"buckets", "communication"}),
    (("--prefetch", 0), set()),
    (("--micro-batches", 2), {"settings", "memory", "communication", "instructions"}),
    (("--recompute", "all"), {"instructions", "decisions"}),
    (("--precision", "bf16"), {"memory", "buckets"}),
    (("--optimizer", "sgd:lr=0.1"), {"settings", "memory", "buckets"}),
    (("--clip-norm", 1), {"instructions"}),
    (("--keep", "."), {"communication"}),
)


def cases(session):
    for option, sections in ONE_OPTION:
        yield Case(f"diff/{option[0][2:]}", lambda o=option, s=sections: one_option(session, o, s))
    yield Case("diff/none", lambda: none(session))
    yield Case("diff/refused", lambda: refused(session))


def compiled(session, *more):
    """Later options replace those that all have."""
    options = dict(zip(COMMON[::2], COMMON[1::2])) | {"--zero": 3} | dict(zip(more[::2], more[1::2]))
    plan = session.folder() / "x.plan"
    session.succeed("sheaf", "compile", session.graph("gpt2-tiny"), "-o", plan, "--batch", 8, "--ranks", 4,
                    *(a for pair in options.items() for a in pair))
    return plan


def one_option(session, option, sections):
    plain = session.once("diff/plain", lambda: compiled(session))
    other = compiled(session, *option)
    done = session.succeed("sheaf", "diff", plain, other)
    lines = done.out.splitlines()
    expect(lines[0] == "options" and lines[1].startswith(f"  {option[0]}: ") and lines[1].endswith(f" -> {option[1]}") and lines[2:3] in ([], [""]),
           f"it begins with {lines[:3]}")
    found = json.loads(session.succeed("sheaf", "diff", plain, other, "--format", "json").out)
    expect([row["what"] for row in found["options"]] == [option[0]], f"options {found['options']}")
    named = {name for name, rows in found.items() if isinstance(rows, list) and rows}
    expect(sections <= named, f"nothing differs in {sorted(sections - named)}, only in {sorted(named)}")
    back = json.loads(session.succeed("sheaf", "diff", other, plain, "--format", "json").out)
    for name, rows in found.items():
        if isinstance(rows, list):
            turned = [{"what": r["what"], "first": r["second"], "second": r["first"]} for r in rows]
            expect(sorted(map(str, turned)) == sorted(map(str, back[name])), f"{name}: the other way round it says {back[name]}")


def none(session):
    plain = session.once("diff/plain", lambda: compiled(session))
    expect(session.succeed("sheaf", "diff", plain, compiled(session)).out == "no difference\n", "two compilations differ")


def refused(session):
    plain = session.once("diff/plain", lambda: compiled(session))
    broken = session.folder() / "broken.plan"
    broken.write_bytes(plain.read_bytes()[:1000])
    expect_short_error(session.call("sheaf", "diff", plain, broken), ["broken.plan"])
    expect_short_error(session.call("sheaf", "diff", plain), ["two plans"], 2)
    expect_short_error(session.call("sheaf", "diff", plain, plain, "--profile", "abacus"), ["abacus"])
