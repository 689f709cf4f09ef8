"""Two networks of one graph are one function of every image, or the reason why not is named."""

import pytest

from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, Result, contiguous
from dcir.ops.analysis.batch_independence import inseparable
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.torch_call import TorchCall


def result(net, name):
    c = net.containers[net.promote(name)]
    net.results.append(Result(name, c.shape, c.strides, 0, c.dtype))
    return net


def rows(n, *, strides=(6, 1), offset=0, factor=2.0, width=6, index=False, extent=None):
    """y = factor * x over n rows, with faults on request."""
    net = Network()
    x, y = net.add_container((n, 6), "f32", "input"), net.add_container((extent or n, width), "f32")
    body = LoopNestBuilder((extent or n, width))
    a, o = body.input("f32"), body.output("f32")
    value = body.load(a, strides) * factor
    if index:
        value = value + body.convert(body.index(0), "f32")
    body.store(o, (width, 1), value)
    net.add_op(body.finish(), [Operand(x, offset)], [Operand(y)])
    return result(net, y)


FAULTS = {
    "columns": (lambda n: rows(n, strides=(1, n)), "mixes the images"),
    "the next row": (lambda n: rows(n, offset=6), "mixes the images"),
    "over the edge": (lambda n: rows(n, offset=1), "mixes the images"),
    "one row for all": (lambda n: rows(n, strides=(0, 1)), "mixes the images"),
    "backwards": (lambda n: rows(n, strides=(-6, 1), offset=6 * (n - 1)), "operands lie elsewhere"),
    "a factor of the size": (lambda n: rows(n, factor=float(n)), "mixes the images"),
    "the number of the row": (lambda n: rows(n, index=True), "mixes the images"),
    "twice as many rows": (lambda n: rows(n, strides=(3, 1), width=3, extent=2 * n), "no dimension of images"),
}


def test_rows_are_separable():
    assert inseparable(rows(2), rows(8), (2, 8), [0]) is None
    assert inseparable(rows(2, strides=(6, -1), offset=5), rows(8, strides=(6, -1), offset=5), (2, 8), [0]) is None


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(name):
    made, reason = FAULTS[name]
    found = inseparable(made(2), made(8), (2, 8), [0])
    assert found is not None and reason in found.reason


def test_inputs_that_change_must_be_the_batch():
    assert "another input changes" in inseparable(rows(2), rows(8), (2, 8), []).reason
    assert "laid out differently" in inseparable(rows(2), rows(4), (2, 8), [0]).reason


def test_operators_in_torch_are_not_looked_into():
    def net(n):
        made = Network()
        x, y = made.add_container((n, 6), "f32", "input"), made.add_container((n, 6), "f32")
        window = ((n, 6), (6, 1), "f32")
        made.add_op(TorchCall("aten.sin.default", (("t", 0),), (), (window,), (window,)), [Operand(x)], [Operand(y)])
        return result(made, y)

    assert "runs in torch" in inseparable(net(2), net(8), (2, 8), [0]).reason


@pytest.mark.parametrize("transposed", [False, True])
def test_products_share_their_weights(transposed):
    def net(n):
        made = Network()
        x, w = made.add_container((n, 3, 4), "f32", "input"), made.add_container((4, 5), "f32", "input")
        y = made.add_container((5, 3 * n) if transposed else (n, 3, 5), "f32")
        c = (1, 3 * n) if transposed else (5, 1)
        spec = ContractionSpec(alike("f32"), (), 3 * n, 5, 4, (4, 1), contiguous((4, 5)), c)
        made.add_op(spec, [Operand(x), Operand(w)], [Operand(y)])
        return result(made, y)

    found = inseparable(net(2), net(8), (2, 8), [0])
    assert (found is None) is not transposed
    assert "another input changes" in inseparable(net(2), net(8), (2, 8), [1]).reason
