"""Networks of tests get the target that the driver would give them; its figures may be others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dcir.cost.costs import Costs
from dcir.driver.targets.cpp import CppTarget
from dcir.driver.targets.host import host_machine
from dcir.ir.network import Network
from dcir.isa import ISAS


@dataclass(frozen=True)
class Adjusted(CppTarget):
    """Code for this machine, by costs of another one."""

    other: Costs | None = None

    @property
    def costs(self) -> Costs:
        return self.other or super().costs


def target(
    threads: int = 2,
    *,
    isa: str | None = None,
    matrix_unit: bool | None = None,
    flops: float | None = None,
    **memory: Any,
) -> CppTarget:
    """Code for this machine.

    Args:
        threads: the team.
        isa: for another instruction set.
        matrix_unit: with the costs of a machine that has a matrix unit, or without.
        flops, memory: figures of its costs (``dcir.cost.costs``).
    """
    machine = host_machine(threads)
    if isa is not None:
        machine = replace(machine, isa=ISAS[isa])
    if matrix_unit is not None and matrix_unit != machine.isa.matrix_unit:
        machine = replace(machine, isa=ISAS["amx" if matrix_unit else "avx512"])
    plain = CppTarget(machine)
    costs = replace(plain.costs, memory=replace(plain.costs.memory, **memory), flops=flops or plain.costs.flops)
    return Adjusted(machine, costs)


def on_host(net: Network, threads: int = 2) -> Network:
    """The network, for a team on this machine."""
    net.target = CppTarget(host_machine(threads))
    return net
