"""Vertical fusion: what is fused, what is left alone, what is refused and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import dcir
from dcir.ir.verify import verify
from dcir.transforms.tier2_fusion import fuse_producers
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.transforms.build import binary, network, reduce, unary
from tests.transforms.imported import same_numbers
from tests.transforms.random_network import results


def test_changed_chain() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "tanh", unary(c, "neg", unary(c, "exp", x)))])
    before = results(net)
    outcome = FuseProducers().apply(net)
    assert outcome.changed == 2 and len(net.ops()) == 1
    assert [n for n, c in net.containers.items() if c.role == "transient"] == []
    np.testing.assert_allclose(results(net)[0], before[0], rtol=1e-6)


def test_changed_softmax_is_one_kernel() -> None:
    def softmax(c, x):  # type: ignore[no-untyped-def]
        e = unary(c, "exp", binary(c, "sub", x, reduce(c, "max", x)))
        return [binary(c, "div", e, reduce(c, "sum", e))]

    net = network([(32, 10)], softmax)
    before = results(net)
    FuseProducers().apply(net)
    verify(net)
    assert len(net.ops()) == 1 and net.ops()[0].spec.outer == (32,) and net.ops()[0].spec.inner == (10,)
    np.testing.assert_allclose(results(net)[0], before[0], rtol=1e-6)


def test_changed_through_a_transposed_reshape() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "neg", x)  # (4, 6, 5), read as (5, 24)
        flat = replace(y, shape=(24, 5), strides=(5, 1))
        return [unary(c, "tanh", replace(flat, shape=(5, 24), strides=(1, 5)))]

    net = network([(4, 6, 5)], make)
    before = results(net)
    assert FuseProducers().apply(net).changed == 1
    np.testing.assert_allclose(results(net)[0], before[0], rtol=1e-6)


def test_changed_keeps_what_others_read() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "exp", x)
        return [y, unary(c, "neg", y)]

    net = network([(4, 6)], make)
    assert FuseProducers().apply(net).changed == 1
    assert len(net.ops()) == 1 and len(net.ops()[0].spec.outputs) == 2
    verify(net)


def test_changed_writes_nothing_that_both_were_needed_for() -> None:
    def between(c, x, y):  # type: ignore[no-untyped-def]
        a, b = unary(c, "exp", x), unary(c, "exp", y)
        return [binary(c, "add", a, binary(c, "mul", binary(c, "sub", b, a), x))]

    net = network([(4, 6), (4, 6)], between)
    before = results(net)
    FuseProducers().apply(net)
    verify(net)
    assert len(net.ops()) == 1
    assert [n for n, c in net.containers.items() if c.role == "transient"] == []
    assert len(net.ops()[0].spec.outputs) == 1
    np.testing.assert_allclose(results(net)[0], before[0], rtol=1e-6)


@pytest.mark.parametrize("spare_reads", [False, True])
def test_changed_where_a_reader_has_all_that_a_stored_value_is_made_of(spare_reads: bool) -> None:
    """The value stays for the caller; whoever reads its source computes it, if that is asked for."""

    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "neg", x)
        return [y, reduce(c, "sum", binary(c, "mul", x, y))]

    net = network([(4, 6)], make)
    before, moved = results(net), net.bytes_moved()
    FuseProducers(spare_reads=spare_reads, min_rows=1000).apply(net)
    verify(net)
    reduction = next(op for op in net.ops() if op.spec.inner)
    assert (len({o.data for o in net.ins(reduction)}) == 1) == spare_reads or len(net.ops()) == 1
    assert net.bytes_moved() < moved
    for got, want in zip(results(net), before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_reader_of_the_value_alone_does_not_compute_it() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "neg", x)
        return [y, reduce(c, "sum", y)]

    net = network([(4, 6)], make)
    moved = [
        FuseProducers(spare_reads=s).apply(n) and n.bytes_moved()
        for s, n in ((True, net), (False, network([(4, 6)], make)))
    ]
    assert moved[0] == moved[1]


def test_unchanged() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "tanh", x), unary(c, "exp", x)])
    outcome = FuseProducers().apply(net)
    assert not outcome.changed and not outcome.refused and len(net.ops()) == 2


def test_refused_costly_broadcast() -> None:
    def make(c, x, s):  # type: ignore[no-untyped-def]
        return [binary(c, "mul", x, unary(c, "rsqrt", s))]

    net = network([(64, 6), (1, 6)], make)
    outcome = FuseProducers().apply(net)
    assert not outcome.changed
    assert outcome.refused == {"the value would be computed once per broadcast element": 1}


def test_refused_long_sums_side_by_side() -> None:
    def centred(c, x):  # type: ignore[no-untyped-def]
        return [binary(c, "sub", x, reduce(c, "sum", x, 0))]

    reason = "the rows of the reduction do not fit into cache"
    # A job would sum 64 columns of 4096 rows, 256 bytes of each, and read them again from memory.
    assert FuseProducers().apply(network([(4096, 128)], centred)).refused[reason] == 1
    assert FuseProducers().apply(network([(256, 128)], centred)).changed == 1


def test_refused_other_axis() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        return [reduce(c, "sum", binary(c, "sub", x, reduce(c, "max", x, 1)), 0)]

    net = network([(32, 10)], make)
    outcome = FuseProducers().apply(net)
    assert "the consumer reduces over other loops" in outcome.refused or len(net.ops()) == 2
    assert len(net.ops()) == 2


def test_numbers_of_a_value_read_whole_and_in_part() -> None:
    """What a reader of a slice leaves out still has to be written for the others."""

    def make(c, x):  # type: ignore[no-untyped-def]
        y = unary(c, "sin", x)
        return [y, unary(c, "neg", replace(y, shape=(4, 5)))]

    net = network([(4, 20)], make)
    before = results(net)
    FuseProducers().apply(net)
    verify(net)
    for a, b in zip(before, results(net), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_refused_slice_of_a_reduction() -> None:
    def make(c, x):  # type: ignore[no-untyped-def]
        s = reduce(c, "sum", x)
        return [unary(c, "neg", replace(s, shape=(20, 1)))]

    net = network([(32, 10)], make)
    outcome = FuseProducers().apply(net)
    verify(net)
    assert outcome.refused == {"the consumer does not run over the reduction's rows": 1}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.exp(x).neg().tanh(),
        lambda x: torch.softmax(x.sin(), -1),
        lambda x: torch.tanh(x.neg().permute(2, 0, 1).reshape(8, 15)),
        lambda x: (lambda y: (y, y[:, 1:3] * 2, y.sum((0, 2))))(torch.exp(x)),
        lambda x: torch.nn.functional.layer_norm(torch.nn.functional.gelu(x), (5,)),
    ],
    ids=["chain", "softmax", "permuted", "read whole, in part and summed", "norm"],
)
def test_generated_code(fn: Callable[..., Any]) -> None:
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))
    (outcome,) = same_numbers(fn, x, passes=(FuseProducers(),))
    assert outcome.changed


def test_readers_of_one_value_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many readers are twice the work, whether they compute the value themselves or one of them is against it."""
    looked: list[int] = []
    plain = fuse_producers._computes

    def counting(*given: Any) -> bool:
        looked.append(1)
        return plain(*given)

    monkeypatch.setattr(fuse_producers, "_computes", counting)

    def asked(count: int, *, against: bool) -> int:
        def make(c, x):  # type: ignore[no-untyped-def]
            y = binary(c, "mul", x, x)
            made = [unary(c, "neg", replace(y, shape=(3, 4, 6), strides=(0, 6, 1)))] if against else []
            return made + [unary(c, "sin", y) for _ in range(count)]

        net = network([(4, 6)], make)
        before = results(net)
        looked.clear()
        FuseProducers().apply(net)
        verify(net)
        for have, want in zip(results(net), before, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)
        return len(looked)

    for against in (False, True):
        few, many = asked(20, against=against), asked(40, against=against)
        assert few <= 30
        assert many <= 2 * few


def test_refused_places_in_another_order() -> None:
    """The first one of a transposed matrix is counted along its rows."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x - x.mean()
        return z, z.t().argmin()

    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(1)).round()
    with torch.no_grad():
        z, place = dcir.optimize(fn)(x)
    torch.testing.assert_close(z, fn(x)[0])
    assert place == fn(x)[1]
