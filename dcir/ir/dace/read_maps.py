"""Maps and tasklets of a state read back as loop nests: what ``open_maps.py`` writes, DaCe's transformations make of it, and programs say.

A scope at the top is one nest. Loops that all its tasklets share are its outer loops; maps inside them that run over the same extents
are its inner loops, sweep after sweep. What tasklets hand to each other in arrays of the scope are values, what is combined in them by
write-conflict resolution is reduced. Tiles of a map are the map: how its points are ordered is a schedule, which a nest does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import dace
from dace.libraries.standard import Reduce
from dace.sdfg import nodes
from dace.sdfg import utils as sdfg_utils

from dcir.errors import Unsupported
from dcir.ir.dace.read_node import NodeReader
from dcir.ir.dace.read_scope import ScopeReader
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Operand


class Piece(NamedTuple):
    """What a node or a scope of the state is.

    Attributes:
        label: of the map or the node.
        nest: its loop nest; None of a library node, which stays.
        ins, outs: its operands, by arrays of the SDFG; of a library node none.
        node: the library node.
    """

    label: str
    nest: LoopNest | None
    ins: tuple[Operand, ...] = ()
    outs: tuple[Operand, ...] = ()
    node: Any = None


def read_sdfg(sdfg: Any, types: Mapping[str, str]) -> list[Piece]:
    """The nests of an SDFG without branches, in order of execution.

    Args:
        sdfg: its states follow one another.
        types: dcir's element types of arrays, where DaCe's do not say (half types travel as integers).

    Raises:
        Unsupported: what no loop nest says, with its place.
    """
    found: list[Piece] = []
    for state in _states(sdfg):
        found += _state(sdfg, state, types)
    return found


def _states(sdfg: Any) -> list[Any]:
    blocks = list(sdfg.nodes())
    if not all(isinstance(b, dace.SDFGState) for b in blocks):
        raise Unsupported.collect([("loops and branches between states as loop nests", sdfg.label)])
    order, state = [], sdfg.start_block
    while state is not None:
        order.append(state)
        after = sdfg.out_edges(state)
        if len(after) > 1 or any(e.data.assignments or not e.data.is_unconditional() for e in after):
            raise Unsupported.collect([("branches between states as loop nests", sdfg.label)])
        state = after[0].dst if after else None
    return order


def _state(sdfg: Any, state: Any, types: Mapping[str, str]) -> list[Piece]:
    found: list[Piece] = []
    children = state.scope_children()
    order = {n: i for i, n in enumerate(sdfg_utils.dfs_topological_sort(state))}
    for node in sorted(children[None], key=order.__getitem__):
        if isinstance(node, nodes.AccessNode | nodes.MapExit):
            if isinstance(node, nodes.AccessNode):
                found += [
                    _copy(sdfg, state, e, types)
                    for e in state.out_edges(node)
                    if isinstance(e.dst, nodes.AccessNode) and not e.data.is_empty() and not _is_view(sdfg, e)
                ]
            continue
        if isinstance(node, nodes.MapEntry | nodes.Tasklet):
            reader = ScopeReader(sdfg, state, types)
            reader.read(node, children, order)
            found.append(Piece(node.label, *reader.finish()))
        elif isinstance(node, Reduce):
            reduce = NodeReader(sdfg, state, types)
            reduce.reduce(node)
            found.append(Piece(node.label, *reduce.finish()))
        elif isinstance(node, nodes.LibraryNode):
            found.append(Piece(node.label, None, *_whole_operands(sdfg, state, node), node))
        else:
            raise Unsupported.collect([(f"a {type(node).__name__} as a loop nest", node.label)])
    return found


def _whole_operands(sdfg: Any, state: Any, node: Any) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The arrays that a library node takes and makes, by its connectors' names; only whole ones are operands."""
    ins = sorted(
        ((e.dst_conn or "", e.data) for e in state.in_edges(node) if not e.data.is_empty()), key=lambda x: x[0]
    )
    outs = sorted(
        ((e.src_conn or "", e.data) for e in state.out_edges(node) if not e.data.is_empty()), key=lambda x: x[0]
    )
    for _, m in (*ins, *outs):
        if m.subset != dace.subsets.Range.from_array(sdfg.arrays[m.data]):
            raise Unsupported.collect([(f"a part of {m.data} as an operand of a library node", node.label)])
    return tuple(Operand(m.data) for _, m in ins), tuple(Operand(m.data) for _, m in outs)


def _is_view(sdfg: Any, edge: Any) -> bool:
    return any(isinstance(sdfg.arrays[n.data], dace.data.View) for n in (edge.src, edge.dst))


def _copy(sdfg: Any, state: Any, edge: Any, types: Mapping[str, str]) -> Piece:
    """A copy between two arrays."""
    reader = NodeReader(sdfg, state, types)
    reader.copy(edge)
    return Piece(f"copy_{edge.dst.data}", *reader.finish())
