"""What all register tiles share: vector types, loads and stores, transposition, the multiply-add loop, plan assembly."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dcir.codegen.cpp.template import Template, templates
from dcir.codegen.cpp.tiles.epilogue.protocol import TileEpilogue
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Symbolic, Undecided, most, sizes_in
from dcir.ir.schedule import Schedule
from dcir.ir.types import FLOATS, HALVES, TYPES
from dcir.isa import Isa

text_of = templates("core")

ELEMENT_BYTES = {name: TYPES[name].itemsize for name in (*FLOATS, *HALVES)}
STORED = {name: TYPES[name].cpp for name in (*FLOATS, *HALVES)}
HALF = HALVES
_NONE: Mapping[str, object] = {}
PARAMETERS = "L j, const T *a0, const T *a1, const T *a2, T *o0, unsigned char *scratch"
EPILOGUE_PARAMETER = ", const Operands &e"

# AVX2's tiles use a step up in six cycles. On a core that is shared with a neighbour its branch and its pointers show: products of
# 512 x 768 x 768 at 0.76 to 0.89 of MKL's speed step by step, at 0.92 to 0.98 by fours (Zen 3; alone 0 to 1 % faster). Unrolled before
# registers are allotted, which a loop over a constant would be, sums are spilled.
_FOUR_STEPS = '_Pragma("GCC unroll 4")'


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Template:
    return Template.of(text)


def render(text: str, shared: Mapping[str, object] = _NONE, /, **values: object) -> str:
    """A few lines of C++ with their $names filled in, as a `Template` does."""
    return _parsed(text)(shared, **values)


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of ``b``."""
    return ceil_div(a, b) * b


def lanes(isa: Isa, dtype: str) -> int:
    """Elements of a vector register."""
    return isa.vector_bytes // ELEMENT_BYTES[dtype]


def core(isa: Isa, dtype: str, user: str = "") -> str:
    """The C++ for one element type, "f32" or "f64", that ``user`` builds on; of its larger functions those that it names."""
    width = lanes(isa, dtype)
    steps = [1 << i for i in reversed(range(width.bit_length() - 1))]
    halvings = [f"    v += __builtin_shuffle(v, (M){{{_list((i + s) % width for i in range(width))}}});" for s in steps]
    transposition = ""
    if "transpose_block" in user:
        lines = exchanges(width, lambda i: f"load(s + {i} * ss)", lambda v, i: f"store(to + {i} * step, {v} + add)")
        transposition = text_of.transposition(exchanges=lines)
    masked = {"s": "s" if dtype == "f32" else "d", "m": "short" if dtype == "f32" else "char"}
    part = text_of.part_masked(masked) if isa.vectors == "avx512" else text_of.part()
    return text_of.core(
        part=part, T=STORED[dtype], I="int" if dtype == "f32" else "long long", VB=isa.vector_bytes, VL=width,
        EB=ELEMENT_BYTES[dtype], halvings="\n".join(halvings), transposition=transposition,
        steps="" if isa.vectors == "avx512" else _FOUR_STEPS,
    )  # fmt: skip


def exchanges(width: int, row: Callable[[int], str], put: Callable[[str, int], str]) -> str:
    """C++ that transposes ``width`` vectors: ``row(i)`` is the i-th, ``put(value, i)`` stores the i-th column."""
    steps = [1 << i for i in reversed(range(width.bit_length() - 1))]
    lines = [f"    const V r{width}_{i} = {row(i)};" for i in range(width)]
    for s in steps:
        low = _list(width + i - s if i & s else i for i in range(width))
        high = _list(width + i if i & s else i + s for i in range(width))
        lines.append(f"    const M low{s} = {{{low}}}, high{s} = {{{high}}};")
        for i in range(width):
            pair = f"r{2 * s}_{i & ~s}, r{2 * s}_{i | s}"
            lines.append(f"    const V r{s}_{i} = __builtin_shuffle({pair}, {'high' if i & s else 'low'}{s});")
    return "\n".join([*lines, *(f"    {put(f'r1_{i}', i)};" for i in range(width))])


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


@dataclass(frozen=True)
class Split:
    """``total`` units in ``parts`` consecutive parts whose sizes differ by at most one, the larger ones first."""

    total: int
    parts: int

    @staticmethod
    def at_most(total: int, size: int) -> Split:
        """As few parts as possible of at most ``size`` units."""
        return Split(total, max(1, ceil_div(total, size)))

    @property
    def size(self) -> int:
        """The larger size."""
        return ceil_div(self.total, self.parts)

    @property
    def larger(self) -> int:
        """How many parts have the larger size."""
        rest = self.total % self.parts
        if isinstance(rest, Symbolic):
            raise Undecided("how many parts have the larger size")
        return self.parts if rest == 0 else rest

    @property
    def sizes(self) -> tuple[int, ...]:
        """The distinct sizes, the larger one first."""
        return (self.size,) if self.larger == self.parts else (self.size, self.size - 1)

    def start(self, part: str) -> str:
        """A C expression for where a part starts."""
        if self.larger == self.parts:
            return f"({part}) * {self.size}"
        return f"(({part}) * {self.size - 1} + (({part}) < {self.larger} ? ({part}) : {self.larger}))"


