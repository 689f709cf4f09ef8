"""Epilogues on register tiles: C++ that applies a product's epilogue to accumulators and stores the results.

How a tile emitter uses it:
  1. ``epilogue = Epilogue(program, dtype, first, vector)``, if ``epilogue_suits(program, dtype)`` (else the node's loop nest
     is the kernel). ``vector`` is the program's dimension that vectors of accumulators run along; reorder, drop or merge
     dimensions of the program beforehand as the kernel's own loops require (``LoopNest.reorder``, ``dcir.ir.loop_forms``).
  2. ``Draft(..., epilogue=epilogue)``. ``assemble`` puts ``epilogue.text(isa)`` before the draft's text, and every step's function
     gets one more parameter, ``const Operands &e``, last; its ``o0`` is a null pointer then: only the epilogue stores.
  3. In the text, with i0, i1, … the program's loop variables (of type L) at the first value, dimension ``vector`` included:
       ``finish_row<NV>(e, i0, i1, …, v, n)``   const V *v: a row of NV vectors in registers, of which n lanes are results;
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
import itertools
from dataclasses import dataclass, replace

import numpy as np

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, element, literal
from dcir.codegen.cpp.tiles.emit import HALF, INLINE, lanes, render
from dcir.codegen.cpp.tiles.epilogue import text as text_of
from dcir.codegen.cpp.tiles.epilogue.halves import ROUNDING, half_vectors
from dcir.codegen.cpp.tiles.epilogue.sums import only_sums, pitch, sums_of, sums_text, without_sums
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Reduce, Statement, Store
from dcir.ir.types import FLOATS, compute_type
from dcir.isa import Isa

LONGEST_INLINE = 14
"""Vector statements of an epilogue that is worth repeating for every row of a tile."""
CHAINS = {"exp": "exponentials", "erf": "errors"}
"""Long chains of steps, and the functions that take several vectors through one."""
CHAIN = 12
"""Vector statements of the shorter one."""
GROUPED = 4
"""Vectors of a group: what it takes to keep the processor busy while each waits for its last step."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="
}  # fmt: skip
_LOGICAL = {"and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}"}
# NaN wins: a comparison with it is false. With a constant on one side one comparison will do.
_EXTREME = {"max": ">", "min": "<"}


