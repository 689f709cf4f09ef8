"""Epilogues on register tiles: C++ that applies a product's epilogue to accumulators and stores the results.

How a tile emitter uses it:
  1. ``epilogue = Epilogue(program, dtype, first, vector)``, if ``supports_epilogue(program, dtype)`` (else the node's loop nest
     is the kernel). ``vector`` is the program's dimension that vectors of accumulators run along; reorder, drop or merge
     dimensions of the program beforehand as the kernel's own loops require (``LoopNest.reorder``, ``dcir.ir.loop_forms``).
  2. ``Draft(..., epilogue=epilogue)``. ``assemble`` puts ``epilogue.text(isa)`` before the draft's text, and every step's function
     gets one more parameter, ``const Operands &e``, last; its ``o0`` is a null pointer then: only the epilogue stores.
  3. In the text, with i0, i1, … the program's loop variables (of type L) at the first value, dimension ``vector`` included:
       ``finish_row<NV>(e, i0, i1, …, v, n)``   const V *v: NV vectors in registers; of n lanes from here on, those they have are results;
       ``finish(e, i0, i1, …, t, n)``           const T *t: n results in memory (say, on the stack), side by side.
     Both compute and store. ``prefetch_row<N>(e, i0, i1, …)`` asks for what a row of N values will read, which pays where
     ``epilogue.streams``: before the sum over k. ``IN_REGISTERS`` (constexpr) says that ``finish_row`` is short code made of
     vectors, fit to be inlined for every row of a tile; otherwise store the tile to the stack and call ``finish`` in a loop. Copy
     ``e`` to a local variable first (``const Operands e = operands;``): stores might otherwise change it for all the compiler knows.

Short programs of simple operators become vector statements. All others become a loop over a vector's lanes of the scalar C++ that
loop nests use, which the compiler vectorises; what lies in memory is staged through the stack at the ends of rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.epilogue.bound_program import BoundProgram
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED, group_text
from dcir.codegen.cpp.tiles.epilogue.halves import ROUNDING
from dcir.codegen.cpp.tiles.epilogue.prefetch import claims, prefetches
from dcir.codegen.cpp.tiles.epilogue.scalars import lane_statements
from dcir.codegen.cpp.tiles.epilogue.sums import only_sums, pitch, sums_of, sums_text, without_sums
from dcir.codegen.cpp.tiles.epilogue.vectors import all_simple, is_simple, roundings, vector_lines, vector_math
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Cast, Gather, Load, Reduce, Store
from dcir.ir.types import FLOATS
from dcir.isa import Isa

text_of = templates("epilogue/epilogue")

LONGEST_INLINE = 14
"""Vector statements of an epilogue that is worth repeating for every row of a tile."""
CHAIN = 12
"""Vector statements of the shorter one."""


def supports_epilogue(program: LoopNest, dtype: str) -> bool:
    """Whether the epilogue can be applied to tiles of ``dtype`` ("f32" or "f64")."""
    if sums_of(program):
        summing = only_sums(program)
        simple = Epilogue(summing, dtype, 0, 0).simple
        return dtype == "f32" and simple and supports_epilogue(without_sums(program), dtype)
    return (
        dtype in FLOATS
        and not program.inner
        and bool(program.outer)
        and program.inputs[0] == dtype
        and all(not isinstance(s, Reduce) and not (isinstance(s, Gather) and s.checked) for s in program.body)
    )


@dataclass(frozen=True)
class Epilogue:
    """An epilogue bound to a kernel.

    Attributes:
        program: the epilogue over the kernel's loops; its input 0 is the accumulated value, whose strides mean nothing here.
        dtype: "f32" or "f64", of the accumulators.
        first: number of the kernel's operand that is the program's input 1.
        vector: the dimension that vectors run along.
        row: the dimension along which a tile's rows lie, if its emitter calls ``finish_group`` for several.
    """

    program: LoopNest
    dtype: str
    first: int
    vector: int
    row: int = -1

    @functools.cached_property
    def bound(self) -> BoundProgram:
        """The program at the kernel's tiles."""
        return BoundProgram(self.program, self.dtype, self.vector, self.row)

    @property
    def sums(self) -> int:
        """Elements of a job's sums (``epilogue/sums.py``); 0 if it only stores."""
        found = sums_of(self.program)
        return len(found) * pitch(self.program) if found else 0

    @property
    def adds_vectors(self) -> bool:
        """Whether every sum takes a vector to neighbours, from every row to the same ones, as ``epilogue/sums.py`` adds them."""
        steps = [s.strides for s in sums_of(self.program)]
        return all(s[self.vector] == 1 and (self.row < 0 or s[self.row] == 0) for s in steps)

    @property
    def may_update(self) -> bool:
        """Whether a result may lie where an operand does (``ir/updates.py``): no element must be finished twice then."""
        p = self.program
        stored = {(s.strides, p.outputs[s.operand]) for s in p.body if isinstance(s, Store)}
        read = [s for s in p.body if isinstance(s, Load) and s.operand > 0]
        return any((s.strides, p.inputs[s.operand]) in stored for s in read)

    def operands(self, sums: int = 0) -> str:
        """A C++ expression of the operands' pointers, over the kernel's; ``sums``: where in its scratch the jobs' sums are."""
        given = [f"(const {CPP_TYPE[t]} *)a{self.first + i}" for i, t in enumerate(self.program.inputs[1:])]
        given += [f"({CPP_TYPE[t]} *)o{i}" for i, t in enumerate(self._outputs)]
        if self.sums:
            given.append(f"(double *)(scratch + {sums}LL)")
        return f"dcir_tile::Operands{{{', '.join(given)}}}"

    @functools.cached_property
    def simple(self) -> bool:
        """Whether every statement that varies has a form for vectors, or is a sum's."""
        body = self.program.body
        return all(
            is_simple(self.bound, i)
            or (isinstance(s, Store) and s.added)
            or (s.dtype == "f64" and (isinstance(s, Cast) or s.op == "mul"))
            for i, (s, varies) in enumerate(zip(body, self.bound.varies, strict=True))
            if varies
        )

    @functools.cached_property
    def in_registers(self) -> bool:
        """What ``IN_REGISTERS`` is."""
        if self.sums:
            return replace(self, program=without_sums(self.program)).in_registers
        varies = self.bound.varies
        simple = all_simple(self.bound)
        steps = sum(varies) + CHAIN * len(self.bound.chains) + ROUNDING * len(roundings(self.bound))
        return simple and steps <= LONGEST_INLINE

    @functools.cached_property
    def grouped(self) -> bool:
        """Whether there is ``finish_group``: vectors that take long chains of steps together."""
        if self.sums:
            return replace(self, program=without_sums(self.program)).grouped
        return bool(self.bound.chains) and all_simple(self.bound)

    @property
    def _outputs(self) -> tuple[str, ...]:
        return self.program.outputs[: len(self.program.outputs) - len(sums_of(self.program))]

    def text(self, isa: Isa) -> str:
        """``Operands``, ``finish_row`` and ``finish``, and of sums ``own`` and ``add_sums``."""
        if self.sums:
            stored = replace(without_sums(self.program), outputs=self._outputs)
            # The sums may need functions that the stores do not.
            stores = replace(self, program=stored).stores(
                isa, prefetches(self.bound), "double *sums;", vector_math(self.bound, isa)
            )
            return stores + sums_text(self.bound, isa)
        return self.stores(isa, prefetches(self.bound))

    def stores(self, isa: Isa, fetched: list[str], more: str = "", math: str | None = None) -> str:
        """The text but for sums."""
        p = self.program
        fields = [f"const {CPP_TYPE[t]} *a{i + 1};" for i, t in enumerate(p.inputs[1:])]
        fields += [*(f"{CPP_TYPE[t]} *o{i};" for i, t in enumerate(p.outputs)), more]
        names = [f"i{d}" for d in range(len(p.outer))]

        def at(step: str) -> str:
            return ", ".join(n + step if d == self.vector else n for d, n in enumerate(names))

        shared = {
            "fields": " ".join(fields).rstrip(),
            "indices": ", ".join(f"L {n}" for n in names),
            "names": ", ".join(names),
        }
        shared["prefetch"] = text_of.prefetch(indices=shared["indices"], rows="\n".join(fetched))
        shared["prefetch"] += text_of.claim(indices=shared["indices"], rows="\n".join(claims(self.bound)))
        if all_simple(self.bound):
            statements = "\n".join("    " + line for lines in vector_lines(self.bound) for line in lines)
            group, walk = "", []
            if self.grouped:
                group = group_text(self.bound)
                walk = [text_of.group_walk(count=n, at_lane=at(" + s")) for n in (GROUPED, 2)]
            return (vector_math(self.bound, isa) if math is None else math) + text_of.vectors(
                shared, short="true" if self.in_registers else "false", statements=statements,
                group=group, walk="\n".join(walk), at_vector=at(" + u * VL"),
                at_lane=at(" + s"),
            )  # fmt: skip
        return text_of.lanes({**lane_statements(self.bound), **shared})

    @functools.cached_property
    def streams(self) -> bool:
        """Whether it reads rows of memory that differ from row to row, so that ``prefetch_row`` does something."""
        return bool(prefetches(self.bound))
