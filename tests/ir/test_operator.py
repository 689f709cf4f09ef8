"""Operators answer one contract: what a class must say is asked when it is defined, what it may say has an answer everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dcir.errors import InvalidOperator
from dcir.ir import serialize
from dcir.ir.interpret import interpret
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.updates import keeps_most
from dcir.isa import ISAS
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.scatter import ScatterSpec
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from dcir.ops.library.sort import SortSpec
from dcir.ops.library.torch_call import TorchCall


class Doubling(Operator, partial=True):
    """What an author of operators may share among them."""

    def footprint(self):
        return (4 * self.n,), (4 * self.n,)

    def operations(self):
        return self.n


@dataclass(frozen=True)
class Doubled(Doubling):
    """y = 2 x, of somebody else's package."""

    n: int

    kind = "doubled"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        outs[0][: self.n] = 2 * ins[0][: self.n]

    def loop_nest(self):
        return double(self.n)


def double(n):
    body = LoopNestBuilder((n,))
    body.store(body.output("f32"), (1,), body.load(body.input("f32"), (1,)) * 2)
    return body.finish()


def network(spec):
    net = Network()
    x = net.add_container((9,), "f32", "input")
    y = net.add_container((9,), "f32")
    net.promote(y)
    op = net.add_op(spec, [Operand(x, 4)], [Operand(y, 1)])
    return net, op, x, y


@pytest.mark.parametrize("spec", [Doubled(5), double(5)], ids=["operator", "loop nest"])
def test_an_operator_of_another_package_runs_as_a_loop_nest_does(spec):
    net, op, x, y = network(spec)
    assert op.label == f"{spec.kind}_2" and net.bytes_moved() == 40
    done = interpret(net, {x: np.arange(9, dtype=np.float32)})
    assert done[y].tolist() == [0, 8, 10, 12, 14, 16, 0, 0, 0]
    assert op.known(type(spec)) is spec
    assert spec.steps() == ([], [(double(5), ["a0"], ["o0"])])


def test_an_operator_without_an_emitter_is_planned_as_its_loop_nest():
    from dcir.codegen.cpp.emitters import plan
    from dcir.cost.machine import Machine

    machine = Machine(ISAS["avx2"], 1)
    assert plan(Doubled(5), machine) == plan(double(5), machine)


def test_what_is_missing_is_told_when_the_class_is_defined():
    with pytest.raises(InvalidOperator, match=r"operator Half lacks footprint\(\), reference\(\)") as told:

        class Half(Operator):
            def operations(self):
                return 1

    assert "Half" in str(told.value.where) and "partial=True" in str(told.value.hint)


def test_what_only_a_dataclass_shows_is_told_when_it_is_registered():
    class Nameless(Doubling):
        def reference(self, ins, outs):
            """Nothing."""

    with pytest.raises(InvalidOperator, match="Nameless lacks frozen fields"):
        serialize.register(Nameless)
    with pytest.raises(InvalidOperator, match="Nameless lacks kind"):
        serialize.register(dataclass(frozen=True)(Nameless))
    assert "Nameless" not in serialize._CLASSES


def test_every_saved_operator_keeps_the_contract():
    kinds = {c for c in serialize._CLASSES.values() if issubclass(c, Operator)}
    assert {LoopNest, ContractionSpec, TorchCall, SegmentSpec, ConvolutionStatisticsSpec} <= kinds
    for kind in kinds:
        assert kind.describe is not Operator.describe, f"{kind.__name__} says no sizes"


def test_answers_where_there_is_nothing_to_say():
    spec = Doubled(5)
    assert (spec.epilogue, spec.stored_by, spec.calls_out, spec.has_effects) == (None, None, "", False)
    assert (
        spec.windows() is None
        and not spec.updates_first_input
        and spec.with_result_apart() is spec
        and spec.describe() == "doubled"
    )
    assert TorchCall("aten.sin.default", (), (), (), ()).steps() is None


SCATTER = ScatterSpec(
    "add", "f32", (4, 3), (3, 1), 0.0, (3, 1), (2, 3), (0, 1), (3, 1), ((1, 0),), ("i64",), (4,), (3,), True, kept=True
)