@dataclass(frozen=True)
class Runs:
    """``total`` units in parts of one size, but for a last one of what is left; the total may move. It answers as a ``Split`` does."""

    total: int
    size: int

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return ceil_div(self.total, self.size)

    @property
    def larger(self) -> int:
        """How many parts may have that size."""
        return self.parts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of all parts but the last."""
        return (self.size,)

    def start(self, part: str) -> str:
        """A C expression for where a part starts, or the last one ends."""
        return f"(({part}) * {self.size} < {self.total} ? ({part}) * {self.size} : {self.total})"


def parts_of(total: int, size: int) -> Split | Runs:
    """Parts of at most ``size`` units: even ones, or, where the total moves, all of one size but the last."""
    return Runs(total, min(size, most(total))) if isinstance(total, Symbolic) else Split.at_most(total, size)


OUTSIDE, INSIDE = "// From here on nothing depends on sizes.\n", "// To here.\n"
_APART = re.compile(f"{re.escape(OUTSIDE)}(.*?){re.escape(INSIDE)}", re.DOTALL)
_CONSTANT = re.compile(r"^constexpr (.*;)$", re.MULTILINE)


def sized(text: str) -> tuple[str, str]:
    """Functions that compute with sizes, as members of what holds these; and what stands before the name of one that is called.

    A function sees a size where it is asked for, as it sees a constant where sizes do not move. What is between OUTSIDE and INSIDE has
    nothing to do with sizes, and stays out.
    """
    names = sizes_in(text)
    if not names:
        return text, ""
    before = "".join(_APART.findall(text))
    # Without a name around it, the linker would take one kernel's functions for all kernels'.
    return f"namespace {{\n{before}{holder('Sized', _APART.sub('', text))}\n}}\n", f"Sized{{{', '.join(names)}}}."


def holder(name: str, text: str) -> str:
    """C++ of a struct of this name that holds the sizes in a text, and its functions."""
    # A function at namespace scope is static in another sense than a member.
    text = text.replace("static inline ", "inline ")
    text = text.replace("static __attribute__((noinline", "__attribute__((noinline")
    names = sizes_in(text)
    text = _CONSTANT.sub(lambda m: ("const " if sizes_in(m[0]) else "static constexpr ") + m[1], text)
    members = f"const L {', '.join(names)};\n" if names else ""
    return f"struct {name} {{\n{members}{text}\n}};"


def unravel(
    index: str, extents: Sequence[int], sums: Mapping[str, tuple[int, Sequence[int]]], names: Sequence[str] = ()
) -> str:
    """C++ that takes ``index`` apart over ``extents`` (last fastest): each sum = start + the strides' weighted sum.

    ``names``, one per extent, become the digits themselves.
    """
    lines = [f"L {name} = {start};" for name, (start, _) in sums.items()]
    lines.append(f"L rest_ = {index};")
    for d in reversed(range(len(extents))):
        if names:
            lines.append(f"const L {names[d]} = {f'rest_ % {extents[d]}' if extents[d] != 1 else 0};")
        if extents[d] == 1:
            continue
        adds = " ".join(f"{name} += rest_ % {extents[d]} * {s[d]};" for name, (_, s) in sums.items() if s[d])
        lines.append(f"{adds} rest_ /= {extents[d]};")
    return "\n    ".join(lines)


@dataclass(frozen=True)
class TileStep:
    """One parallel step: calls ``function`` (with PARAMETERS, and ``EPILOGUE_PARAMETER`` if there is one) for every job."""

    jobs: int
    function: str


@dataclass(frozen=True)
class Draft:
    """A kernel for f32 or f64 before it is bound to its operands.

    Attributes:
        name: the plan's name.
        dtype: element type of all operands.
        text: C++ after the core.
        steps: run in order.
        scratch: bytes of scratch.
        swapped: the text takes the second operand as a0 and the first as a1.
        epilogue: what is done before storing; with it steps take ``const Operands &e`` as their last parameter, and o0 is null.
        sums: whether the last step's jobs also add up what the epilogue sums.
        schedule: what the text was printed from, as far as its maker says.
    """

    name: str
    dtype: str
    text: str
    steps: tuple[TileStep, ...]
    scratch: int = 0
    swapped: bool = False
    epilogue: TileEpilogue | None = None
    sums: bool = False
    schedule: Schedule | None = None

    @property
    def sums_at(self) -> int:
        """Where in scratch the sums of the last step's jobs begin."""
        return round_up(self.scratch, 64)

    def calls(self, pointers: Sequence[str], result: str, holder: str = "") -> list[Phase]:
        """The phases over pointer expressions; ``holder`` is what the functions are members of (``sized``)."""
        given = [*pointers, *["nullptr"] * (3 - len(pointers))]
        if self.swapped:
            given[:2] = given[1], given[0]
        arguments = f"j, {', '.join(given)}, {result if self.epilogue is None else 'nullptr'}, scratch"
        if self.epilogue is not None:
            operands = self.epilogue.operands(self.sums_at)
            arguments += f", {operands.replace('dcir_tile::', 'dcir_tile::Sized::') if holder else operands}"
        call = f"const D_NoDenormals none; dcir_tile::{holder}"
        return [Phase(s.jobs, f"{call}{s.function}({arguments});") for s in self.steps if s.jobs]


