"""C++ for attention in bfloat16 on instructions that multiply pairs: the matrix unit, or dot products of vectors.

    scores[key][query]  = rows of pairs of k    x  columns of pairs of q
    out[element][query] = rows of pairs of v^T  x  columns of pairs of probabilities, which are two rows of scores each

Both products have queries in their lanes, so that what lies between them (maxima, exponentials, sums) goes by whole vectors, and two
rows of it become pairs with a shift. Keys are packed and values transposed once, for all queries; results once, at the end. Scores and
sums are f32; probabilities are rounded to bfloat16, as PyTorch rounds them. Numbers below 2^-126 count as zeros in products.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from dcir.codegen.cpp.kernels.attention_text import common_text, dealt, hidden_text
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import Runs, Split, ceil_div, core, exchanges, lanes, round_up, sized
from dcir.codegen.cpp.tiles.gemm.unit import unit_registers
from dcir.codegen.cpp.tiles.half_dots import functions
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Symbolic, most
from dcir.isa import Isa
from dcir.ops.library.attention import AttentionSpec

text_of = templates("attention/pairs")

# A block of scores goes from one product to the next by way of the nearest cache (docs/measurements/attention.md).
QUERY_BLOCK = 32
UNIT_KEYS, DOT_KEYS = 32, 64
_COPIED = "constexpr bool K_IN_PLACE = false, V_IN_PLACE = false;\nconstexpr L K_ROW = 0, K_STEP = 0;"
PACKED = 128  # keys that a job packs
"""A multiple of 32, as blocks of keys are."""


def takes_pairs(spec: AttentionSpec, isa: Isa) -> bool:
    """Whether the attention is computed so: of bfloat16, forward, with instructions for it."""
    return spec.dtype == "bf16" and not spec.grads and (isa.matrix_unit or isa.dots)


@dataclass(frozen=True)
class PairBlocks:
    """Block sizes of a spec: vectors of ``queries`` dealt to blocks, and ``nb`` keys; ``dk`` and ``dp`` are padded heads."""

    spec: AttentionSpec
    isa: Isa

    @property
    def vl(self) -> int:
        return lanes(self.isa, "f32")

    @property
    def queries(self) -> Split | Runs:
        return dealt(self.spec.m, self.vl, QUERY_BLOCK)

    @property
    def nb(self) -> int:
        return min(round_up(most(self.spec.n), 32), UNIT_KEYS if self.isa.matrix_unit else DOT_KEYS)

    @property
    def dk(self) -> int:
        """In whole tiles of 16 pairs."""
        return round_up(self.spec.d, 32)

    @property
    def dp(self) -> int:
        """In whole tiles of 16 rows."""
        return round_up(self.spec.d, 16)

    @property
    def heads(self) -> int:
        """Heads of keys of all batches."""
        return self.spec.batch * self.spec.key_heads

    @property
    def keys(self) -> int:
        """Elements of all packed keys."""
        return self.heads * round_up(self.spec.n, 16) * self.dk

    @property
    def values(self) -> int:
        """Elements of all packed values."""
        return self.heads * round_up(self.spec.n, 32) * self.dp


def near(*strides: tuple[int, ...]) -> bool:
    """Whether the elements of heads are neighbours."""
    return all(not isinstance(st[3], Symbolic) and st[3] == 1 for st in strides)


def plan_pairs(spec: AttentionSpec, isa: Isa) -> KernelPlan:
    """The kernel of an attention in pairs."""
    operator.index(spec.d)
    b = PairBlocks(spec, isa)
    least, hidden = hidden_text(spec)
    text = common_text(spec, b.queries, b.nb, b.dp, [_COPIED]) + least + _pack(b)
    text += text_of.registers() if isa.matrix_unit else text_of.dots()
    text += text_of.attend(
        near_q=_flag(near(spec.q)), apart_q=spec.q[3],
        hidden=hidden,
        tiles="Tiles registers;" if isa.matrix_unit else "",
    )  # fmt: skip
    before = core(isa, "f32", text) + (unit_registers() if isa.matrix_unit else "") + functions()
    own, holder = sized(text)
    call = f"const D_NoDenormals none; dcir_attention::{holder}"
    keys, values = "(unsigned short *)scratch", f"(unsigned short *)scratch + {round_up(b.keys, 32)}ll"
    more = "a3, a4" if spec.more else "nullptr, nullptr"
    mask = f"a{1 + len(spec.pieces())}" if spec.mask else "nullptr"
    phases = (
        Phase(b.heads * ceil_div(spec.n, PACKED), f"{call}pack(j, a1, a2, {more}, {keys}, {values});"),
        Phase(spec.batch * spec.heads * b.queries.parts, f"{call}attend(j, a0, {mask}, {keys}, {values}, o0, o1);"),
    )
    size = 2 * most(round_up(b.keys, 32) + b.values)
    return KernelPlan("attention_pairs", f"namespace dcir_attention {{{before}{own}}}\n", phases, size, bool(holder))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _pack(b: PairBlocks) -> str:
    spec = b.spec
    ks, vs = (spec.k, *spec.more[:1]), (spec.v, *spec.more[1:])
    halves = [", ".join(f"{i}, {32 + i}" for i in range(at, at + 16)) for at in (0, 16)]
    return text_of.pack(
        dk=b.dk, key_heads=spec.key_heads, group=spec.group, chunk=PACKED,
        chunks=ceil_div(spec.n, PACKED), keys=round_up(spec.n, 16), steps=ceil_div(spec.n, 32),
        exchanges=exchanges(16, lambda i: f"rows[{i}]", lambda v, i: f"store(to + {i} * step, {v})"),
        low=halves[0], high=halves[1],
        near_k=_flag(near(*ks)), apart_k=_apart(b, "k", ks), near_v=_flag(near(*vs)), apart_v=_apart(b, "v", vs),
    )  # fmt: skip


def _apart(b: PairBlocks, name: str, pieces: tuple[tuple[int, ...], ...]) -> str:
    """How far apart the elements of a row are, of key ``c`` or ``at``."""
    if len(pieces) == 1 or pieces[0][3] == pieces[1][3]:
        return str(pieces[0][3])
    at = "c" if name == "k" else "at"
    return f"({at} < {b.spec.first} ? {pieces[0][3]} : {pieces[1][3]})"
