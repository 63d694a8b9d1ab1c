"""A module is compiled for ranks, trained, and loaded back: losses, weights and running statistics are torch's."""
import copy
import sys

import torch
from module import BATCH, STEPS, Model, rows, train_by_torch

import sheaf

OPTIMIZER = "adamw:lr=1e-2,weight_decay=0.01"

tokens, labels = rows()
expected = Model()
losses = train_by_torch(expected)

for ranks, zero in ((1, 0), (4, 3)):
    model = Model()
    before = copy.deepcopy(model.state_dict())
    mode = model.eval().training
    plan = sheaf.compile(model, (tokens[:BATCH], labels[:BATCH]), ranks=ranks, zero=zero, optimizer=OPTIMIZER)
    assert model.training == mode, "the module's mode has changed"
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items()), "exporting changes the module"
    assert f"{ranks} rank" in plan.summary() and plan.inspect()["ranks"] == ranks
    seen = []
    run = sheaf.train(plan, {"tokens": tokens, "labels": labels}, STEPS, callbacks=[seen.append])
    kinds = [record.get("event", "step") for record in run]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("step") == STEPS, kinds
    assert seen == run.records
    worst = max(abs(a - b) for a, b in zip(run.losses, losses))
    assert worst < 2e-5 and len(run.losses) == STEPS, f"{ranks} ranks: losses differ by {worst}"
    left = sheaf.load_into(model, run)
    assert left == ["unused.weight", "unused.bias"], left
    assert model.head.weight is model.embed.weight, "a tie is broken"
    for name, value in expected.state_dict().items():
        if name.startswith("unused") or name.endswith("num_batches_tracked"):
            continue
        error = (model.state_dict()[name] - value).norm() / value.norm()
        assert error < 2e-3, f"{ranks} ranks: {name} differs by {error} of its norm"
    with torch.no_grad():
        model.eval(), expected.eval()
        a, b = model(tokens, labels).item(), expected(tokens, labels).item()
    assert abs(a - b) < 1e-4, f"the trained modules' losses are {a} and {b}"
    print(f"{ranks} ranks, stage {zero}: losses within {worst:.1e}, evaluated {a:.5f} and {b:.5f}")
sys.exit(0)
