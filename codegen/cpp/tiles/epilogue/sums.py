"""Sums over a tile's results, channel by channel: C++ that adds to a job's partial sums, which a later phase puts together.

A job has its own sums, [sum][channel] in float64, cleared before it starts. ``add_sums`` takes a finished tile from the stack: per
vector of channels it goes down the rows with the sums in registers (float32 values as float32, since rows of a tile are few; float64
values and products as float64) and adds what it has to memory once. So the numbers depend on how results are dealt to jobs, and on
nothing else. What took a long chain of steps is not computed again: it is read where it was just stored.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import lanes, round_up
from dcir.codegen.cpp.tiles.epilogue.bound_program import BoundProgram
from dcir.codegen.cpp.tiles.epilogue.vectors import as_vector, read_back, vector_lines
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.statements import Cast, Load, Store
from dcir.isa import Isa

text_of = templates("epilogue/sums")


def sums_of(p: LoopNest) -> list[Store]:
    """The stores that add."""
    return [s for s in p.body if isinstance(s, Store) and s.added]


def without_sums(p: LoopNest) -> LoopNest:
    """The epilogue that only stores; operands keep their numbers."""
    return simplify(p, keep=lambda s: isinstance(s, Store) and not s.added)


def only_sums(p: LoopNest) -> LoopNest:
    """The epilogue that only adds."""
    return simplify(p, keep=lambda s: isinstance(s, Store) and s.added)


def pitch(p: LoopNest) -> int:
    """Elements from one sum's channels to the next sum's."""
    steps = sums_of(p)[0].strides
    return round_up(1 + sum((n - 1) * s for n, s in zip(p.outer, steps, strict=True)), 16)


def sums_text(whole: BoundProgram, isa: Isa) -> str:
    """``own`` and ``add_sums`` of an epilogue with sums."""
    program, value = _from_stored(whole) or (only_sums(whole.program), "load(t + r * stride)")
    e = replace(whole, program=program)
    p, row = e.program, e.row
    width = lanes(isa, e.dtype)
    lines = vector_lines(e)
    walks = _walks(p, row)
    names = [f"i{d}" for d in range(len(p.outer))]
    before = [f"const L i{d} = b{d};" for d in range(len(p.outer)) if d != row]
    inside: list[str] = []
    after: list[str] = []
    sums: list[str] = []
    number = 0
    for i, s in enumerate(p.body):
        if s.dtype == "f64" and not isinstance(s, Store):
            continue
        if not isinstance(s, Store):
            (inside if walks[i] else before).extend(lines[i])
            continue
        sums.append(f"D l{number}, h{number};" if s.dtype == "f64" else f"V s{number};")
        if s.dtype == "f64":
            inside += [f"u.{part[0]}{number} += {_factor(e, s.args[0], part)};" for part in ("low", "high")]
            left, right = (f"p.{c}{number} + q.{c}{number}" for c in "lh")
        else:
            inside.append(f"u.s{number} += {as_vector(e, s.args[0])};")
            left, right = (f"{part}(p.s{number} + q.s{number})" for part in ("low", "high"))
        at = " + ".join(f"i{d} * {t}LL" for d, t in enumerate(s.strides) if t)
        after.append(f"add_to(e.sums + {number * pitch(p)} + {at or 0}, {left}, {right}, from, n);")
        number += 1
    at = ", ".join(f"{n} + s" if d == e.vector else n for d, n in enumerate(names)).replace("i", "b")
    return text_of.kernel(
        half=width * 2, whole=width * 4, first=_list(0, width // 2), second=_list(width // 2, width),
        size=number * pitch(p), indices=", ".join(f"L b{d}" for d in range(len(p.outer))), row=row, at=at, sums=" ".join(sums),
        value=value, before=_lines(before, 4), inside=_lines(inside, 8), after=_lines(after, 4),
    )  # fmt: skip


def _from_stored(whole: BoundProgram) -> tuple[LoopNest, str] | None:
    """The epilogue that only adds, with what it stores as its input 0, and C++ that reads that; None if it would save no chain."""
    p = whole.program
    if not replace(whole, program=only_sums(p)).chains:
        return None
    stores = [s for s in p.body if isinstance(s, Store) and not s.added]
    for store in stores:
        at = store.args[0]
        if not store.dtype == p.body[at].dtype == whole.dtype:
            continue
        # Nothing but what is stored may depend on the accumulators, of which a marked load tells them apart.
        given = Load(0, tuple(1 for _ in p.dims), whole.dtype)
        still = tuple(0 for _ in p.dims)
        body = [s.with_strides(still) if isinstance(s, Load) and s.operand == 0 else s for s in p.body]
        body[at] = given
        summing = only_sums(replace(p, body=tuple(body)))
        loads = [s for s in summing.body if isinstance(s, Load) and s.operand == 0]
        if loads == [given] and not replace(whole, program=summing).chains:
            return summing, read_back(whole, store)
    return None


def _walks(p: LoopNest, row: int) -> list[bool]:
    """Per statement whether it differs from row to row."""
    found: list[bool] = []
    for s in p.body:
        own = isinstance(s, Load) and (s.operand == 0 or s.strides[row] != 0)
        found.append(own or any(found[a] for a in s.args))
    return found


def _factor(e: BoundProgram, number: int, part: str) -> str:
    """A float64 value, as half a vector."""
    s = e.program.body[number]
    if isinstance(s, Cast):
        return f"{part}({as_vector(e, s.args[0])})"
    return f"{_factor(e, s.args[0], part)} * {_factor(e, s.args[1], part)}"


def _list(low: int, high: int) -> str:
    return ", ".join(map(str, range(low, high)))


def _lines(lines: list[str], pad: int) -> str:
    return "\n".join(" " * pad + line for line in lines)
