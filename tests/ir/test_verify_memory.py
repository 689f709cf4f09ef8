"""The verifier's rules of memory: inside the block, on an element, apart while both are needed."""

from dataclasses import replace

import pytest

from dcir.errors import InvalidGraph
from dcir.ir.memory_plan import ARENA, PREPARED, Alias, Placement
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ir.verify_memory import Stay, _check_apart
from dcir.ops.lowering import Lowering, Ref
from dcir.transforms.tidy.prepare_static import PrepareStatic
from dcir.transforms.tier4_movement.plan_arena import PlanArena
from tests.transforms.build import binary, network, unary


def chain(*, static: bool = False) -> Network:
    """y = -(-(-x)) + -w, with a place for every transient."""

    def make(c: Lowering, x: Ref, w: Ref) -> list[Ref]:
        other = unary(c, "neg", w)
        for _ in range(3):
            x = unary(c, "neg", x)
        return [binary(c, "add", x, other)]

    net = network([(100,), (100,)], make)
    net.static = {net.inputs[1]} if static else set()
    PrepareStatic().apply(net)
    PlanArena().apply(net)
    return net


def moved(net: Network, name: str, block: str, offset: int) -> None:
    net.memory = replace(net.memory, placements={**net.memory.placements, name: Placement(block, offset)})


@pytest.mark.parametrize("static", [False, True])
def test_a_plan_that_is_right(static: bool) -> None:
    net = chain(static=static)
    assert (PREPARED in net.memory.blocks) is static
    verify(net)


def test_two_in_one_place() -> None:
    net = chain()
    first, second, third = (net.outs(op)[0].data for op in net.ops()[1:4])
    at = net.memory.placements[first].offset
    moved(net, third, ARENA, at)  # the first was read for the last time before
    verify(net)
    moved(net, second, ARENA, at + 4)
    with pytest.raises(InvalidGraph, match="not free yet"):
        verify(net)


def test_prepared_values_are_there_for_ever() -> None:
    net = chain(static=True)
    (name,) = net.memory.offsets(PREPARED)
    last = net.outs(net.ops()[3])[0].data
    moved(net, last, PREPARED, 0)
    with pytest.raises(InvalidGraph, match=f"{last} lies where {name} is|{name} lies where {last} is"):
        verify(net)


@pytest.mark.parametrize(
    ("block", "offset", "message"),
    [
        (ARENA, 1 << 20, "leaves its block"),
        (ARENA, -64, "leaves its block"),
        (ARENA, 2, "within an element"),
        ("shared 9", 0, "no block of the plan"),
    ],
)
def test_a_place_that_is_none(block: str, offset: int, message: str) -> None:
    net = chain()
    moved(net, net.outs(net.ops()[0])[0].data, block, offset)
    with pytest.raises(InvalidGraph, match=message):
        verify(net)


def test_a_place_of_what_does_not_exist() -> None:
    net = chain()
    moved(net, "t999", ARENA, 0)
    with pytest.raises(InvalidGraph, match="no container"):
        verify(net)


def test_an_alias_of_memory_that_is_nobodys() -> None:
    net = chain()
    first, second = (net.outs(op)[0].data for op in net.ops()[:2])
    net.memory = replace(net.memory.without([first]), aliases={first: Alias(second, 0)})
    with pytest.raises(InvalidGraph, match="in no shared block"):
        verify(net)


def test_an_input_that_is_not_donated() -> None:
    net = chain()
    net.memory = net.memory.with_shared([400], {net.inputs[0]: (0, 0)})
    with pytest.raises(InvalidGraph, match="not donated"):
        verify(net)


def test_neighbours_in_time_and_place() -> None:
    """Bytes next to each other, and times after each other, are apart; rows without bytes are nowhere."""
    _check_apart(
        [
            Stay(0, 4, 0, 8, "a"),
            Stay(1, 2, 8, 16, "b"),
            Stay(3, 5, 8, 12, "c"),
            Stay(5, 9, 0, 8, "d"),
            Stay(1, 1, 4, 4, "e"),
        ]
    )


@pytest.mark.parametrize("row", [(2, 3, 4, 6), (2, 3, -2, 1), (2, 3, 7, 20), (2, 3, -5, 30), (4, 4, 0, 8)])
def test_what_shares_a_byte_is_seen(row: tuple[int, int, int, int]) -> None:
    """Inside of another, over either end of it, around it, at its last moment."""
    others = [Stay(0, 4, 0, 8, "a"), Stay(0, 4, 40, 48, "b"), Stay(0, 1, 8, 40, "c")]
    with pytest.raises(InvalidGraph, match="not free yet"):
        _check_apart([*others, Stay(*row, "new")])
