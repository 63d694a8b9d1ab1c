"""The module of these tests, its data, and torch's own training of it."""
from __future__ import annotations

import torch

BATCH, STEPS = 16, 40


class Model(torch.nn.Module):
    """Two layers with a tied pair, a batch norm and a loss: what a trained module must get back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(32, 24)
        self.mix = torch.nn.Linear(24, 24)
        self.norm = torch.nn.BatchNorm1d(24)
        self.head = torch.nn.Linear(24, 32, bias=False)
        self.head.weight = self.embed.weight
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.mix(self.embed(tokens).mean(dim=1)))
        return torch.nn.functional.cross_entropy(self.head(self.norm(hidden)), labels)


def rows(count: int = 320) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 32, (count, 8), generator=generator)
    return tokens, tokens[:, 0].clone()


def train_by_torch(model: torch.nn.Module) -> list[float]:
    """STEPS steps over the rows in order, again from the start at their end; the losses."""
    tokens, labels = rows()
    model.train()
    optimizer = torch.optim.AdamW((p for p in model.parameters()), lr=1e-2, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        index = torch.arange(step * BATCH, (step + 1) * BATCH) % len(tokens)
        loss = model(tokens[index], labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
