"""Weights of 3 x 3 convolutions packed and transformed for Winograd's form: nine taps in, a tile's points out, in registers.

A job takes a panel of output channels and a block of input channels. Lanes are output channels; where a channel's inputs and taps, or
its taps, lie in order, blocks of them are turned around first, else every lane is loaded by itself. The arithmetic is in float64.
"""

from __future__ import annotations

from dcir.codegen.plan import KernelPlan
from dcir.codegen.tiles.conv_winograd import transform_text
from dcir.codegen.tiles.emit import Draft, Step, assemble, ceil_div, lanes, render
from dcir.codegen.tiles.isa import Isa
from dcir.ops import winograd
from dcir.ops.packing import panels
from dcir.ops.winograd import WinogradWeightsSpec

_TEXT = """
typedef double W __attribute__((vector_size(VL * 8)));
$noinline void run(L j, const T *a0, const T *, const T *, T *o0, unsigned char *) {
    const L p = j / $blocks, i0 = j % $blocks * VL, i1 = i0 + VL < $ci ? i0 + VL : $ci;
    for (L v = 0; v < $panel; v += VL) {
        const L o = p * $panel + v, left = $co - o;
        const int rows = (int)(left < 0 ? 0 : left < VL ? left : VL);
        const T *s = a0 + o * ${wo}LL;
        T *d = o0 + p * ${panel_step}LL + v;
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
                store(d + (k * ${ci}LL + i) * $panel, __builtin_convertvector(w[k], dcir_tile::V));
        }
    }
}
"""
_STAGE = """alignas(64) T t[VL * 9 * VL];
        for (L f = 0; f < (i1 - i0) * 9; f += VL) {
            const L count = (i1 - i0) * 9 - f;
            transpose_block(s + i0 * 9 + f, ${wo}LL, rows, (int)(count < VL ? count : VL), dcir_tile::V{}, t + f * VL, VL, VL);
        }"""
_TURN = """alignas(64) T t[9 * VL];
            transpose_block(s + i * ${wi}LL, ${wo}LL, rows, 9, dcir_tile::V{}, t, VL, VL);"""
_LOAD_TURNED = "x = load(t + (($row) * 3 + $column) * VL);"
_LOAD_STAGED = "x = load(t + ((i - i0) * 9 + ($row) * 3 + $column) * VL);"
_LOAD_APART = (
    "for (int n = 0; n < rows; n++) x[n] = s[n * ${wo}LL + i * ${wi}LL + ($row) * ${wh}LL + ($column) * ${ww}LL];"
)


def plan_weights(spec: WinogradWeightsSpec, isa: Isa) -> KernelPlan:
    """The kernel of a transform of weights."""
    gh, gw = (winograd.matrices(t)[1] for t in spec.tile)
    high, wide = len(gh), len(gw)
    wo, wi, wh, ww = spec.w
    blocks = ceil_div(spec.cin, lanes(isa, spec.dtype))
    together, turned = (wi, wh, ww) == (9, 3, 1), (wh, ww) == (3, 1) and lanes(isa, spec.dtype) >= 9
    count = panels(spec.cout, spec.panel)
    row, column = ("2 - k", "2 - l") if spec.flipped else ("k", "l")
    values = {"row": row, "column": column, "wo": wo, "wi": wi, "wh": wh, "ww": ww}
    text = render(
        _TEXT, blocks=blocks, ci=spec.cin, co=spec.cout, panel=spec.panel, points=high * wide, wide=wide, wo=wo,
        panel_step=high * wide * spec.cin * spec.panel, stage=render(_STAGE, wo=wo) if together else "",
        turn=render(_TURN, wi=wi, wo=wo) if turned and not together else "",
        load=render(_LOAD_STAGED if together else _LOAD_TURNED if turned else _LOAD_APART, **values),
        transform=transform_text("w", (3, 3), (gh, gw), wide),
    )  # fmt: skip
    name = f"winograd_weights_{spec.cin}_{spec.cout}"
    return assemble(Draft(name, spec.dtype, text, (Step(count * blocks, "run"),)), isa, 1)
