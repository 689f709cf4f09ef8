"""Targets: what a network is compiled for, and what its costs say on machines with a matrix unit and without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcir.cost.cpu import LAYOUT, MATRIX_UNIT, MEMORY, cpu_costs
from dcir.cost.machine import Machine
from dcir.cost.target import target_of
from dcir.driver.targets.cpp import CppTarget
from dcir.driver.targets.dace import DaceTarget
from dcir.errors import InvalidGraph, OptionError
from dcir.ir.network import Network
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.on_host import on_host


def test_a_network_has_the_target_that_it_was_given() -> None:
    net = on_host(Network(), 3)
    assert isinstance(target_of(net), CppTarget) and target_of(net).machine.threads == 3
    assert target_of(net.clone()) == target_of(net)
    with pytest.raises(InvalidGraph, match="compiled for no target"):
        target_of(Network())


def test_dace_makes_its_own_code() -> None:
    target = DaceTarget(Machine(ISAS["avx2"], 1))
    with pytest.raises(OptionError, match="DaCe makes its own code"):
        _ = target.backend
    assert [p.name for p in target.pipeline(4)] == [p.name for p in CppTarget(target.machine).pipeline(4)]


def test_code_depends_on_instructions_and_threads_alone() -> None:
    machine = Machine(ISAS["avx2"], 2, "a processor")
    assert machine.key == replace(machine, identity="another").key
    assert len({machine.key, replace(machine, threads=1).key, replace(machine, isa=ISAS["generic"]).key}) == 3


@pytest.mark.parametrize("isa", ISAS)
def test_figures_are_the_same_on_every_processor(isa: str) -> None:
    """They decide the same way wherever the code is made; only what an instruction set has or lacks differs."""
    costs = cpu_costs(ISAS[isa])
    assert costs.memory is MEMORY and costs.layout is LAYOUT
    assert (costs.matrix_unit is MATRIX_UNIT) == (isa == "amx") == bool(costs.winograd.unit_step)


def test_memory() -> None:
    assert [MEMORY.seconds(n) for n in (1, MEMORY.near_bytes, MEMORY.near_bytes + 1, MEMORY.far_bytes, MEMORY.far_bytes + 1)] == [
        MEMORY.near, MEMORY.near, MEMORY.far, MEMORY.far, MEMORY.memory,
    ]  # fmt: skip


def test_a_matrix_unit_wants_large_products() -> None:
    assert MATRIX_UNIT.wins(1, 1024, 1024, 1024) and not MATRIX_UNIT.wins(1, 32, 32, 1024)
    assert not MATRIX_UNIT.wins(1, 1024, 1024, 8), "splitting short rows takes longer than multiplying"
    assert MATRIX_UNIT.share(1024, 1024, 1024) < MATRIX_UNIT.gain < MATRIX_UNIT.share(1024, 1024, 8)
    large = ContractionSpec(alike("f32"), (), 1024, 1024, 1024, (1024, 1), (1024, 1), (1024, 1))
    apart = replace(large, b=(2048, 2))
    assert (
        0
        < MATRIX_UNIT.seconds(large)
        < MATRIX_UNIT.seconds(apart)
        == 1024**3 / MATRIX_UNIT.multiply_adds / MATRIX_UNIT.clock
    )
    assert MATRIX_UNIT.seconds(large, 2) > MATRIX_UNIT.seconds(large) and MATRIX_UNIT.seconds("another") == 0


def test_winograd_pays_for_many_channels() -> None:
    costs = cpu_costs(ISAS["avx2"]).winograd
    on_unit = cpu_costs(ISAS["amx"]).winograd

    def spec(channels: int, size: int) -> ConvolutionSpec:
        image = (channels * size * size, 1, size * channels, channels)
        weights = (9 * channels, 9, 3, 1)
        return ConvolutionSpec(
            "forward", alike("f32"), 1, 1, channels, channels, (size, size), (3, 3), (size, size), (1, 1), (1, 1), (1, 1),
            image, weights, image,
        )  # fmt: skip

    deep, few = spec(256, 56), spec(16, 8)
    assert costs.forward(deep, (2, 4), static=True) < 0.9 * costs.direct(deep)
    assert costs.forward(few, (2, 4), static=True) > 0.9 * costs.direct(few)
    assert costs.forward(deep, (2, 4), static=True) < costs.forward(deep, (2, 4), static=False)
    assert costs.gradient(deep, (2, 4)) > 0 and costs.turning(100) == 100 and costs.storing_apart(100) == 50
    assert on_unit.direct(deep) < costs.direct(deep) and on_unit.on_unit(deep) and not costs.on_unit(deep)
