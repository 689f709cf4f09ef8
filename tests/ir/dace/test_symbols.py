"""The SDFG of a network whose sizes move: DaCe accepts it, and its expressions are the polynomials."""

from __future__ import annotations

import json

import dace
import torch
from dace.subsets import Range

from dcir.ir.dace.symbols import expression, symbol, symbolic_sdfg
from dcir.ir.dace.validation import validate
from dcir.ir.moving_network import MovingNetwork
from dcir.ir.sizes import Bounds, size
from dcir.ops.analysis.size_unification import chosen_samples, unified
from tests.moving import check_memlets
from tests.transforms.imported import imported

S, T = size("s0"), size("s1")


def moving() -> MovingNetwork:
    sizes, samples = chosen_samples({"s0": Bounds(2, 30), "s1": Bounds(3, 60)}, {16, 8})
    weight = torch.randn(16, 8)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, 1).sum(0)[..., 1:]

    found = unified([imported(fn, torch.randn(*s.values(), 16), weight).network for s in samples], samples, sizes)
    assert isinstance(found, MovingNetwork), found
    return found


def test_expressions_are_the_polynomials() -> None:
    assert expression(7) == 7
    assert expression(3 * S * T - S * S + 4) == 3 * symbol("s0") * symbol("s1") - symbol("s0") ** 2 + 4


def test_shapes_and_strides_are_expressions_of_declared_symbols() -> None:
    net = moving()
    sdfg = symbolic_sdfg(net)
    validate(sdfg)
    assert sdfg.symbols == {"s0": dace.int64, "s1": dace.int64} and {"s0", "s1"} <= {str(s) for s in sdfg.free_symbols}
    x = sdfg.arrays[net.widest.inputs[0]]
    s, t = symbol("s0"), symbol("s1")
    assert (x.shape, x.strides, x.total_size) == ((s, t, 16), (16 * t, 16, 1), 16 * s * t)
    for name, c in net.at({"s0": 5, "s1": 7}).containers.items():
        assert sdfg.arrays[name].total_size.subs({s: 5, t: 7}) == c.size


def test_memlets_are_those_of_constant_networks() -> None:
    """At sizes that were not seen."""
    net = moving()
    (state,) = symbolic_sdfg(net).states()
    (product,) = (n for n in state.nodes() if "contraction" in n.label)
    s, t = symbol("s0"), symbol("s1")
    x, w = (e.data for e in state.in_edges(product))
    assert (x.data, w.data) == tuple(net.widest.inputs)
    assert (x.subset, x.volume) == (Range([(0, s - 1, 1), (0, t - 1, 1), (0, 15, 1)]), 16 * s * t) and not x.dynamic
    assert (w.subset, w.volume) == (Range([(0, 15, 1), (0, 7, 1)]), 128)
    for values in ({"s0": 5, "s1": 7}, {"s0": 2, "s1": 41}):
        assert check_memlets(net, values) == 0


def test_it_survives_daces_own_file_format() -> None:
    sdfg = symbolic_sdfg(moving())
    again = dace.SDFG.from_json(json.loads(json.dumps(sdfg.to_json())))
    validate(again)
    assert {n: str(a.shape) for n, a in again.arrays.items()} == {n: str(a.shape) for n, a in sdfg.arrays.items()}


def test_the_constant_network_is_left_alone() -> None:
    net = moving()
    symbolic_sdfg(net)
    assert not net.widest.sdfg.symbols and all(
        isinstance(d, int) for c in net.widest.containers.values() for d in c.shape
    )
    net.widest.validate()
