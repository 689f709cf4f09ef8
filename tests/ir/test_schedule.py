"""Schedules as data: what they take, how they agree with a kernel's own, that nodes keep them when they are saved, cloned and rewired."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.errors import InvalidSchedule
from dcir.ir.body import Body
from dcir.ir.network import Network
from dcir.ir.schedule import OPEN, PLAIN, Schedule
from dcir.ir.serialize import decode, encode
from dcir.ir.text import network_text
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from tests.transforms.build import network, unary

MINE = Schedule.of(parallel={"i0": 4}, order=["i0"], vector="i1", near=[])


def test_from_what_people_write() -> None:
    assert MINE.parallel == (("i0", 4),) and MINE.order == ("i0",) and MINE.near == () and MINE.tiles is None
    assert str(MINE) == "any: order i0, parallel i0 4, vector i1"
    assert decode(encode(MINE)) == MINE and decode(encode(PLAIN)) == PLAIN


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"paralel": {"m": 2}}, "no 'paralel'"),
        ({"loops": (("m", 2),)}, "no 'loops'"),
        ({"tiles": {"m": 0}}, "tiles cannot be"),
        ({"registers": {"m": 2.0}}, "registers cannot be"),
        ({"parallel": "m"}, "parallel cannot be"),
        ({"order": [1]}, "order cannot be"),
        ({"vector": 3}, "vector cannot be"),
    ],
)
def test_what_it_does_not_take(values: dict[str, object], what: str) -> None:
    with pytest.raises(InvalidSchedule, match=what) as refused:
        Schedule.of(**values)
    assert refused.value.hint


def test_which_field_was_missed() -> None:
    made = Schedule(
        "tiles",
        (("m", 100), ("n", 64)),
        ("n", "m"),
        (("m", 2),),
        (("n", 32),),
        (("m", 10), ("n", 16)),
        "n",
        ("A", "B"),
        (),
    )
    for asked in (
        OPEN, Schedule(method="tiles"), Schedule(order=("n",)), Schedule.of(parallel={"m": 2, "n": 1}), Schedule.of(packed=["B", "A"]),
        Schedule.of(registers={"m": 11, "n": 16}),  # as many parts, evened out
        Schedule.of(tiles={"n": 32, "m": 100}),  # all of m is no block
    ):  # fmt: skip
        assert asked.missed(made) == "", asked
    for field, asked in {
        "method": Schedule(method="dot"), "order": Schedule(order=("m",)), "vector": Schedule(vector="m"),
        "packed": Schedule(packed=("A",)),
        "near": Schedule(near=("A",)), "parallel": Schedule(parallel=()), "tiles": Schedule(tiles=()),
        "registers": Schedule.of(registers={"m": 25, "n": 16}),
    }.items():  # fmt: skip
        assert asked.missed(made) == field
    assert Schedule.of(registers={"m": 9, "n": 16}).missed(made) == "registers"


def test_renamed() -> None:
    swapped = Schedule.of(registers={"m": 4, "n": 8}, packed=["A"], vector="n", order=["m", "k"]).renamed(
        {"m": "n", "n": "m", "A": "B"}
    )
    assert swapped == Schedule.of(registers={"n": 4, "m": 8}, packed=["B"], vector="m", order=["n", "k"])


def test_a_node_keeps_it(tmp_path: Path) -> None:
    """In a file, in a clone, in a body, with other operands; not with an operator of another kind."""
    net = network([(4, 6)], lambda c, x: [unary(c, "exp", x)])
    (op,) = net.ops()
    assert op.own_schedule is None and "runs as" not in network_text(net)
    op.own_schedule = MINE
    assert f"runs as {MINE}" in network_text(net)
    net.save(tmp_path / "net.zip")
    for other in (net.clone(), Network.load(tmp_path / "net.zip"), Body.of(net).copy()):
        assert [o.own_schedule for o in other.ops()] == [MINE]
    net.rewire(op, op.spec, net.ins(op), net.outs(op))
    assert op.own_schedule == MINE
    other = ContractionSpec(alike("f32"), (), 4, 6, 6, (6, 1), (0, 0), (6, 1))
    net.rewire(op, other, net.ins(op) * 2, net.outs(op))
    assert op.own_schedule is None
