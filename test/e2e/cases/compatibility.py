"""Plans, states and weights that earlier versions stored (test/models/versions.py) are read, and give the losses that they gave there."""
import json
import re

from formats import read_log, read_safetensors
from harness import MODELS, ROOT, Case, expect

FOLDER = MODELS / "versions"
WITHIN = 2e-5  # another processor and another library of products round differently
OTHER_LAYOUT = ("--ranks", 2, "--zero", 1)


def cases(session):
    yield Case("compatibility/versions", versions)
    for stored in sorted(FOLDER.iterdir()):
        yield Case(f"compatibility/{stored.name}/plan", lambda v=stored: plan(session, v))
        yield Case(f"compatibility/{stored.name}/text", lambda v=stored: text(session, v))
        yield Case(f"compatibility/{stored.name}/state", lambda v=stored: state(session, v))
        yield Case(f"compatibility/{stored.name}/weights", lambda v=stored: weights(session, v))


def versions():
    """Every version of docs/changelog.md has stored its files."""
    described = re.findall(r"^## (\d+\.\d+\.\d+)$", (ROOT / "docs" / "changelog.md").read_text(), re.MULTILINE)
    stored = sorted(folder.name for folder in FOLDER.iterdir())
    expect(described and sorted(described) == stored, f"docs/changelog.md has {described}, test/models/versions has {stored}")


def reference(stored):
    run = json.loads((stored / "run.json").read_text())
    expect(len(run["loss"]) == 2 * run["steps"] and len(run["eval"]) == 2, f"{stored.name}: {run}")
    return run


def data(stored, option):
    return [a for path in sorted(stored.glob("*.npy")) for a in (option, f"{path.stem}={path}")]


def compiled(session, stored):
    """A plan by this version of the same model, for another number of ranks and another stage."""
    def compile_it():
        out = session.folder() / "model.plan"
        session.succeed("sheaf", "compile", stored / "model.onnx", "-o", out, *reference(stored)["compile"], *OTHER_LAYOUT)
        return out

    return session.once(("compatibility", stored.name), compile_it)


def train(session, stored, path, first, *options):
    """Trains to the end of the half of the stored run that begins with step `first`: its losses and its evaluation are the stored ones."""
    run, log = reference(stored), session.folder() / "log"
    steps = run["steps"]
    done = session.succeed("sheaf-run", path, *data(stored, "--data"), *data(stored, "--eval-data"), *run["run"], "--steps", first + steps, "--log", log, *options)
    entries, events = read_log(log)
    expect_near(f"{path.name} from step {first}", [e["loss"] for e in entries], run["loss"][first:first + steps])
    expect_near(f"{path.name}, evaluation", [e["loss"] for e in events if e["event"] == "eval"], [run["eval"][first // steps]])
    return done


def expect_near(what, found, expected):
    expect(len(found) == len(expected) and all(abs(a - b) <= WITHIN for a, b in zip(found, expected)),
           f"{what}: losses {found}, stored are {expected}")


def plan(session, stored):
    """The verifier proves the plan, and it trains from the weights in its model."""
    session.succeed("sheaf", "verify", stored / "model.plan")
    expect(session.inspect(stored / "model.plan")["ranks"] == 4, "not a plan for four ranks")
    train(session, stored, stored / "model.plan", 0)


def text(session, stored):
    """The text of the plan is that plan, with the number of this version and with that of version 3."""
    where = session.folder()
    shown = session.succeed("sheaf", "inspect", stored / "model.plan", "--format", "text").out
    expect(len(re.findall(r"\bversion = 4 : i64", shown)) == 1, "the text does not say that the plan is of version 4")
    for version in (3, 4):
        (where / "plan.mlir").write_text(re.sub(r"\bversion = 4 : i64", f"version = {version} : i64", shown))
        session.succeed("sheaf", "assemble", where / "plan.mlir", "-o", where / f"{version}.plan")
    expect((where / "3.plan").read_bytes() == (where / "4.plan").read_bytes(), "the texts assemble to different plans")
    again = session.succeed("sheaf", "inspect", where / "4.plan", "--format", "text").out
    expect(again == shown, "the assembled plan has another text")


def state(session, stored):
    """The plan that saved the state resumes it, and so does one of this version on other ranks at another stage."""
    for path in (stored / "model.plan", compiled(session, stored)):
        done = train(session, stored, path, reference(stored)["steps"], "--resume", stored / "state")
        if stored.name == "0.1.0":
            expect("the state is of an older version and does not say how long its training is" in done.err, done.err)


def weights(session, stored):
    """Both plans evaluate with the weights, which have every parameter."""
    run = reference(stored)
    for path in (stored / "model.plan", compiled(session, stored)):
        log = session.folder() / "log"
        session.succeed("sheaf-run", path, "--eval", "--weights", stored / "weights.safetensors", *data(stored, "--eval-data"), "--log", log)
        expect_near(path.name, [e["loss"] for e in read_log(log)[1] if e["event"] == "eval"], run["eval"][:1])
    elements = sum(len(t.values) for t in read_safetensors(stored / "weights.safetensors").values())
    parameters = session.inspect(compiled(session, stored))["parameters"]
    expect(elements == parameters, f"{elements} elements, the plan has {parameters}")