def epilogue_suits(program: LoopNest, dtype: str) -> bool:
    """Whether the epilogue can be applied to tiles of ``dtype`` ("f32" or "f64")."""
    if sums_of(program):
        summing = only_sums(program)
        simple = Epilogue(summing, dtype, 0, 0).simple
        return dtype == "f32" and simple and epilogue_suits(without_sums(program), dtype)
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

    def with_program(self, program: LoopNest) -> Epilogue:
        """It with another program over the same loops."""
        return replace(self, program=program)

    @property
    def sums(self) -> int:
        """Elements of a job's sums (``epilogue/sums.py``); 0 if it only stores."""
        found = sums_of(self.program)
        return len(found) * pitch(self.program) if found else 0

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
            self._simple(i)
            or (isinstance(s, Store) and s.added)
            or (s.dtype == "f64" and (isinstance(s, Cast) or s.op == "mul"))
            for i, (s, varies) in enumerate(zip(body, self.vector_varies(), strict=True))
            if varies
        )

    @functools.cached_property
    def in_registers(self) -> bool:
        """What ``IN_REGISTERS`` is."""
        if self.sums:
            return replace(self, program=without_sums(self.program)).in_registers
        varies = self.vector_varies()
        simple = all(self._simple(i) for i, v in enumerate(varies) if v)
        steps = sum(varies) + CHAIN * len(self._chains) + ROUNDING * len(self._roundings)
        return simple and steps <= LONGEST_INLINE

    @functools.cached_property
    def grouped(self) -> bool:
        """Whether there is ``finish_group``: vectors that take long chains of steps together."""
        if self.sums:
            return replace(self, program=without_sums(self.program)).grouped
        return bool(self._chains) and all(self._simple(i) for i, v in enumerate(self.vector_varies()) if v)

    @functools.cached_property
    def _chains(self) -> list[int]:
        varies = self.vector_varies()
        return [i for i, s in enumerate(self.program.body) if s.op in CHAINS and varies[i]]

    @functools.cached_property
    def _roundings(self) -> set[tuple[int, str]]:
        """Vectors that are rounded, and the half types they are rounded to."""
        varies = self.vector_varies()
        return {
            (s.args[0], s.storage if isinstance(s, Narrow) else s.dtype)
            for i, s in enumerate(self.program.body)
            if varies[i] and (isinstance(s, Narrow) or (isinstance(s, Store) and s.dtype in HALF))
        }

    @property
    def _outputs(self) -> tuple[str, ...]:
        return self.program.outputs[: len(self.program.outputs) - len(sums_of(self.program))]

    def text(self, isa: Isa) -> str:
        """``Operands``, ``finish_row`` and ``finish``, and of sums ``own`` and ``add_sums``."""
        if self.sums:
            stored = replace(without_sums(self.program), outputs=self._outputs)
            # The sums may need functions that the stores do not.
            stores = replace(self, program=stored).stores(
                isa, self._prefetches(), "double *sums;", self._vector_math(isa)
            )
            return stores + sums_text(self, isa)
        return self.stores(isa, self._prefetches())

    @property
    def chained(self) -> bool:
        """Whether a vector takes long chains of steps."""
        return bool(self._chains)

    def stored(self, store: Store) -> str:
        """A C++ expression of what was stored: a vector of n lanes."""
        step, at = store.strides[self.vector], f"e.o{store.operand} + {self._address(store)}"
        return f"get<WHOLE>({at}, n)" if step == 1 else f"get_apart<WHOLE>({at}, {step}LL, n)"

    def stores(self, isa: Isa, prefetches: list[str], more: str = "", math: str | None = None) -> str:
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
        shared["prefetch"] = render(text_of.PREFETCH, indices=shared["indices"], rows="\n".join(prefetches))
        shared["prefetch"] += render(text_of.CLAIM, indices=shared["indices"], rows="\n".join(self._claims()))
        if all(self._simple(i) for i, varies in enumerate(self.vector_varies()) if varies):
            statements = "\n".join("    " + line for lines in self.vector_lines() for line in lines)
            group, walk = "", []
            if self.grouped:
                group = self._group()
                walk = [render(text_of.GROUP_WALK, count=n, at_lane=at(" + s")) for n in (GROUPED, 2)]
            return (self._vector_math(isa) if math is None else math) + render(
                text_of.VECTORS, short="true" if self.in_registers else "false", statements=statements,
                group=group, walk="\n".join(walk), at_vector=at(" + u * VL"),
                at_lane=at(" + s"), **shared,
            )  # fmt: skip
        return render(text_of.LANES, **self._lane_statements(), **shared)

    @functools.cached_property
    def streams(self) -> bool:
        """Whether it reads rows of memory that differ from row to row, so that ``prefetch_row`` does something."""
        return bool(self._prefetches())

    def _prefetches(self) -> list[str]:
        found: dict[str, None] = {}
        for s in self.program.body:
            if isinstance(s, Load) and s.operand != 0 and s.strides[self.vector] == 1 and sum(map(bool, s.strides)) > 1:
                kind = CPP_TYPE[self.program.inputs[s.operand]]
                text = render(text_of.PREFETCH_ROW, type=kind, number=s.operand, address=self._address(s))
                found[text] = None
        return list(found)

    def _claims(self) -> list[str]:
        found: dict[str, None] = {}
        for s in self.program.body:
            if isinstance(s, Store) and s.strides[self.vector] == 1 and sum(map(bool, s.strides)) > 1:
                kind = CPP_TYPE[self.program.outputs[s.operand]]
                address = self._address(s)
                # A tensor that is written where it is read (a parameter by its update) is on its way already.
                read = [
                    f"(const void *)e.o{s.operand} != e.a{r.operand}"
                    for r in self.program.body
                    if isinstance(r, Load) and r.operand != 0 and r.strides == s.strides and self._address(r) == address
                ]
                apart = f"if ({' && '.join(dict.fromkeys(read))}) " if read else ""
                found[apart + render(text_of.CLAIM_ROW, type=kind, number=s.operand, address=address)] = None
        return list(found)

    def vector_varies(self) -> list[bool]:
        """Per statement whether it differs along a vector."""
        varies: list[bool] = []
        for s in self.program.body:
            own = isinstance(s, Access) and s.strides[self.vector] != 0
            own = (
                own
                or isinstance(s, Store)
                or (isinstance(s, Load) and s.operand == 0)
                or (isinstance(s, Index) and s.dim == self.vector)
            )
            varies.append(own or any(varies[a] for a in s.args))
        return varies

    # ------------------------------------------------------------------ vectors
    def _simple(self, i: int) -> bool:
        """Whether a statement that varies has a form for vectors."""
        s, body = self.program.body[i], self.program.body
        types = (self.dtype, "bool")
        stored = (*types, *HALF) if self.dtype == "f32" else types
        given = [body[a].dtype for a in s.args]
        if isinstance(s, Load):
            return not s.args and s.dtype in types and self.program.inputs[s.operand] in stored
        if isinstance(s, Store):
            return s.dtype in stored
        if isinstance(s, Narrow):
            return s.dtype == self.dtype == "f32" and s.storage in HALF
        if isinstance(s, Cast):
            return given == ["bool"] and s.dtype == self.dtype
        if any(t not in types for t in (s.dtype, *given)):
            return False
        if s.op in _LOGICAL:
            return all(t == "bool" for t in given)
        if s.op in CHAINS:
            return self.dtype == "f32"
        if s.op == "where":
            return True
        return (s.op in _INFIX or s.op in _EXTREME or s.op in ("neg", "abs", "fma")) and given[0] == self.dtype

    def vector_lines(self) -> list[list[str]]:
        """C++ of every statement."""
        p, varies, found = self.program, self.vector_varies(), list[list[str]]()
        for i, s in enumerate(p.body):
            if not varies[i]:
                found.append(self._scalar(i, s, ""))
                continue
            if s.dtype == "f64" != self.dtype:  # of sums, which are not stored
                found.append([])
                continue
            args = [self.as_vector(a, varies) for a in s.args]
            if isinstance(s, Store):
                step = s.strides[self.vector]
                at = f"e.o{s.operand} + {self._address(s)}"
                if s.dtype == "bool":
                    found.append([f"put_bool<WHOLE>({at}, {step}, {args[0]}, n);"])
                elif s.dtype in HALF:
                    value = args[0] if s.dtype == "f16" else f"round_{s.dtype}({args[0]})"
                    found.append([f"put_halves<WHOLE>({at}, {step}LL, bits_of_{s.dtype}({value}), n);"])
                elif step == 1:
                    found.append([f"put<WHOLE>({at}, {args[0]}, n);"])
                else:
                    found.append([f"put_apart<WHOLE>({at}, {step}LL, {args[0]}, n);"])
                continue
            found.append([f"const {self._kind(i)} v{i} = {self._vector_value(s, args)};"])
        return found

    def _vector_math(self, isa: Isa) -> str:
        """What vector statements call."""
        wide = isa.vectors == "avx512"
        kind, mask = ("ps", "short") if self.dtype == "f32" else ("pd", "char")
        text = f"{INLINE} V splat(T x) {{ return V{{{', '.join('x' * lanes(isa, self.dtype))}}}; }}"
        text += render(
            text_of.EXTREMES,
            **{
                name: f"__builtin_ia32_{op}{kind}512_mask(a, x, V{{}}, (unsigned {mask})-1, 4)"
                if wide
                else f"a {sign} x ? a : x"
                for name, op, sign in (("larger", "max", ">"), ("smaller", "min", "<"))
            },
        )
        chains = {self.program.body[i].op for i in self._chains} if self.dtype == "f32" else set()
        if "exp" in chains:
            powers = ", ".join(literal(float(np.float32(2 ** (i / 16))), "f32") for i in range(16))
            text += render(text_of.EXPONENTIALS_512, powers=powers) if wide else render(text_of.EXPONENTIALS)
        if "erf" in chains:
            text += render(text_of.ERRORS)
        for op in sorted(chains):
            text += f"{INLINE} V {op}_of(V x) {{ V v[1] = {{x}}; {CHAINS[op]}(v); return v[0]; }}\n"
        return text + half_vectors(self._halves(), isa)

    def _halves(self) -> set[str]:
        """Half types of vectors."""
        p, varies = self.program, self.vector_varies()
        loads = {p.inputs[s.operand] for s, v in zip(p.body, varies, strict=True) if v and isinstance(s, Load)}
        return {t for t in loads if t in HALF} | {t for _, t in self._roundings}

    def _group(self) -> str:
        """``finish_group``: the statements up to each chain for every vector, then that chain for all of them; stores last."""
        body, varies, made = self.program.body, self.vector_varies(), self.vector_lines()
        # Where vectors lie along a tile's rows there is one row of them.
        moves = {self.row: " + u / NV", self.vector: " + u % NV * VL"}
        places = [f"const L i{d} = b{d}{moves.get(d, '')};" for d in range(len(self.program.outer))]
        kept = [i for i, s in enumerate(body) if varies[i] and not isinstance(s, Store)]
        parts = [f"    {self._kind(i)} w{i}[N];" for i in kept]
        bounds = [0, *(i + 1 for i in self._chains), len(body)]
        for low, high in itertools.pairwise(bounds):
            last = high == len(body)
            here = [i for i in range(high) if (last if isinstance(body[i], Store) else i >= low)]
            needed = {a for i in here if varies[i] for a in body[i].args}
            for i in reversed(range(high)):
                if i in needed and not varies[i]:  # the same for all of a vector: computed again
                    needed.update(body[i].args)
            lines = [*places, "const V x = given[u];"]
            for i in range(high):
                if isinstance(body[i], Store):
                    lines += made[i] if i in here else []
                elif i < low and varies[i]:
                    lines += [f"const {self._kind(i)} v{i} = w{i}[u];"] if i in needed else []
                elif not varies[i]:
                    lines += made[i] if i in needed else []
                elif i in self._chains:
                    lines.append(f"w{i}[u] = v{body[i].args[0]};")
                else:
                    lines += [*made[i], *([f"w{i}[u] = v{i};"] if i in kept else [])]
            text = "\n".join("        " + line for line in lines)
            chain = f"{CHAINS[body[low - 1].op]}(w{low - 1});" if low else ""
            parts.append(render(text_of.GROUP_PART, chains=chain, statements=text))
        indices = ", ".join(f"L b{d}" for d in range(len(self.program.outer)))
        return render(text_of.GROUP, indices=indices, parts="\n".join(parts))

    def _kind(self, i: int) -> str:
        return "M" if self.program.body[i].dtype == "bool" else "V"

    def _vector_value(self, s: Statement, args: list[str]) -> str:
        p = self.program
        if isinstance(s, Load):
            if s.operand == 0:
                return "x"
            step, at = s.strides[self.vector], f"e.a{s.operand} + {self._address(s)}"
            kind = p.inputs[s.operand]
            if kind == "bool":
                return f"get_bool<WHOLE>({at}, {step}, n)"
            if kind in HALF:
                return f"widen_{kind}(get_halves<WHOLE>({at}, {step}LL, n))"
            return f"get<WHOLE>({at}, n)" if step == 1 else f"get_apart<WHOLE>({at}, {step}LL, n)"
        if isinstance(s, Cast):
            return f"{args[0]} ? splat(1) : splat(0)"
        if isinstance(s, Narrow):
            return f"round_{s.storage}({args[0]})"
        if s.op == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if s.op in _LOGICAL:
            return _LOGICAL[s.op].format(*args)
        if s.op == "fma":
            return f"{args[0]} * {args[1]} + {args[2]}"
        if s.op == "neg":
            return f"-{args[0]}"
        if s.op in CHAINS:
            return f"{s.op}_of({args[0]})"
        if s.op == "abs":
            return f"(V)((M){args[0]} & ~(M)splat(-0.0))"
        if s.op in _EXTREME:
            sign, (x, y) = _EXTREME[s.op], args
            for constant, other, a in ((x, y, s.args[0]), (y, x, s.args[1])):
                value = p.body[a]
                if isinstance(value, Const) and value.value == value.value:
                    return f"{'larger' if s.op == 'max' else 'smaller'}({constant}, {other})"
            return f"({x} {sign} {y}) | ({x} != {x}) ? {x} : {y}"
        return f"{args[0]} {_INFIX[s.op]} {args[1]}"

    def as_vector(self, i: int, varies: list[bool]) -> str:
        """A value as a vector."""
        if varies[i]:
            return f"v{i}"
        return f"{'all_or_none' if self.program.body[i].dtype == 'bool' else 'splat'}({self._name(i)})"

    # ------------------------------------------------------------------ lanes
    def _lane_statements(self) -> dict[str, str]:
        p, varies = self.program, self.vector_varies()
        uniform: list[str] = []
        before: list[str] = []
        inside: list[str] = []
        after: list[str] = []
        for i, s in enumerate(p.body):
            if not varies[i]:
                uniform += self._scalar(i, s, "")
                continue
            step, at = 0, ""
            if isinstance(s, Access):
                step = s.strides[self.vector]
                at = self._address(s, f" + s * {step}LL" if step else "")
            if isinstance(s, Load) and s.operand == 0:
                inside.append(f"const T v{i} = t{i}[c];")
                before.append(f"alignas(64) T c{i}[VL]; const T *t{i} = fetch(t + s, 1, left, c{i});")
            elif isinstance(s, Load) and not s.args and step:
                kind = CPP_TYPE[p.inputs[s.operand]]
                before.append(
                    f"alignas(64) {kind} c{i}[VL]; const {kind} *t{i} = fetch(e.a{s.operand} + {at}, {step}, left, c{i});"
                )
                value = cast_expr(element(f"t{i}", "c", p.inputs[s.operand]), p.inputs[s.operand], s.dtype)
                inside.append(f"const {CPP_TYPE[s.dtype]} v{i} = {value};")
            elif isinstance(s, Store):
                kind, value = CPP_TYPE[s.dtype], cast_expr(self._name(s.args[0]), compute_type(s.dtype), s.dtype)
                whole = f"{step} == 1 && left == VL"
                before.append(
                    f"{kind} *p{i} = e.o{s.operand} + {at}; alignas(64) {kind} c{i}[VL], *t{i} = {whole} ? p{i} : c{i};"
                )
                inside.append(f"t{i}[c] = {value};")
                after.append(f"put_back(p{i}, {step}, left, c{i});")
            else:
                inside += self._scalar(i, s, f" + (s + c) * {step}LL" if step else "")
        pads = {"uniform": 4, "before": 8, "statements": 12, "after": 8}
        texts = (uniform, before, inside, after)
        return {k: "\n".join(" " * pad + t for t in lines) for (k, pad), lines in zip(pads.items(), texts, strict=True)}

    def _scalar(self, i: int, s: Statement, lane: str) -> list[str]:
        """A statement of scalars; ``lane`` is what the lane adds to an address (set inside the loop over lanes only)."""
        p = self.program
        if isinstance(s, (Const, Index)):
            return []
        varying = self.vector_varies()[i]
        guard = "c < left" if varying else "true"
        if isinstance(s, Load):
            kind = p.inputs[s.operand]
            text = cast_expr(element(f"e.a{s.operand}", self._address(s, lane), kind), kind, s.dtype)
            if s.args:
                text = f"({guard}) & {self._name(s.args[0])} ? {text} : {self._name(s.args[1])}"
            elif varying and lane:
                text = f"{guard} ? {text} : {literal(0, s.dtype)}"
        elif isinstance(s, Gather):
            indices = [self._name(a) for a in s.indices]
            good = [f"((unsigned long long){x} < {e}ULL)" for x, e in zip(indices, s.extents, strict=True)]
            test = " & ".join([f"({guard})", *good, *(self._name(a) for a in s.guard[:1])])
            terms = [f"{x} * {t}LL" for x, t in zip(indices, s.steps, strict=True)]
            found = f"e.a{s.operand}[{' + '.join([self._address(s, lane), *terms])}]"
            other = self._name(s.guard[1]) if s.guard else literal(0, s.dtype)
            text = f"({test}) ? {cast_expr(found, p.inputs[s.operand], s.dtype)} : {other}"
        elif isinstance(s, Cast):
            text = cast_expr(self._name(s.args[0]), p.body[s.args[0]].dtype, s.dtype)
        elif isinstance(s, Narrow):
            text = cast_expr(cast_expr(self._name(s.args[0]), s.dtype, s.storage), s.storage, s.dtype)
        else:
            operand_type = p.body[s.args[1 if s.op == "where" else 0]].dtype
            text = SCALAR_OPS[s.op].cpp([self._name(a) for a in s.args], operand_type)
        return [f"const {CPP_TYPE[s.dtype]} v{i} = {text};"]

    def _name(self, i: int) -> str:
        s = self.program.body[i]
        if isinstance(s, Const):
            return literal(s.value, s.dtype)
        if isinstance(s, Index):
            return f"(i{s.dim} + s + c)" if s.dim == self.vector else f"i{s.dim}"
        return f"v{i}"

    def _address(self, s: Access, lane: str = "") -> str:
        terms = [f"i{d}" if t == 1 else f"i{d} * {t}LL" for d, t in enumerate(s.strides) if t]
        return (" + ".join(terms) or "0") + lane
