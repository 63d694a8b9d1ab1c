"""Parameter groups and --no-decay: PyTorch's runs with the same groups, the same bits at all stages, states, what is shown."""
import json

from formats import norm, read_log, read_safetensors
from harness import MODELS, Case, digest, expect
from training import CONFIGS, data_arguments, train

RUNS = ("adamw", "sgd")
DATA = [a for name in ("input_ids", "labels") for a in ("--data", f"{name}={MODELS / f'gpt2-tiny.{name}.npy'}")]
# A gradient that is zero but for rounding, which Adam turns into steps of full size: a key's bias moves all of a row's scores.
UNDETERMINED = ".attn.c_attn.bias"


def cases(session):
    for run in RUNS:
        for ranks in (1, 4):
            for zero in (0, 3):
                yield Case(f"groups/{run}/ranks-{ranks}/zero-{zero}", lambda r=run, n=ranks, z=zero: as_pytorch(session, r, n, z))
        yield Case(f"groups/{run}/stages", lambda r=run: stages(session, r))
        yield Case(f"groups/{run}/resumed", lambda r=run: resumed(session, r))
    yield Case("groups/shown", lambda: shown(session))
    yield Case("groups/learning-rate-of-the-run", lambda: rate_of_the_run(session))


def stored(run):
    return json.loads((MODELS / "gpt2-tiny-groups.json").read_text())["runs"][run]


def trained(session, run, ranks, zero, steps=20, extra=(), repeat=0):
    """The log's steps and the path of the weights."""
    def make():
        plan = session.plan("gpt2-tiny", ranks, zero, 8, tuple(stored(run)["options"]))
        where = session.folder()
        session.succeed("sheaf-run", plan, *DATA, "--steps", steps, "--log", where / "log", "--save", where / "w.safetensors", *extra)
        return read_log(where / "log")[0], where / "w.safetensors"

    return session.once(("groups", run, ranks, zero, steps, tuple(map(str, extra)), repeat), make)


def as_pytorch(session, run, ranks, zero):
    steps, weights = trained(session, run, ranks, zero)
    reference = stored(run)
    for step, (entry, loss, size) in enumerate(zip(steps, reference["loss"], reference["grad_norm"], strict=True)):
        expect(abs(entry["loss"] - loss) <= 2e-5, f"step {step}: loss {entry['loss']}, PyTorch's is {loss}")
        expect(abs(entry["grad_norm"] - size) <= max(2e-5, 1e-4 * size), f"step {step}: norm {entry['grad_norm']}, PyTorch's is {size}")
    ours, worst = read_safetensors(weights), 0
    expect(set(ours) == set(reference["weights"]), "the weights have other names")
    for name, (size, product) in reference["weights"].items():
        if run == "adamw" and name.endswith(UNDETERMINED):
            continue
        values = ours[name].values
        # A group with another decay or rate changes a norm by 1e-3 of it and more.
        difference = max(abs(norm(values) - size), abs(sum(v * (i % 7 - 3) for i, v in enumerate(values)) - product) / 20) / size
        worst = max(worst, difference)
        expect(difference <= 1e-4, f"{name}: differs from PyTorch's by {difference:.1e} of its norm")
    return f"weights within {worst:.1e}"


def stages(session, run):
    expected = digest(trained(session, run, 4, 0)[1])
    for zero in (1, 2, 3):
        expect(digest(trained(session, run, 4, zero)[1]) == expected, f"stage {zero} leaves other weights than stage 0")


def resumed(session, run):
    """A state that was saved on four ranks at stage 3 goes on at stage 0, in groups of other buckets, with the same bits."""
    state = session.folder() / "state"
    trained(session, run, 4, 3, 9, ("--save-state", state))
    rest = ("--resume", state)
    expect(digest(trained(session, run, 4, 0, extra=rest)[1]) == digest(trained(session, run, 4, 0)[1]), "the resumed run leaves other weights")


def shown(session):
    """`sheaf inspect` says which parameter is in which group; buckets have parameters of one group."""
    plan = session.plan("gpt2-tiny", 4, 3, 8, tuple(stored("adamw")["options"]))
    shown = session.inspect(plan)
    groups = {g["name"]: g for g in shown["groups"]}
    expect(list(groups) == ["default", "default, no decay", "mlp", "mlp, no decay", r"h\.3\..*bias"], f"{list(groups)}")
    has = {name: set(g["parameters"]) for name, g in groups.items()}
    expect(sum(map(len, has.values())) == 52, "not every parameter is in one group")
    expect("m.lm_head.weight" in has["default"] and "m.transformer.wpe.weight" in has["default, no decay"],
           "the tied embedding decays, the positions do not")
    expect("m.transformer.h.3.mlp.c_fc.bias" in has[r"h\.3\..*bias"], "the last match does not win")
    expect("m.transformer.h.2.mlp.c_fc.bias" in has["mlp, no decay"], "a bias of a group without a decay of its own decays")
    expect(groups["mlp"]["learning_rate"] == 1e-4 and groups["default, no decay"]["learning_rate"] == 3e-4, f"{groups}")
    expect({b["group"] for b in shown["buckets"]} == set(range(5)), "a group has no bucket")
    text = session.succeed("sheaf", "inspect", plan).out
    for line in ("group       default, no decay: weight_decay=0, ", "group       mlp: learning rate 0.0001, beta2=0.95, 8 parameters: "):
        expect(line in text, f"no `{line}` in\n{text}")


def rate_of_the_run(session):
    """sheaf-run --lr replaces the rate of the groups that have none of their own: at 0 a second step moves only the others."""
    config, where = CONFIGS["mlp-sgd"], session.folder()
    options = ("--group", "fc2:lr=0.05")
    before = read_safetensors(train(session, config, 2, 1, steps=1, compile_options=options, run_options=("--lr", 0)).weights)
    plan = session.plan("mlp", 2, 1, 8, config.options + options)
    session.succeed("sheaf-run", plan, *data_arguments(config), "--steps", 2, "--lr", 0, "--save", where / "w")
    after = read_safetensors(where / "w")
    moved = {name for name in after if after[name].values != before[name].values}
    expect(moved == {"fc2.weight", "fc2.bias"}, f"moved: {moved}")
