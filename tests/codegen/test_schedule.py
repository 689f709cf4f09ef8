"""Scheduled loop nests: the plain order, and what the CPU makes of the same nests for its threads, vectors and caches."""

from __future__ import annotations

import pytest

from dcir.codegen.cpp.kernels.loop_nest_schedule import COLUMN_BLOCK, SERIAL_POINTS, schedule
from dcir.codegen.schedule import Block, Sweep, Tile, in_order, needed
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.statements import Reduce, Store
from dcir.isa import ISAS

ONE, TEAM = Machine(ISAS["avx2"], 1), Machine(ISAS["avx2"], 4)


def pointwise(rows: int, columns: int, outputs: int = 1) -> LoopNest:
    """Results that need nothing of each other."""
    body = LoopNestBuilder((rows, columns))
    for _ in range(outputs):
        value = body.load(body.input("f32"), (columns, 1))
        body.store(body.output("f32"), (columns, 1), value + value)
    return body.finish()


def softmax(rows: int, columns: int) -> LoopNest:
    """Three sweeps, whose exponentials two of them need."""
    body = LoopNestBuilder((rows,), (columns,))
    x = body.load(body.input("f32"), (columns, 1))
    e = body.op("exp", x - body.reduce("max", x))
    body.store(body.output("f32"), (columns, 1), e / body.reduce("sum", e))
    return body.finish()


def total(rows: int, columns: int, kind: str = "sum", *, across: bool = False) -> LoopNest:
    """A reduction of a matrix along its rows, or across them, the result beside it."""
    body = LoopNestBuilder((columns,), (rows,)) if across else LoopNestBuilder((rows,), (columns,))
    value = body.load(body.input("f32"), (1, columns) if across else (columns, 1))
    body.store(body.output("i64" if kind.startswith("arg") else "f32"), (1, 0), body.reduce(kind, value))
    return body.finish()


def test_in_order() -> None:
    """One job, no vector, nothing near; stores at outer points come when their reduces are done."""
    plain = in_order(softmax(5, 9))
    assert (plain.prefix, plain.jobs, plain.tile, plain.vector, plain.near) == (0, 1, None, None, ())
    assert [(s.stage, s.inner, len(s.stores), len(s.reduces)) for s in plain.sweeps] == [
        (0, True, 0, 1), (1, True, 0, 1), (2, True, 1, 0),
    ]  # fmt: skip
    assert not any(s.vector or s.lanes or s.block for s in plain.sweeps)
    assert [(s.stage, s.inner) for s in in_order(total(5, 9)).sweeps] == [(0, True), (1, False)]


@pytest.mark.parametrize(
    "make", [lambda: pointwise(5, 9, 2), lambda: softmax(5, 9), lambda: total(9, 5), lambda: total(9, 5, across=True)]
)
def test_every_schedule_does_everything_once(make) -> None:
    """Each store and each reduce is in one sweep, after what it waits for."""
    p = make()
    for made in (in_order(p), schedule(p, ONE), schedule(p, TEAM)):
        done = [i for s in made.sweeps for i in (*s.stores, *s.reduces)]
        assert sorted(done) == [i for i, s in enumerate(p.body) if isinstance(s, (Store, Reduce))]
        assert [s.stage for s in made.sweeps] == sorted(s.stage for s in made.sweeps)
        assert made.nest == p and made.prefix <= len(p.outer)


def test_small_nests_stay_on_one_thread() -> None:
    side = 64
    assert side * side < SERIAL_POINTS
    assert (schedule(pointwise(side, side), TEAM).prefix, schedule(pointwise(side, side), TEAM).jobs) == (0, 1)
    many = schedule(pointwise(64 * side, side), TEAM)
    assert (many.prefix, many.jobs, many.tile, many.vector) == (1, 64 * side, None, 1)
    assert schedule(pointwise(64 * side, side), ONE).jobs == 1


def test_arithmetic_counts_as_well_as_points() -> None:
    """The gates of a recurrent layer's step are few points with long functions; of a row's own functions there are as many as rows."""

    def gates(rows: int, columns: int) -> LoopNest:
        body = LoopNestBuilder((rows, columns))
        value = body.load(body.input("f32"), (columns, 1))
        for name in ("sigmoid", "tanh", "sigmoid", "tanh", "sigmoid"):
            value = body.op(name, value) * value
        body.store(body.output("f32"), (columns, 1), value)
        return body.finish()

    assert SERIAL_POINTS > 20 * 650
    assert schedule(gates(20, 650), TEAM).jobs > 1 == schedule(gates(20, 650), ONE).jobs
    assert schedule(gates(2, 650), TEAM).jobs == schedule(pointwise(20, 650), TEAM).jobs == 1
    rows = LoopNestBuilder((100,), (100,))
    value = rows.reduce("sum", rows.load(rows.input("f32"), (100, 1)))
    for _ in range(50):
        value = rows.op("tanh", value)
    rows.store(rows.output("f32"), (1, 0), value)
    assert schedule(rows.finish(), TEAM).jobs == 1


def test_a_single_row_is_dealt_out_in_tiles() -> None:
    made = schedule(pointwise(1, 1 << 16), TEAM)
    assert made.tile == Tile(4096, True) and made.jobs == 16


def test_independent_stores_have_loops_of_their_own() -> None:
    assert [len(s.stores) for s in schedule(pointwise(5, 9, 3), ONE).sweeps] == [1, 1, 1]


def test_rows() -> None:
    """Lanes run along memory, with partial results; what two sweeps need waits in a row buffer."""
    made = schedule(softmax(200, 300), TEAM)
    assert not made.columns and made.vector == 1 and made.jobs == 200
    assert [s.lanes for s in made.sweeps] == [64, 64, 0]
    ((value, born),) = made.near
    assert made.nest.body[value].op == "exp" and born == 1
    assert not schedule(softmax(2, 1 << 14), TEAM).near, "a row that no near memory holds is computed twice"


def test_columns() -> None:
    """Memory runs across the reduction: neighbouring results in lanes, in tiles, sums in blocks."""
    p = total(500, 4096, across=True)
    made = schedule(p, TEAM)
    assert made.columns and made.vector == 0 and made.tile == Tile(COLUMN_BLOCK, True) and made.jobs == 64
    (reduce,) = (i for i, s in enumerate(p.body) if isinstance(s, Reduce))
    assert made.sweeps[0] == Sweep(0, True, (), (reduce,), 0, Block(1, 64, (reduce,)))
    assert schedule(p, ONE).tile == Tile(COLUMN_BLOCK, False)


def test_positions_of_extremes_are_found_in_order() -> None:
    (sweep, _) = schedule(total(64, 512, "argmax"), TEAM).sweeps
    assert not sweep.vector and not sweep.lanes


def test_what_is_needed() -> None:
    p = softmax(5, 9)
    (store,) = (i for i, s in enumerate(p.body) if isinstance(s, Store))
    words = [p.body[i].op for i in needed(p, [store], set())]
    assert words[0] == "load" and "exp" in words and "reduce" not in words
    assert not needed(p, [store], {p.body[store].args[0]})
