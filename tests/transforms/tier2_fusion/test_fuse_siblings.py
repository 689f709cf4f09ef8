"""Horizontal fusion: what is fused, what is left alone, what is refused and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dcir.ir.verify import verify
from dcir.transforms.tier2_fusion.fuse_siblings import FuseSiblings
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.imported import same_numbers
from tests.transforms.random_network import results


def test_changed_pointwise() -> None:
    net = network([(32, 10)], lambda c, x: [unary(c, "tanh", x), unary(c, "exp", x)])
    before, traffic = results(net), net.bytes_moved()
    assert FuseSiblings().apply(net).changed == 1
    verify(net)
    assert len(net.ops()) == 1 and net.bytes_moved() == traffic - 32 * 10 * 4
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_changed_reductions_with_loops_in_another_order() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        turned = replace(x, shape=x.shape[::-1], strides=x.strides[::-1])
        return [reduce(c, "sum", x, 1), reduce(c, "max", turned, 0)]

    net = network([(32, 10)], make)
    before = results(net)
    assert FuseSiblings().apply(net).changed == 1
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)


def test_unchanged_without_common_input() -> None:
    net = network([(32, 10), (32, 10)], lambda c, x, y: [unary(c, "tanh", x), unary(c, "exp", y)])
    outcome = FuseSiblings().apply(net)
    assert not outcome.changed and not outcome.refused


def test_refused_dependent() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "tanh", x)
        return [y, binary(c, "add", x, y)]

    outcome = FuseSiblings().apply(network([(32, 10)], make))
    assert not outcome.changed and outcome.refused == {"one depends on the other": 1}


def test_refused_other_loops() -> None:
    net = network([(32, 10)], lambda c, x: [reduce(c, "sum", x, 0), reduce(c, "sum", x, 1)])
    outcome = FuseSiblings().apply(net)
    assert not outcome.changed and outcome.refused == {"their loops differ": 1}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (torch.tanh(x), torch.exp(x), x * 3),
        lambda x: (x.sum(1), x.t().amax(0)),
        lambda x: (x.sum(1), (x * x).sum(1), x.amin(1)),
    ],
    ids=["pointwise", "reductions in another order", "reductions of rows"],
)
def test_generated_code(fn: Callable[..., Any]) -> None:
    x = torch.randn(640, 10, generator=torch.Generator().manual_seed(1))
    (outcome,) = same_numbers(fn, x, passes=(FuseSiblings(),))
    assert outcome.changed


@pytest.mark.parametrize(
    "fn",
    [lambda x: (x.sum(), x.t().argmax()), lambda x: (x.amax((0, 1)), x.permute(1, 0).flatten().argmin())],
    ids=["all of it", "flattened"],
)
def test_refused_places_in_another_order(fn: Callable[..., Any]) -> None:
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(1))
    (outcome,) = same_numbers(fn, x, passes=(FuseSiblings(),))
    assert not outcome.changed
