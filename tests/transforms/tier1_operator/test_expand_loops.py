"""Library nodes expanded to loops: which are, which are refused, and that other passes go on with the loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dcir.ir.loop_nest import LoopNest
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.transforms.imported import imported, same_numbers

X = torch.randn(2, 3, 6, 8)
W = torch.randn(4, 3, 3, 3)


def test_changed_numbers_stay() -> None:
    for fn in (
        lambda x: F.conv2d(x, x.new_ones(4, 3, 3, 3).cumsum(0), padding=1),
        lambda x: x @ x.transpose(-1, -2),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: x.cumsum(-1),
        lambda x: x.sort(-1)[0],
    ):
        (outcome,) = same_numbers(fn, X, passes=(ExpandLoops(),))
        assert outcome.changed >= 1


def test_changed_loops_fuse_with_what_surrounds_them() -> None:
    net = imported(lambda x, w: F.conv2d(x.sin(), w).cos(), X, W).network
    assert ExpandLoops().apply(net).changed == 1
    before = len(net.ops())
    FuseProducers().apply(net)
    assert len(net.ops()) < before
    assert all(isinstance(op.spec, LoopNest) for op in net.ops())


def test_only_and_most_choose() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w) + (x @ x.transpose(-1, -2)).sum()

    assert ExpandLoops(only="^forward").apply(imported(fn, X, W).network).changed == 1
    outcome = ExpandLoops(most=2 * 2 * 3 * 6 * 6 * 8).apply(imported(fn, X, W).network)
    assert outcome.changed == 1 and outcome.refused == {"a kernel is faster": 1}


def test_refused_calls_into_torch() -> None:
    net = imported(lambda x: torch.linalg.inv(x[..., :6]), X).network
    outcome = ExpandLoops().apply(net)
    assert not outcome.changed and outcome.refused["a call into torch has no loops"] >= 1
