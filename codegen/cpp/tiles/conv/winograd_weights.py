"""Weights of 3 x 3 convolutions packed and transformed for Winograd's form: nine taps in, a tile's points out, in registers.

A job takes a panel of output channels and a block of input channels. Lanes are output channels; where a channel's inputs and taps, or
its taps, lie in order, blocks of them are turned around first, else every lane is loaded by itself. The arithmetic is in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.winograd import transform_text
from dcir.codegen.cpp.tiles.emit import Draft, TileStep, assemble, ceil_div, lanes
from dcir.codegen.plan import KernelPlan, Phase, SizeGeneric
from dcir.isa import Isa
from dcir.ops.library import winograd
from dcir.ops.library.packing import panels
from dcir.ops.library.winograd import WinogradWeightsSpec

text_of = templates("conv/winograd_weights")

_SIZES = ("blocks", "ci", "co", "wo", "wi", "wh", "ww")


@dataclass(frozen=True)
class SizeGenericWinogradWeights(SizeGeneric):
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


def size_generic_weights(
    spec: WinogradWeightsSpec, isa: Isa, threads: int
) -> tuple[SizeGenericWinogradWeights, tuple[int, ...]]:
    """The kernel of a transform for any sizes, and the table of its numbers."""
    order, jobs = _order(spec, isa), _units(spec, isa)
    made = SizeGenericWinogradWeights(spec.dtype, spec.tile, spec.panel, spec.flipped, order, 8 * threads)
    return made, (jobs, *_sizes(spec, isa))


def plan_weights(spec: WinogradWeightsSpec, isa: Isa) -> KernelPlan:
    """The kernel of a transform of weights."""
    sizes = ", ".join(f"{n} = {value}" for n, value in zip(_SIZES, _sizes(spec, isa), strict=True))
    text = _text(spec, _order(spec, isa), f"constexpr L {sizes};")
    name = f"winograd_weights_{spec.cin}_{spec.cout}"
    return assemble(Draft(name, spec.dtype, text, (TileStep(_units(spec, isa), "run"),)), isa, 1)


def plan_size_generic_weights(spec: SizeGenericWinogradWeights, isa: Isa) -> KernelPlan:
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


def _text(spec: WinogradWeightsSpec | SizeGenericWinogradWeights, order: str, sizes: str) -> str:
    gh, gw = (winograd.matrices(t)[1] for t in spec.tile)
    high, wide = len(gh), len(gw)
    row, column = ("2 - k", "2 - l") if spec.flipped else ("k", "l")
    load = {"staged": text_of.load_staged, "turned": text_of.load_turned, "apart": text_of.load_apart}[order]
    return text_of.kernel(
        sizes=sizes, panel=spec.panel, points=high * wide, wide=wide,
        points_of_panel=high * wide * spec.panel, stage=text_of.stage() if order == "staged" else "",
        turn=text_of.turn() if order == "turned" else "", load=load(row=row, column=column),
        transform=transform_text("w", (3, 3), (gh, gw), wide),
    )  # fmt: skip
