"""Constants: what is folded, what is left alone, what is refused, and the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.ir.interpret import interpret
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Meta, Ref
from dcir.transforms.tidy.fold_constants import FoldConstants
from tests.transforms.build import binary, network, unary
from tests.transforms.imported import imported, same_numbers


def fill(c: Lowering, value: float, shape: tuple[int, ...]) -> Ref:
    """A filled tensor."""
    return c.full(value, c.new(shape, "f32"))


def test_changed_fill() -> None:
    net = network([(4, 6)], lambda c, x: [binary(c, "mul", x, fill(c, 2.0, (4, 6)))])
    outcome = FoldConstants().apply(net)
    assert outcome.changed == 2 and outcome.saved_bytes == 4 * 24
    (op,) = net.ops()
    assert [s.op for s in op.spec.body] == ["load", "const", "mul", "store"] and len(net.ins(op)) == 1
    assert len(net.containers) == 2
    verify(net)
    net.validate()


def test_changed_chain_of_constants() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        a = unary(c, "neg", fill(c, 2.0, (6,)))
        return [binary(c, "add", x, unary(c, "sqrt", unary(c, "abs", a)))]

    net = network([(4, 6)], make)
    assert FoldConstants().apply(net).changed == 8  # folded into four readers, four constants gone
    assert len(net.ops()) == 1


def test_changed_range() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        keep = torch.arange(6).view(2, 3) * 2 < x.new_full((), 5)
        return torch.where(keep, x, x.new_zeros(2, 3))

    x = torch.randn(4, 2, 3)
    net = imported(fn, x).network
    FoldConstants().apply(net)
    assert [type(op.spec).__name__ for op in net.ops()] == ["LoopNest"] and len(net.ins(net.ops()[0])) == 1
    same_numbers(fn, x, passes=(FoldConstants(),))


def test_changed_result_stays() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        ones = fill(c, 1.0, (4, 6))
        return [ones, binary(c, "add", x, ones)]

    net = network([(4, 6)], make)
    assert FoldConstants().apply(net).changed == 1 and len(net.ops()) == 2
    verify(net)


def test_unchanged() -> None:
    net = network([(4, 6)], lambda c, x: [unary(c, "neg", unary(c, "exp", x))])
    outcome = FoldConstants().apply(net)
    assert not outcome.changed and not outcome.refused


def _parts(c: Lowering, x: Ref) -> list[Ref]:
    dst = c.new((2, 6), "f32")
    for i in range(2):
        c.full(float(i), replace(dst, shape=(6,), strides=(1,), offset=6 * i))
    return [binary(c, "mul", replace(dst, shape=(12,), strides=(1,)), x)]


def _costly(c: Lowering, x: Ref) -> list[Ref]:
    dst = c.new((12,), "f32")
    k = c.kernel((12,))
    k.store(dst, k.body.op("exp", k.body.convert(k.body.index(0), "f32")))
    k.done()
    return [binary(c, "mul", x, dst)]


def _gathered(c: Lowering, x: Ref) -> list[Ref]:
    ones, dst = fill(c, 1.0, (5,)), c.new((12,), "f32")
    k = c.kernel((12,))
    k.store(dst, k.gather(ones, (0,), [k.body.convert(k.load(x), "i64")], [0]))
    k.done()
    return [dst]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_parts, "several operators write the container"),
        (_costly, "the constant costs more to compute than to read"),
        (_gathered, "the indices have to be checked"),
    ],
)
def test_refused(make: object, reason: str) -> None:
    outcome = FoldConstants().apply(network([(12,)], make))  # type: ignore[arg-type]
    assert not outcome.changed and outcome.refused[reason] == 1


def test_changed_masked_read() -> None:
    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst = c.new((4, 6), "f32")
        k = c.kernel((4, 6))
        edge = k.load(fill(c, 3.0, (4, 6)), mask=k.load(x) > 0.0, other=k.body.const(7, "f32"))
        k.store(dst, edge)
        k.done()
        c.outs = [Meta((4, 6), (6, 1), "f32")]
        return [dst]

    net = network([(4, 6)], make)
    assert FoldConstants().apply(net).changed == 2
    verify(net)


def test_numbers() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        third = torch.full((5, 7), 1 / 3, dtype=torch.bfloat16)
        steps = torch.arange(35, dtype=torch.bfloat16).view(5, 7) * 0.1
        return x * third, x + steps, torch.tril(x) + torch.eye(5, 7), x.masked_fill(torch.ones(5, 7).tril() == 0, -2.0)

    (outcome,) = same_numbers(fn, torch.randn(5, 7), passes=(FoldConstants(),))
    assert outcome.changed >= 4


@pytest.mark.parametrize("other", [None, -3.0])
def test_numbers_outside(other: float | None) -> None:
    """A gather outside of its operand gives its other value, not the number that fills the operand."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst, k = c.new((6,), "f32"), c.kernel((6,))
        masked = {} if other is None else {"mask": k.load(x) > 0.0, "other": k.body.const(other, "f32")}
        places = [k.body.index(0) * 2 - 3]
        k.store(dst, k.gather(fill(c, 5.0, (4,)), (0,), places, [0], checked=False, **masked))
        k.done()
        return [dst]

    net = network([(6,)], make)
    assert FoldConstants().apply(net).changed == 2
    verify(net)
    got = interpret(net, {net.inputs[0]: np.array([1, 1, 1, -1, 1, 1], np.float32)})[net.results[0].data]
    outside = other or 0.0
    # Places -3, -1, 1, 3, 5, 7 of 4.
    assert got.tolist() == [outside, outside, 5.0, 5.0 if other is None else other, outside, outside]


def test_a_long_expression_goes_into_constants_and_into_nothing_else() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        i = torch.arange(6)
        for k in range(1, 10):
            i = i * k + k
        return x * i

    x = torch.randn(4, 6)
    net = imported(fn, x).network
    outcome = FoldConstants().apply(net)
    constant, reader = net.ops()
    assert not net.ins(constant) and sum(s.op in ("mul", "add") for s in constant.spec.body) >= 18
    assert len(net.ins(reader)) == 2
    assert "the constant costs more to compute than to read" in {str(r) for r in outcome.refused}
    same_numbers(fn, x, passes=(FoldConstants(),))


def test_a_long_expression_is_not_computed_for_more_elements() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        i = torch.arange(6)
        for k in range(1, 10):
            i = i * k + k
        return x + (i[None] + torch.zeros(4, 1, dtype=torch.int64)).to(torch.float32)

    net = imported(fn, torch.randn(4, 6)).network
    FoldConstants().apply(net)
    assert all(op.spec.points() == 6 or sum(s.op == "mul" for s in op.spec.body) < 9 for op in net.ops())
