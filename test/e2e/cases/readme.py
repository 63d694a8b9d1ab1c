"""README.md: its code blocks, typed in their order in one folder, its length and its sentences. test/models/readme.onnx stands in for
the export unless SHEAF_PYTORCH names a Python with torch."""
import os
import pathlib
import re
import shutil
import sys

import readme_blocks
from formats import read_log
from harness import MODELS, ROOT, Case, Failure, Skip, await_end, digest, expect
from readme_blocks import README

sys.path.insert(0, str(ROOT / "test"))

from skips import Machine  # noqa: E402

MOST_LINES, MOST_WORDS = 150, 35
SECONDS = 600  # limit for a block


# These would hide a failure; and these are commands, which would not be typed if they were called output.
HIDING = ("exit", "exec true", "set +e", "trap true EXIT", "export A=$(false)", "ls `false`", "(false)", "f() {", "cat <<END", "eval false")
RELABELLED = ("sheaf check m.onnx", "sheaf-run a.plan", "make", "$ git clone x", "python3 a.py", "python a.py", "srun a", "export A=b", "cd a", "  mkdir a")


def cases(session):
    yield Case("readme/text", text)
    yield Case("readme/labels", labels)
    yield Case("readme/failures", lambda: failures(session))
    yield Case("readme/processor", lambda: processor(session))
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
                         *((f"```sh needs=nothing\n{hidden}\n```\n", "could be hidden") for hidden in HIDING),
                         ("```sh needs=nothing\nls\n", "no end"), ("```sh needs=nothing\nls\n```x\n", "no end"),
                         ("~~~sh needs=nothing\nls\n~~~\n", "at the beginning of a line"), ("````sh needs=nothing\nls\n````\n", "at the beginning of a line"),
                         ("- a\n  ```sh needs=nothing\n  ls\n  ```\n", "at the beginning of a line"), ("> ```text\n> x\n> ```\n", "at the beginning of a line"),
                         ("<pre>\nls\n</pre>\n", "at the beginning of a line"), ("Then:\n\n    ls\n", "not indented"), ("Then:\n\n\tls\n", "not indented"),
                         *((f"```text\nx\n{command}\n```\n", "this is a command") for command in RELABELLED),
                         ("```sh needs=Debian-12\ncd sheaf\nmake demos   # a word\n```\n", "no target demos"), ("`make demo tests` does it.\n", "no target tests")):
        try:
            readme_blocks.blocks(good + wrong)
        except readme_blocks.WrongBlock as e:
            expect(words in str(e), f"{wrong} is refused with: {e}")
        else:
            raise Failure(f"accepted: {wrong}")
    for right in ("```sh needs=Debian-12\nmake test CPU=avx2 demo  # `make help` is more\n```\n", "`make`, and `make -n wheel`.\n", "```text\nmade by make\n```\n"):
        readme_blocks.blocks(good + right)
    sentences = readme_blocks.prose("# A title\n\nOne `a.b c` two\nthree. Four [five six](x.md)!\n\n- seven\n- eight\n\n| a | b |\n|---|---|\n```sh\nx y z\n```\n")
    expect([len(readme_blocks.words_of(s)) for s in sentences] == [2, 5, 3, 1, 1], f"sentences: {sentences}")


def failures(session):
    """The failure of any command of a block is seen, and a later block goes on where the one before has ended."""
    typist = readme_blocks.Session(session.folder(), timeout=SECONDS)
    block_of = lambda commands: readme_blocks.Block("sh-1", 1, "sh", "nothing", commands + "\n")
    for commands, code in (("mkdir a\ncd a\nexport B=c", 0), ("[ $B = c ]\n[ ${PWD##*/} = a ]", 0), ("false\ntrue", 1), ("false | true", 1),
                           ("exit 0\nfalse", 1), ("exec true\nfalse", 1), ("trap 'exit 0' ERR\nfalse", 1), ("echo one\necho two 3", 0)):
        typed = typist.type(block_of(commands))
        expect(typed.code == code, f"exit {typed.code}, not {code}: {commands}\n{typed.said}")
    shown = [readme_blocks.printed_by(typed.said, command) for command in ("echo one", "echo two 3", "echo")]
    expect(shown == ["one\n", "two 3\n", ""], f"{shown} of {typed.said}")
    # If a block takes too long, what it has started ends with it.
    typist = readme_blocks.Session(session.folder(), timeout=2)
    typed = typist.type(block_of("bash -c 'sleep 600 & echo $! > pid; wait'"))
    expect(typed.code == 124 and typed.seconds < 60, f"exit {typed.code} after {typed.seconds:.0f} s: {typed.said}")
    pid = (typist.folder() / "pid").read_text().strip()
    await_end(int(pid), 20 * session.slowdown)  # a killed process may still run for a moment
    status = pathlib.Path("/proc", pid, "stat")
    state = status.read_text().rpartition(") ")[2][0] if status.exists() else "gone"
    expect(state in ("Z", "X", "gone"), f"what the block has started goes on: {state}")


