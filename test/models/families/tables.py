"""Recommenders, graphs, fields, flows."""
import math

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, leaky_relu, mse_loss, relu

from family import ROWS, Run, classed, family, noise


class Dlrm(nn.Module):
    """Dense features and embeddings of categories; the products of all pairs of them."""

    def __init__(self, tables=4, rows=40, width=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 16), nn.ReLU(), nn.Linear(16, 1))
        lower = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("i", lower[0], persistent=False)
        self.register_buffer("j", lower[1], persistent=False)

    def forward(self, dense, categories, click):
        x = self.bottom(dense)
        all_features = torch.stack([x] + [table(categories[:, i]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(all_features, all_features.transpose(1, 2))[:, self.i, self.j]
        return binary_cross_entropy_with_logits(self.top(torch.cat([x, products], 1)).squeeze(1), click)


def clicks(rng):
    categories = rng.integers(0, 40, (ROWS, 4))
    return {"dense": noise(rng, 6), "categories": categories, "click": (categories.sum(1) % 2).astype(np.float32)}


@family(clicks, optimizer="sgd")
def dlrm():
    return Dlrm()


class Bags(nn.Module):
    """Bags of categories, each the mean of its embeddings; a factorization machine over them."""

    def __init__(self):
        super().__init__()
        self.bag, self.linear = nn.EmbeddingBag(60, 8, mode="mean"), nn.EmbeddingBag(60, 1, mode="sum")

    def forward(self, categories, click):
        flat = categories.flatten(0, 1)
        v = self.bag(flat).unflatten(0, (-1, categories.shape[1]))
        first = self.linear(flat).unflatten(0, (-1, categories.shape[1])).sum((1, 2))
        second = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return binary_cross_entropy_with_logits(first + second, click)


@family(lambda rng: {"categories": rng.integers(0, 60, (ROWS, 3, 4)), "click": rng.integers(0, 2, ROWS).astype(np.float32)})
def factorization():
    return Bags()


def graphs(rng, nodes=10, edges=24):
    """Graphs of as many nodes and edges each; an edge goes from edges[0] to edges[1]."""
    data = classed(rng, 4, nodes, 6)
    return {"x": data["x"], "edges": rng.integers(0, nodes, (ROWS, 2, edges)), "labels": data["labels"]}


class MessagePassing(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.message, self.own = nn.Linear(2 * ins, outs), nn.Linear(ins, outs)

    def forward(self, x, edges):
        source, target = edges[:, 0, :, None], edges[:, 1, :, None]
        ends = [x.gather(1, e.expand(-1, -1, x.shape[2])) for e in (source, target)]
        messages = relu(self.message(torch.cat(ends, 2)))
        sums = torch.zeros(x.shape[0], x.shape[1], messages.shape[2], dtype=x.dtype)
        sums = sums.scatter_add(1, target.expand_as(messages), messages)
        return relu(self.own(x) + sums)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = MessagePassing(6, 16), MessagePassing(16, 16), nn.Linear(16, 4)

    def forward(self, x, edges, labels):
        return cross_entropy(self.head(self.second(self.first(x, edges), edges).mean(1)), labels)


@family(graphs)
def graph_network():
    return GraphNet()


class GraphAttention(nn.Module):
    """GAT: a softmax over the edges that end in a node."""

    def __init__(self, heads=2, width=8):
        super().__init__()
        self.embed, self.ends = nn.Linear(6, heads * width), nn.Parameter(torch.randn(2, heads, width) * 0.3)
        self.heads, self.head = heads, nn.Linear(heads * width, 4)

    def forward(self, x, edges, labels):
        b, n, e = x.shape[0], x.shape[1], edges.shape[2]
        h = self.embed(x).unflatten(2, (self.heads, -1))
        index = lambda k: edges[:, k, :, None].expand(b, e, self.heads)
        scores = [(h * self.ends[k]).sum(-1).gather(1, index(k)) for k in range(2)]
        weight = leaky_relu(scores[0] + scores[1], 0.2)
        largest = torch.full((b, n, self.heads), -math.inf, dtype=x.dtype).scatter_reduce(1, index(1), weight.detach(), "amax")
        weight = torch.exp(weight - largest.gather(1, index(1)))
        total = torch.zeros(b, n, self.heads, dtype=x.dtype).scatter_add(1, index(1), weight)
        weight = weight / total.gather(1, index(1))
        sources = h.gather(1, index(0)[..., None].expand(-1, -1, -1, h.shape[3]))
        out = torch.zeros_like(h).scatter_add(1, index(1)[..., None].expand_as(sources), sources * weight[..., None])
        return cross_entropy(self.head(nn.functional.elu(out.flatten(2)).amax(1)), labels)


@family(graphs, exporters=("raw",))  # the optimizer folds rows of a parameter, TorchScript the batch
def graph_attention():
    return GraphAttention()


class Field(nn.Module):
    """A radiance field: sines and cosines of positions, density and colour, volume rendering along a ray."""

    def __init__(self, octaves=3):
        super().__init__()
        self.octaves = octaves
        self.layers = nn.Sequential(nn.Linear(3 * (1 + 2 * octaves), 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, points, target):
        waves = [f(points * 2.0 ** k) for k in range(self.octaves) for f in (torch.sin, torch.cos)]
        out = self.layers(torch.cat([points] + waves, -1))
        alpha = 1 - torch.exp(-nn.functional.softplus(out[..., 0]) * 0.2)
        passed = torch.exp(torch.cumsum(torch.log(1 - alpha + 1e-6), 1) - torch.log(1 - alpha + 1e-6))
        colour = ((alpha * passed).unsqueeze(-1) * torch.sigmoid(out[..., 1:])).sum(1)
        return mse_loss(colour, target)


@family(lambda rng: {"points": noise(rng, 8, 3), "target": 0.25 * noise(rng, 3)})
def radiance_field():
    return Field()


class Coupling(nn.Module):
    """One coupling layer of a flow: half of the values scale and shift the others."""

    def __init__(self, flip, size=6):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(size // 2, 24), nn.Tanh(), nn.Linear(24, size))

    def forward(self, x):
        if self.flip:
            x = x.flip(-1)
        a, b = x.chunk(2, -1)
        scale, shift = self.net(a).chunk(2, -1)
        scale = torch.tanh(scale)
        return torch.cat([a, b * scale.exp() + shift], -1), scale.sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(4))

    def forward(self, x):
        density = 0
        for layer in self.layers:
            x, log_scale = layer(x)
            density = density + log_scale
        return ((0.5 * x.square() + 0.5 * math.log(2 * math.pi)).sum(-1) - density).mean()


@family(lambda rng: {"x": noise(rng, 6)})
def flow():
    return Flow()


class Tabular(nn.Module):
    """A deep and cross network with a quantile loss."""

    def __init__(self):
        super().__init__()
        self.embed, self.cross = nn.Embedding(20, 4), nn.ModuleList(nn.Linear(14, 14) for _ in range(2))
        self.deep, self.out = nn.Sequential(nn.Linear(14, 24), nn.PReLU(), nn.Linear(24, 14), nn.SELU()), nn.Linear(28, 3)

    def forward(self, dense, categories, target):
        x = first = torch.cat([dense, self.embed(categories).flatten(1)], 1)
        for layer in self.cross:
            x = first * layer(x) + x
        out = self.out(torch.cat([x, self.deep(first)], 1))
        quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=out.dtype)
        difference = target.unsqueeze(1) - out
        return torch.maximum(quantiles * difference, (quantiles - 1) * difference).mean()


@family(lambda rng: {"dense": noise(rng, 6), "categories": rng.integers(0, 20, (ROWS, 2)), "target": noise(rng)})
def tabular():
    return Tabular()


class Detector(nn.Module):
    """A dense detection head: focal loss on objects, smooth L1 on the boxes of cells that have one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU())
        self.objects, self.boxes = nn.Conv2d(24, 1, 1), nn.Conv2d(24, 4, 1)

    def forward(self, x, there, boxes):
        y = self.body(x)
        logits = self.objects(y).squeeze(1)
        p = torch.sigmoid(logits)
        focal = torch.where(there > 0.5, 1 - p, p).square() * binary_cross_entropy_with_logits(logits, there, reduction="none")
        box = nn.functional.smooth_l1_loss(self.boxes(y), boxes, reduction="none").sum(1) * there
        return focal.mean() + box.sum() / there.sum().clamp(min=1.0)


def objects(rng):
    return {"x": noise(rng, 3, 16, 16), "there": (noise(rng, 4, 4) > 0.8).astype(np.float32), "boxes": noise(rng, 4, 4, 4)}


@family(objects, exporters=("raw", "optimized"))
def detector():
    return Detector()
