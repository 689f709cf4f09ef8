"""Which operators of a network need not run in every call: those of parameters and constants alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcir.ir.dace.nodes import Op

if TYPE_CHECKING:
    from dcir.ir.network import Network


def preparable(net: Network) -> set[Op]:
    """Operators that depend on nothing but static inputs and constants, make no result, and call nothing outside."""
    results = net.result_containers()
    fixed = net.static_containers()
    order = net.ops()
    operands = {op: (net.ins(op), net.outs(op)) for op in order}
    made: set[Op] = set()
    writers: dict[str, list[Op]] = {}
    for op in order:
        for o in operands[op][1]:
            writers.setdefault(o.data, []).append(op)
    for op in order:  # a container is read after its last writer, so one sweep sees all writers first
        if op.spec.calls_out:
            continue
        ins, outs = operands[op]
        if any(o.data in results or net.containers[o.data].role != "transient" for o in outs):
            continue
        if all(o.data in fixed or ((w := writers.get(o.data)) and made.issuperset(w)) for o in ins):
            made.add(op)
    while True:  # parts of a container that others write too stay with the others
        mixed = {op for op in made if not all(made.issuperset(writers[o.data]) for o in operands[op][1])}
        if mixed:
            read = {op: [w for o in operands[op][0] for w in writers.get(o.data, ())] for op in made - mixed}
            mixed |= {op for op, sources in read.items() if not mixed.isdisjoint(sources)}
        if not mixed:
            return made
        made -= mixed
