"""Makes crossing.tar.xz: losses in which rows of the batch meet, by PyTorch's dynamo exporter, with PyTorch's own losses.

    python crossing.py        writes crossing.tar.xz (PyTorch 2.15, onnx 1.23.2)

losses.json has the inputs x and y, in f32, and by model the losses of STEPS steps of SGD in f64 on that one batch. `permuted` is
exported with a fixed number of rows.
"""
import contextlib
import io
import json
import lzma
import pathlib
import tarfile
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
BATCH, WIDTH, STEPS, RATE = 16, 16, 20, 0.05
PERMUTATION = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5, 8, 7, 0, 10, 12, 11, 14, 13])
MODELS = {}


class Model(nn.Module):
    """Two linear layers, f, and a parameter p; `loss` makes a number of them and the inputs."""

    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.loss = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), loss
        self.p = nn.Parameter(torch.randn(1, WIDTH))

    def f(self, x):
        return self.b(torch.tanh(self.a(x)))

    def forward(self, x, y):
        return self.loss(self, x, y)


def loss(function):
    MODELS[function.__name__.replace("_", "-")] = function
    return function


def with_mse(name, term):
    """The mean squared error plus a term of f(x)."""
    MODELS[name] = lambda m, x, y: F.mse_loss(m.f(x), y) + term(m.f(x))


with_mse("std", lambda h: h.std(0).mean())
with_mse("variance", lambda h: h.var(0).mean())
with_mse("covariance", lambda h: ((h.t() @ h / (h.shape[0] - 1)) ** 2).mean())
with_mse("gram", lambda h: ((h @ h.t()) ** 2).mean())
with_mse("maximum", lambda h: h.max(0).values.mean())
with_mse("largest", lambda h: (h[h[:, 0].argmax()] ** 2).mean())
with_mse("top-k", lambda h: h.topk(3, 0).values.mean())
with_mse("logsumexp", lambda h: h.logsumexp(0).mean())
with_mse("rolled-product", lambda h: (h * h.roll(1, 0)).mean())


@loss
def elements(m, x, y):
    return ((m.f(x) - y) ** 2).sum() / m.f(x).numel()


@loss
def batch_mean(m, x, y):
    return F.kl_div(F.log_softmax(m.f(x), -1), F.softmax(y, -1), reduction="batchmean")


@loss
def weighted(m, x, y):
    rows = ((m.f(x) - y) ** 2).mean(-1)
    weights = torch.ones_like(rows)
    return (rows * weights).sum() / weights.sum()


@loss
def centered(m, x, y):
    h = m.f(x)
    return F.mse_loss(h - h.sum(0) / h.shape[0], y)


@loss
def expanded(m, x, y):
    q = m.p.expand(x.shape[0], -1)
    return (q * q).sum() / x.shape[0] + F.mse_loss(m.f(x), y)


@loss
def halves(m, x, y):
    h = m.f(x).reshape(-1, 2, 8)
    return F.mse_loss(h - h.mean(1, keepdim=True) + h.std(1, keepdim=True), y.reshape(-1, 2, 8))


@loss
def shifted(m, x, y):
    h = m.f(x)
    g = torch.zeros_like(h)
    g[:, 1:] = h[:, :-1]
    g[:, 0] = m.p[0, 0]
    return F.mse_loss(g, y)


@loss
def lengths(m, x, y):
    h = m.f(x).reshape(-1, 4, 4)
    return (h[torch.arange(h.shape[0]), (y[:, 0] > 0).long() + 1] ** 2).mean()


def similarity(m, x, y):
    return F.normalize(m.f(x), dim=-1) @ F.normalize(m.f(y), dim=-1).t() * 5


@loss
def negatives(m, x, y):
    logits = similarity(m, x, y)
    return F.cross_entropy(logits, torch.arange(logits.shape[0]))


@loss
def both_negatives(m, x, y):
    logits = similarity(m, x, y)
    labels = torch.arange(logits.shape[0])
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


