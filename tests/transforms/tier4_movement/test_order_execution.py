"""The order of execution: what is moved, what stays, what is refused, and the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dcir.ir.memory_plan import BufferPart
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tier4_movement.memory.lifetimes import live_bytes_lower_bound
from dcir.transforms.tier4_movement.order_execution import OrderExecution, alive_bytes
from tests.counted import growth
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.imported import imported, same_numbers
from tests.transforms.random_network import random_network, results


def wide(c: Lowering, x: Ref, count: int = 6) -> list[Ref]:
    """Large values first, then a small result of each."""
    large = [unary(c, "exp", x) for _ in range(count)]
    small = [reduce(c, "sum", v) for v in large]
    while len(small) > 1:
        small = [binary(c, "add", small[0], small[1]), *small[2:]]
    return small


def test_changed() -> None:
    net = network([(4, 1000)], wide)
    assert live_bytes_lower_bound(net) > 6 * 16000
    before = results(net)
    assert OrderExecution().apply(net).changed
    verify(net)
    assert live_bytes_lower_bound(net) < 2 * 16000
    np.testing.assert_array_equal(results(net)[0], before[0])
    assert not OrderExecution().apply(net).changed


def test_unchanged() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "neg", unary(c, "exp", x))])
    outcome = OrderExecution().apply(net)
    assert not outcome.changed and not outcome.refused


def test_refused_no_gain() -> None:
    def make(c: Lowering, x: Ref, y: Ref) -> list[Ref]:
        a, b = unary(c, "exp", x), unary(c, "exp", y)
        return [unary(c, "neg", a), unary(c, "neg", b)]

    outcome = OrderExecution(least_gain=0.6).apply(network([(4, 6), (4, 6)], make))
    assert outcome.refused["the greedy order needs about as much memory as the one there is"] == 1


def test_effects_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        draws = [torch.ops.aten.rand_like.default(x) for _ in range(5)]
        return sum(d.sum() * 2.0**i for i, d in enumerate(reversed(draws)))  # type: ignore[return-value]

    net = imported(fn, torch.rand(100)).network
    draws = [op for op in net.ops() if op.spec.kind == "torch"]
    OrderExecution().apply(net)
    assert [op for op in net.ops() if op.spec.kind == "torch"] == draws


def _backward(kept: int) -> Network:
    """The large gradient of a table first, then a sum over each of several kept values."""

    def make(c: Lowering, dy: Ref, table: Ref, *values: Ref) -> list[Ref]:
        return [binary(c, "mul", table, dy), *(reduce(c, "sum", unary(c, "exp", v)) for v in values)]

    net = network([(1, 1), (4, 2000), *[(4, 1000)] * kept], make)
    net.memory = net.memory.with_donated({name: BufferPart(i, 0, 16000) for i, name in enumerate(net.inputs[2:])})
    return net


def test_gradients_when_what_the_forward_kept_is_gone() -> None:
    net = _backward(6)
    assert alive_bytes(net) >= 6 * 16000 + 32000
    before = results(net)
    assert OrderExecution().apply(net).changed
    verify(net)
    assert alive_bytes(net) < 6 * 16000 + 32000
    assert net.ops()[-1] is net.writers(net.results[0].data)[0]
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_array_equal(a, b)


def test_values_kept_in_one_block() -> None:
    """A block is free when its last part has been read."""
    net = _backward(3)
    apart = alive_bytes(net)
    parts = {name: BufferPart(0, 16000 * i, 48000) for i, name in enumerate(net.memory.donated)}
    net.memory = net.memory.with_donated(parts)
    together = alive_bytes(net)
    assert apart <= together <= apart + 1024
    OrderExecution(least_gain=0.0).apply(net)
    verify(net)
    assert net.ops()[-1] is net.writers(net.results[0].data)[0]
    assert alive_bytes(net) < together


def test_inputs_and_results_of_others_do_not_count() -> None:
    net = _backward(6)
    net.memory = net.memory.with_donated({})
    assert alive_bytes(net) == live_bytes_lower_bound(net)
    order = net.ops()
    OrderExecution().apply(net)
    assert net.ops() == order


@pytest.mark.parametrize("seed", range(20))
def test_numbers(seed: int) -> None:
    net = random_network(seed, 30)
    before, peak = results(net), live_bytes_lower_bound(net)
    OrderExecution().apply(net)
    verify(net)
    net.validate()
    assert live_bytes_lower_bound(net) <= peak
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_array_equal(a, b)


def test_numbers_of_torch_functions() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.softmax(x @ x.T * i, -1) for i in range(4)]
        return torch.stack([p.mean(0) for p in parts])

    same_numbers(fn, torch.randn(20, 8), passes=(OrderExecution(),))


def test_work_grows_with_the_operators_and_not_with_their_square() -> None:
    def ordered(n: int) -> Callable[[], object]:
        net = network([(4, 16)], lambda c, x: wide(c, x, n))
        return lambda: OrderExecution().apply(net)

    assert growth(ordered, 90, 8) < 1.1
    assert OrderExecution().apply(network([(4, 16)], lambda c, x: wide(c, x, 700))).changed
