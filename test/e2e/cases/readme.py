"""README.md: its code blocks, typed in their order in one folder, its length and its sentences. test/models/readme.onnx stands in for
the export unless SHEAF_PYTORCH names a Python with torch."""
import dataclasses
import os
import re
import shutil
import sys

import readme_blocks
from formats import read_log
from harness import MODELS, ROOT, Case, Failure, Skip, expect
from readme_blocks import README

sys.path.insert(0, str(ROOT / "test"))

from skips import Machine  # noqa: E402

MOST_LINES, MOST_WORDS = 150, 35
SECONDS = 600  # limit for a block


def cases(session):
    yield Case("readme/text", text)
    yield Case("readme/labels", labels)
    yield Case("readme/failures", lambda: failures(session))
    yield Case("readme/result", lambda: result(session))
    for name in names():
        yield Case(f"readme/blocks/{name}", lambda n=name: block(session, n))


def parsed():
    try:
        return readme_blocks.blocks(README.read_text())
    except readme_blocks.WrongBlock as e:
        raise Failure(f"README.md, {e}") from None


def names():
    """If a block is wrong, there is one case for all, which fails."""
    try:
        return [block.name for block in parsed()]
    except Failure:
        return ["all"]


def text():
    """At most so many lines, no longer sentences, and every link leads to a file."""
    content = README.read_text()
    lines = len(content.splitlines())
    longest = max(readme_blocks.prose(content), key=lambda s: len(readme_blocks.words_of(s)))
    words = len(readme_blocks.words_of(longest))
    expect(lines <= MOST_LINES, f"{lines} lines, more than {MOST_LINES}")
    expect(words <= MOST_WORDS, f"{words} words, more than {MOST_WORDS}: {longest}")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", content) if "://" not in link]
    lost = [link for link in links if not (ROOT / link).exists()]
    expect(links and not lost, f"these links of README lead nowhere: {lost}")
    return f"{lines} lines, the longest sentence has {words} words"


def labels():
    """A block that does not say what it needs is refused, and so are wrong labels and hidden failures."""
    good = "# T\n\n```sh needs=nothing\nsheaf check m.onnx   # a word\n```\n\n```text\nx\n```\n"
    expect([b.needs for b in readme_blocks.blocks(good)] == ["nothing"], "the good one is not read")
    for wrong, words in (("```sh\nls\n```\n", "must say what it needs"), ("```\nls\n```\n", "must say what it needs"),
                         ("```sh needs=luck\nls\n```\n", "must say what it needs"), ("```python needs=nothing\n1\n```\n", "cannot need"),
                         ("```sh needs=cluster\nsheaf check m.onnx\n```\n", "does not need cluster"),
                         ("```sh needs=CUDA-toolkit\nsheaf compile m.onnx --target cpu\n```\n", "does not need CUDA-toolkit"),
                         ("```sh needs=nothing\nfalse && true\n```\n", "line of its own"), ("```sh needs=nothing\nfalse; true\n```\n", "line of its own"),
                         ("```sh needs=nothing\nls\n", "no end")):
        try:
            readme_blocks.blocks(good + wrong)
        except readme_blocks.WrongBlock as e:
            expect(words in str(e), f"{wrong} is refused with: {e}")
        else:
            raise Failure(f"accepted: {wrong}")
    sentences = readme_blocks.prose("# A title\n\nOne `a.b c` two\nthree. Four [five six](x.md)!\n\n- seven\n- eight\n\n| a | b |\n|---|---|\n```sh\nx y z\n```\n")
    expect([len(readme_blocks.words_of(s)) for s in sentences] == [2, 5, 3, 1, 1], f"sentences: {sentences}")


