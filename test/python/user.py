"""A user's script, for `mypy --strict`."""
from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import torch

import sheaf


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.out(x), labels)


def batches() -> Iterator[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]]:
    while True:
        yield {"x": np.zeros((8, 4), np.float32), "labels": np.zeros(8, np.int64)}


def show(record: sheaf.Record) -> None:
    print(record.get("loss"))


def main() -> None:
    model = Model()
    plan = sheaf.compile(model, (torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)), ranks=4, optimizer="adamw:lr=1e-3", zero=3,
                         lr_schedule="cosine:warmup=10", no_decay=True, group=["out:lr=0.1"], bind={"n": 4})
    text: str = plan.summary()
    stages = plan.fit("24GiB")["stages"]
    seconds: float = plan.simulate("h100", ranks=8)["step_seconds"]
    run: sheaf.Run = sheaf.train(plan, batches(), steps=10, callbacks=[show])
    for record in run:
        print(record["seconds"])
    try:
        sheaf.train(plan.path, {"x": np.zeros((8, 4)), "labels": pathlib.Path("labels.npy")}, epochs=1, shuffle=1).wait()
    except sheaf.Error as error:
        print(error, text, stages, seconds)
    left: list[str] = sheaf.load_into(model, run)
    losses: list[float] = run.losses
    print(left, losses, sheaf.__version__, run.read_weights()["out.weight"].shape)


if __name__ == "__main__":
    main()
