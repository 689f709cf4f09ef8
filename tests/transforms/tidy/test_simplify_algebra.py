"""Scalar identities: what becomes what, what stays as it is and why, and the numbers bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dcir.ir.interpret import interpret
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Network
from dcir.ir.statements import Gather, Load, Store
from dcir.ir.verify import verify
from dcir.ops.lowering import Lowering, Meta, Ref
from dcir.transforms.tidy.simplify_algebra import SimplifyAlgebra
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from tests.transforms.build import network
from tests.transforms.imported import same_numbers

Fn = Callable[[LoopNestBuilder, Expr], Expr]


def pointwise(fn: Fn, shape: tuple[int, ...] = (4, 6)) -> Network:
    """A network of one program."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        c.outs = [Meta(x.shape, x.strides, "f32")]
        return [c.pointwise(lambda v: v.body.convert(fn(v.body, v), "f32"), x)]

    return network([shape], make)


def op(name: str) -> Fn:
    return lambda b, x: b.op(name, x)


def cond(b: LoopNestBuilder, x: Expr) -> Expr:
    return x > 0.5


IDENTITIES: dict[str, tuple[Fn, list[str]]] = {
    "times one": (lambda b, x: x * 1.0, []),
    "one times": (lambda b, x: 1.0 * x, []),
    "minus nothing": (lambda b, x: x - 0.0, []),
    "plus negative zero": (lambda b, x: x + -0.0, []),
    "over one": (lambda b, x: x / 1.0, []),
    "twice negated": (lambda b, x: b.op("neg", -x), []),
    "times minus one": (lambda b, x: x * -1.0, ["neg"]),
    "over four": (lambda b, x: x / 4.0, ["const", "mul"]),
    "squared": (lambda b, x: b.op("pow", x, b.const(2, "f32")), ["mul"]),
    "to the third": (lambda b, x: b.op("pow", x, b.const(3, "f32")), ["mul", "mul"]),
    "plus negated": (lambda b, x: b.op("exp", x) + -x, ["exp", "sub"]),
    "magnitude of the negated": (lambda b, x: b.op("abs", -x), ["abs"]),
    "same choice": (lambda b, x: b.where(cond(b, x), x, x), []),
    "known choice": (lambda b, x: b.where(b.const(1, "f32") > 0.5, x, -x), []),
    "twice not": (lambda b, x: b.where(~~cond(b, x), x, -x), ["const", "gt", "neg", "where"]),
    "wider and back": (lambda b, x: b.convert(b.convert(x, "f64"), "f32"), []),
    "twice at least": (
        lambda b, x: b.op("max", b.op("max", x, b.const(0, "f32")), b.const(0, "f32")),
        ["const", "max"],
    ),
    "constants": (lambda b, x: x * (b.op("sqrt", b.const(4, "f32")) / 3.0), ["const", "mul"]),
    "index in range": (lambda b, x: b.where((b.index(1) >= 0) & (b.index(1) + 2 < 8), x, -x), []),
    "index never there": (lambda b, x: b.where(b.index(0) * 2 > 6, -x, x), []),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_changed(name: str) -> None:
    fn, left = IDENTITIES[name]
    net = pointwise(fn)
    before = run(net)
    assert SimplifyAlgebra().apply(net).changed
    (done,) = net.ops()
    assert [s.op for s in done.spec.body if not isinstance(s, (Load, Store))] == left
    verify(net)
    net.validate()
    tolerance = 1e-6 if name in ("squared", "to the third") else 0.0
    np.testing.assert_allclose(run(net), before, rtol=tolerance)
    assert np.array_equal(np.signbit(run(net)), np.signbit(before)) or np.isnan(before).any()
    assert not SimplifyAlgebra().apply(net).changed


UNCHANGED: dict[str, Fn] = {
    "by three": lambda b, x: x / 3.0,
    "narrower and back": lambda b, x: b.convert(b.convert(b.convert(x, "i32"), "f32"), "i32"),
    "difference with itself": lambda b, x: x - x,
    "index out of range": lambda b, x: b.where(b.index(0) < 3, x, -x),
    "root": lambda b, x: b.op("pow", x, b.const(0.5, "f32")),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged(name: str) -> None:
    outcome = SimplifyAlgebra().apply(pointwise(UNCHANGED[name]))
    assert not outcome.changed and not outcome.refused


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda b, x: x * 0.0, "x * 0 keeps NaN, infinity and the sign of zero"),
        (lambda b, x: x + 0.0, "x + 0.0 turns -0.0 into 0.0"),
        (lambda b, x: x - -0.0, "x + 0.0 turns -0.0 into 0.0"),
    ],
)
def test_refused(fn: Fn, reason: str) -> None:
    outcome = SimplifyAlgebra().apply(pointwise(fn))
    assert not outcome.changed and outcome.refused[reason] == 1


