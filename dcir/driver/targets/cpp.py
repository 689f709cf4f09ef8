"""The target "cpp": C++ with OpenMP for the CPU at hand, through GCC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcir.codegen.backend import Backend
from dcir.codegen.cpp.backend import CppBackend
from dcir.cost.costs import Costs
from dcir.cost.cpu import cpu_costs
from dcir.driver.targets.base import DriverTarget
from dcir.isa import require_executable
from dcir.transforms.base import Pass

_BACKEND = CppBackend()


@dataclass(frozen=True)
class CppTarget(DriverTarget):
    """All levels, vectors, matrix units, tuning, compiled files."""

    name: ClassVar[str] = "cpp"
    tunes: ClassVar[bool] = True
    saves: ClassVar[bool] = True
    saves_sizes: ClassVar[bool] = True
    profiles: ClassVar[bool] = True
    records: ClassVar[bool] = True
    schedules: ClassVar[bool] = True

    @property
    def costs(self) -> Costs:
        """A CPU's."""
        return cpu_costs(self.machine.isa)

    @property
    def backend(self) -> Backend:
        """Kernels as C++."""
        return _BACKEND

    def pipeline(self, level: int) -> tuple[Pass, ...]:
        """All passes up to a level."""
        from dcir.transforms.pipelines import pipeline

        return pipeline(level)

    def refuse(self) -> None:
        """Refuse an instruction set that this processor lacks."""
        require_executable(self.machine.isa)
