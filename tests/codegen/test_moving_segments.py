"""Lists of points by group and folds of them for all sizes: any number of points, of groups, or of both."""

import pytest
import torch

from dcir.ir.sizes import Bounds
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from tests.harness import check_close
from tests.moving import Moving

BOUNDS = [Bounds(2, 3000), Bounds(2, 20000)]
SIZES = [(700, 5000), (2, 2), (3, 20000), (3000, 17), (2999, 19999), (64, 4096), (1500, 4097)]


def messages(columns):
    """Sums of weighted rows along edges from nodes to nodes."""

    def run(x, source, target, weights):
        return torch.zeros_like(x).index_add(0, target, x[source] * weights[:, None]).relu()

    return run


@pytest.mark.parametrize("columns", [24, 64, 10])
def test_folds_of_any_size(columns):
    torch.manual_seed(0)
    run = messages(columns)
    compiled = Moving(run, BOUNDS, generated=True)
    dims = [(0, 0), (1, 0)]
    for nodes, edges in SIZES:
        x, weights = torch.randn(nodes, columns), torch.rand(edges)
        source, target = (torch.randint(0, nodes, (edges,)) for _ in range(2))
        with torch.no_grad():
            got = compiled(x, source, target, weights, dims=[*dims, (2, 0), (3, 0)])
            check_close(got, run(x, source, target, weights), run(x.double(), source, target, weights.double()))
    kinds = {type(op.spec) for op in compiled.graph.network.widest.ops()}
    assert {GroupSpec, SegmentSpec} <= kinds
