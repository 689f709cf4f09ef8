"""The values of a loop nest's statements as CUDA C++, at one point: constants, loop variables, loads, gathers, scalar operators."""

from __future__ import annotations

from collections.abc import Sequence

from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.cuda.kernels.text import MOST_SHORT, Lines, reach
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, constant
from dcir.codegen.ranges import short_values
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Cast, Const, Gather, Index, Load, Narrow, Reduce


class Values(Lines):
    """Lines for the statements of a nest.

    Attributes:
        p, levels: the loop nest, and its statements' levels.
        along, width: the loop whose neighbouring points are lanes, and how many lanes there are.
        columns: whether a reduce has a result for every lane.
        rows: how many rows of a reduction a thread visits at once; the one at hand is C++'s ``mine`` where they are several.
        checked: whether an index may lie outside.
        by_lane: values that wait in registers for every lane, the same for all inner points.
    """

    def __init__(self, p: LoopNest, along: int | None, width: int, points: int) -> None:
        super().__init__("int" if max(reach(p), points) < MOST_SHORT else "long long")
        self.p, self.along, self.width = p, along, width
        self.levels = p.levels()
        self.columns = False
        self.rows = 1
        self.by_lane: set[int] = set()
        self.short = short_values(p)
        self.checked = any(isinstance(s, Gather) and s.checked for s in p.body)

    def reduction(self, r: int) -> Reduce:
        """The reduction of this number."""
        s = self.p.body[r]
        assert isinstance(s, Reduce)
        return s

    def value(self, i: int, lane: str) -> str:
        """C++ of a value at the current point: in a lane, or the same for all."""
        s = self.p.body[i]
        if isinstance(s, Const):
            return constant(s.value, "i32" if i in self.short else s.dtype)
        if isinstance(s, Index):
            at = f"(i{s.dim} + l)" if lane and s.dim == self.along and self.width > 1 else f"i{s.dim}"
            return f"({'int' if i in self.short else 'long long'}){at}"
        if isinstance(s, Reduce) and (self.columns or self.rows > 1):
            return f"v{i}[{'l' if self.columns else 'mine'}]"
        if i in self.by_lane:
            return f"k{i}[l]"
        return f"v{i}"

    def address(self, strides: Sequence[int], lane: str) -> str:
        """Elements from where an operand begins."""
        terms = []
        for d, s in enumerate(strides):
            at = f"(i{d} + l)" if lane and d == self.along and self.width > 1 else f"i{d}"
            if s:
                terms.append(at if s == 1 else f"{at} * {s}{'' if self.index == 'int' else 'll'}")
        return " + ".join(terms) or "0"

    def statement(self, i: int, lane: str) -> None:
        """``v<i>``, in a lane or the same for all."""
        s = self.p.body[i]
        if isinstance(s, (Const, Index)):
            return
        if isinstance(s, Load):
            read = cast_expr(
                f"d_load(a{s.operand}, {self.address(s.strides, lane)})", self.p.inputs[s.operand], s.dtype
            )
            text = f"{self.value(s.args[0], lane)} ? {read} : {self.value(s.args[1], lane)}" if s.args else read
        elif isinstance(s, Gather):
            text = self._gather(i, s, lane)
        elif isinstance(s, Cast):
            text = cast_expr(self.value(s.args[0], lane), self.p.body[s.args[0]].dtype, s.dtype)
        elif isinstance(s, Narrow):
            text = cast_expr(cast_expr(self.value(s.args[0], lane), s.dtype, s.storage), s.storage, s.dtype)
        else:
            operand = self.p.body[s.args[1 if s.op == "where" else 0]].dtype
            if operand == "i64" and all(a in self.short for a in s.args) and (i in self.short or s.dtype == "bool"):
                operand = "i32"
            text = SCALAR_OPS[s.op].cpp([self.value(a, lane) for a in s.args], operand)
        self.line(f"const {CUDA_TYPE['i32' if i in self.short else s.dtype]} v{i} = {text};")

    def _gather(self, i: int, s: Gather, lane: str) -> str:
        """A load whose indices were looked at: outside nothing is touched."""
        other = self.value(s.guard[1], lane) if s.guard else constant(0, s.dtype)
        at, wanted = self.gathered(i, s, lane)
        found = cast_expr(f"d_load(a{s.operand}, {at})", self.p.inputs[s.operand], s.dtype)
        return f"{f'({wanted} & g{i})' if wanted else f'g{i}'} ? {found} : {other}"

    def gathered(self, i: int, s: Gather, lane: str) -> tuple[str, str]:
        """``g<i>``: whether the indices lie inside; the address, and the condition under which it counts."""
        wanted = self.value(s.guard[0], lane) if s.guard else ""
        indices = [self.value(a, lane) for a in s.indices]
        terms = [f"({self.index}){k} * {st}" for k, st in zip(indices, s.steps, strict=True)]
        at = " + ".join([self.address(s.strides, lane), *terms])
        unsure = [
            f"((unsigned long long){k} < {e}ull)"
            for a, k, e in zip(s.indices, indices, s.extents, strict=True)
            if self.short.get(a, (-1, 0))[0] < 0 or self.short.get(a, (-1, 0))[1] >= e
        ]
        self.line(f"const bool g{i} = {' & '.join(unsure) or 'true'};")
        if s.checked:
            self.line(f"bad |= {f'{wanted} & ' if wanted else ''}!g{i};")
        return at, wanted
