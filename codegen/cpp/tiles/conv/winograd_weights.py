"""Weights of 3 x 3 convolutions packed and transformed for Winograd's form: nine taps in, a tile's points out, in registers.

A job takes a panel of output channels and a block of input channels. Lanes are output channels; where a channel's inputs and taps, or
its taps, lie in order, blocks of them are turned around first, else every lane is loaded by itself. The arithmetic is in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.tiles.conv.winograd import transform_text
from dcir.codegen.cpp.tiles.emit import Draft, TileStep, assemble, ceil_div, lanes, render
from dcir.codegen.plan import KernelPlan, Phase, SizeGeneric
from dcir.isa import Isa
from dcir.ops.library import winograd
from dcir.ops.library.packing import panels
from dcir.ops.library.winograd import WinogradWeightsSpec

_TEXT = """
typedef double W __attribute__((vector_size(VL * 8)));
$noinline void run(L j, const T *a0, const T *a1, const T *, T *o0, unsigned char *) {
    $sizes
    const L p = j / blocks, i0 = j % blocks * VL, i1 = i0 + VL < ci ? i0 + VL : ci;
    for (L v = 0; v < $panel; v += VL) {
        const L o = p * $panel + v, left = co - o;
        const int rows = (int)(left < 0 ? 0 : left < VL ? left : VL);
        const T *s = a0 + o * wo;
        T *d = o0 + p * ci * ${points_of_panel}LL + v;
        $stage
        for (L i = i0; i < i1; i++) {
            $turn
            W w[$points];
            for (int k = 0; k < 3; k++)
                for (int l = 0; l < 3; l++) {
                    V x = {};
                    $load
                    w[k * $wide + l] = __builtin_convertvector(x, W);
                }
            typedef W V;
            typedef double S;
            $transform
#pragma GCC unroll 64
            for (int k = 0; k < $points; k++)
                store(d + (k * ci + i) * $panel, __builtin_convertvector(w[k], dcir_tile::V));
        }
    }
}
"""
_STAGE = """alignas(64) T t[VL * 9 * VL];
        for (L f = 0; f < (i1 - i0) * 9; f += VL) {
            const L count = (i1 - i0) * 9 - f;
            transpose_block(s + i0 * 9 + f, wo, rows, (int)(count < VL ? count : VL), dcir_tile::V{}, t + f * VL, VL, VL);
        }"""
_TURN = """alignas(64) T t[9 * VL];
            transpose_block(s + i * wi, wo, rows, 9, dcir_tile::V{}, t, VL, VL);"""
_LOAD_TURNED = "x = load(t + (($row) * 3 + $column) * VL);"
_LOAD_STAGED = "x = load(t + ((i - i0) * 9 + ($row) * 3 + $column) * VL);"
_LOAD_APART = "for (int n = 0; n < rows; n++) x[n] = s[n * wo + i * wi + ($row) * wh + ($column) * ww];"
_SIZES = ("blocks", "ci", "co", "wo", "wi", "wh", "ww")


@dataclass(frozen=True)
class SizelessWinogradWeights(SizeGeneric):
    """All transforms of weights that differ only in their sizes.

    Attributes:
        dtype, tile, panel, flipped: as of a spec.
        order: how weights lie: "staged" (a channel's inputs and taps in order), "turned" (its taps), "apart".
        parts: jobs in all.
    """

    dtype: str
    tile: tuple[int, ...]
    panel: int
    flipped: bool
    order: str
    parts: int

    kind = "sizeless winograd weights"


def weights_sizeless(
    spec: WinogradWeightsSpec, isa: Isa, threads: int
) -> tuple[SizelessWinogradWeights, tuple[int, ...]]:
    """The kernel of a transform for any sizes, and the table of its numbers."""
    order, jobs = _order(spec, isa), _units(spec, isa)
    made = SizelessWinogradWeights(spec.dtype, spec.tile, spec.panel, spec.flipped, order, 8 * threads)
    return made, (jobs, *_sizes(spec, isa))


def plan_weights(spec: WinogradWeightsSpec, isa: Isa) -> KernelPlan:
    """The kernel of a transform of weights."""
    sizes = ", ".join(f"{n} = {value}" for n, value in zip(_SIZES, _sizes(spec, isa), strict=True))
    text = _text(spec, _order(spec, isa), f"constexpr L {sizes};")
    name = f"winograd_weights_{spec.cin}_{spec.cout}"
    return assemble(Draft(name, spec.dtype, text, (TileStep(_units(spec, isa), "run"),)), isa, 1)


def plan_weights_sizeless(spec: SizelessWinogradWeights, isa: Isa) -> KernelPlan:
    """The kernel for any sizes; its second operand is the table."""
    sizes = ", ".join(f"{n} = ((const L *)a1)[{i}]" for i, n in enumerate(_SIZES, 1))
    draft = Draft("winograd_weights", spec.dtype, _text(spec, spec.order, f"const L {sizes};"), ())
    call = "dcir_tile::run(unit, a0, (const dcir_tile::T *)a1, nullptr, o0, scratch);"
    code = f"for (long long unit = a1[0] * j / {spec.parts}; unit < a1[0] * (j + 1) / {spec.parts}; unit++) {call}"
    made = assemble(draft, isa, 1)
    return KernelPlan(made.name, made.globals, (Phase(spec.parts, code),))


def _order(spec: WinogradWeightsSpec, isa: Isa) -> str:
    if spec.w[1:] == (9, 3, 1):
        return "staged"
    return "turned" if spec.w[2:] == (3, 1) and lanes(isa, spec.dtype) >= 9 else "apart"


def _sizes(spec: WinogradWeightsSpec, isa: Isa) -> tuple[int, ...]:
    return ceil_div(spec.cin, lanes(isa, spec.dtype)), spec.cin, spec.cout, *spec.w


def _units(spec: WinogradWeightsSpec, isa: Isa) -> int:
    return panels(spec.cout, spec.panel) * ceil_div(spec.cin, lanes(isa, spec.dtype))


def _text(spec: WinogradWeightsSpec | SizelessWinogradWeights, order: str, sizes: str) -> str:
    gh, gw = (winograd.matrices(t)[1] for t in spec.tile)
    high, wide = len(gh), len(gw)
    row, column = ("2 - k", "2 - l") if spec.flipped else ("k", "l")
    load = {"staged": _LOAD_STAGED, "turned": _LOAD_TURNED, "apart": _LOAD_APART}[order]
    return render(
        _TEXT, sizes=sizes, panel=spec.panel, points=high * wide, wide=wide,
        points_of_panel=high * wide * spec.panel, stage=_STAGE if order == "staged" else "",
        turn=_TURN if order == "turned" else "", load=render(load, row=row, column=column),
        transform=transform_text("w", (3, 3), (gh, gw), wide),
    )  # fmt: skip
