"""The figures of a CPU that cost functions count with, each with where it comes from.

They are those of the machines on which the cost models were fitted, not of the machine at hand: how a network is compiled must not
depend on what a measurement on a busy machine came to, and equal networks have equal kernels on equal processors. What
``dcir machine`` measures (``machine.Rates``) is for reports.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from dcir.cost.costs import Costs, LayoutCosts, MemoryCosts
from dcir.cost.matrix_unit import DEPTH, MatrixUnit
from dcir.cost.winograd import WinogradCosts
from dcir.isa import Isa

MATRIX_UNIT = MatrixUnit(
    step_cycles=390,
    tile_cycles=1000,
    rows_cycles=1000,
    panel_cycles=300,
    strips=7,
    multiply_adds=24,
    gain=0.86,
    least_tiles=20,
    clock=3.5e9,
)
"""Fitted to measurements of 40 products on a Xeon with AMX."""

HALVES_UNIT = replace(
    MATRIX_UNIT, step_cycles=110, tile_cycles=700, rows_cycles=400, panel_cycles=200, strips=21, least_tiles=4
)
"""The same of numbers of bf16, which have one part: of 64 products measured, those of 16 rows and more were faster so."""

MEMORY = MemoryCosts(
    # What ``RunPerImage`` was fitted with, for a core with AVX-512.
    near_bytes=1 << 20,
    far_bytes=8 << 20,
    near=1 / 280e9,
    far=1 / 120e9,
    memory=1 / 36e9,
    packing=1 / 12e9,
    line_bytes=64,
    # A first-level cache of 64 sets of lines, which every x86-64 processor has had for twenty years.
    conflict_bytes=4096,
    # What ``FuseProducers`` was fitted with.
    row_bytes=131072,
    block_bytes=524288,
    # What ``MergeSummedConvolutions`` was fitted with.
    weight_bytes=2048 << 10,
    image_bytes=24 << 20,
)

LAYOUT = LayoutCosts(across=3, apart=1, turn=2, copy=3, few_channels=16, narrow=8, flops_per_byte=8)
"""A vector of lanes that lie apart touches a cache line for each, about 4 times the bytes."""

FLOPS = 250e9
"""What ``RunPerImage`` was fitted with: a core's products and convolutions, in one thread of AVX-512."""

BUSY_JOBS = 48
"""What ``SplitReduction`` was fitted with."""


@functools.cache
def cpu_costs(isa: Isa) -> Costs:
    """The costs of a CPU with an instruction set."""
    unit = MATRIX_UNIT if isa.matrix_unit else None
    return Costs(FLOPS, BUSY_JOBS, MEMORY, LAYOUT, _winograd(isa), unit)


def _winograd(isa: Isa) -> WinogradCosts:
    """Fitted to measurements of 16 shapes within 15 %, with two cores."""
    return WinogradCosts(
        isa=isa,
        cores=2,
        lanes=16,
        per_cycle=1.8,
        weight_bytes=(6.0, 8.0),
        transform=0.3,
        sum_bytes=6.8,
        turn=2.0,
        apart=1.0,
        start=40e3,
        tile=350,
        panel=4,
        # Measured on a Xeon with AMX: 500 GFLOP/s of 512 channels, 430 of 128, 350 of 64.
        unit_step=DEPTH if isa.matrix_unit else None,
        unit_rate=2.7,
        gathered=0.8,
        pairs=1.7 if isa.dots else 1.0,
    )
