"""Separability: an operator's images run one by one give what the operator gives, bit for bit in the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dcir.ir.loop_nest import LoopNest
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ops.analysis.batch_slices import Share, shares
from dcir.transforms.base import Pass
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.transforms.imported import imported


def run(spec: Any, ins: list[Any], outs: list[Any]) -> None:
    if isinstance(spec, LoopNest):
        run_program(spec, ins, outs, reference)
    else:
        spec.reference(ins, outs)


def specs(fn: Any, *inputs: torch.Tensor, passes: tuple[Pass, ...] = ()) -> list[tuple[Any, list[int], list[int]]]:
    """Every operator's spec and the elements its operands' containers hold behind where they begin."""
    net = imported(fn, *inputs).network
    for p in passes:
        p.apply(net)
    return [
        (op.spec, *([net.containers[o.data].size - o.offset for o in side] for side in (net.ins(op), net.outs(op))))
        for op in net.ops()
    ]


def check(share: Share, spec: Any, images: int, sizes: tuple[list[int], list[int]]) -> None:
    rng = np.random.default_rng(0)
    ins = [rng.standard_normal(n).astype(np.float32) for n in sizes[0]]
    whole, parts = ([np.zeros(n, np.float32) for n in sizes[1]] for _ in range(2))
    run(spec, ins, whole)
    for i in range(images):
        here = [a[s * i :] for a, s in zip(ins, share.ins, strict=True)]
        there = [a[s * i :] for a, s in zip(parts, share.outs, strict=True)]
        for a, (low, high) in zip((*here, *there), (*share.read, *share.written), strict=True):
            assert low >= 0 and high < a.size
        run(share.spec, here, there)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("images", [2, 3, 6])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.relu(F.conv2d(x, torch.ones(5, 4, 3, 3), torch.ones(5), stride=2, padding=1)),
        lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3), padding=1, groups=4) + x,
        lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 2, 2), stride=2),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: x.mean((2, 3)),
        lambda x: x.flatten(1) @ torch.ones(4 * 5 * 7, 3) + 1,
        lambda x: torch.matmul(x, torch.ones(6, 4, 7, 3)),
        lambda x: torch.softmax(x, 1),
    ],
)
def test_numbers(fn: Any, images: int) -> None:
    found = 0
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(6, 4, 5, 7).to(memory_format=layout)
        for spec, *sizes in specs(fn, x, passes=(FuseEpilogues(),)):
            for share in shares(spec, images):
                found += 1
                check(share, spec, images, (sizes[0], sizes[1]))
    assert found >= 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(0, keepdim=True),
        lambda x: torch.randn_like(x),
        lambda x: x + torch.arange(7.0).reshape(7, 1, 1, 1),
        lambda x: torch.ops.aten.convolution_backward(
            x, x, torch.ones(4, 4, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
        )[1],
    ],
    ids=["sum over images", "random", "the image's number", "weight gradient"],
)
def test_refused(fn: Any) -> None:
    """Sums over images, and whatever depends on which image it is."""
    last = specs(fn, image(7, 4, 3, 5), passes=(FuseProducers(),))[-1][0]
    if hasattr(last, "outer"):
        assert all(share.outs[0] < 4 * 3 * 5 for share in shares(last, 7))
    else:
        assert not list(shares(last, 7))


def test_refused_sizes() -> None:
    spec = specs(lambda x: F.conv2d(x, torch.ones(2, 4, 1, 1)), image(6, 4, 3, 5))[-1][0]
    assert not list(shares(spec, 4)) and not list(shares(spec, 1))
