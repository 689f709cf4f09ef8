"""C++ for the gradients of attention, without the score matrix.

Queries, keys and values are packed once; a job owns a run of key blocks of one head of keys, computes the probabilities again
from the log-sum-exp, sums dk and dv in its own memory and its part of dq in scratch; a last phase adds the parts in
order. How the work is cut depends on the shape alone, so results do not depend on threads or timing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, STORED, ceil_div, core, lanes, round_up, sized
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import larger, most, moves, smaller
from dcir.isa import Isa
from dcir.ops.library.attention import AttentionSpec

text_of = templates("attention/backward")
numbers_of = templates("attention/attention")

# Rows by vectors of a register tile: what 32 or 16 vector registers hold besides the operands.
TILES = {"avx512": (6, 4), "avx2": (6, 2), "generic": (6, 2)}
QUERY_BLOCK = 48
KEY_BLOCK = 128
# Heads with fewer jobs than this are cut along the keys too in the backward pass.
BACKWARD_JOBS = 32
# With causal attention smaller blocks follow the diagonal more closely.
CAUSAL_KEY_BLOCK = 64


@dataclass(frozen=True)
class _BackwardBlocks:
    """Block sizes of a spec; ``qb`` and ``nb`` are the rows and columns of a score block, ``dp`` the padded head."""

    spec: AttentionSpec
    isa: Isa

    @property
    def vl(self) -> int:
        return lanes(self.isa, self.spec.compute)

    @property
    def tile(self) -> tuple[int, int]:
        return TILES[self.isa.vectors]

    @property
    def moving(self) -> bool:
        """Whether the numbers of queries or of keys move: blocks of keys are of one size then, and the last one has what is left."""
        return moves(self.spec.m, self.spec.n)

    @property
    def query_blocks(self) -> int:
        return ceil_div(self.spec.m, QUERY_BLOCK)

    @property
    def qb(self) -> int:
        even = round_up(ceil_div(self.spec.m, self.query_blocks), self.tile[0])
        return smaller(even, QUERY_BLOCK) if self.moving else even

    @property
    def nb(self) -> int:
        longest = CAUSAL_KEY_BLOCK if self.spec.causal else KEY_BLOCK
        if self.moving:
            return round_up(min(most(self.spec.n), longest), self.vl)
        return round_up(ceil_div(self.spec.n, ceil_div(self.spec.n, longest)), self.vl)

    @property
    def key_blocks(self) -> int:
        return ceil_div(self.spec.n, self.nb)

    @property
    def dp(self) -> int:
        return round_up(self.spec.d, self.vl)

    @property
    def all_heads(self) -> int:
        return self.spec.batch * self.spec.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys of all batches."""
        return self.spec.batch * self.spec.key_heads

    @property
    def parts(self) -> int:
        """Runs of key blocks per head of keys in the backward pass."""
        return smaller(self.key_blocks, larger(1, BACKWARD_JOBS // self.key_heads))

    @property
    def room(self) -> int:
        """Elements of all parts of dq, at most."""
        if not moves(self.parts):
            return most(self.parts * self.queries)
        # Heads of keys in as many parts are as many jobs as are wanted, or there is one part.
        rows = self.spec.group * self.query_blocks * self.qb * self.dp
        return max(BACKWARD_JOBS, most(self.key_heads)) * most(rows)

    @property
    def kt(self) -> int:
        """Elements of all packed transposed keys (or values)."""
        return self.key_heads * self.key_blocks * self.spec.d * self.nb

    @property
    def rows(self) -> int:
        """Elements of all packed rows of keys (or values)."""
        return self.key_heads * self.key_blocks * self.nb * self.dp

    @property
    def queries(self) -> int:
        """Elements of all packed rows of queries."""
        return self.all_heads * self.query_blocks * self.qb * self.dp


def place_function(name: str, strides: tuple[int, ...], *loops: str, group: int = 1) -> str:
    """A C function from loop positions to an element's place; ``group`` values of h mean the same."""
    values = [f"{v} / {group}" if v == "h" and group > 1 else v for v in loops]
    terms = [f"{v} * {s}LL" for v, s in zip(values, strides, strict=True) if s] or ["0"]
    parameters = ", ".join(f"L {v}" for v in loops)
    return f"static inline L at_{name}({parameters}) {{ return {' + '.join(terms)}; }}"


def _common(b: _BackwardBlocks) -> str:
    spec, (mr, nv) = b.spec, b.tile
    places = {"q": spec.q, "k": spec.k, "v": spec.v, "o": spec.o}
    if spec.grads:
        places.update(zip(("g", "dq", "dk", "dv"), spec.grads, strict=True))
    lines = [place_function(name, st, "b", "h", "i", "e") for name, st in places.items()]
    lines.append(place_function("lse", spec.lse, "b", "h", "i"))
    lines.append(place_function("mask", spec.mask or (0, 0, 0, 0), "b", "h", "i", "c"))
    extents = (text_of.moving if b.moving else text_of.fixed)(
        {"most_queries": most(b.qb)}, mr=mr, nv=nv, qb=b.qb, nb=b.nb, d=spec.d, dp=b.dp,
        m=spec.m, n=spec.n, heads=spec.heads, group=spec.group, qblocks=b.query_blocks, kblocks=b.key_blocks,
    )  # fmt: skip
    return numbers_of.numbers() + text_of.common(
        S=STORED[spec.dtype], extents=extents, scale=repr(float(spec.scale)),
        causal=int(spec.causal), masked=int(bool(spec.mask)), places="\n".join(lines),
        count=", L keys" if b.moving else "", keys="keys" if b.moving else "NB",
    )  # fmt: skip


def _gradients(b: _BackwardBlocks) -> str:
    """The functions of the phases."""
    columns, queries, padded, some, scores, read = "", "QB", "NB", "", text_of.scores(), "NB"
    if b.moving:
        columns, queries, scores, read = text_of.columns(), "QUERIES", text_of.scores_moving(), "read"
        padded = "(cols + VL - 1) / VL * VL"
        some = f", {padded}"
    return columns + text_of.backward(
        parts=b.parts, heads_total=b.all_heads, queries=queries, padded=padded, some=some, scores=scores, read=read
    )


def scratch_at(offset: int) -> str:
    """The place of an element in scratch, as a pointer."""
    return f"(dcir_attention::T *)scratch + {offset}ll"


def plan_backward(spec: AttentionSpec, isa: Isa) -> KernelPlan:
    """The kernel of the gradients."""
    b = _BackwardBlocks(spec, isa)
    before = core(b.isa, spec.compute, text_of.common.text)
    own, holder = sized(_common(b) + _gradients(b))
    text = f"namespace dcir_attention {{{before}{own}}}\n"
    sizes = {"kt": b.kt, "vt": b.kt, "kp": b.rows, "qs": b.queries, "gs": b.queries,
             "delta": round_up(b.all_heads * b.query_blocks * b.qb, 16)}  # fmt: skip
    place, at = {}, 0
    for name, size in sizes.items():
        place[name] = scratch_at(at)
        at += size
    place["part"] = scratch_at(at)
    call = f"dcir_attention::{holder}"
    mask = "a6" if b.spec.mask else "nullptr"
    p = place
    phases = (
        Phase(b.key_heads * b.key_blocks, f"{call}pack_keys(j, a2, a3, {p['kt']}, {p['vt']}, {p['kp']});"),
        Phase(
            b.all_heads * b.query_blocks,
            f"{call}pack_queries(j, a1, a0, a4, {p['qs']}, {p['gs']}, {p['delta']});",
        ),
        Phase(
            b.key_heads * b.parts,
            f"{call}gradients(j, {mask}, a5, {p['kt']}, {p['vt']}, {p['kp']}, {p['qs']}, {p['gs']}, "
            f"{p['delta']}, {p['part']}, o1, o2);",
        ),
        Phase(b.all_heads * b.query_blocks, f"{call}sum_parts(j, {p['part']}, o0);"),
    )
    size = (most(at) + b.room) * ELEMENT_BYTES[b.spec.compute]
    return KernelPlan("attention_backward", text, phases, size, bool(holder))
