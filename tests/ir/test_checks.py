"""What checks indices comes before what writes in place of inputs, unless it is another one's index, or its own result is needed."""

from __future__ import annotations

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, Result
from dcir.ir.updates import checks_first, settle

ROWS, COLUMNS, POINTS = 6, 4, 5


def gathered() -> LoopNest:
    """out[p, c] = table[at[p], c]."""
    k = LoopNestBuilder((POINTS, COLUMNS))
    table, index = k.input("f32"), k.load(k.input("i64"), (1, 0))
    k.store(
        k.output("f32"),
        (COLUMNS, 1),
        k.gather(table, (0, 1), [k.where(index < 0, index + ROWS, index)], (ROWS,), (COLUMNS,)),
    )
    return k.finish()


def halved() -> LoopNest:
    k = LoopNestBuilder((ROWS, COLUMNS))
    k.store(k.output("f32"), (COLUMNS, 1), k.load(k.input("f32"), (COLUMNS, 1)) * 0.5)
    return k.finish()


class _Made:
    """table' = table / 2, in place, and gathers of tables and indices."""

    def __init__(self) -> None:
        self.net = Network("n")
        self.table = self.net.add_container((ROWS, COLUMNS), "f32", "input")
        self.other = self.net.add_container((ROWS, COLUMNS), "f32", "input")
        self.at = self.net.add_container((POINTS,), "i64", "input")
        self.net.inputs += [self.table, self.other, self.at]

    def update(self) -> Op:
        self.new = self.net.add_container((ROWS, COLUMNS), "f32", "transient", (COLUMNS, 1))
        op = self.net.add_op(halved(), [Operand(self.table)], [Operand(self.new)])
        self.net.promote(self.new)
        self.net.results.append(Result(self.new, (ROWS, COLUMNS), (COLUMNS, 1), 0, "f32"))
        self.net.updates[self.new] = self.table
        return op

    def gather(self, table: str, offset: int = 0) -> Op:
        out = self.net.add_container((POINTS, COLUMNS), "f32", "transient", (COLUMNS, 1))
        op = self.net.add_op(gathered(), [Operand(table), Operand(self.at, offset)], [Operand(out)])
        self.net.promote(out)
        self.net.results.append(Result(out, (POINTS, COLUMNS), (COLUMNS, 1), 0, "f32"))
        return op


def test_a_writer_waits() -> None:
    made = _Made()
    update, gather = made.update(), made.gather(made.other)
    settle(made.net)
    assert made.net.ops() == [gather, update]
    assert checks_first(made.net) == [(gather, [update])]


def test_what_another_one_looks_at_need_not_be_first() -> None:
    made = _Made()
    first, update, second = made.gather(made.other), made.update(), made.gather(made.other)
    settle(made.net)
    assert made.net.ops() == [first, update, second]
    made = _Made()
    first, update, second = made.gather(made.other), made.update(), made.gather(made.other, 1)
    settle(made.net)
    assert made.net.ops() == [first, second, update]


def test_what_needs_the_new_value_comes_behind() -> None:
    made = _Made()
    update = made.update()
    gather = made.gather(made.new)
    other = made.gather(made.other, 1)
    settle(made.net)
    assert made.net.ops() == [other, update, gather]


def test_without_updates_nothing_waits() -> None:
    made = _Made()
    made.gather(made.other)
    assert checks_first(made.net) == []
