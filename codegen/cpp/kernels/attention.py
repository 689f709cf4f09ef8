"""C++ for attention without the score matrix: blocks of queries against blocks of keys, in registers and level-1 cache.

A job owns one block of queries of one head, walks over the keys with a running maximum and sum per query, and rescales
its results when the maximum grows. Keys and values are read where they lie if their rows allow it. How the work is cut
depends on the shape alone, so results do not depend on threads or timing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.attention_backward import plan_backward, scratch_at
from dcir.codegen.cpp.kernels.attention_pairs import plan_pairs, takes_pairs
from dcir.codegen.cpp.kernels.attention_text import common_text, dealt, hidden_text
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Runs, Split, ceil_div, core, lanes, round_up, sized
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Symbolic, most
from dcir.cost.machine import Machine
from dcir.isa import Isa
from dcir.ops.library.attention import AttentionSpec

few_text = templates("attention/few")
text_of = templates("attention/attention")

# Accumulators of a register tile and vectors of its widest row: what the registers hold besides the operands.
TILES = {"avx512": (24, 4), "avx2": (12, 3), "generic": (12, 3)}
QUERY_BLOCK = 48
KEY_BLOCK = 128
# A block of values (and of keys, where they are copied) stays in level-1 cache.
BLOCK_BYTES = 32768
# Up to this many queries, lanes across the elements of a head do better than lanes across queries.
FEW_QUERIES = 3


@dataclass(frozen=True)
class _Blocks:
    """Block sizes of a spec; ``nb`` is the rows of a score block, ``queries`` the vectors of its columns, ``dp`` the padded head."""

    spec: AttentionSpec
    isa: Isa

    @property
    def vl(self) -> int:
        return lanes(self.isa, self.spec.compute)

    @property
    def tile(self) -> tuple[int, int]:
        return TILES[self.isa.vectors]

    @property
    def queries(self) -> Split | Runs:
        """Vectors of queries dealt to blocks."""
        return dealt(self.spec.m, self.vl, QUERY_BLOCK)

    @property
    def nb(self) -> int:
        fit = BLOCK_BYTES // (self.dp * ELEMENT_BYTES[self.spec.compute]) // self.vl * self.vl
        longest = min(KEY_BLOCK, max(2 * self.vl, fit))
        n = most(self.spec.n)
        return round_up(ceil_div(n, max(1, ceil_div(n, longest))), self.vl)

    @property
    def few(self) -> bool:
        """Whether there are hardly any queries, at all sizes."""
        return most(self.spec.m) <= FEW_QUERIES

    @property
    def dp(self) -> int:
        return round_up(self.spec.d, self.vl)

    @property
    def all_heads(self) -> int:
        return self.spec.batch * self.spec.heads

    def in_place(self, strides: tuple[int, ...], *, vectors: bool) -> bool:
        """Whether rows can be read where they lie: as scalars, or as whole vectors."""
        if isinstance(strides[2], Symbolic) or isinstance(strides[3], Symbolic):
            return False
        if self.spec.dtype != self.spec.compute or abs(strides[2]) >= 1 << 24 or abs(strides[3]) >= 1 << 24:
            return False
        return not vectors or (strides[3] == 1 and self.spec.d == self.dp)


@planner(AttentionSpec, any_size=True)
def plan_attention(spec: AttentionSpec, machine: Machine) -> KernelPlan:
    """The kernel of an attention or of its gradients."""
    isa = machine.isa
    operator.index(spec.d)  # registers are dealt out by it: it is a constant, or there is no kernel
    if spec.grads:
        return plan_backward(spec, isa)
    blocks = _Blocks(spec, isa)
    return plan_pairs(spec, isa) if takes_pairs(spec, isa) and not blocks.few else _forward(blocks)


def _rows(b: _Blocks, name: str, strides: tuple[int, ...], *more: tuple[int, ...]) -> str:
    """How the rows of keys or values are read: in place, or from a copy with rows of ``dp`` elements; ``more``: the second piece."""
    place = b.in_place(strides, vectors=name == "V" or b.few) and all(st[2:] == strides[2:] for st in more)
    row, step = (strides[2], strides[3]) if place else (b.dp, 1)
    return f"constexpr bool {name}_IN_PLACE = {int(place)};\nconstexpr L {name}_ROW = {row}, {name}_STEP = {step};"


def _common(b: _Blocks) -> str:
    """What all kernels of attention are made of, behind the core."""
    rows = [_rows(b, "K", b.spec.k, *b.spec.more[:1]), _rows(b, "V", b.spec.v, *b.spec.more[1:])]
    return common_text(b.spec, b.queries, b.nb, b.dp, rows, b.tile)


def _forward(b: _Blocks) -> KernelPlan:
    kv = "a1, a2, a3, a4" if b.spec.more else "a1, a2, nullptr, nullptr"
    mask = f"a{1 + len(b.spec.pieces())}" if b.spec.mask else "nullptr"
    least, hidden = hidden_text(b.spec)
    common = _common(b) + least
    before = core(b.isa, b.spec.compute, text_of.common.text)
    if b.few:
        rows, padded = b.all_heads * b.spec.m, round_up(b.spec.n + (b.vl if b.spec.more else 0), 16)
        some = {"hidden": "== -INF", "most": "", "seen": ""}
        if least:
            some = {
                "hidden": "<= most",
                "most": " T most = -INF;",
                "seen": " most = most < LEAST ? any_hidden_from(high) : most;",
            }
        own, holder = sized(common + few_text.few(some, padded=padded))
        text = f"namespace dcir_attention {{{before}{own}}}\n"
        phase = Phase(rows, f"dcir_attention::{holder}attend(j, a0, {kv}, {mask}, {scratch_at(0)}, o0, o1);")
        return KernelPlan("attention_few", text, (phase,), rows * padded * ELEMENT_BYTES[b.spec.compute], bool(holder))
    own, holder = sized(common + text_of.forward(hidden=hidden))
    text = f"namespace dcir_attention {{{before}{own}}}\n"
    phase = Phase(b.all_heads * b.queries.parts, f"dcir_attention::{holder}attend(j, a0, {kv}, {mask}, o0, o1);")
    return KernelPlan("attention", text, (phase,), holds_sizes=bool(holder))
