"""A whole network as an SDFG of maps, for people, for DaCe's tools and for stock DaCe: what has loops is maps, the rest library nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace

from dcir.ir.dace.memlets import operand_memlet
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.open_maps import MapsWriter
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Container, Network, Operand
from dcir.ir.refusal import Refusal


def open_network(net: Network, name: str = "network") -> Any:
    """A new SDFG that computes what ``net`` does.

    Loop nests are maps, and so are library nodes that are defined by loops (products, convolutions, attention, scans, sorts). Loops and
    branches over networks are DaCe's regions, each in a nested SDFG. What is left are library nodes: calls into torch, and nests whose
    addresses are no places in their containers' dimensions, which stock DaCe expands when it makes code.
    """
    shown = net.result_containers()
    sdfg = dace.SDFG(name)
    state = sdfg.add_state("run", is_start_block=True)
    containers = dict(net.containers)
    writer = MapsWriter(sdfg, state, containers)
    writer.declare(
        [n for n in containers if net.writers(n) or net.readers(n) or n in shown],
        [n for n, c in containers.items() if c.role == "transient" and n not in shown],
    )
    regions = []
    for op in net.ops():
        if op.spec.bodies():
            regions.append(_library_node(writer, net, op))
        elif not _maps(writer, op, net.ins(op), net.outs(op)):
            _library_node(writer, net, op)
    for node in regions:
        node.expand(state)
    dace.sdfg.propagation.propagate_memlets_sdfg(sdfg)
    return sdfg


def _maps(writer: MapsWriter, op: Op, ins: Sequence[Operand], outs: Sequence[Operand]) -> bool:
    """Write an operator's loop nests, if it has some that all can be maps."""
    found = op.spec.steps()
    if found is None:
        return False
    temporaries, steps = found
    operands = {f"a{i}": o for i, o in enumerate(ins)} | {f"o{i}": o for i, o in enumerate(outs)}
    new = {}
    for name, dtype, size in temporaries:
        new[f"{op.label}_{name}"] = Container((max(size, 1),), (1,), dtype, "transient")
        operands[name] = Operand(f"{op.label}_{name}")
    writer.add_containers(new)
    nests = [
        (writer.opened(nest, a := [operands[n] for n in reads], o := [operands[n] for n in writes]), a, o)
        for nest, reads, writes in steps
    ]
    if any(isinstance(nest, Refusal) for nest, _, _ in nests):
        return False
    writer.declare(new, new)
    for number, (nest, reads, writes) in enumerate(nests):
        assert isinstance(nest, LoopNest)
        writer.nest(op.label if len(nests) == 1 else f"{op.label}_{number}", nest, reads, writes)
    return True


def _library_node(writer: MapsWriter, net: Network, op: Op) -> Op:
    """A copy of the network's node, with its memlets."""
    ins, outs = net.ins(op), net.outs(op)
    starts = [o.offset for o in ins], [o.offset for o in outs]
    made = Op.made(op.label, op.spec, *starts, op.origin, op.made_by, came_from=op.came_from)
    writer.state.add_node(made)
    for writes, operands in ((False, ins), (True, outs)):
        for i, o in enumerate(operands):
            c = net.containers[o.data]
            memlet = operand_memlet(o.data, op.spec, (writes, i), o.offset, c.shape, c.strides, c.dtype)
            if writes:
                writer.state.add_edge(made, f"o{i}", writer.access(o.data), None, memlet)
            else:
                writer.state.add_edge(writer.access(o.data), None, made, f"a{i}", memlet)
    return made
