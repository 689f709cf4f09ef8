"""Independent kernels as one: their last steps side by side, their other steps side by side before."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.codegen.cpp.tiles.emit import Draft, TileStep, holder, render, round_up
from dcir.codegen.symbolic import sizes_in
from dcir.isa import Isa


def combine(name: str, dtype: str, drafts: Sequence[Draft], isa: Isa) -> Draft:
    """Independent drafts as one: their last steps together, their other steps together before."""
    if len(drafts) <= 1:
        return drafts[0] if drafts else Draft(name, dtype, "", ())
    texts: list[str] = []
    made: list[TileStep] = []
    at = 0
    first: list[tuple[int, str]] = []
    last: list[tuple[int, str]] = []
    parts = [f"{d.epilogue.text(isa) if d.epilogue else ''}{d.text}" for d in drafts]
    sized = any(map(sizes_in, parts))
    for i, d in enumerate(drafts):
        texts.append(f"{holder(f'part{i}', parts[i])}\n" if sized else f"namespace part{i} {{{parts[i]}}}\n")
        called = f"part{i}{{{', '.join(sizes_in(parts[i]))}}}." if sized else f"part{i}::"
        left, right = ("a1", "a0") if d.swapped else ("a0", "a1")
        result = "o0" if d.epilogue is None else "nullptr"
        more = "" if d.epilogue is None else f", {d.epilogue.operands().replace('dcir_tile::', f'part{i}::')}"
        for steps, into in ((d.steps[:-1], first), (d.steps[-1:], last)):
            into += [
                (s.jobs, f"{called}{s.function}($, {left}, {right}, a2, {result}, scratch + {at}LL{more});")
                for s in steps
                if s.jobs
            ]
        at += round_up(d.scratch, 64)
    for title, calls in (("prepare", first), ("compute", last)):
        if not calls:
            continue
        start, lines = 0, []
        for jobs, call in calls:
            lines.append(f"    if (j < {start + jobs}) return {call.replace('$', f'j - {start}')}")
            start += jobs
        head = f"void {title}(L j, const T *a0, const T *a1, const T *a2, T *o0, unsigned char *scratch)"
        texts.append(render("$noinline $head {\n$lines\n}\n", head=head, lines="\n".join(lines)))
        made.append(TileStep(start, title))
    return Draft(name, dtype, "".join(texts), tuple(made), at)