def test_descriptions_hold_the_sizes():
    values = LoopNestBuilder((6, 2))
    values.store(values.output("f32"), (2, 1), values.load(values.input("f32"), (2, 1)))
    nest = LoopNestBuilder((), (7,))
    nest.store(nest.output("f32"), (0,), nest.reduce("max", nest.op("exp", nest.load(nest.input("f32"), (1,)))))
    fold = values.finish()
    rows = (24, 12, 4, 1)
    attention = AttentionSpec("f32", 2, 3, 4, 5, 6, 1.0, True, rows, rows, rows, rows, (12, 4, 1))
    told = {
        attention: "attention 2x3 of m4 n5 d6 causal",
        ScanSpec("sum", "f32", "f32", (2, 3), 4, (12, 4, 1), (12, 4, 1)): "scan sum 2x3x4",
        SortSpec("f32", (2, 3), 4, 2, True, (12, 4, 1), (6, 2, 1), (6, 2, 1)): "sort 2x3x4",
        SCATTER: "scatter add 2x3",
        GroupSpec((7,), ((1,),), ("i64",), (3,), True): "group 7",
        SegmentSpec("max", "f32", None, 0.0, 6, 6, fold, fold): "segment max",
        TorchCall("aten.sin.default", (), (), (), ()): "torch aten.sin.default",
        nest.finish(): "loops 1 over 7: exp max",
        fold: "loops 6x2: copy",
    }
    for spec, text in told.items():
        assert spec.describe() == text


def test_a_scatter_over_its_base_may_share_its_memory():
    net = Network()
    base = net.add_container((4, 3), "f32", "input")
    source, index = net.add_container((2, 3), "f32", "input"), net.add_container((2,), "i64", "input")
    y = net.add_container((4, 3), "f32")
    op = net.add_op(SCATTER, [Operand(base), Operand(source), Operand(index)], [Operand(y)])
    assert SCATTER.updates_first_input and keeps_most(net, op, y, base) and not keeps_most(net, op, y, source)
    assert not SCATTER.with_result_apart().kept


def test_who_stores_may_be_replaced():
    product = ContractionSpec("f32", (), 5, 1, 3, (3, 1), (1, 1), (1, 1), epilogue=double(5))
    assert product.stored_by == double(5) and product.stored_as(double(6)).epilogue == double(6)
    assert double(5).stored_by == double(5) and double(5).stored_as(double(6)) == double(6)


def test_windows_have_strides_that_others_may_choose():
    rows = (24, 12, 4, 1)
    forward = AttentionSpec("f32", 2, 3, 4, 5, 6, 1.0, False, rows, rows, rows, rows, (12, 4, 1))
    (q, _, _), (o, _) = forward.windows()
    assert q.shape == o.shape == (2, 3, 4, 6) and forward.with_strides(q, rows) is forward
    assert forward.with_strides(q, (1, 2, 3, 4)).q == (1, 2, 3, 4)
    backward = AttentionSpec("f32", 2, 3, 4, 5, 6, 1.0, False, rows, rows, rows, rows, (12, 4, 1), grads=(rows,) * 4)
    _, (_, dk, _) = backward.windows()
    assert backward.with_strides(dk, (9, 8, 7, 6)).grads == (rows, rows, (9, 8, 7, 6), rows)
    call = TorchCall("aten.add.Tensor", (), (), (((3,), (1,), "f32"), ((3,), (2,), "f64")), (((3,), (1,), "f64"),))
    (_, second), (out,) = call.windows()
    moved = call.with_strides(second, (5,)).with_strides(out, (7,))
    assert moved.ins[1] == ((3,), (5,), "f64") and moved.outs == (((3,), (7,), "f64"),)
    sizes = ((5, 5), (3, 3), (3, 3), (1, 1), (0, 0), (1, 1))
    strides = ((50, 25, 5, 1), (18, 9, 3, 1), (36, 9, 3, 1))
    layer = ConvolutionSpec("forward", alike("f32"), 1, 1, 2, 4, *sizes, *strides, bias=True, panel=16)
    (x, weight, bias), (y,) = layer.windows()
    assert weight is None and layer.with_strides(bias, (2,)) is None and (x.field, y.field) == ("x", "y")
