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


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        self.body_too = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 3)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.head(self.body_too(self.body(x))), labels)


# Parameters with requires_grad=False keep their values: a part of the module, one of a part's parameters, and one that is not used.
wide, classes = torch.randn(32, 8), torch.arange(32) % 3
for freeze in (["body", "unused"], ["head.bias"], ["body.0.weight", "body_too.bias", "head"], []):
    deep = Deep()
    for name in freeze:
        part = deep.get_submodule(name.rsplit(".", 1)[0] if name.endswith((".weight", ".bias")) else name)
        for parameter in [getattr(part, name.rsplit(".", 1)[1])] if name.endswith((".weight", ".bias")) else part.parameters():
            parameter.requires_grad_(False)
    before = {name: value.detach().clone() for name, value in deep.named_parameters()}
    plan = sheaf.compile(deep, (wide[:8], classes[:8]), optimizer="sgd:lr=0.1")
    sheaf.load_into(deep, sheaf.train(plan, {"x": wide, "labels": classes}, 5))
    for name, value in deep.named_parameters():
        kept = any(name == one or name.startswith(one + ".") for one in freeze) or name.startswith("unused")
        assert torch.equal(value, before[name]) == kept, f"{freeze}: {name} has {'changed' if kept else 'not changed'}"
    plan.fit("1GiB")

# The example of the package's own help.
example = "\n".join(line[4:] for line in sheaf.__doc__.splitlines() if line.startswith("    "))
exec(example, {"sheaf": sheaf, "module": Deep(), "x": wide, "labels": classes, "print": lambda *_: None})


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
