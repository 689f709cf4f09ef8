"""Origins: stacks as text, unions, what is told of them, and that networks, their copies, bodies and files keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dcir.errors import InvalidGraph
from dcir.ir.body import Body, unplanned
from dcir.ir.dace.open_network import open_network
from dcir.ir.network import Network, Operand
from dcir.ir.origins import Frame, Origins, Place, SourceLine, frames_of, innermost, source_lines, summary, union
from dcir.ir.serialize import decode, encode
from dcir.ir.text import network_text
from dcir.ops.library.regions import LoopSpec
from tests.bodies import body, graph, loop, tensor
from tests.transforms.build import binary, network, unary

TRACE = """  File "/home/me/net.py", line 12, in forward
    x = self.block(x)
  File "/home/me/lost.py", line 3, in block
  File "/home/me/blocks.py", line 40, in forward
    return torch.relu(self.inner(x) + 1)
"""
BLOCK = Place("relu", "aten.relu.default", "block", frames_of(TRACE))
HEAD = Place("mm", "aten.mm.default", "head", (Frame("/home/me/net.py", 13, "forward", "return self.head(x)"),))


def chain() -> Network:
    return network([(4, 8)], lambda c, x: [unary(c, "exp", unary(c, "neg", unary(c, "abs", x)))])


def test_a_stack_is_read_frame_by_frame() -> None:
    assert frames_of(TRACE) == (
        ("/home/me/net.py", 12, "forward", "x = self.block(x)"),
        ("/home/me/lost.py", 3, "block", ""),
        ("/home/me/blocks.py", 40, "forward", "return torch.relu(self.inner(x) + 1)"),
    )
    assert frames_of("") == () and frames_of("nothing of the kind") == ()
    assert frames_of('File "a b.py", line 7') == (("a b.py", 7, "", ""),)


def test_the_innermost_line_is_the_users() -> None:
    frames = (*frames_of(TRACE), Frame(torch.nn.functional.__file__, 9, "relu", ""))
    assert innermost(frames) == frames[2] and innermost(frames[3:]) == frames[3] and innermost(()) is None


def test_a_union_is_sorted_and_shared_where_it_is_one_of_its_parts() -> None:
    few, many = (2,), (1, 2, 5)
    assert union([few, many, (3,), few]) == (1, 2, 3, 5) and union([]) == () and union([(), few]) == few
    assert union([many, few]) is many and union([many, many]) is many


def test_lines_are_told_once_and_the_innermost_of_each_first() -> None:
    lines = source_lines([BLOCK, HEAD, BLOCK, Place("add", module="tail"), Place("mul")])
    assert [(line.module, line.file, line.line) for line in lines] == [
        ("block", "/home/me/blocks.py", 40),
        ("block", "/home/me/lost.py", 3),
        ("block", "/home/me/net.py", 12),
        ("head", "/home/me/net.py", 13),
        ("tail", "", 0),
    ]
    assert lines[3] == SourceLine("head", "/home/me/net.py", 13, "return self.head(x)")
    assert summary([BLOCK, HEAD, BLOCK]) == "block (blocks.py:40) + 1 more"
    assert summary([Place("mul"), HEAD]) == "head (net.py:13)" and summary([]) == ""
    assert (str(HEAD), str(Place("mul"))) == ("head (/home/me/net.py:13)", "mul")


def test_a_table_survives_json_and_what_is_handed_on_names_no_folder() -> None:
    table = Origins([BLOCK, HEAD, Place("mul"), BLOCK])
    again = Origins.from_json(json.loads(json.dumps(table.to_json())))
    assert again.places == table.places and len(table.to_json()["stacks"]) == 3
    assert again.of([1, 7, -1]) == [HEAD]
    text = json.dumps(table.public().to_json())
    assert "/home" not in text and "self.head" not in text and "blocks.py" in text
    assert summary(table.public().places) == summary(table.places)


@pytest.mark.parametrize("data", [{}, {"stacks": 3, "places": []}, {"stacks": [], "places": [["a", "b", "c", 0]]}])
def test_a_damaged_table_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        Origins.from_json(data)


def test_what_is_imported_has_a_number_of_its_own() -> None:
    net = chain()
    assert [op.came_from for op in net.ops()] == [(0,), (1,), (2,)]
    assert [p.label for p in net.origins.places] == [op.label for op in net.ops()]


def test_a_pass_says_what_an_operator_came_from() -> None:
    net = chain()
    first, second, third = net.ops()
    second.origin = "model.second"
    with pytest.raises(InvalidGraph, match="fuse adds an operator that came from none"):
        net.add_op(second.spec, net.ins(second), net.outs(second), made_by="fuse")
    made = net.add_op(
        second.spec, net.ins(first), net.outs(second), came_from=(third, second), made_by="fuse", before=second
    )
    assert made.came_from == (1, 2) and made.origin == "model.second" and len(net.origins.places) == 3
    net.remove_op(first, into=made)
    assert made.came_from == (0, 1, 2) and not net.origins.gone
    net.remove_op(second, into=())
    assert net.origins.gone == {1}
    with pytest.raises(TypeError, match="into"):
        net.remove_op(third)  # type: ignore[call-arg]


def test_who_takes_over_is_named_when_an_operator_stays() -> None:
    net = chain()
    first, second, _ = net.ops()
    net.rewire(second, second.spec, net.ins(first), net.outs(second), came_from=(first,))
    assert second.came_from == (0, 1) and first in net


def test_copies_and_files_keep_them(tmp_path: Path) -> None:
    net = chain()
    _, second, _ = net.ops()
    second.came_from, net.origins.places[1] = (0, 1), BLOCK
    net.save(tmp_path / "net.zip")
    for other in (net.clone(), Network.load(tmp_path / "net.zip"), Body.of(net).copy(net.origins)):
        assert [op.came_from for op in other.ops()] == [(0,), (0, 1), (2,)]
        assert other.origins.places == net.origins.places and network_text(other) == network_text(net)
    assert net.clone().origins is net.origins
    assert "# frontend [0 1]" in network_text(net)
    assert "1: relu = aten.relu.default  block (/home/me/blocks.py:40)" in network_text(net)


def test_library_nodes_of_an_open_network_keep_them() -> None:
    def made(c: Any, x: Any) -> list[Any]:
        return [unary(c, "exp", x)]

    net = network([(4, 8)], made)
    (op,) = net.ops()
    op.came_from = (0, 3)
    inner = Body.of(network([(4, 8)], made))
    around = graph([tensor(4, 8)], lambda c, x: loop(c, inner, 2, [x], [], []))
    for node in (n for n in around.clone().sdfg.start_state.nodes() if hasattr(n, "came_from")):
        assert node.came_from == (0,)
    assert open_network(net).number_of_nodes()


def test_bodies_that_differ_in_nothing_else_are_equal() -> None:
    one = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add", h, x)])
    net = one.copy()
    net.ops()[0].came_from = (4, 7)
    other = Body.of(net)
    assert other.came_from == (4, 7) != one.came_from
    assert other == one and hash(other) == hash(one) and repr(other) == repr(one)
    looped = graph([tensor(4), tensor(3, 4)], lambda c, h, xs: loop(c, other, 3, [h], [xs], []))
    (op,) = looped.ops()
    assert unplanned(op.spec) == op.spec and repr(unplanned(op.spec)) == repr(op.spec)
    assert decode(json.loads(json.dumps(encode(op.spec)))).body.came_from == (4, 7)
    assert Body.of(looped).came_from == (0, 4, 7)


def test_a_loop_that_goes_takes_its_bodys_operators_along() -> None:
    inner = body([tensor(4)] * 2, lambda c, h, x: [binary(c, "add", h, x)]).copy()
    inner.ops()[0].came_from = (5,)
    of = Body.of(inner)
    net = graph([tensor(4), tensor(3, 4)], lambda c, h, xs: loop(c, of, 3, [h], [xs], []))
    (op,) = net.ops()
    assert isinstance(op.spec, LoopSpec)
    twin = net.add_op(op.spec, net.ins(op), [Operand(net.add_container((4,), "f32"))])
    net.remove_op(twin, into=op)
    assert op.came_from == (0, 1, 5)
    net.remove_op(op, into=())
    assert net.origins.gone == {0, 1, 5}
