"""A network whose sizes move: constant ones made of it, files, rules that must hold at all sizes, and who refuses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dcir.errors import InvalidGraph, InvalidInput, Unsupported
from dcir.ir.dace.symbols import symbolic_sdfg
from dcir.ir.dace.target import compile_network as compile_dace
from dcir.ir.memory_plan import ARENA
from dcir.ir.moving_file import load, save
from dcir.ir.moving_network import MovingNetwork, digest, digest_at
from dcir.ir.sizes import Bounds, size
from dcir.ir.text import network_text
from dcir.ir.verify_moving import verify_moving
from dcir.ops.analysis.size_unification import chosen_samples, unified
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.harness import run_interpreted
from tests.transforms.imported import imported

S = size("s0")
WEIGHT = torch.randn(16, 8)


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1).flip(0) + x.mean(1, keepdim=True)


def moving() -> MovingNetwork:
    sizes, samples = chosen_samples({"s0": Bounds(3, 60)}, {8, 16})
    nets = [imported(rows, torch.randn(s["s0"], 16), WEIGHT).network for s in samples]
    for net in nets:
        PlanArena().apply(net)
    found = unified(nets, samples, sizes)
    assert isinstance(found, MovingNetwork), found
    return found


def changed(net: MovingNetwork, label: str, **fields: Any) -> MovingNetwork:
    (name,) = (n for n in net.operators if n.startswith(label))
    return replace(net, operators={**net.operators, name: replace(net.operators[name], **fields)})


def resized(net: MovingNetwork, name: str, **fields: Any) -> MovingNetwork:
    return replace(net, containers={**net.containers, name: net.containers[name]._replace(**fields)})


@pytest.mark.parametrize("n", [3, 4, 31, 60])
def test_it_is_every_constant_network(n: int) -> None:
    x = torch.randn(n, 16)
    done = imported(rows, x, WEIGHT)
    found = moving().at({"s0": n})
    assert digest(found) == digest(done.network)
    assert found.memory.nbytes(ARENA) >= max(c.nbytes for c in found.containers.values() if c.role == "transient")
    found.validate()
    done.network = found
    torch.testing.assert_close(run_interpreted(done, [x, WEIGHT])[0], rows(x, WEIGHT))


def test_constant_networks_of_it_are_independent() -> None:
    net = moving()
    before = network_text(net.widest)
    net.at({"s0": 5}).results.clear()
    other = net.at({"s0": 5})
    for op in reversed(other.ops()):
        other.remove_op(op, into=())
    other.remove_container(other.inputs[0])
    assert network_text(net.widest) == before and len(net.at({"s0": 5}).results) == 1


@pytest.mark.parametrize("values", [{}, {"s0": 2}, {"s0": 1000}, {"s0": 5, "s1": 5}])
def test_sizes_out_of_bounds_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        moving().at(values)


def test_it_survives_a_file(tmp_path: Path) -> None:
    net = moving()
    save(net, tmp_path / "net.zip")
    again = load(tmp_path / "net.zip")
    verify_moving(again)
    assert replace(again, widest=net.widest) == net
    assert network_text(again.at({"s0": 7})) == network_text(net.at({"s0": 7}))
    assert symbolic_sdfg(again).arrays.keys() == symbolic_sdfg(net).arrays.keys()


def test_its_rules_hold() -> None:
    verify_moving(moving())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda n: changed(n, "contraction", in_offsets=(size("s1"), 0)), "no size of the network"),
        (lambda n: changed(n, "contraction", in_offsets=(S - 9, 0)), "is -?s0 - 9"),
        (lambda n: changed(n, "contraction", in_offsets=(0,)), "other operands"),
        (lambda n: resized(n, n.widest.inputs[0], shape=(S - 10, 16)), "an extent"),
        (lambda n: resized(n, n.widest.inputs[0], strides=(16 - S, 1)), "a stride"),
        (lambda n: resized(n, n.widest.inputs[0], shape=(62 - S, 16)), "less at other sizes"),
        (lambda n: resized(n, n.results[0].data, shape=(S, 7)), "what is left of"),
        (lambda n: replace(n, sizes={"s0": Bounds(0, 61)}), "sizes of 0"),
        (lambda n: replace(n, samples=((n.samples[0][0], "0"), *n.samples[1:])), "not the one that was seen"),
        (lambda n: replace(n, operators={}), "the operators are not those"),
        (lambda n: replace(n, results=(n.results[0]._replace(offset=S - 3),)), "what is left of"),
        (lambda n: changed(n, "contraction", in_offsets=(0, 61 - S)), "not the one that was seen"),
    ],
)
def test_broken_rules_are_found(spoil: Any, reason: str) -> None:
    with pytest.raises(InvalidGraph, match=reason):
        verify_moving(spoil(moving()))


def test_stock_dace_has_no_code_for_it() -> None:
    with pytest.raises(Unsupported, match="whose sizes move"):
        compile_dace(moving())


def test_digest_needs_no_network() -> None:
    net = moving()
    for length in (4, 17, 61):
        assert digest_at(net, {"s0": length}) == digest(net.at({"s0": length}))