def test_changed_masked_load() -> None:
    def make(c: Lowering, x: Ref, y: Ref) -> list[Ref]:
        dst = c.new(x.shape, "f32")
        k = c.kernel(x.shape)
        zero = k.body.const(0, "f32")
        inside = k.load(x, mask=k.body.index(0) < 4, other=zero)
        k.store(dst, inside + k.load(y, mask=k.body.index(0) > 4, other=zero))
        k.done()
        return [dst]

    net = network([(4, 6), (4, 6)], make)
    assert SimplifyAlgebra().apply(net).saved_bytes == 4 * 24
    (done,) = net.ops()
    assert [s.args for s in done.spec.body if isinstance(s, Load)] == [()] and len(net.ins(done)) == 1
    verify(net)


@pytest.mark.parametrize(
    ("first", "other", "kept"), [(0, -1.0, False), (-1, 0.0, False), (-1, -1.0, True), (1, -0.0, True)]
)
def test_mask_of_gather(first: int, other: float, kept: bool) -> None:
    """A mask that is always true may go if no index is outside, or the other value is the 0 of a gather without one."""

    def make(c: Lowering, x: Ref) -> list[Ref]:
        dst, k = c.new((6,), "f32"), c.kernel((6,))
        mask, value = k.body.const(1, "bool"), k.body.const(other, "f32")
        k.store(dst, k.gather(x, (0,), [k.body.index(0) + first], [0], checked=False, mask=mask, other=value))
        k.done()
        return [dst]

    net, before = network([(6,)], make), network([(6,)], make)
    SimplifyAlgebra().apply(net)
    verify(net)
    assert [len(s.args) for op in net.ops() for s in op.spec.body if isinstance(s, Gather)] == [3 if kept else 1]
    assert run(net).tobytes() == run(before).tobytes()


def run(net: Network) -> np.ndarray:
    """The result on the values where identities break."""
    special = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan, 1e-40, -3e38, 7.25, 0.1]
    x = np.resize(np.array(special, np.float32), net.containers[net.inputs[0]].size)
    return interpret(net, {net.inputs[0]: x})[net.results[0].data]


def test_numbers() -> None:
    def fn(x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        padded = torch.nn.functional.pad(x, (1, 1))
        return (
            (x**2 / 2 - 0) * 1,
            padded.pow(3) / 8,
            (h.float().double() + 0).half(),
            (-x).neg() + (-x * -1.0),
            x[:, :3] * 0,
        )

    same_numbers(fn, torch.randn(5, 7), torch.randn(6).half(), passes=(SimplifyAlgebra(),))


@pytest.mark.parametrize("kind", ["all", "any"])
def test_nothing_but_infinities(kind: str) -> None:
    """As a softmax that is safe asks: rows of infinities, of some of them, with a NaN, and none of length 0."""
    x = torch.randn(6, 5)
    x[1], x[2, 1:], x[3], x[3, 2], x[4], x[5] = -torch.inf, -torch.inf, -torch.inf, torch.nan, torch.inf, torch.nan
    for given in (x, x[:, :0]):
        outcome = same_numbers(
            lambda t: getattr(t == -torch.inf, kind)(-1), given, passes=(FuseProducers(), SimplifyAlgebra())
        )[1]
        assert not given.numel() or outcome.changed == (kind == "all")
