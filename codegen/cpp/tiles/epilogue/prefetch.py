"""What an epilogue asks for before it needs it: rows that it reads, and rows that it writes."""

from __future__ import annotations

from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.epilogue.bound_program import BoundProgram
from dcir.ir.statements import Load, Store

text_of = templates("epilogue/epilogue")


def prefetches(b: BoundProgram) -> list[str]:
    """C++ that fetches what a row of N values will read: rows that differ from row to row."""
    found: dict[str, None] = {}
    for s in b.program.body:
        if isinstance(s, Load) and s.operand != 0 and s.strides[b.vector] == 1 and sum(map(bool, s.strides)) > 1:
            kind = CPP_TYPE[b.program.inputs[s.operand]]
            text = text_of.prefetch_row(type=kind, number=s.operand, address=b.address(s))
            found[text] = None
    return list(found)


def claims(b: BoundProgram) -> list[str]:
    """C++ that fetches, to be written, where a row of N values will be stored."""
    found: dict[str, None] = {}
    for s in b.program.body:
        if isinstance(s, Store) and s.strides[b.vector] == 1 and sum(map(bool, s.strides)) > 1:
            kind = CPP_TYPE[b.program.outputs[s.operand]]
            address = b.address(s)
            # A tensor that is written where it is read (a parameter by its update) is on its way already.
            read = [
                f"(const void *)e.o{s.operand} != e.a{r.operand}"
                for r in b.program.body
                if isinstance(r, Load) and r.operand != 0 and r.strides == s.strides and b.address(r) == address
            ]
            apart = f"if ({' && '.join(dict.fromkeys(read))}) " if read else ""
            found[apart + text_of.claim_row(type=kind, number=s.operand, address=address)] = None
    return list(found)
