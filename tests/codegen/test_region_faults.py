"""Bad indices in generated loops and branches are told, and end what would not end by itself; what has no code is refused."""

from __future__ import annotations

import pytest
import torch

from dcir.codegen.compile import compile_network
from dcir.errors import IndexOutOfRange, Unsupported
from dcir.ops.library.torch_call import TorchCall
from dcir.ops.lowering import Lowering, Ref
from tests.bodies import body, branch, copied, first, generated, graph, loop, pointwise, repeat_while, tensor
from tests.transforms.build import binary, unary

SCALAR, COUNT, FLAG = tensor(), tensor(dtype="i64"), tensor(dtype="bool")


def picked(c: Lowering, x: Ref, at: Ref) -> Ref:
    """The elements at indices, which are checked."""
    k = c.kernel(at.shape)
    dst = c.new(at.shape, "f32")
    k.store(dst, k.gather(x, (0,) * len(at.shape), [k.load(at)], [0]))
    k.done()
    return dst


def test_a_bad_index_in_a_trip_is_told() -> None:
    of = body([tensor(), COUNT, tensor(4)], lambda c, h, at, x: [binary(c, "add", h, picked(c, x, at))], fixed=1)

    def make(c: Lowering, h: Ref, ats: Ref, x: Ref) -> list[Ref]:
        c.origin = "model.loop"
        made = loop(c, of, 3, [unary(c, "neg", h)], [ats], [x])
        c.origin = "model.behind"
        return [unary(c, "neg", made[0])]

    net = graph([SCALAR, tensor(3, dtype="i64"), tensor(4)], make)
    h, x = torch.tensor(1.0), torch.arange(4.0)
    assert generated(net, [h, torch.tensor([3, 0, 2]), x])[0].item() == -4
    for bad in ([3, 4, 0], [-1, 0, 0], [0, 0, 1000]):
        with pytest.raises(IndexOutOfRange, match=r"model\.loop"):
            generated(net, [h, torch.tensor(bad), x])


@pytest.mark.parametrize("size", [1, 1 << 16], ids=["alone", "in a team"])
def test_a_bad_index_ends_a_while_loop(size: int) -> None:
    """Its condition holds for ever; a loop around it comes to its end, too."""
    inputs = [COUNT, tensor(size), tensor(4)]
    always = body(inputs, lambda c, n, y, x: [c.full(1, c.new((), "bool"))], fixed=1)

    def step(c: Lowering, n: Ref, y: Ref, x: Ref) -> list[Ref]:
        return [pointwise(c, lambda v: v + 1, n), pointwise(c, lambda a, b: a * 0.5 + b, y, picked(c, x, n))]

    def forever(c: Lowering, n: Ref, y: Ref, x: Ref) -> list[Ref]:
        return repeat_while(c, always, body(inputs, step, fixed=1), [n, y], [x])

    again = graph(inputs, lambda c, n, y, x: loop(c, body(inputs, forever, fixed=1), 3, [n, y], [], [x]))
    for net in (graph(inputs, forever), again):
        with pytest.raises(IndexOutOfRange):
            generated(net, [torch.tensor(0), torch.zeros(size), torch.arange(4.0)])


def test_the_side_that_is_not_taken_is_not_looked_at() -> None:
    inputs = [COUNT, tensor(4)]
    then, otherwise = (
        body(inputs, lambda c, n, x: [picked(c, x, n)]),
        body(inputs, lambda c, n, x: [copied(c, first(x))]),
    )
    net = graph([FLAG, *inputs], lambda c, f, n, x: branch(c, f, then, otherwise, [n, x]))
    bad, x = torch.tensor(7), torch.arange(4.0)
    assert generated(net, [torch.tensor(False), bad, x])[0].item() == 0
    with pytest.raises(IndexOutOfRange):
        generated(net, [torch.tensor(True), bad, x])


def test_bodies_call_nothing() -> None:
    def step(c: Lowering, x: Ref) -> list[Ref]:
        meta, made = ((4,), (1,), "f32"), c.new((4,), "f32")
        c.emit(TorchCall("aten.clone.default", (("t", 0),), (), (meta,), (meta,), (0,)), [x], [made])
        return [made]

    net = graph([tensor(4)], lambda c, x: loop(c, body([tensor(4)], step), 3, [x]))
    with pytest.raises(Unsupported, match="inside of a loop or branch"):
        compile_network(net)
