"""Several vectors of an epilogue that take long chains of steps together, since the processor cannot look far enough ahead by itself."""

from __future__ import annotations

import itertools

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.epilogue.bound_program import CHAINS, BoundProgram
from dcir.codegen.cpp.tiles.epilogue.vectors import kind_of, vector_lines

text_of = templates("epilogue/epilogue")
GROUPED = 4
"""Vectors of a group: what it takes to keep the processor busy while each waits for its last step."""


def group_text(b: BoundProgram) -> str:
    """``finish_group``: the statements up to each chain for every vector, then that chain for all of them; stores last."""
    body, varies, made = b.program.body, b.varies, vector_lines(b)
    # Where vectors lie along a tile's rows there is one row of them.
    moves = {b.row: " + u / NV", b.vector: " + u % NV * VL"}
    places = [f"const L i{d} = b{d}{moves.get(d, '')};" for d in range(len(b.program.outer))]
    kept = [i for i, s in enumerate(body) if varies[i] and s.op != "store"]
    parts = [f"    {kind_of(b, i)} w{i}[N];" for i in kept]
    bounds = [0, *(i + 1 for i in b.chains), len(body)]
    for low, high in itertools.pairwise(bounds):
        last = high == len(body)
        here = [i for i in range(high) if (last if body[i].op == "store" else i >= low)]
        needed = {a for i in here if varies[i] for a in body[i].args}
        for i in reversed(range(high)):
            if i in needed and not varies[i]:  # the same for all of a vector: computed again
                needed.update(body[i].args)
        lines = [*places, "const V x = given[u];"]
        for i in range(high):
            if body[i].op == "store":
                lines += made[i] if i in here else []
            elif i < low and varies[i]:
                lines += [f"const {kind_of(b, i)} v{i} = w{i}[u];"] if i in needed else []
            elif not varies[i]:
                lines += made[i] if i in needed else []
            elif i in b.chains:
                lines.append(f"w{i}[u] = v{body[i].args[0]};")
            else:
                lines += [*made[i], *([f"w{i}[u] = v{i};"] if i in kept else [])]
        text = "\n".join("        " + line for line in lines)
        chain = f"{CHAINS[body[low - 1].op]}(w{low - 1});" if low else ""
        parts.append(text_of.group_part(chains=chain, statements=text))
    indices = ", ".join(f"L b{d}" for d in range(len(b.program.outer)))
    return text_of.group(indices=indices, parts="\n".join(parts))
