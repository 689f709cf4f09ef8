"""Sorts for all sizes: rows of any length, any number of them, and the best of each."""

import pytest
import torch

from dcir.ir.sizes import Bounds
from dcir.ops.library.sort import SortSpec
from tests.harness import check_close
from tests.moving import Moving

BOUNDS = [Bounds(2, 40), Bounds(5, 700)]
SIZES = [(3, 200), (2, 5), (2, 700), (40, 6), (2, 15), (2, 16), (2, 17), (7, 127), (40, 700), (39, 33), (4, 64)]


def rows(x):
    return x.sort(1)


def backwards(x):
    return torch.sort(x, dim=1, descending=True, stable=True)


def along_the_batch(x):
    return x.sort(0)


def best(x):
    return x.topk(5, 1)


def least_of_columns(x):
    return torch.cat([x, x + 1, x - 1], 2).topk(3, 2, largest=False)


NETWORKS = [rows, backwards, along_the_batch, best, least_of_columns]


@pytest.mark.parametrize("width", [1, 9])
@pytest.mark.parametrize("run", NETWORKS, ids=lambda f: f.__name__)
def test_sorts_of_any_size(run, width):
    torch.manual_seed(0)
    compiled = Moving(run, BOUNDS, generated=True)
    for b, n in SIZES:
        x = torch.randn(b, n, width)
        with torch.no_grad():
            got, want, exact = compiled(x, dims=[(0, 0), (0, 1)]), run(x), run(x.double())
        check_close(got[0], want[0], exact[0])
        assert torch.equal(got[1], want[1]), (b, n)
    assert any(isinstance(op.spec, SortSpec) for op in compiled.graph.network.widest.ops())
