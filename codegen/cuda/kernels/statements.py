"""The statements of a loop nest as CUDA C++: what one thread does at some points, their loads first, so that these wait together.

A thread visits ``times`` pieces of ``width`` neighbouring points of one loop. All pieces' operands are loaded, in vectors where they lie
side by side; then piece by piece and lane by lane the statements run; results are stored in vectors again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dcir.cache import key_of
from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, Join, constant
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.ranges import short_values
from dcir.codegen.schedule import needed
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Reduce, Store
from dcir.ir.types import compute_type

MOST_SHORT = 2**30
"""Addresses and numbers of points below this are computed in 32 bits; rounding up to blocks stays below 2^31."""


@dataclass(frozen=True)
class Places:
    """Where the operands of a nest are that are not the operator's operands of the same name.

    Attributes:
        scratch: of operands in scratch, C++ of the bytes from its start.
        names: of others, the operator's operand.
    """

    scratch: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def having(self, scratch: Mapping[str, str]) -> Places:
        """These, and others in scratch."""
        return Places({**self.scratch, **scratch}, self.names)


@dataclass(frozen=True)
class Visits:
    """Pieces of points that a thread visits.

    Attributes:
        times: how many pieces.
        loops: the loops that a piece's number stands for.
        element: C++ of a piece's first point, in row-major order over these, from its number ``u``.
        guard: the condition under which the piece is there; "" if all are.
        count: C++ of how many of its points are there; "" if all are.
    """

    times: int
    loops: Sequence[int]
    element: str
    guard: str = ""
    count: str = ""


class KernelText:
    """The text of one kernel under construction.

    Attributes:
        p, levels: the loop nest, and its statements' levels.
        along, width: the loop whose neighbouring points are lanes, and how many lanes there are.
        columns: whether a reduce has a result for every lane.
        index: C++ type of loop variables and addresses; there are no numbers of points above ``points``.
        known: values that are computed already, once for all points that the thread visits.
        held: values that wait in registers for a later sweep.
    """

    def __init__(self, p: LoopNest, places: Places, along: int | None, width: int, points: int) -> None:
        self.p, self.places, self.along, self.width = p, places, along, width
        self.levels = p.levels()
        self.columns = False
        self.lines: list[str] = []
        self.depth = 1
        self.known: set[int] = set()
        self.held: set[int] = set()
        self.index = "int" if max(_reach(p), points) < MOST_SHORT else "long long"
        self.short = short_values(p)
        self.checked = any(isinstance(s, Gather) and s.checked for s in p.body)
        self.in_vectors: dict[str, None] = {}

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.line(end)

    def unrolled(self, name: str, times: int | str) -> None:
        self.line("#pragma unroll")
        self.open(f"for (int {name} = 0; {name} < {times}; {name}++)")

    def reduction(self, r: int) -> Reduce:
        """The reduction of this number."""
        s = self.p.body[r]
        assert isinstance(s, Reduce)
        return s

    def decompose(self, number: str, loops: Sequence[int]) -> None:
        """Loop variables from a row-major number over some loops."""
        rest, dims = number, self.p.dims
        for d in reversed(loops[1:]):
            self.line(f"const {self.index} i{d} = {rest} % {dims[d]}, q{d} = {rest} / {dims[d]};")
            rest = f"q{d}"
        if loops:
            self.line(f"const {self.index} i{loops[0]} = {rest};")

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
        loads = [i for i in reachable if isinstance(p.body[i], Load) and not p.body[i].args and i not in self.held]
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
        vectors = [i for i in stores if self._is_vector_store(i)]
        for i in vectors:
            self.line(f"d_vector<{CUDA_TYPE[p.body[i].dtype]}, {self.width}> r{i};")
        self.unrolled("l", self.width)
        if visits.count:
            self.open("if (whole || l < count)")
        for i in (i for i in wanted if i in reachable):
            self._in_lane(i, i in hold)
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
        self.decompose("e", visits.loops)
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

    def _in_lane(self, i: int, keep: bool) -> None:
        s = self.p.body[i]
        at = f"[u * {self.width} + l]"
        if self._is_loaded(i):
            assert isinstance(s, Load)
            step = 0 if self.along is None else s.strides[self.along]
            element = f"w{i}[u].of[l]" if step else f"w{i}[u]"
            text = cast_expr(element, self.p.inputs[s.operand], s.dtype)
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = {text};")
        elif i in self.held:
            self.line(f"const {CUDA_TYPE[s.dtype]} v{i} = h{i}{at};")
        else:
            self._statement(i, "l")
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
        wanted = self.value(s.guard[0], lane) if s.guard else ""
        other = self.value(s.guard[1], lane) if s.guard else constant(0, s.dtype)
        indices = [self.value(a, lane) for a in s.indices]
        terms = [f"({self.index}){k} * {st}" for k, st in zip(indices, s.steps, strict=True)]
        at = " + ".join([self.address(s.strides, lane), *terms])
        found = cast_expr(f"d_load(a{s.operand}, {at})", self.p.inputs[s.operand], s.dtype)
        unsure = [
            f"((unsigned long long){k} < {e}ull)"
            for a, k, e in zip(s.indices, indices, s.extents, strict=True)
            if self.short.get(a, (-1, 0))[0] < 0 or self.short.get(a, (-1, 0))[1] >= e
        ]
        self.line(f"const bool g{i} = {' & '.join(unsure) or 'true'};")
        if s.checked:
            self.line(f"bad |= {f'{wanted} & ' if wanted else ''}!g{i};")
        return f"{f'({wanted} & g{i})' if wanted else f'g{i}'} ? {found} : {other}"

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
        return finished(body, self.p, self.places, grid, block)


def finished(body: Sequence[str], p: LoopNest, places: Places, grid: tuple[int, int, int], block: int) -> Launch:
    """A launch of a kernel with these lines."""
    text = "\n".join(body)
    used = sorted(set(re.findall(r"\b(?:[ao]\d+|scratch|status)\b", text)), key=_rank)
    lines, parameters, names = [], [], []
    for name in used:
        if name in ("scratch", "status"):
            continue
        dtype = (p.inputs if name[0] == "a" else p.outputs)[int(name[1:])]
        t = f"{'const ' if name[0] == 'a' else ''}{CUDA_TYPE[dtype]}"
        if name in places.scratch:
            lines.append(f"  {t} *{name} = ({t} *)(scratch + {places.scratch[name]});")
        else:
            parameters.append(f"{t} *{name}")
            names.append(places.names.get(name, name))
    if lines or "scratch" in used:
        parameters.append("unsigned char *scratch")
        names.append("scratch")
    if "status" in used:
        parameters.append("int *status")
        names.append("status")
    head = f"__launch_bounds__({block}) KERNEL({', '.join(parameters)}) {{"
    whole = "\n".join(['extern "C" __global__ void ' + head, *lines, text, "}", ""])
    name = f"k_{key_of(whole)[:20]}"
    return Launch(name, whole.replace("KERNEL", name, 1), grid, (block, 1, 1), 0, tuple(names))


def _rank(name: str) -> tuple[int, int]:
    return ("oas".index(name[0]), int(name[1:]) if name[1:].isdigit() else 0)


def _reach(p: LoopNest) -> int:
    """The largest distance of an address from where its operand begins."""
    reach = 0
    for s in p.body:
        if isinstance(s, Access):
            far = sum(abs(st) * (n - 1) for st, n in zip(s.strides, p.dims, strict=True))
            if isinstance(s, Gather):
                far += sum(abs(st) * e for st, e in zip(s.steps, s.extents, strict=True))
            reach = max(reach, far)
    return reach
