"""Which operators of a network need not run in every call: those of parameters and constants alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from dcir.ir.dace.nodes import Op

Names = Sequence[tuple[str, int]]
"""Operands of an operator: container and first element."""


def load_time_operators(
    order: Sequence[Op], operands: Mapping[Op, tuple[Names, Names]], fixed: Set[str], kept: Set[str]
) -> set[Op]:
    """Operators that depend on nothing but fixed containers, write nothing that is kept, and call nothing outside.

    Args:
        order: all operators as they run: a container is read after its last writer.
        operands: what each of them reads, and what it writes.
        fixed: inputs and constants that do not change with every call.
        kept: containers that others than these operators own: inputs, constants and results.
    """
    made: set[Op] = set()
    writers: dict[str, list[Op]] = {}
    for op in order:
        for name, _ in operands[op][1]:
            writers.setdefault(name, []).append(op)
    for op in order:  # a container is read after its last writer, so one sweep sees all writers first
        if op.spec.calls_out:
            continue
        ins, outs = operands[op]
        if any(name in kept for name, _ in outs):
            continue
        if all(name in fixed or ((w := writers.get(name)) and made.issuperset(w)) for name, _ in ins):
            made.add(op)
    while True:  # parts of a container that others write too stay with the others
        mixed = {op for op in made if not all(made.issuperset(writers[name]) for name, _ in operands[op][1])}
        if mixed:
            read = {op: [w for name, _ in operands[op][0] for w in writers.get(name, ())] for op in made - mixed}
            mixed |= {op for op, sources in read.items() if not mixed.isdisjoint(sources)}
        if not mixed:
            return made
        made -= mixed
