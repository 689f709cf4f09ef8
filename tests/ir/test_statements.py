"""The statements of loop nests: what they are equal to, and how passes change them without asking for their kind."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.scalars import evaluate
from dcir.ir.statements import (
    KINDS,
    Access,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Load,
    Narrow,
    Read,
    Reduce,
    Statement,
    Store,
)
from dcir.ir.types import to_numpy

EXAMPLES: tuple[Statement, ...] = (
    Const(1.5, "f32"),
    Index(1),
    Load(0, (4, 1), "f32", (0, 1)),
    Gather(0, (4, 1), (7,), (3,), True, "f32", (1, 0, 2)),
    Store(0, (4, 1), "bf16", (2,)),
    Reduce("sum", "f32", (1,)),
    Cast("f64", (1,)),
    Narrow("bf16", "f32", (1,)),
    Compute("add", "f32", (0, 1)),
)


def test_there_is_an_example_of_every_kind() -> None:
    assert tuple(map(type, EXAMPLES)) == KINDS


@pytest.mark.parametrize("s", EXAMPLES, ids=lambda s: type(s).__name__)
def test_statements_are_values(s: Statement) -> None:
    same = dataclasses.replace(s)  # type: ignore[type-var]
    assert same is not s and same == s and hash(same) == hash(s)
    assert [t for t in EXAMPLES if t == s] == [s]
    assert eval(repr(s)) == s
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.dtype = "i64"
    with pytest.raises((AttributeError, TypeError)):
        s.more = 1  # type: ignore[attr-defined]


def test_kinds_with_the_same_fields_differ() -> None:
    assert Load(0, (1,), "f32", (3,)) != Store(0, (1,), "f32", (3,))
    assert Index(0) != Const(0, "i64") and Cast("f32", (1,)) != Reduce("sum", "f32", (1,))
    assert Store(0, (1,), "f64", (3,)) != Store(0, (1,), "f64", (3,), added=True)


def test_constants_are_compared_by_their_text() -> None:
    different = [Const(v, "f32") for v in (0.0, -0.0, False, 0, math.nan, math.inf)]
    assert len(set(different)) == len(different)
    assert Const(math.nan, "f32") == Const(float("nan"), "f32") and Const(1, "i64") != Const(1, "i32")


@pytest.mark.parametrize("s", EXAMPLES, ids=lambda s: type(s).__name__)
def test_values_are_renumbered(s: Statement) -> None:
    where = {0: 10, 1: 11, 2: 12}
    moved = s.renumbered(where)
    assert moved.args == tuple(where[a] for a in s.args) and type(moved) is type(s)
    assert moved.renumbered({v: k for k, v in where.items()}) == s
    if s.args:
        assert moved == s.with_args(moved.args) == dataclasses.replace(s, args=moved.args)  # type: ignore[type-var]


@pytest.mark.parametrize("s", EXAMPLES, ids=lambda s: type(s).__name__)
def test_loops_are_renumbered(s: Statement) -> None:
    """The two loops exchanged: strides and indices follow, all else stays."""
    moved = s.over_loops(lambda st: st[::-1], lambda d: 1 - d)
    if isinstance(s, Access):
        assert moved == dataclasses.replace(s, strides=(1, 4))  # type: ignore[type-var]
    else:
        assert moved == (Index(0) if isinstance(s, Index) else s)


@pytest.mark.parametrize("s", [s for s in EXAMPLES if isinstance(s, Access)], ids=lambda s: type(s).__name__)
def test_accesses_of_another_operand(s: Access) -> None:
    assert s.with_operand(s.operand) is s
    assert s.with_operand(5) == dataclasses.replace(s, operand=5)  # type: ignore[type-var]
    assert s.with_strides((0, 2)) == dataclasses.replace(s, strides=(0, 2))  # type: ignore[type-var]
    assert s.at(5, (0, 2)) == s.with_operand(5).with_strides((0, 2))


def test_reads_tell_indices_from_their_guard() -> None:
    plain, guarded = Load(0, (1,), "f32"), Load(0, (1,), "f32", (4, 5))
    assert (plain.indices, plain.guard, guarded.indices, guarded.guard) == ((), (), (), (4, 5))
    gather = Gather(0, (0,), (7, 8), (8, 1), False, "f32", (1, 2))
    assert (gather.indices, gather.guard) == ((1, 2), ())
    assert gather.with_args((1, 2, 3, 4)).guard == (3, 4)
    assert [isinstance(s, Read) for s in EXAMPLES] == [isinstance(s, Load | Gather) for s in EXAMPLES]


def test_arguments_of_the_largest_are_places() -> None:
    assert [Reduce(k, "i64", (0,)).is_place for k in ("argmax", "argmin", "max", "any")] == [True, True, False, False]


def test_numbers_are_computed_as_the_reference_does() -> None:
    assert evaluate(Compute("add", "f32", (0, 1)), [(1.5, "f32"), (2.0, "f32")]) == 3.5
    assert evaluate(Cast("i64", (0,)), [(2.9, "f32")]) == 2
    assert evaluate(Narrow("bf16", "f32", (0,)), [(1.001, "f32")]) == 1.0
    assert evaluate(Load(0, (1,), "f32", (0, 1)), [(True, "bool"), (1.0, "f32")]) is None


@pytest.mark.parametrize("value", (-1.0, 300.0, -200.5, 3e9, 1e20, -1e20, math.nan, math.inf))
@pytest.mark.parametrize("name", ("u8", "i8", "i16", "i32", "i64"))
def test_floats_become_integers_as_in_generated_code(value: float, name: str) -> None:
    """The low bits of the 32-bit result, of the 64-bit one for u8; what does not fit into that is its smallest number."""
    bits, target = (64 if name in ("u8", "i64") else 32), to_numpy(name)
    low = -(2 ** (bits - 1))
    fits = math.isfinite(value) and low <= value < -low
    want = np.array(int(value) if fits else low, np.int64).astype(target).item()
    assert evaluate(Cast(name, (0,)), [(value, "f64")]) == want
    if math.isfinite(value):
        b = LoopNestBuilder((1,))
        assert b.body[b.convert(b.const(value, "f64"), name).n] == Const(want, name)


def test_constants_are_numbers_of_their_type() -> None:
    b = LoopNestBuilder((1,))
    values = [
        b.body[b.const(v, t).n] for v, t in ((-1, "u8"), (300, "u8"), (300, "i8"), (200, "i8"), (-(2**63), "i64"))
    ]
    assert values == [Const(255, "u8"), Const(44, "u8"), Const(44, "i8"), Const(-56, "i8"), Const(-(2**63), "i64")]
    assert b.body[b.convert(b.const(2**24 + 1.0, "f32"), "i32").n] == Const(2**24, "i32")


def test_simplify_keeps_stores_and_merges_equal_statements() -> None:
    body = (
        Load(0, (1,), "f32"), Load(0, (1,), "f32"), Const(0.0, "f32"), Const(-0.0, "f32"), Compute("add", "f32", (0, 1)),
        Compute("mul", "f32", (2, 3)), Store(0, (1,), "f32", (4,)), Store(0, (1,), "f32", (4,)),
    )  # fmt: skip
    p = simplify(LoopNest((4,), (), ("f32",), ("f32",), body))
    store = Store(0, (1,), "f32", (1,))
    assert p.body == (Load(0, (1,), "f32"), Compute("add", "f32", (0, 0)), store, store)
    whole = LoopNest((4,), (), ("f32",), ("f32",), body)
    only = simplify(whole, keep=lambda s: s.op == "mul")
    assert only.body == (Const(0.0, "f32"), Const(-0.0, "f32"), Compute("mul", "f32", (0, 1)))


def test_a_copy_is_a_load_and_a_store() -> None:
    load, store = Load(0, (4, 1), "f32"), Store(0, (1, 4), "f32", (0,))
    copy = LoopNest((4, 4), (), ("f32",), ("f32",), (load, store))
    assert copy.as_copy() == (load, store)
    assert dataclasses.replace(copy, body=(Const(1.0, "f32"), store)).as_copy() is None
    rounded = (load, Narrow("bf16", "f32", (0,)), Store(0, (1, 4), "f32", (1,)))
    assert dataclasses.replace(copy, body=rounded).as_copy() is None