@loss
def pairs(m, x, y):
    apart = ((m.f(x)[:, None] - y[None]) ** 2).sum(-1)
    return (torch.softmax(-apart, -1) * apart).mean()


@loss
def flipped(m, x, y):
    return F.mse_loss(m.f(x).flip(0), y)


@loss
def rolled(m, x, y):
    return F.mse_loss(m.f(x.roll(1, 0)), y)


@loss
def permuted(m, x, y):
    return F.mse_loss(m.f(x)[PERMUTATION], y)


@loss
def views(m, x, y):
    h, n = m.f(torch.cat([x, y], 0)), x.shape[0]
    return F.mse_loss(h[:n], h[n:])


@loss
def contrastive_views(m, x, y):
    z, n = F.normalize(m.f(torch.cat([x, y], 0)), dim=-1), x.shape[0]
    logits = z @ z.t() * 3 - 1e4 * torch.eye(2 * n)
    return F.cross_entropy(logits, torch.cat([torch.arange(n) + n, torch.arange(n)]))


@loss
def sorted_rows(m, x, y):
    return F.mse_loss(m.f(x).sort(0).values, y.sort(0).values)


@loss
def running(m, x, y):
    return F.mse_loss(m.f(x).cumsum(0), y)


@loss
def attention_over_rows(m, x, y):
    return ((torch.softmax(m.f(x)[:, :1], 0) * y).sum(0) ** 2).mean()


@loss
def groups_of_4(m, x, y):
    h = m.f(x).reshape(-1, 4, WIDTH)
    return F.mse_loss(h - h.mean(1, keepdim=True), y.reshape(-1, 4, WIDTH))


@loss
def groups_of_8(m, x, y):
    h = m.f(x).reshape(-1, 8, WIDTH)
    return ((h * torch.softmax(h, 1)).sum(1) ** 2).mean()


@loss
def pooled(m, x, y):
    values, indices = F.max_pool2d(m.f(x).reshape(-1, 1, 4, 4), 2, return_indices=True)
    return (values * indices.float()).mean()


@loss
def sampled(m, x, y):
    grid = torch.tanh(y).reshape(-1, 4, 2, 2)[:, :, :2, :]
    return (F.grid_sample(m.f(x).reshape(-1, 1, 4, 4), grid, align_corners=False) ** 2).mean()


@loss
def counted(m, x, y):
    positive = y > 0
    return (((m.f(x) - y) ** 2) * positive).sum() / positive.long().sum()


def inputs():
    return [torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def rows_of(name):
    """The first dimension of the inputs: any number, or a multiple of the group's size."""
    if not name.startswith("groups"):
        return None if name == "permuted" else torch.export.Dim("B", min=2, max=4096)
    return int(name[-1]) * torch.export.Dim("G", min=1, max=999)


def losses(function):
    model, (x, y) = Model(function).double(), (t.double() for t in inputs())
    optimizer, found = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = model(x, y)
        value.backward()
        optimizer.step()
        found.append(float(value))
    return found


def main():
    x, y = inputs()
    stored = {"inputs": {"x": x.tolist(), "y": y.tolist()}, "rate": RATE, "losses": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, function in MODELS.items():
            path, rows = pathlib.Path(scratch, f"{name}.onnx"), rows_of(name)
            with contextlib.redirect_stdout(io.StringIO()):
                torch.onnx.export(Model(function), (x, y), path, dynamo=True, optimize=False, external_data=False, input_names=["x", "y"],
                                  output_names=["loss"], dynamic_shapes=rows and {"x": {0: rows}, "y": {0: rows}})
            stored["losses"][name] = losses(function)
        pathlib.Path(scratch, "losses.json").write_text(json.dumps(stored))
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(pathlib.Path(scratch).iterdir()):
                entry = tarfile.TarInfo(path.name)
                entry.size = path.stat().st_size
                tar.addfile(entry, io.BytesIO(path.read_bytes()))
        (HERE / "crossing.tar.xz").write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
