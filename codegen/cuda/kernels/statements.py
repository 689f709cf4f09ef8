"""The statements of a loop nest as CUDA C++: what one thread does at some points, their loads first, so that these wait together.

A thread visits ``times`` pieces of ``width`` neighbouring points of one loop. All pieces' operands are loaded, in vectors where they lie
side by side; then piece by piece and lane by lane the statements run; results are stored in vectors again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dcir.codegen.cpp.scalar_ops import cast_expr
from dcir.codegen.cuda.device import register_words
from dcir.codegen.cuda.kernels.text import Places, finished, operand_types
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, Join
from dcir.codegen.cuda.kernels.values import Values
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.kernels.widths import is_vector_gather
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.schedule import needed
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Const, Gather, Index, Load, Reduce, Store
from dcir.ir.types import compute_type, itemsize

OUTER_WORDS = 32
"""Of 4 bytes, that wait in registers for all inner points: what normalisation by columns takes in vectors of halves, and one more."""


class KernelText(Values):
    """The text of one kernel under construction.

    Attributes:
        known: values that are computed already, once for all points that the thread visits.
        held: values that wait in registers for a later sweep.
        room: values of 4 bytes that may wait in registers.
        in_pieces: gathers of which a piece has one vector.
        given: loads whose elements are there already, and C++ of where.
        late: loads that are made piece by piece.
    """

    def __init__(self, p: LoopNest, places: Places, along: int | None, width: int, points: int) -> None:
        super().__init__(p, along, width, points)
        self.places = places
        self.known: set[int] = set()
        self.held: set[int] = set()
        self.in_vectors: dict[str, None] = {}
        self.given: dict[int, str] = {}
        self.in_pieces: set[int] = set()
        self.late: set[int] = set()
        self.room = register_words(256)

    def outer_values(self, stage: int) -> None:
        """Values that are the same for all inner points, once they have waited for so many reduces."""
        for i, level in enumerate(self.levels):
            if level == (stage, False) and not isinstance(self.p.body[i], (Reduce, Store)):
                self.statement(i, "")
                self.known.add(i)

    def outer_lanes(self, roots: Sequence[int]) -> None:
        """What ``roots`` need that is the same for all inner points and differs by lane: once, if it fits into registers."""
        p = self.p
        wanted = needed(p, roots, self.known)
        ahead = [i for i in wanted if not self.levels[i][1] and not isinstance(p.body[i], (Const, Index))]
        within = [i for i in wanted if self.levels[i][1]]
        used = {a for i in (*within, *roots) for a in p.body[i].args}
        moves = self._moving(wanted, set())
        kept = [i for i in ahead if i in used and i in moves]
        if sum(self.words(i, held=True) for i in kept) > OUTER_WORDS:
            return
        for i in ahead:
            if i not in moves:
                self.statement(i, "")
                self.known.add(i)
        for i in kept:
            self.line(f"{CUDA_TYPE['i32' if i in self.short else p.body[i].dtype]} k{i}[{self.width}];")
        self.open("")
        loads = {i for i in ahead if i in moves and self._is_loaded(i)}
        self.late |= loads
        for i in sorted(loads):
            self.line(f"{self._piece_type(i)} w{i};")
        if loads:
            self.open("if constexpr (whole)")
            for i in sorted(loads):
                self._load_piece(i)
            self.close()
        self.unrolled("l", self.width)
        for i in ahead:
            if i in moves:
                self._in_lane(i, "l", keep=False)
        for i in kept:
            self.line(f"k{i}[l] = v{i};")
        self.close()
        self.close()
        self.known.update(kept)
        self.by_lane.update(kept)

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
        early = self._early(loads, hold, times)
        self.late = {i for i in loads if i not in early}
        for i in early:
            if i not in hold:
                self.line(f"{self._piece_type(i)} w{i}[{times}];")
        if early:
            self.open("if constexpr (whole)")
            self._pieces(visits)
            for i in early:
                self._load_piece(i)
            self._end_of_piece(visits)
            self.close()
        self._pieces(visits)
        for text in visits.before:
            self.line(text)
        for i in sorted(self.late):
            self.line(f"{self._piece_type(i)} w{i};")
        if self.late:
            self.open("if constexpr (whole)")
            for i in sorted(self.late):
                self._load_piece(i)
            self.close()
        vectors = [i for i in stores if self._is_vector_store(i)]
        for i in vectors:
            self.line(f"d_vector<{CUDA_TYPE[p.body[i].dtype]}, {self.width}> r{i};")
        here = [i for i in wanted if i in reachable]
        moves = self._moving(here, hold | self.held)
        for i in here:
            if i not in moves:
                self._in_lane(i, "", keep=False)
            elif i not in self.held and is_vector_gather(p, i, self.along, self.width, moves):
                self._gather_vector(i, self._count(visits))
        # Columns have a result in every lane, which registers can only hold where no loop decides which one it is.
        self.line(f"#pragma unroll {self.width if self.columns else f'(whole ? {self.width} : 1)'}")
        self.open(f"for (int l = 0; l < {self.width}; l++)")
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
                self.line(f"const {CUDA_TYPE[s.dtype]} t{i} = {value};")
                self.line(f"if constexpr (whole) r{i}.of[l] = t{i};")
                self.line(f"else d_store(o{s.operand}, {self.address(s.strides, 'l')}, t{i});")
            else:
                self.line(f"d_store(o{s.operand}, {self.address(s.strides, 'l')}, {value});")
        if visits.count:
            self.close()
        self.close()
        for i in vectors:
            s = p.body[i]
            assert isinstance(s, Store)
            self.line(f"if constexpr (whole) d_store_vector(o{s.operand}, {self.address(s.strides, '')}, r{i});")
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

    def words(self, i: int, *, held: bool) -> int:
        """Registers that a value takes for a piece; of halves that are held the compiler keeps the widened numbers."""
        s = self.p.body[i]
        if not isinstance(s, Load) or not self._is_loaded(i):
            return max(1, itemsize(s.dtype) // 4) * self.width
        lanes = self.width if self.along is not None and s.strides[self.along] else 1
        size = itemsize(self.p.inputs[s.operand])
        return max(1, (max(size, 4) if held else size) * lanes // 4)

    def _early(self, loads: Sequence[int], hold: set[int], times: int) -> list[int]:
        """Loads of all pieces that are waited for together: those that are held, and others while registers last."""
        left = self.room - sum(self.words(i, held=True) * times for i in hold | self.held)
        left -= sum(self.words(i, held=True) for i in self.by_lane)
        found = [i for i in loads if i in hold]
        for i in loads:
            if i not in hold and (times == 1 or self.words(i, held=False) * times <= left):
                found.append(i)
                left -= self.words(i, held=False) * times
        return found

    def _pieces(self, visits: Visits) -> None:
        # Element by element it is seldom run, and long to compile if unrolled.
        self.line(f"#pragma unroll (whole ? {visits.times} : 1)")
        self.open(f"for (int u = 0; u < {visits.times}; u++)")
        self.line(f"const {self.index} e = {visits.element};")
        for text in visits.begin:
            self.line(text)
        if visits.guard:
            self.open(f"if ({visits.guard})")
        if visits.count:
            self.line(f"const int count = {visits.count};")
        for d, text in visits.variables:
            self.line(f"const {self.index} i{d} = {text};")
        self.decompose("e", visits.loops, self.p.dims)

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
        slot = self._slot(i)
        if step == 1:
            self.in_vectors[f"a{s.operand}"] = None
            self.line(f"{slot} = d_load_vector<{self.width}>(a{s.operand}, {start});")
        elif step == 0:
            self.line(f"{slot} = d_load(a{s.operand}, {start});")
        else:
            self.unrolled("l", self.width)
            self.line(f"{slot}.of[l] = d_load(a{s.operand}, {self.address(s.strides, 'l')});")
            self.close()

    def _slot(self, i: int) -> str:
        """Where a load's elements of the piece at hand are."""
        if i in self.late:
            return f"w{i}"
        return f"w{i}[u]"

    def _moving(self, values: Sequence[int], kept: set[int]) -> set[int]:
        """Which of some values differ from lane to lane; those kept in registers have a place for every lane."""
        found = set(self.by_lane)
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
        at, _ = self.gathered(i, s, "")
        t = CUDA_TYPE[self.p.inputs[s.operand]]
        self.in_vectors[f"a{s.operand}"] = None
        self.line(f"d_vector<{t}, {self.width}> w{i} = {{}};")
        self.line(f"if (g{i}) w{i} = d_load_lanes<whole, {self.width}>(a{s.operand}, {at}, {count});")
        self.in_pieces.add(i)

    def _in_lane(self, i: int, lane: str, *, keep: bool) -> None:
        s = self.p.body[i]
        at = f"[u * {self.width} + l]"
        if i in self.held and not self._is_loaded(i):
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = h{i}{at};")
        elif i in self.in_pieces:
            assert isinstance(s, Gather)
            text = cast_expr(f"w{i}.of[l]", self.p.inputs[s.operand], s.dtype)
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {text};")
            if keep:
                self.line(f"h{i}{at} = v{i};")
        elif i in self.given:
            assert isinstance(s, Load)
            t = CUDA_TYPE[self.p.inputs[s.operand]]
            self.line(f"const {t} t{i} = {self.given[i]};")
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {cast_expr(f't{i}', self.p.inputs[s.operand], s.dtype)};")
        elif self._is_loaded(i):
            assert isinstance(s, Load)
            step = 0 if self.along is None else s.strides[self.along]
            slot = self._slot(i)
            element = f"{slot}.of[l]" if step else slot
            if self.width > 1:
                # Element by element nothing waits: an array whose place a loop decides would lie in memory.
                element = f"(whole ? {element} : d_load(a{s.operand}, {self.address(s.strides, lane)}))"
            text = cast_expr(element, self.p.inputs[s.operand], s.dtype)
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {text};")
        else:
            self.statement(i, lane)
            if keep:
                self.line(f"h{i}{at} = v{i};")

    def start_partials(self, reduces: Sequence[int]) -> None:
        """Declare the partial results of reduces: as many as there are lanes, of every row."""
        for r in reduces:
            join = Join(self.p, r)
            if self.rows > 1:
                self.line(f"{join.type} p{r}[{self.rows}][{self.width}];")
                self.unrolled("l", self.rows * self.width)
                self.line(f"p{r}[l / {self.width}][l % {self.width}] = {join.start};")
            else:
                self.line(f"{join.type} p{r}[{self.width}];")
                self.unrolled("l", self.width)
                self.line(f"p{r}[l] = {join.start};")
            self.close()

    def _accumulate(self, r: int) -> None:
        s, join = self.reduction(r), Join(self.p, r)
        v, dtype = self.value(s.args[0], "l"), self.p.body[s.args[0]].dtype
        if s.args[0] in self.short and not s.is_place:
            v = f"(long long){v}"
        at = "l" if self.columns or self.width == 1 else "whole ? l : 0"
        target = f"p{r}[mine][{at}]" if self.rows > 1 else f"p{r}[{at}]"
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

    def in_both_ways(self, start: int, *conditions: str) -> None:
        """What was written from a line on: in vectors, where these may be moved; else element by element.

        Both are printed, since the prelude's functions ask at compile time, and a generic lambda is none of a device for NVRTC.
        """
        body = self.lines[start:]
        del self.lines[start:]
        if self.width == 1:
            self.lines += ["  constexpr bool whole = true;", *body]
            return
        tests = [*conditions, *(f"d_aligned({name})" for name in self.aligned_operands())]
        for opening, whole in ((f"if ({' && '.join(tests) or 'true'})", "true"), ("else", "false")):
            self.lines += [
                f"  {opening} {{",
                f"    constexpr bool whole = {whole};",
                *(f"  {text}" for text in body),
                "  }",
            ]

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