def processor(session):
    """`sheaf` on a shell's PATH compiles for the processor that the tests are limited to, unless the command names one."""
    plans = []
    for cpu, options in (("x86-64-v3", ("",)), ("x86-64-v4", ("", "--cpu=x86-64-v3"))):
        typist = readme_blocks.Session(session.folder(), timeout=SECONDS * session.slowdown)
        lines = [f"sheaf compile {session.graph('mlp')} -o {number}.plan --batch 8 --zero 0 {option}" for number, option in enumerate(options)]
        typed = typist.type(readme_blocks.Block("sh-1", 1, "sh", "nothing", "\n".join([f"export PATH={session.on_path(cpu)}:$PATH", *lines, "sheaf-run --version\n"])))
        expect(typed.code == 0, typed.said)
        plans += [digest(typist.folder() / f"{number}.plan") for number, _ in enumerate(options)]
    expect(plans[0] == plans[2] != plans[1], f"plans for x86-64-v3, v4 and v3: {plans}")


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
    """{block's name: why it was skipped, failed, or how long it took}, the folder in which they ended, and {block's name: what it
    printed}."""
    def type_all():
        where = session.folder()
        (where / "build").mkdir()
        (where / "build" / "bin").symlink_to(session.on_path())  # the first shell block puts it on PATH
        typist = readme_blocks.Session(where, os.environ.get("SHEAF_PYTORCH", ""), (ROOT / "tools" / "python", session.on_path()),
                                       timeout=SECONDS * session.slowdown)
        outcomes, said, failed = {}, {}, ""
        for block in parsed():
            if reason := reason_to_skip(block):
                outcomes[block.name] = Skip(reason)
                if block.name == "python-1":
                    readme_blocks.stand_in(typist.folder())
                continue
            if failed:
                outcomes[block.name] = Failure(f"not typed: {failed} failed")
                continue
            done = typist.type(block)
            outcomes[block.name], said[block.name] = f"{done.seconds:.1f} s", done.said
            if done.code:
                failed = block.name
                outcomes[block.name] = Failure(f"README.md:{block.line}: exit {done.code}\n{done.said[-3000:]}")
        return outcomes, typist.folder(), said

    return session.once("readme", type_all)


def block(session, name):
    outcomes, _, _ = typed(session)
    if isinstance(outcomes[name], Exception):
        raise outcomes[name]
    return outcomes[name]


def result(session):
    """The model learns, as README says, and everything that the blocks write is there."""
    outcomes, where, said = typed(session)
    for outcome in outcomes.values():
        if isinstance(outcome, Failure):
            raise outcome
    steps, events = read_log(where / "run.jsonl")
    evaluations = [e for e in events if e["event"] == "eval"]
    # Ten classes at random: a loss of ln 10 = 2.3, a tenth right.
    expect(len(steps) == 1000 and steps[0]["loss"] > 2, f"{len(steps)} steps, the first with a loss of {steps[0]['loss']}")
    expect(evaluations[-1]["loss"] < 1 and evaluations[-1]["accuracy"] > 0.6, f"evaluated: {evaluations}")
    said_of_last, promised = evaluated(said), promised_accuracy()
    expect(said_of_last > promised, f"the evaluation prints an accuracy of {said_of_last} %; README says above {promised} %")
    resumed = sorted(p.name for p in (where / "state").iterdir()) if (where / "state").is_dir() else []
    expect("step-00001000" in resumed, f"saved states: {resumed}")
    for name in ("trained.safetensors", "trained.onnx"):
        expect((where / name).exists(), f"there is no {name}")
    # The stored model is what the export gives.
    checked = [session.succeed("sheaf", "check", model, "--batch", 64, cwd=folder).out
               for folder, model in ((MODELS, "readme.onnx"), (where, "model.onnx"))]
    expect(checked[0].replace("readme.onnx", "model.onnx") == checked[1],
           f"`sheaf check` says of test/models/readme.onnx\n{checked[0]}\nand of README's export\n{checked[1]}")
    shutil.rmtree(where / "state")
    return f"{said_of_last:.1f} % of the test rows are right"


def promised_accuracy():
    """The number that README gives, in percent."""
    sentence = re.search(r"the evaluation prints an accuracy above (\d+) %", README.read_text())
    expect(sentence, "README does not say which accuracy the evaluation prints")
    return float(sentence[1])


def evaluated(said):
    """The accuracy, in percent, that the last `sheaf-run --eval` of README printed."""
    command, printed = [(command, said.get(b.name, "")) for b in parsed() if b.language == "sh"
                        for command in readme_blocks.commands(b) if re.match(r"sheaf-run .*--eval ", command)][-1]
    shown = readme_blocks.printed_by(printed, command)
    accuracies = re.findall(r"accuracy ([\d.]+) %", shown)
    expect(len(accuracies) == 1, f"`{command}` printed no accuracy, or several:\n{shown or printed}")
    return float(accuracies[0])
