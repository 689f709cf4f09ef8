"""Scans for all sizes: along a dimension that moves, over rows that do, alone and side by side."""

import pytest
import torch

from dcir.ir.sizes import Bounds
from dcir.ops.library.scan import ScanSpec
from tests.harness import check_close
from tests.moving import Moving

BOUNDS = [Bounds(2, 40), Bounds(2, 700)]
SIZES = [(3, 200), (2, 2), (2, 700), (40, 3), (2, 63), (2, 64), (2, 65), (7, 127), (40, 700), (39, 129), (4, 3)]


def positions(x):
    """Where a text's tokens stand, from which of them are there."""
    there = x[:, :, 0] > 0
    return there.long().cumsum(1) * there


def running(x):
    return x.cumsum(1)


def running_along_the_batch(x):
    return x.cumsum(0) * 0.1


def products(x):
    return (1 + 0.01 * x).cumprod(1)


def extremes(x):
    return (*x.cummax(1), *x.transpose(0, 1).contiguous().cummin(0))


def logarithms(x):
    return x.logcumsumexp(1)


def of_columns(x):
    return x.cumsum(2)


NETWORKS = [positions, running, running_along_the_batch, products, extremes, logarithms, of_columns]


@pytest.mark.parametrize("width", [1, 12, 70])
@pytest.mark.parametrize("run", NETWORKS, ids=lambda f: f.__name__)
def test_scans_of_any_size(run, width):
    torch.manual_seed(0)
    compiled = Moving(run, BOUNDS, generated=True)
    for b, n in SIZES:
        x = torch.randn(b, n, width)
        with torch.no_grad():
            results = [
                f(v) for f, v in ((lambda v: compiled(v, dims=[(0, 0), (0, 1)]), x), (run, x), (run, x.double()))
            ]
        results = [r if isinstance(r, tuple) else (r,) for r in results]
        for got, want, exact in zip(*results, strict=True):
            if want.is_floating_point():
                check_close(got, want, exact)
            else:
                assert torch.equal(got, want), (b, n)
    assert any(isinstance(op.spec, ScanSpec) for op in compiled.graph.network.widest.ops())
