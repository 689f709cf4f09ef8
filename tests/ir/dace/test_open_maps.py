"""Loop nests written as maps and read back: every operator's, and that stock DaCe computes the same with the maps."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest

from dcir.frontends.torch.importer import import_graph
from dcir.ir.dace.open_maps import MapsWriter
from dcir.ir.dace.read_maps import read_sdfg
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_normal import computes, normal
from dcir.ir.network import Network
from dcir.transforms.open_groups import OpenGroup
from tests.harness import all_samples, graph_of_calls
from tests.transforms.build import network, reduce

CASES = [(p, s) for p, s, i in all_samples() if i == 0]
PARTS = 16


def opened(net: Network, op: Any) -> tuple[Any, Any]:
    """An SDFG with the maps of one operator, and the piece that is read from it."""
    sdfg = dace.SDFG("opened")
    writer = MapsWriter(sdfg, sdfg.add_state("run", is_start_block=True), net.containers)
    operands = (*net.ins(op), *net.outs(op))
    writer.declare(dict.fromkeys(o.data for o in operands), [])
    nest = writer.opened(op.spec, net.ins(op), net.outs(op))
    assert isinstance(nest, LoopNest)
    writer.nest(op.label, nest, net.ins(op), net.outs(op))
    sdfg.validate()
    (piece,) = read_sdfg(sdfg, {n: net.containers[n].dtype for n in sdfg.arrays if n in net.containers})
    return sdfg, piece


@pytest.mark.parametrize("part", range(PARTS))
def test_every_operator_comes_back(part: int) -> None:
    """The same loops, statements and operands; or others that compute the same numbers."""
    seen = 0
    for page, sample in CASES[part::PARTS]:
        net = import_graph(graph_of_calls([(page.overload, sample.args, sample.kwargs)])[0]).network
        for op in net.ops():
            nest = MapsWriter(dace.SDFG("probe"), None, net.containers).opened(op.spec, net.ins(op), net.outs(op))
            if not isinstance(nest, LoopNest):
                continue
            sdfg, piece = opened(net, op)
            known: dict[object, int] = {}
            want, ins, outs = normal(nest, net.ins(op), net.outs(op))
            same = (computes(piece.nest, known), piece.ins, piece.outs) == (computes(want, known), ins, outs)
            assert same or OpenGroup(net, [op]).differs([piece], sdfg) is None, page.name
            seen += 1
    assert seen > 20


def test_comparison_sees_another_number() -> None:
    net = network([(4, 6)], lambda c, x: [reduce(c, "sum", x)])
    (op,) = net.ops()
    sdfg, piece = opened(net, op)
    for tasklet, _ in sdfg.all_nodes_recursive():
        if (
            isinstance(tasklet, dace.sdfg.nodes.Tasklet)
            and "float64" in tasklet.code.as_string
            and "e0" in tasklet.code.as_string
        ):
            tasklet.code.as_string = tasklet.code.as_string.replace("(e0)", "(e0 + e0)")
    (changed,) = read_sdfg(sdfg, {n: net.containers[n].dtype for n in net.containers})
    group = OpenGroup(net, [op])
    assert group.differs([piece], sdfg) is None
    assert group.differs([changed], sdfg) is not None


def test_arrays_keep_their_dimensions() -> None:
    """No flat views: an edge says which row and which column."""
    net = network([(4, 6)], lambda c, x: [reduce(c, "max", x)])
    sdfg, _ = opened(net, net.ops()[0])
    assert not any(isinstance(d, dace.data.View) for d in sdfg.arrays.values())
    inner = [
        e.data
        for e, _ in sdfg.all_edges_recursive()
        if isinstance(e.data, dace.Memlet) and e.data.data == net.inputs[0]
    ]
    assert "i0, i1" in {str(m.subset) for m in inner}


def test_stock_dace_runs_the_maps(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def softmax(c: Any, x: Any) -> list[Any]:
        k = c.kernel([5], [7])
        v = k.load(x, [7, 1])
        e = k.body.op("exp", v - k.body.reduce("max", v))
        dst = c.new((5, 7), "f32")
        k.store(dst, e / k.body.reduce("sum", e), (7, 1))
        k.done()
        return [dst]

    net = network([(5, 7)], softmax)
    sdfg, _ = opened(net, net.ops()[0])
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    y = np.zeros_like(x)
    sdfg(**{net.inputs[0]: x, net.results[0].data: y})
    want = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, want / want.sum(1, keepdims=True), rtol=1e-5)
