"""The reference interpreter: nests in blocks, and memory given back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dcir.ir import run_nest as module
from dcir.ir.interpret import interpret
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.random_network import random_network, results


@pytest.mark.parametrize("limit", [1, 7, 60, 10**9])
def test_blocks_make_the_nest(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_POINTS", limit)
    net = network([(5, 4, 6)], lambda c, x: [reduce(c, "sum", x)])
    p = net.ops()[0].spec
    points = [tuple(i) for ranges in module._blocks(p) for i in np.ndindex(*map(len, ranges))]
    assert len(points) == p.points()
    assert all(math.prod(map(len, ranges)) <= max(limit, 6) for ranges in module._blocks(p))


@pytest.mark.parametrize("seed", range(5))
def test_the_same_numbers_in_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = random_network(seed)
    whole = results(net)
    monkeypatch.setattr(module, "LIVE_POINTS", 20)
    for a, b in zip(results(net), whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_given_back() -> None:
    net = network([(4,)], lambda c, x: [binary(c, "add", unary(c, "neg", unary(c, "exp", x)), x)])
    x = {net.inputs[0]: np.ones(4, np.float32)}
    everything = interpret(net, x)
    some = interpret(net, x, keep=net.result_containers())
    assert set(everything) == set(net.containers) and set(some) == net.result_containers()
    for name, values in some.items():
        np.testing.assert_array_equal(values, everything[name])