@dataclass(frozen=True)
class TileOperand:
    """Shape and strides of an operand in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def dense(self) -> TileOperand:
        """The same operand without gaps; what is broadcast stays broadcast."""
        strides = [0] * len(self.shape)
        step = 1
        for d in reversed(range(len(self.shape))):
            if self.strides[d] != 0 or self.shape[d] == 1:
                strides[d] = step
                step *= self.shape[d]
        return TileOperand(self.shape, tuple(strides))

    @property
    def stored(self) -> int:
        """Distinct elements of the dense form."""
        return math.prod(n for n, s in zip(self.shape, self.strides, strict=True) if s != 0 or n == 1)


def assemble(draft: Draft, isa: Isa, n_inputs: int, *, casts: bool = False) -> KernelPlan:
    """The plan of an f32 or f64 draft over ``n_inputs`` operands of its own (its epilogue's follow them).

    ``casts``: some are of other types in memory; the text knows which.
    """
    cast = f"(const {STORED[draft.dtype]} *)" if casts else ""
    epilogue = draft.epilogue.text(isa) if draft.epilogue is not None else ""
    own, holder = sized(epilogue + draft.text)
    phases = draft.calls([f"{cast}a{i}" for i in range(n_inputs)], "o0", holder)
    size = draft.scratch
    if draft.sums and draft.epilogue is not None:
        size = draft.sums_at + draft.steps[-1].jobs * draft.epilogue.sums * 8
    text = f"namespace dcir_tile {{{core(isa, draft.dtype, epilogue + draft.text)}{own}}}\n"
    return KernelPlan(draft.name, text, tuple(phases), size, bool(holder), schedule=draft.schedule)


_WIDEN = {"bf16": text_of.widen_bf16, "f16": text_of.widen_f16}
_NARROW = {"bf16": text_of.narrow_bf16, "f16": text_of.narrow_f16}


def assemble_half(
    draft: Draft, isa: Isa, dtype: str, inputs: Sequence[TileOperand], output: TileOperand, threads: int
) -> KernelPlan:
    """The plan of an f32 draft over dense operands for half precision: converted before and after, in scratch."""
    at = round_up(draft.scratch, 64)
    texts, before, pointers = [], [], []
    for i, operand in enumerate(inputs):
        kept = _without_broadcasts(operand)
        text, jobs = _convert(f"widen{i}", kept, kept.dense(), dtype, threads, True)
        texts.append(text)
        before.append(Phase(jobs, f"dcir_tile::widen{i}(j, a{i}, (float *)(scratch + {at}));"))
        pointers.append(f"(const float *)(scratch + {at})")
        at += round_up(operand.stored * 4, 64)
    result = f"(float *)(scratch + {at})"
    phases = draft.calls(pointers, result)
    text, jobs = _convert("narrow0", output.dense(), output, dtype, threads, False)
    after = Phase(jobs, f"dcir_tile::narrow0(j, {result}, o0);")
    scalar = f"{_WIDEN[dtype]()}\n{_NARROW[dtype]()}\n"
    own = f"{draft.text}{scalar}{''.join(texts)}{text}"
    text = f"namespace dcir_tile {{{core(isa, 'f32', own)}{own}}}\n"
    # Nothing is computed without a job, and then nothing needs converting either.
    run = [p for p in (*before, *phases, after) if p.jobs] if phases else []
    return KernelPlan(draft.name, text, tuple(run), at + round_up(output.stored * 4, 64), schedule=draft.schedule)


def _without_broadcasts(operand: TileOperand) -> TileOperand:
    shape = tuple(1 if s == 0 else n for n, s in zip(operand.shape, operand.strides, strict=True))
    return replace(operand, shape=shape)


def _convert(
    name: str, source: TileOperand, target: TileOperand, dtype: str, threads: int, widen: bool
) -> tuple[str, int]:
    *outer, n = source.shape
    rows = math.prod(outer)
    jobs = min(rows, 4 * threads) if rows * n else 0
    offsets = unravel("row", outer, {"p": (0, target.strides[:-1]), "q": (0, source.strides[:-1])})
    stored = STORED[dtype]
    text = text_of.convert(
        {"from": stored if widen else "float"}, to="float" if widen else stored, name=name, rows=rows, jobs=max(1, jobs),
        offsets=offsets, n=n, di=target.strides[-1], si=source.strides[-1], put="widen" if widen else "narrow",
    )  # fmt: skip
    return text, jobs
