"""What loop nests touch: masks and indices that follow from loops are exact, those that follow from data are bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcir.ir.element_sets import ElementSet
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.operator import Operator
from dcir.ir.touched import of_nest, touched


def read_by(nest: LoopNest) -> ElementSet:
    found = of_nest(nest).reads[0]
    assert found is not None
    return found


def stored(body: LoopNestBuilder, value: Expr) -> LoopNest:
    body.store(body.output("f32"), [1] * body.rank, value)
    return body.finish()


def test_padding_reads_what_lies_inside() -> None:
    body = LoopNestBuilder((4, 10))
    x = body.input("f32")
    row, column = body.index(0), body.index(1)
    inside = (row >= 1) & (row < 3) & (column >= 2)
    found = read_by(stored(body, body.load(x, (10, 1), inside, body.const(0, "f32"))))
    assert found == ElementSet((12,), ((2, 10), (8, 1)), 16)


def test_clamped_indices() -> None:
    body = LoopNestBuilder((5,))
    x = body.input("f32")
    at = body.op("max", body.index(0) * 2 - 1, body.const(0, "i64"))
    found = read_by(stored(body, body.gather(x, (0,), [at], [9], [3], checked=False)))
    assert (found.starts, found.dims, found.size) == ((0, 3, 9, 15, 21), (), 5) and found.exact


def test_an_index_that_is_a_sum_is_taken_apart() -> None:
    """Two loops of a million points together, a thousand each."""
    body = LoopNestBuilder((1000, 1000))
    x = body.input("f32")
    at = body.index(0) * 2000 + body.index(1)
    found = read_by(stored(body, body.gather(x, (0, 0), [at], [2_000_000], [1], checked=False)))
    assert found == ElementSet((0,), ((1000, 2000), (1000, 1)), 1_000_000)


def test_data_bound() -> None:
    body = LoopNestBuilder((6, 8))
    table, where = body.input("f32"), body.input("i64")
    index = body.load(where, (1, 0))
    nest = stored(body, body.gather(table, (0, 1), [index], [100], [8], checked=True))
    assert read_by(nest) == ElementSet((0,), ((800, 1),), 48, exact=False)
    body = LoopNestBuilder((6,))
    x = body.input("f32")
    some = body.load(x, (1,)) > 0
    nest = stored(body, body.load(body.input("f32"), (2,), some, body.const(0, "f32")))
    assert of_nest(nest).reads[1] == ElementSet((0,), ((6, 2),), 6, exact=False)


def test_backwards_and_nothing() -> None:
    body = LoopNestBuilder((4,))
    assert read_by(stored(body, body.load(body.input("f32"), (-2,)))) == ElementSet((-6,), ((4, 2),), 4)
    body = LoopNestBuilder((0, 4))
    assert read_by(stored(body, body.load(body.input("f32"), (4, 1)))).size == 0


@dataclass(frozen=True)
class Opaque(Operator):
    """Four float32 numbers from four others, in no way that is told."""

    kind = "opaque"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (16,), (16,)

    def operations(self) -> int:
        return 4

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        outs[0][:4] = ins[0][:4]


def test_operators_that_no_loop_nest_says() -> None:
    assert touched(Opaque()) == ((None,), (None,))