def failures(session):
    """The failure of any command of a block is seen, and a later block goes on where the one before has ended."""
    typist = readme_blocks.Session(session.folder(), timeout=SECONDS)
    for commands, code in (("mkdir a\ncd a\nexport B=c", 0), ("[ $B = c ]\n[ ${PWD##*/} = a ]", 0), ("false\ntrue", 1), ("false | true", 1)):
        typed = typist.type(readme_blocks.Block("sh-1", 1, "sh", "nothing", commands + "\n"))
        expect(typed.code == code, f"exit {typed.code}, not {code}: {commands}\n{typed.said}")


def reason_to_skip(block):
    """Returns the reason to skip the block, in the words that test/skips.py knows; none if it can be typed here."""
    if block.needs == "PyTorch" and not os.environ.get("SHEAF_PYTORCH"):
        return "SHEAF_PYTORCH names no Python with torch"
    if block.needs == "CUDA-toolkit" and not Machine(ROOT, False).has_ptxas():
        return "no ptxas of a CUDA toolkit from 12.8 on is here"
    if block.needs == "cluster":
        return "a cluster is needed"
    if block.needs == "Debian-12":
        return "a bare Debian 12 is needed: `make readme` types this"
    return ""


def typed(session):
    """{block's name: why it was skipped, failed, or how long it took}, and the folder in which they ended."""
    def type_all():
        where = session.folder()
        (where / "build").mkdir()
        (where / "build" / "bin").symlink_to(session.tools)  # the first shell block puts it on PATH
        typist = readme_blocks.Session(where, os.environ.get("SHEAF_PYTORCH", ""), (ROOT / "tools" / "python", session.tools), timeout=SECONDS * session.slowdown)
        has_report = "\n  report " in session.succeed("sheaf", "--help").out
        outcomes, failed = {}, ""
        for block in parsed():
            if reason := reason_to_skip(block):
                outcomes[block.name] = Skip(reason)
                if block.name == "python-1":
                    readme_blocks.stand_in(typist.folder())
                continue
            if failed:
                outcomes[block.name] = Failure(f"not typed: {failed} failed")
                continue
            if not has_report:
                block = dataclasses.replace(block, text=re.sub(r"(?m)^sheaf report .*\n", "", block.text))
            done = typist.type(block)
            outcomes[block.name] = f"{done.seconds:.1f} s"
            if done.code:
                failed = block.name
                outcomes[block.name] = Failure(f"README.md:{block.line}: exit {done.code}\n{done.said[-3000:]}")
        return outcomes, typist.folder()

    return session.once("readme", type_all)


def block(session, name):
    outcomes, _ = typed(session)
    if isinstance(outcomes[name], Exception):
        raise outcomes[name]
    return outcomes[name]


def result(session):
    """The model learns, and everything that the blocks write is there."""
    outcomes, where = typed(session)
    for outcome in outcomes.values():
        if isinstance(outcome, Failure):
            raise outcome
    steps, events = read_log(where / "run.jsonl")
    evaluations = [e for e in events if e["event"] == "eval"]
    # Ten classes at random: a loss of ln 10 = 2.3, a tenth right.
    expect(len(steps) == 1000 and steps[0]["loss"] > 2, f"{len(steps)} steps, the first with a loss of {steps[0]['loss']}")
    expect(evaluations[-1]["loss"] < 1 and evaluations[-1]["accuracy"] > 0.6, f"evaluated: {evaluations}")
    resumed = sorted(p.name for p in (where / "state").iterdir()) if (where / "state").is_dir() else []
    expect("step-00001000" in resumed, f"saved states: {resumed}")
    for name in ("trained.safetensors", "trained.onnx"):
        expect((where / name).exists(), f"there is no {name}")
    # The stored model is what the export gives.
    said = [session.succeed("sheaf", "check", model, "--batch", 64, cwd=folder).out
            for folder, model in ((MODELS, "readme.onnx"), (where, "model.onnx"))]
    expect(said[0].replace("readme.onnx", "model.onnx") == said[1], f"`sheaf check` says of test/models/readme.onnx\n{said[0]}\nand of README's export\n{said[1]}")
    shutil.rmtree(where / "state")
    return f"{evaluations[-1]['accuracy']:.3f} of the test rows are right"
