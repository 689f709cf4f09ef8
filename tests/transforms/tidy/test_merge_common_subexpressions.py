"""Equal operators: what is merged, what is left alone, what is refused, and the numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Meta, Ref
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from tests.counted import growth
from tests.transforms.build import binary, network, unary
from tests.transforms.imported import imported, same_numbers


def test_changed_chains() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        a, b = unary(c, "exp", unary(c, "neg", x)), unary(c, "exp", unary(c, "neg", x))
        return [binary(c, "add", a, b)]

    net = network([(4, 6)], make)
    outcome = MergeCommonSubexpressions().apply(net)
    assert outcome.changed == 2 and len(net.ops()) == 3 and outcome.saved_bytes == 4 * 24 * 4
    assert len(net.ins(net.ops()[-1])) == 2 and len({o.data for o in net.ins(net.ops()[-1])}) == 1
    verify(net)
    net.validate()


def test_changed_the_result_keeps_its_container() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        a = unary(c, "exp", x)
        z = unary(c, "neg", a)
        return [unary(c, "exp", x), z]

    net = network([(4, 6)], make)
    assert MergeCommonSubexpressions().apply(net).changed == 1
    verify(net)
    first, second = net.ops()
    assert net.outs(first)[0].data == net.results[0].data == net.ins(second)[0].data


def test_unchanged_signs_of_zero() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        c.outs = [Meta(x.shape, x.strides, "f32")]
        a, b = c.pointwise(lambda v: v * 0.0, x), c.pointwise(lambda v: v * -0.0, x)
        return [binary(c, "sub", a, b)]

    outcome = MergeCommonSubexpressions().apply(network([(4, 6)], make))
    assert outcome.changed == 0 and not outcome.refused


def test_refused_two_results() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "exp", x), unary(c, "exp", x)])
    outcome = MergeCommonSubexpressions().apply(net)
    assert outcome.changed == 0 and outcome.refused["both are results of the network"] == 1


def test_refused_parts_of_one_container() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst = c.new((2, 4, 6), "f32")
        for i in range(2):
            part = replace(dst, shape=x.shape, strides=dst.strides[1:], offset=24 * i)
            c.outs = [Meta(x.shape, x.strides, "f32")]
            c.pointwise(lambda v: -v, x, out=part)
        return [dst]

    outcome = MergeCommonSubexpressions().apply(network([(4, 6)], make))
    assert outcome.changed == 0 and sum(outcome.refused.values()) == 1


def test_refused_random_numbers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.rand_like.default(x) - torch.ops.aten.rand_like.default(x)

    outcome = MergeCommonSubexpressions().apply(imported(fn, torch.rand(3)).network)
    assert outcome.refused["operators with effects or random numbers differ from call to call"] == 1


def test_numbers() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.softmax(x @ w, -1)
        b = torch.softmax(x @ w, -1)
        return a * b, torch.linalg.eigvalsh(w @ w.T) + torch.linalg.eigvalsh(w @ w.T), a.sum(0) + b.sum(0)

    (outcome,) = same_numbers(fn, torch.randn(5, 4), torch.randn(4, 4), passes=(MergeCommonSubexpressions(),))
    assert outcome.changed >= 4


def test_work_grows_with_the_operators_and_not_with_their_square() -> None:
    def deep(n: int) -> Network:
        def make(c: Lowering, x: Ref) -> list[Ref]:
            a = b = x
            for _ in range(n):
                a, b = unary(c, "neg", a), unary(c, "neg", b)
            return [binary(c, "add", a, b)]

        return network([(8,)], make)

    assert growth(lambda n: partial(MergeCommonSubexpressions().apply, deep(n)), 125, 8) < 1.1
    assert MergeCommonSubexpressions().apply(deep(1000)).changed == 1000
