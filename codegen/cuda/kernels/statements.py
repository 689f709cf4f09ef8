"""The statements of a loop nest as CUDA C++: what one thread does at some points, their loads first, so that these wait together.

A thread visits ``times`` pieces of ``width`` neighbouring points of one loop. All pieces' operands are loaded, in vectors where they lie
side by side; then piece by piece and lane by lane the statements run; results are stored in vectors again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.cuda.kernels.text import MOST_SHORT, Lines, Places, finished, operand_types, reach
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, Join, constant
from dcir.codegen.cuda.kernels.widths import is_vector_gather
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.ranges import short_values
from dcir.codegen.schedule import needed
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Reduce, Store
from dcir.ir.types import compute_type


@dataclass(frozen=True)
class Visits:
    """Pieces of points that a thread visits.

    Attributes:
        times: how many pieces.
        loops: the loops that a piece's number stands for.
        element: C++ of a piece's first point, in row-major order over these, from its number ``u``.
        guard: the condition under which the piece is there; "" if all are.
        count: C++ of how many of its points are there; "" if all are.
        before: lines of a piece before its statements.
        variables: loop variables that follow from ``e`` in a way of their own, and C++ of each.
    """

    times: int
    loops: Sequence[int]
    element: str
    guard: str = ""
    count: str = ""
    variables: Sequence[tuple[int, str]] = ()
    before: Sequence[str] = ()


class KernelText(Lines):
    """The text of one kernel under construction.

    Attributes:
        p, levels: the loop nest, and its statements' levels.
        along, width: the loop whose neighbouring points are lanes, and how many lanes there are.
        columns: whether a reduce has a result for every lane.
        index: C++ type of loop variables and addresses; there are no numbers of points above ``points``.
        known: values that are computed already, once for all points that the thread visits.
        held: values that wait in registers for a later sweep.
        in_pieces: gathers of which a piece has one vector.
        given: loads whose elements are there already, and C++ of where.
    """

    def __init__(self, p: LoopNest, places: Places, along: int | None, width: int, points: int) -> None:
        super().__init__("int" if max(reach(p), points) < MOST_SHORT else "long long")
        self.p, self.places, self.along, self.width = p, places, along, width
        self.levels = p.levels()
        self.columns = False
        self.known: set[int] = set()
        self.held: set[int] = set()
        self.short = short_values(p)
        self.checked = any(isinstance(s, Gather) and s.checked for s in p.body)
        self.in_vectors: dict[str, None] = {}
        self.given: dict[int, str] = {}
        self.in_pieces: set[int] = set()

    def reduction(self, r: int) -> Reduce:
        """The reduction of this number."""
        s = self.p.body[r]
        assert isinstance(s, Reduce)
        return s

    def outer_values(self, stage: int) -> None:
        """Values that are the same for all inner points, once they have waited for so many reduces."""
        for i, level in enumerate(self.levels):
            if level == (stage, False) and not isinstance(self.p.body[i], (Reduce, Store)):
                self._statement(i, "")
                self.known.add(i)

    def visit(
        self, visits: Visits, stores: Sequence[int], reduces: Sequence[int] = (), hold: Iterable[int] = ()
    ) -> None:
        """Statements for ``stores`` and ``reduces`` at some pieces of points.

        Args:
            visits: the pieces.
            stores, reduces: what is wanted; a reduce's partial results are ``p<number>[lane]``.
            hold: values to keep in registers, which a later visit of the same pieces finds.
        """
        p, times = self.p, visits.times
        wanted = needed(p, [*stores, *reduces], self.known)
        reachable = self._without_held(stores, reduces)
        loads = [i for i in sorted(reachable) if self._is_loaded(i) and i not in self.held and i not in self.given]
        hold = set(hold)
        for i in sorted(hold):
            loaded = f"{self._piece_type(i)} w{i}[{times}];" if self._is_loaded(i) else ""
            self.line(loaded or f"{CUDA_TYPE[p.body[i].dtype]} h{i}[{times * self.width}];")
        self.open("")
        for i in loads:
            if i not in hold:
                self.line(f"{self._piece_type(i)} w{i}[{times}];")
        if loads:
            self._pieces(visits)
            for i in loads:
                self._load_piece(i)
            self._end_of_piece(visits)
        self._pieces(visits)
        for text in visits.before:
            self.line(text)
        vectors = [i for i in stores if self._is_vector_store(i)]
        for i in vectors:
            self.line(f"d_vector<{CUDA_TYPE[p.body[i].dtype]}, {self.width}> r{i};")
        here = [i for i in wanted if i in reachable]
        moves = self._moving(here, hold | self.held)
        for i in here:
            if i not in moves:
                self._in_lane(i, "", keep=False)
            elif i in moves and is_vector_gather(p, i, self.along, self.width, moves):
                self._gather_vector(i, self._count(visits))
        self.unrolled("l", self.width)
        if visits.count:
            self.open("if (whole || l < count)")
        for i in here:
            if i in moves:
                self._in_lane(i, "l", keep=i in hold)
        for i in sorted([*stores, *reduces]):
            s = p.body[i]
            if isinstance(s, Reduce):
                self._accumulate(i)
                continue
            assert isinstance(s, Store)
            value = cast_expr(self.value(s.args[0], "l"), compute_type(s.dtype), s.dtype)
            if i in vectors:
                self.line(f"r{i}.of[l] = {value};")
            else:
                self.line(f"d_store(o{s.operand}, {self.address(s.strides, 'l')}, {value});")
        if visits.count:
            self.close()
        self.close()
        for i in vectors:
            s = p.body[i]
            assert isinstance(s, Store)
            self.line(
                f"d_store_lanes<whole>(o{s.operand}, {self.address(s.strides, '')}, r{i}, {self._count(visits)});"
            )
        self._end_of_piece(visits)
        self.close()
        self.held |= hold

    def _without_held(self, stores: Sequence[int], reduces: Sequence[int]) -> set[int]:
        """What has to be computed now: values behind held ones are not asked for."""
        found = set(needed(self.p, [*stores, *reduces], self.known | self.held))
        stack = [*stores, *reduces]
        seen: set[int] = set()
        while stack:
            i = stack.pop()
            for a in self.p.body[i].args:
                if a in self.held and a not in seen and not isinstance(self.p.body[a], Reduce):
                    found.add(a)
                    seen.add(a)
                elif a in found and a not in seen:
                    seen.add(a)
                    stack.append(a)
        return found

    def _pieces(self, visits: Visits) -> None:
        # Element by element it is seldom run, and long to compile if unrolled.
        self.line(f"#pragma unroll (whole ? {visits.times} : 1)")
        self.open(f"for (int u = 0; u < {visits.times}; u++)")
        self.line(f"const {self.index} e = {visits.element};")
        if visits.guard:
            self.open(f"if ({visits.guard})")
        if visits.count:
            self.line(f"const int count = {visits.count};")
        for d, text in visits.variables:
            self.line(f"const {self.index} i{d} = {text};")
        self.decompose("e", visits.loops, self.p.dims)
        self._counted = bool(visits.count)

    def _end_of_piece(self, visits: Visits) -> None:
        if visits.guard:
            self.close()
        self.close()

    def _count(self, visits: Visits) -> str:
        return "count" if visits.count else str(self.width)

    def _is_loaded(self, i: int) -> bool:
        s = self.p.body[i]
        return isinstance(s, Load) and not s.args

    def _is_vector_store(self, i: int) -> bool:
        s = self.p.body[i]
        return isinstance(s, Store) and self.along is not None and s.strides[self.along] == 1

    def _piece_type(self, i: int) -> str:
        s = self.p.body[i]
        assert isinstance(s, Load)
        t = CUDA_TYPE[self.p.inputs[s.operand]]
        return t if self.along is None or not s.strides[self.along] else f"d_vector<{t}, {self.width}>"

    def _load_piece(self, i: int) -> None:
        s = self.p.body[i]
        assert isinstance(s, Load)
        step = 0 if self.along is None else s.strides[self.along]
        start = self.address(s.strides, "")
        if step == 1:
            self.in_vectors[f"a{s.operand}"] = None
            count = "count" if self._counted else str(self.width)
            self.line(f"w{i}[u] = d_load_lanes<whole, {self.width}>(a{s.operand}, {start}, {count});")
        elif step == 0:
            self.line(f"w{i}[u] = d_load(a{s.operand}, {start});")
        else:
            self.unrolled("l", self.width)
            when = "if (whole || l < count) " if self._counted else ""
            self.line(f"{when}w{i}[u].of[l] = d_load(a{s.operand}, {self.address(s.strides, 'l')});")
            self.close()

    def _moving(self, values: Sequence[int], kept: set[int]) -> set[int]:
        """Which of some values differ from lane to lane; those kept in registers have a place for every lane."""
        found: set[int] = set()
        along = -1 if self.along is None else self.along
        for i in values:
            s = self.p.body[i]
            by_lane = any(a in found or (self.columns and isinstance(self.p.body[a], Reduce)) for a in s.args)
            walks = isinstance(s, Access) and along >= 0 and s.strides[along] != 0
            if i in kept or by_lane or walks or (isinstance(s, Index) and s.dim == along):
                found.add(i)
        return found

    def _gather_vector(self, i: int, count: str) -> None:
        """Neighbours behind indices that are the same for all lanes; zeros if one of these lies outside."""
        s = self.p.body[i]
        assert isinstance(s, Gather)
        at, _ = self._gathered(i, s, "")
        t = CUDA_TYPE[self.p.inputs[s.operand]]
        self.in_vectors[f"a{s.operand}"] = None
        self.line(f"d_vector<{t}, {self.width}> w{i} = {{}};")
        self.line(f"if (g{i}) w{i} = d_load_lanes<whole, {self.width}>(a{s.operand}, {at}, {count});")
        self.in_pieces.add(i)

    def _in_lane(self, i: int, lane: str, *, keep: bool) -> None:
        s = self.p.body[i]
        at = f"[u * {self.width} + l]"
        if i in self.in_pieces:
            assert isinstance(s, Gather)
            text = cast_expr(f"w{i}.of[l]", self.p.inputs[s.operand], s.dtype)
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {text};")
        elif i in self.given:
            assert isinstance(s, Load)
            t = CUDA_TYPE[self.p.inputs[s.operand]]
            self.line(f"const {t} t{i} = {self.given[i]};")
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {cast_expr(f't{i}', self.p.inputs[s.operand], s.dtype)};")
        elif self._is_loaded(i):
            assert isinstance(s, Load)
            step = 0 if self.along is None else s.strides[self.along]
            element = f"w{i}[u].of[l]" if step else f"w{i}[u]"
            text = cast_expr(element, self.p.inputs[s.operand], s.dtype)
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {text};")
        elif i in self.held:
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = h{i}{at};")
        else:
            self._statement(i, lane)
            if keep:
                self.line(f"h{i}{at} = v{i};")

    def value(self, i: int, lane: str) -> str:
        """C++ of a value at the current point: in a lane, or the same for all."""
        s = self.p.body[i]
        if isinstance(s, Const):
            return constant(s.value, "i32" if i in self.short else s.dtype)
        if isinstance(s, Index):
            at = f"(i{s.dim} + l)" if lane and s.dim == self.along and self.width > 1 else f"i{s.dim}"
            return f"({'int' if i in self.short else 'long long'}){at}"
        if isinstance(s, Reduce) and self.columns:
            return f"v{i}[l]"
        return f"v{i}"

    def address(self, strides: Sequence[int], lane: str) -> str:
        """Elements from where an operand begins."""
        terms = []
        for d, s in enumerate(strides):
            at = f"(i{d} + l)" if lane and d == self.along and self.width > 1 else f"i{d}"
            if s:
                terms.append(at if s == 1 else f"{at} * {s}{'' if self.index == 'int' else 'll'}")
        return " + ".join(terms) or "0"

    def _statement(self, i: int, lane: str) -> None:
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
        at, wanted = self._gathered(i, s, lane)
        found = cast_expr(f"d_load(a{s.operand}, {at})", self.p.inputs[s.operand], s.dtype)
        return f"{f'({wanted} & g{i})' if wanted else f'g{i}'} ? {found} : {other}"

    def _gathered(self, i: int, s: Gather, lane: str) -> tuple[str, str]:
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

    def start_partials(self, reduces: Sequence[int]) -> None:
        """Declare the partial results of reduces: as many as there are lanes."""
        for r in reduces:
            join = Join(self.p, r)
            self.line(f"{join.type} p{r}[{self.width}];")
            self.unrolled("l", self.width)
            self.line(f"p{r}[l] = {join.start};")
            self.close()

    def _accumulate(self, r: int) -> None:
        s, join = self.reduction(r), Join(self.p, r)
        v, dtype = self.value(s.args[0], "l"), self.p.body[s.args[0]].dtype
        if s.args[0] in self.short and not s.is_place:
            v = f"(long long){v}"
        target = f"p{r}[l]"
        if s.is_place:
            lane = " + l" if self.along is not None and self.along >= len(self.p.outer) and self.width > 1 else ""
            self.line(f"{target} = {join.function}::join({target}, {join.type}{{{v}, (long long)(e{lane})}});")
        else:
            truth = f"({v} != 0)" if s.kind in ("any", "all") and dtype != "bool" else v
            self.line(f"{target} = {join.function}::template join<{join.type}>({target}, {truth});")

    def store_outer(self, i: int) -> None:
        """Store a value that is the same for all inner points."""
        s = self.p.body[i]
        assert isinstance(s, Store)
        value = cast_expr(self.value(s.args[0], ""), compute_type(s.dtype), s.dtype)
        self.line(f"d_store(o{s.operand}, {self.address(s.strides, '')}, {value});")

    def aligned_operands(self) -> list[str]:
        """Operands that are moved in vectors of more than one element."""
        stored = [
            f"o{s.operand}" for i, s in enumerate(self.p.body) if isinstance(s, Store) and self._is_vector_store(i)
        ]
        return [*self.in_vectors, *dict.fromkeys(stored)]

    def launch(self, grid: tuple[int, int, int], block: int, before: Sequence[str] = ()) -> Launch:
        """The kernel, with what it is given: the operands that its text uses.

        Args:
            grid: blocks.
            block: threads of a block.
            before: lines at the kernel's start, for operands in scratch among others.
        """
        body = [*before, *(["  int bad = 0;"] if self.checked else []), *self.lines]
        if self.checked:
            body.append("  if (bad) d_report(status);")
        return finished(body, operand_types(self.p), self.places, grid, block)
