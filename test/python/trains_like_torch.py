"""A module is compiled for ranks, trained, and loaded back: losses, weights and running statistics are torch's."""
import copy

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

# One tensor for two inputs, as in labels=input_ids, stays two inputs.
plan = sheaf.compile(Model(), {"tokens": tokens[:BATCH], "labels": labels[:BATCH]}, batch=32)
assert plan.inspect()["batch"] == 32


class Same(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 32)

    def forward(self, input_ids, labels):
        return torch.nn.functional.cross_entropy(self.table(input_ids), labels)


names = [entry["name"] for entry in sheaf.compile(Same(), (labels, labels)).inspect()["inputs"]]
assert names == ["input_ids", "labels"], names


class Broken(Same):
    def forward(self, input_ids, labels):
        raise ValueError("of the module")


for broken, inputs, words in ((Broken(), (labels, labels), ["cannot export Broken", "of the module"]),
                              (Same(), (labels,), ["forward(input_ids, labels)", "'labels'"]), (Same(), None, ["examples"])):
    try:
        sheaf.compile(broken, inputs)
    except sheaf.Error as error:
        assert all(word in str(error) and "\x1b" not in str(error) for word in words), error
    else:
        raise AssertionError(f"no error: {words}")
