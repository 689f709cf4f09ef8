"""C++ for loop programs: loops ordered and collapsed, the last one vectorised, one phase of independent jobs.

A program with reduces becomes stages: all values that a reduce waits for are computed in one sweep over the inner
loops; only the reduces' results (and costly values used again, in a row buffer) live on into the next sweep, cheap ones
are computed again from memory that is still in cache. Reductions run along the vector (rows) or side by side in its
lanes (columns), whichever reads memory in order.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, literal
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.planners import Machine, planner
from dcir.ir.loops import collapse, drop_unit_loops, order_loops
from dcir.ir.program import Program, Stmt
from dcir.ir.types import compute_type, itemsize

# Below this many points a second thread costs more than it brings (a parallel region is about 1 us).
SERIAL_POINTS = 16384
# Values worth a row buffer instead of a second computation.
COSTLY = {
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "pow",
    "sin",
    "cos",
}
ROW_BUFFER_BYTES = 32768
COLUMN_BLOCK = 64
SUM_BLOCK = 512
# Partial results of a reduction along a row, and what a rest is filled up to with lanes switched off.
ROW_LANES = (64, 32, 16)
TAIL_LANES = 16


@planner(Program)
def plan_program(program: Program, machine: Machine) -> KernelPlan:
    """The kernel of a loop program."""
    return _Emitter(collapse(order_loops(drop_unit_loops(program))), machine).plan()


@dataclass
class _Space:
    """How the outer loops are dealt to jobs: ``prefix`` loops by job number, ``body`` loops inside a job."""

    prefix: int
    tile: int  # columns of the last outer loop per block, 0: the loop is not tiled
    jobs: int  # jobs of the prefix loops
    parallel: bool  # whether tiles are jobs too


class _Emitter:
    def __init__(self, p: Program, machine: Machine) -> None:
        self.p, self.machine = p, machine
        self.levels = p.levels()
        self.n_outer = len(p.outer)
        self.reduces = [i for i, s in enumerate(p.body) if s.op == "reduce"]
        self.stages = max((st for st, _ in self.levels), default=0)
        self.lines: list[str] = []
        self.depth = 1
        self.columns = bool(self.reduces) and self._by_columns()
        self.checked = any(s.op == "gather" and s.attr[4] == "checked" for s in p.body)
        self.buffered: dict[int, int] = {} if self.columns else self._row_buffers()
        self.ready: set[int] = set()
        self.short = _short(p)
        self.starts: dict[int, str] = {}  # where the lanes of a loop start, while it is open in blocks
        self.inside = ""  # the condition under which a lane lies inside the loop, while some do not

    # ------------------------------------------------------------------ decisions
    def _by_columns(self) -> bool:
        """Whether lanes hold neighbouring outer points (columns) rather than neighbouring inner ones (rows)."""
        p = self.p
        if not p.outer:
            return False
        if not p.inner:
            return True
        score = 0
        for s, (_, full) in zip(p.body, self.levels, strict=True):
            if s.op in ("load", "gather", "store") and full:
                touched = math.prod(d for d, st in zip(p.dims, s.attr[1], strict=True) if st)
                score += touched * ((s.attr[1][self.n_outer - 1] == 1) - (s.attr[1][-1] == 1))
        if score == 0:
            return p.inner[-1] < 8 <= p.outer[-1]
        return score > 0 and (p.outer[-1] >= 4 or p.inner[-1] < 4)

    def _row_buffers(self) -> dict[int, int]:
        """Costly full values that several stages need, with their stage of birth."""
        if not self.reduces or math.prod(self.p.inner) * 8 > ROW_BUFFER_BYTES:
            return {}
        used: dict[int, set[int]] = {}
        for stage in range(self.stages + 1):
            for i in self._needs(self._roots(stage), set()):
                used.setdefault(i, set()).add(stage)
        return {
            i: min(stages)
            for i, stages in used.items()
            if len(stages) > 1 and self.p.body[i].op in COSTLY and self.levels[i][1]
        }

    def _roots(self, stage: int) -> list[int]:
        """Statements the inner sweep of ``stage`` is for: its reduces and its full stores."""
        roots = []
        for i, s in enumerate(self.p.body):
            if (s.op == "reduce" and self.levels[i][0] == stage + 1) or (
                s.op == "store" and self.levels[i] == (stage, True)
            ):
                roots.append(i)
        return roots

    def _needs(self, roots: list[int], known: set[int]) -> list[int]:
        """Everything to compute for ``roots`` (reduces themselves stay names), in order."""
        seen: set[int] = set()
        stack = [a for r in roots for a in self.p.body[r].args]
        while stack:
            i = stack.pop()
            if i in seen or i in known or self.p.body[i].op == "reduce":
                continue
            seen.add(i)
            stack.extend(self.p.body[i].args)
        return sorted(seen)

    def _space(self) -> _Space:
        p, threads = self.p, max(self.machine.threads, 1)
        lanes = self.columns or not self.reduces
        last = p.outer[-1] if p.outer else 1
        rows = p.outer[:-1] if lanes else p.outer
        block = COLUMN_BLOCK if self.columns else 0
        if p.points() < SERIAL_POINTS or threads == 1:
            return _Space(0, block, 1, False)
        prefix, jobs = 0, 1
        while prefix < len(rows) and jobs < 8 * threads:
            jobs *= rows[prefix]
            prefix += 1
        tile = block
        while self.columns and tile > 16 and jobs * -(-last // tile) < 2 * threads:
            tile //= 2
        if lanes and jobs < 4 * threads and not self.columns and prefix == len(rows):
            want = -(-4 * threads // jobs)
            tile = max(1024, -(-last // want))
            tile = 0 if tile >= last else -(-tile // 64) * 64
        return _Space(prefix, tile, jobs, True)

    # ------------------------------------------------------------------ text
    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def loop(self, d: int, extent: int | str, begin: str = "0") -> None:
        self.starts.pop(d, None)
        self.open(f"for (long long i{d} = {begin}; i{d} < {extent}; i{d}++)")

    def plan(self) -> KernelPlan:
        space = self._space()
        jobs: int = space.jobs
        p = self.p
        if self.checked:
            self.line("int bad = 0;")
        rest = "j"
        if space.tile and space.parallel:
            tiles = -(-p.outer[-1] // space.tile)
            jobs *= tiles
            self.line(f"const long long jt = {rest} % {tiles}, jr = {rest} / {tiles};")
            rest = "jr"
        for d in range(space.prefix - 1, -1, -1):
            if d == 0:
                self.line(f"const long long i0 = {rest};")
            else:
                self.line(f"const long long i{d} = {rest} % {p.outer[d]}, q{d} = {rest} / {p.outer[d]};")
                rest = f"q{d}"
        if self.reduces:
            self._reducing(space)
        else:
            self._pointwise(space)
        if self.checked:
            self.line("if (bad) *status = 1;")
        names = "_".join(dict.fromkeys(s.op for s in p.body if s.op not in ("load", "store", "const", "cast", "index")))
        return KernelPlan((names or "copy")[:40], self._globals(), (Phase(jobs, "\n".join(self.lines)),))

    def _globals(self) -> str:
        kinds = {(self.p.body[r].attr[0], self.p.body[self.p.body[r].args[0]].dtype) for r in self.reduces}
        out = []
        for kind, dtype in sorted(kinds):
            if kind in ("max", "min"):
                t = CPP_TYPE[dtype]
                combine = SCALAR_OPS[kind].cpp(["omp_out", "omp_in"], dtype)
                out.append(
                    f"#pragma omp declare reduction(dcir_{kind} : {t} : omp_out = {combine}) "
                    f"initializer(omp_priv = {_identity(kind, dtype)})"
                )
        if self.columns:
            out.append("template <int N> struct dcir_width { static constexpr int value = N; };")
        return "\n".join(out)

    def _tile_bounds(self, space: _Space, last: int, tiled: bool) -> tuple[str, str]:
        if not tiled:
            return "0", str(self.p.outer[last])
        self.line(f"const long long lo = jt * {space.tile};")
        self.line(
            f"const long long hi = lo + {space.tile} < {self.p.outer[last]} ? lo + {space.tile} : {self.p.outer[last]};"
        )
        return "lo", "hi"

    def _pointwise(self, space: _Space) -> None:
        p = self.p
        last = self.n_outer - 1
        bounds = self._tile_bounds(space, last, space.tile > 0) if p.outer else ("0", "1")
        opened = 0
        for d in range(space.prefix, last):
            self.loop(d, p.outer[d])
            opened += 1
        roots = [i for i, s in enumerate(p.body) if s.op == "store"]
        if p.outer and last >= space.prefix:
            self._simd([])
            self.loop(last, bounds[1], bounds[0])
            opened += 1
        self._compute(roots, set())
        for _ in range(opened):
            self.close()

    def _simd(self, reduces: list[tuple[str, str]]) -> None:
        clauses = [f" reduction({op} : {name})" for op, name in reduces]
        if self.checked:
            clauses.append(" reduction(| : bad)")
        self.line("#pragma omp simd" + "".join(clauses))

    # ------------------------------------------------------------------ reductions
    def _reducing(self, space: _Space) -> None:
        p = self.p
        last = self.n_outer - 1
        opened = 0
        for d in range(space.prefix, last if self.columns else self.n_outer):
            self.loop(d, p.outer[d])
            opened += 1
        if self.columns:
            # The width of a tile is a constant, so that the sums of a tile stay in registers.
            full, rest = divmod(p.outer[last], space.tile)
            self.open("auto columns = [&](auto width, const long long lo) __attribute__((always_inline))")
            self.line("constexpr long long W = decltype(width)::value;")
            self._stages()
            self.depth -= 1
            self.line("};")
            tile, last_tile = (f"columns(dcir_width<{w}>{{}}, lo);" for w in (space.tile, rest))
            at = f"const long long lo = {f'jt * {space.tile}' if space.parallel else '0'};"
            if full and space.parallel:
                self.line(f"{f'if (jt < {full}) ' if rest else ''}{{ {at} {tile} }}{' else' if rest else ''}")
            elif full:
                end = full * space.tile
                self.line(f"for (long long lo = 0; lo < {end}; lo += {space.tile}) {tile}")
            if rest:
                start = at if space.parallel else f"const long long lo = {full * space.tile};"
                self.line(f"{{ {start} {last_tile} }}")
        else:
            self._stages()
        for _ in range(opened):
            self.close()

    def _stages(self) -> None:
        for v in self.buffered:
            self.line(f"{CPP_TYPE[self.p.body[v].dtype]} buf{v}[{math.prod(self.p.inner) + TAIL_LANES}];")
        for stage in range(self.stages + 1):
            self._outer_stores(stage)
            roots = self._roots(stage)
            if roots:
                (self._column_sweep if self.columns else self._row_sweep)(roots)
                self.ready |= {v for v, born in self.buffered.items() if born == stage}

    def lanes(self, d: int, width: int | str, start: str) -> None:
        """Open the loop over lanes ``l`` of one block of loop ``d``."""
        self._simd([])
        self.open(f"for (int l = 0; l < {width}; l++)")
        self.line(f"const long long i{d} = {start} + l;")
        self.starts = {d: start}

    def _outer_stores(self, stage: int) -> None:
        stores = [i for i, s in enumerate(self.p.body) if s.op == "store" and self.levels[i] == (stage, False)]
        if not stores:
            return
        if self.columns:
            self.lanes(self.n_outer - 1, "W", "lo")
        else:
            self.open("")
        self._compute(stores, set())
        self.close()

    def _row_sweep(self, roots: list[int]) -> None:
        p = self.p
        reduces = [r for r in roots if p.body[r].op == "reduce"]
        stores = [r for r in roots if p.body[r].op == "store"]
        simple = all(not p.body[r].attr[0].startswith("arg") for r in reduces)
        inner = list(self.inner_dims())
        width = next((w for w in ROW_LANES if inner and 2 * w <= p.inner[-1]), 0) if reduces and simple else 0
        for r in reduces:
            self._declare(r)
            if width:
                self.line(f"{self._reduced_type(r)} part{r}[{width}];")
                self.line(f"for (int l = 0; l < {width}; l++) part{r}[l] = {self._start(r)};")
        for d in inner[:-1]:
            self.loop(d, p.dims[d])
        if width:
            self._row_blocks(inner[-1], width, stores, reduces)
        else:
            if inner:
                partial = [(_OMP[p.body[r].attr[0]], f"v{r}") for r in reduces if p.body[r].attr[0] in _OMP]
                if simple:
                    self._simd(partial)
                self.loop(inner[-1], p.dims[inner[-1]])
            else:
                self.open("")
            self._compute(stores, set(), reduces, lambda r: f"v{r}")
            self.close()
        for _ in inner[:-1]:
            self.close()
        for r in reduces if width else []:
            self._fold(r, width)

    def _fold(self, r: int, width: int) -> None:
        """The partial results of a row joined: element i with element i + half, until one is left."""
        kind, dtype = self.p.body[r].attr[0], self.p.body[self.p.body[r].args[0]].dtype
        if dtype in ("f32", "f64") and kind not in ("any", "all"):
            self.line(f"v{r} = d_fold<d_{kind}_of>(part{r});")
            return
        while width > 1:
            width //= 2
            self.open(f"for (int l = 0; l < {width}; l++)")
            self._combine(r, f"part{r}[l]", f"part{r}[l + {width}]", "bool" if kind in ("any", "all") else dtype)
            self.close()
        self.line(f"v{r} = part{r}[0];")

    def _row_blocks(self, d: int, width: int, stores: list[int], reduces: list[int]) -> None:
        """Loop ``d`` in blocks of lanes, each with partial results of its own: they do not wait for each other."""
        extent = self.p.dims[d]
        rest = extent % width
        name = lambda r: f"part{r}[l]"  # noqa: E731
        self.open(f"for (long long b = 0; b < {extent - rest}; b += {width})")
        self.lanes(d, width, "b")
        self._compute(stores, set(), reduces, name)
        self.close()
        self.close()
        if rest:
            padded = -(-rest // TAIL_LANES) * TAIL_LANES
            self.lanes(d, padded, str(extent - rest))
            if padded != rest:
                self.inside = "inside"
                self.line(f"const bool inside = l < {rest};")
            self._compute(stores, set(), reduces, name)
            self.inside = ""
            self.close()

    def _reduced_type(self, r: int) -> str:
        s = self.p.body[r]
        return CPP_TYPE["bool" if s.attr[0] in ("any", "all") else self.p.body[s.args[0]].dtype]

    def _start(self, r: int) -> str:
        s = self.p.body[r]
        return _identity(s.attr[0], self.p.body[s.args[0]].dtype)

    def _declare(self, r: int, size: str = "") -> None:
        s = self.p.body[r]
        kind, dtype = s.attr[0], self.p.body[s.args[0]].dtype
        if kind.startswith("arg"):
            self.line(f"{CPP_TYPE[dtype]} best{r}{size}; long long v{r}{size};")
        else:
            self.line(f"{CPP_TYPE[dtype if kind not in ('any', 'all') else 'bool']} v{r}{size};")
        if not size:
            self._initialise(r, "")

    def _initialise(self, r: int, at: str) -> None:
        s = self.p.body[r]
        kind, dtype = s.attr[0], self.p.body[s.args[0]].dtype
        if kind.startswith("arg"):
            self.line(f"best{r}{at} = {_identity(kind[3:], dtype)}; v{r}{at} = 0;")
        else:
            self.line(f"v{r}{at} = {_identity(kind, dtype)};")

    def _column_sweep(self, roots: list[int]) -> None:
        p = self.p
        last = self.n_outer - 1
        reduces = [r for r in roots if p.body[r].op == "reduce"]
        stores = [r for r in roots if p.body[r].op == "store"]
        sums = [r for r in reduces if p.body[r].attr[0] == "sum" and compute_type(p.body[r].dtype)[0] == "f"]
        for r in reduces:
            self._declare(r, "[W]")
        if reduces:
            self.open("for (int l = 0; l < W; l++)")
            for r in reduces:
                self._initialise(r, "[l]")
            self.close()
        inner = list(self.inner_dims())
        blocked = bool(sums) and bool(inner) and math.prod(p.inner) > SUM_BLOCK
        for d in inner[:-1]:
            self.loop(d, p.dims[d])
        if blocked:  # long sums in two levels: the error grows with the block, not with the whole length
            d = inner[-1]
            self.open(f"for (long long b = 0; b < {p.dims[d]}; b += {SUM_BLOCK})")
            for r in sums:
                self.line(f"{CPP_TYPE[p.body[r].dtype]} part{r}[W] = {{}};")
            self.line(f"const long long be = b + {SUM_BLOCK} < {p.dims[d]} ? b + {SUM_BLOCK} : {p.dims[d]};")
            self.loop(d, "be", "b")
        elif inner:
            self.loop(inner[-1], p.dims[inner[-1]])
        else:
            self.open("")
        self.lanes(last, "W", "lo")
        self._compute(stores, set(), reduces, lambda r: f"{'part' if blocked and r in sums else 'v'}{r}[l]")
        self.close()
        self.close()
        if blocked:
            self.open("for (int l = 0; l < W; l++)")
            for r in sums:
                self.line(f"v{r}[l] += part{r}[l];")
            self.close()
            self.close()
        for _ in inner[:-1]:
            self.close()

    # ------------------------------------------------------------------ statements
    def _compute(self, stores: list[int], known: set[int], reduces: list[int] | None = None, name=None) -> None:  # type: ignore[no-untyped-def]
        """Statements for ``stores`` and ``reduces`` at the current point."""
        reduces = reduces or []
        for i in self._needs(stores + reduces, known | (self.ready & set(self.buffered))):
            self._statement(i)
        for i in sorted(stores + reduces):
            s = self.p.body[i]
            if s.op == "store":
                value = cast_expr(self.value(s.args[0]), compute_type(s.dtype), s.dtype)
                when = f"if ({self.inside}) " if self.inside else ""
                self.line(f"{when}o{s.attr[0]}[{self.address(s.attr[1])}] = {value};")
            else:
                self._accumulate(i, name(i))

    def _combine(self, r: int, target: str, v: str, dtype: str) -> None:
        kind = self.p.body[r].attr[0]
        if kind in ("any", "all"):
            truth = v if dtype == "bool" else f"({v} != 0)"
            joined = f"{target} {'|' if kind == 'any' else '&'} {truth}"
        else:
            joined = SCALAR_OPS[{"sum": "add", "prod": "mul"}.get(kind, kind)].cpp([target, v], dtype)
        self.line(f"{target} = {f'{self.inside} ? {joined} : {target}' if self.inside else joined};")

    def _accumulate(self, r: int, target: str) -> None:
        s = self.p.body[r]
        kind, v, dtype = s.attr[0], self.value(s.args[0]), self.p.body[s.args[0]].dtype
        if not kind.startswith("arg"):
            self._combine(r, target, v, dtype)
        else:
            best = target.replace("v", "best", 1)
            better = ">" if kind == "argmax" else "<"
            nan = f" || ({v} != {v} && {best} == {best})" if dtype in ("f32", "f64") else ""
            first = " && ".join(f"i{d} == 0" for d in self.inner_dims()) or "true"
            self.open(f"if (({first}) || {v} {better} {best}{nan})")
            self.line(f"{best} = {v}; {target} = {self.inner_position()};")
            self.close()

    def inner_dims(self) -> range:
        return range(self.n_outer, self.n_outer + len(self.p.inner))

    def inner_position(self) -> str:
        text = "0"
        for d in self.inner_dims():
            text = f"i{d}" if text == "0" else f"({text}) * {self.p.dims[d]} + i{d}"
        return text

    def value(self, i: int) -> str:
        s = self.p.body[i]
        if s.op == "const":
            return literal(s.attr[0], "i32" if i in self.short else s.dtype)
        if s.op == "index":
            d = s.attr[0]
            if i not in self.short:
                return f"i{d}"
            return f"((int){self.starts[d]} + l)" if d in self.starts else f"(int)i{d}"
        if s.op == "reduce" and self.columns:
            return f"v{i}[l]"
        if i in self.ready and i in self.buffered:
            return f"buf{i}[{self.inner_position()}]"
        return f"v{i}"

    def address(self, strides: tuple[int, ...]) -> str:
        terms = [f"i{d}" if s == 1 else f"i{d} * {s}LL" for d, s in enumerate(strides) if s]
        return " + ".join(terms) or "0"

    def _statement(self, i: int) -> None:
        s = self.p.body[i]
        if s.op in ("const", "index"):
            return
        if s.op == "load":
            text = self._masked(s, self._element(s.attr[0], self.address(s.attr[1])), s.args)
        elif s.op == "gather":
            text = self._gather(i, s)
        elif s.op == "cast":
            text = cast_expr(self.value(s.args[0]), self.p.body[s.args[0]].dtype, s.dtype)
        elif s.op == "narrow":
            text = cast_expr(cast_expr(self.value(s.args[0]), s.dtype, s.attr[0]), s.attr[0], s.dtype)
        else:
            operand = self.p.body[s.args[1 if s.op == "where" else 0]].dtype
            if operand == "i64" and all(a in self.short for a in s.args) and (i in self.short or s.dtype == "bool"):
                operand = "i32"
            text = SCALAR_OPS[s.op].cpp([self.value(a) for a in s.args], operand)
        self.line(f"const {CPP_TYPE['i32' if i in self.short else s.dtype]} v{i} = {text};")
        if i in self.buffered and i not in self.ready:
            self.line(f"buf{i}[{self.inner_position()}] = v{i};")

    def _element(self, operand: int, at: str) -> str:
        if self.p.inputs[operand] == "bool":  # GCC 12 vectorises comparisons of bytes, but no choice by a loaded bool
            return f"(((const unsigned char *)a{operand})[{at}] != 0)"
        return f"a{operand}[{at}]"

    def _masked(self, s: Stmt, element: str, args: tuple[int, ...]) -> str:
        text = cast_expr(element, self.p.inputs[s.attr[0]], s.dtype)
        if not args:
            return f"{self.inside} ? {text} : {literal(0, s.dtype)}" if self.inside else text
        test = f"({self.inside} & {self.value(args[0])})" if self.inside else self.value(args[0])
        return f"{test} ? {text} : {self.value(args[1])}"

    def _gather(self, i: int, s: Stmt) -> str:
        operand, strides, extents, steps, how = s.attr
        indices, rest = s.args[: len(extents)], s.args[len(extents) :]
        good = " & ".join(
            f"((unsigned long long){self.value(a)} < {e}ULL)" for a, e in zip(indices, extents, strict=True)
        )
        terms = [self.address(strides)] + [f"{self.value(a)} * {st}LL" for a, st in zip(indices, steps, strict=True)]
        wanted = self.value(rest[0]) if rest else ""
        if self.inside:
            wanted = f"({self.inside} & {wanted})" if wanted else self.inside
        self.line(f"const bool g{i} = {good or 'true'};")
        if how == "checked":
            self.line(f"bad |= {f'{wanted} & ' if wanted else ''}!g{i};")
        test = f"({wanted} & g{i})" if wanted else f"g{i}"
        other = self.value(rest[1]) if rest else literal(0, s.dtype)
        return f"{test} ? {cast_expr(self._element(operand, ' + '.join(terms)), self.p.inputs[operand], s.dtype)} : {other}"


def _short(p: Program) -> frozenset[int]:
    """Values of type i64 made from loop indices and constants that fit 32 bits: twice as many of them fill a vector."""
    ranges: dict[int, tuple[int, int]] = {}
    for i, s in enumerate(p.body):
        if s.dtype != "i64" or any(a not in ranges for a in s.args):
            continue
        if s.op == "index":
            found = [0, max(p.dims[s.attr[0]] - 1, 0)]
        elif s.op == "const":
            found = [int(s.attr[0])]
        elif s.op in ("add", "sub", "mul", "min", "max"):
            first, second = (ranges[a] for a in s.args)
            fn = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max}[s.op]
            found = [fn(x, y) for x in first for y in second]
        else:
            continue
        if min(found) >= -(2**31) and max(found) < 2**31:
            ranges[i] = min(found), max(found)
    return frozenset(ranges)


_OMP = {"sum": "+", "prod": "*", "max": "dcir_max", "min": "dcir_min", "any": "||", "all": "&&"}


def _identity(kind: str, dtype: str) -> str:
    if kind in ("sum", "any"):
        return literal(0, "bool" if kind == "any" else dtype)
    if kind in ("prod", "all"):
        return literal(1, "bool" if kind == "all" else dtype)
    if dtype in ("f32", "f64"):
        return literal(-math.inf if kind == "max" else math.inf, dtype)
    if dtype == "bool":
        return literal(kind == "min", dtype)
    bits = itemsize(dtype) * 8
    low, high = (0, 2**bits - 1) if dtype == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return literal(low if kind == "max" else high, dtype)
