"""Cases of special-points.xz: softmax and log-sum-exp of rows with infinite maxima, of -infinity alone, and of both kinds of infinity.

They come after the others, so that those keep their numbers.
"""
import numpy as np
import torch
import torch.nn.functional as F

from special_point_cases import INF, INFINITE, add, f32, twice

ROWS = np.concatenate([INFINITE, f32([1e10, INF, 0, -1], [INF, 3e38, -3e38, 1], [-INF, 1e10, -INF, 0], [INF, INF, 1e10, -INF],
                                     [-INF, -INF, 88, -88], [-INF, 1e10, 100, 0], [INF] * 4, [1, -INF, INF, -INF])])
POINTS = (0, 1, -1, 1e10, -1e10, INF, -INF, 88, -88, 100)
PAIRS = f32(*[[a, b] for a in POINTS for b in POINTS])


def shifted(x):
    m = x.amax(-1, keepdim=True)
    return (m + (x - m).exp().sum(-1, keepdim=True).log())[..., 0]


for name, fn in (("logsumexp", lambda x: x.logsumexp(-1)), ("logsumexp negative", lambda x: -(-x).logsumexp(-1)),
                 ("logsumexp of two dimensions", lambda x: x.reshape(-1, 2, 2).logsumexp((1, 2))), ("logsumexp by hand", shifted),
                 ("softmax", lambda x: x.softmax(-1)), ("softmin", lambda x: F.softmin(x, -1)), ("log_softmax", lambda x: x.log_softmax(-1)),
                 ("logcumsumexp", lambda x: x.logcumsumexp(-1)),
                 ("cross_entropy", lambda x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long), reduction="none"))):
    add(f"infinite rows {name}", fn, [twice(ROWS)])
for name, fn in (("logaddexp", torch.logaddexp), ("logaddexp2", torch.logaddexp2),
                 ("logsumexp of two", lambda x, y: torch.logsumexp(torch.stack([x, y]), 0))):
    add(f"infinite pairs {name}", fn, [twice(PAIRS[:, 0].copy()), twice(PAIRS[:, 1].copy())])
