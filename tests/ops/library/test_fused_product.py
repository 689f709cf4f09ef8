"""A product with what is done before and after: parts, what it moves, and how it is saved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.serialize import decode, encode
from dcir.ir.types import f32_to_bf16
from dcir.ops.library.fused_product import FusedProduct, refused_as_prologue, refused_as_tail
from tests.codegen.cuda.products import activated, matrices, normalised, normalised_and_kept, stored, summed

S = matrices(10, 6, 4)


def bf16(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return f32_to_bf16(rng.standard_normal(shape).astype(np.float32).reshape(-1))


def test_its_steps_have_the_numbers_of_the_reference() -> None:
    spec = FusedProduct(S, activated(S), normalised(S))
    ins = [bf16(10, 4), *(np.linspace(-1, 2, n).astype(np.float32) for n in (4, 4, 10)), bf16(4, 6)]
    ins += [np.linspace(-1, 1, 6).astype(np.float32), bf16(10, 6)]
    outs, again = ([np.zeros(60, np.uint16), np.zeros(60 + 72, np.uint16)] for _ in range(2))
    spec.reference(ins, outs)
    temporaries, steps = spec.steps() or ([], [])
    place = {name: np.zeros(n, np.uint16) for name, _, n in temporaries}
    place |= {f"a{i}": a for i, a in enumerate(ins)} | {f"o{i}": a for i, a in enumerate(again)}
    for nest, reads, writes in steps:
        nest.reference([place[n] for n in reads], [place[n] for n in writes])
    assert len(steps) == 3 and outs[0].any()
    for a, b in zip(outs, again, strict=True):
        assert np.abs(a.astype(int) - b.astype(int)).max() <= 1


def test_neither_operand_nor_product_is_moved() -> None:
    reads, writes = FusedProduct(S, summed(S), normalised(S)).footprint()
    assert reads == (2 * 40, 4 * 4, 4 * 4, 4 * 10, 2 * 24) and writes == (2 * 60, 4 * 6, 4 * 6)
    reads, writes = FusedProduct(S, stored(S)).footprint()
    assert (reads, writes) == ((80, 48), (120,))


def test_steps_are_shared_where_nothing_wants_whole_columns() -> None:
    kept = FusedProduct(S, stored(S), normalised_and_kept(S))
    parts = [s.in_parts for s in (FusedProduct(S, activated(S)), FusedProduct(S, summed(S)), kept)]
    assert parts == [True, False, False]


def test_it_is_saved_with_all_parts() -> None:
    spec = FusedProduct(S, summed(S), normalised(S))
    assert decode(encode(spec)) == spec
    assert "product m10 n6 k4" in spec.describe() and spec.operations() > S.operations()


def test_what_cannot_follow_or_precede_is_refused_with_its_reason() -> None:
    body = LoopNestBuilder((6,), (10,))
    c = body.load(body.input("bf16"), (1, 6))
    body.store(body.output("bf16"), (1, 6), c / body.reduce("sum", c))
    assert "goes over the inner loops again" in str(refused_as_tail(body.finish()))
    turned = replace(stored(S), body=tuple(s.over_loops(lambda st: st[::-1], int) for s in stored(S).body))
    assert "reads across the rows" in str(refused_as_tail(turned))
    assert "it sums" in str(refused_as_prologue(summed(S)))
    assert refused_as_tail(summed(S)) is None and refused_as_prologue(normalised(S)) is None


@pytest.mark.parametrize("long", [False, True])
def test_long_ones_are_refused(long: bool) -> None:
    body = LoopNestBuilder((6,), (10,))
    value = body.load(body.input("bf16"), (1, 6))
    for k in range(100 if long else 5):
        value = value * (1.0 + k)
    body.store(body.output("bf16"), (1, 6), value)
    assert (refused_as_tail(body.finish()) is not None) == long
