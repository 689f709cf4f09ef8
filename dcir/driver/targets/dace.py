"""The target "dace": the same rewritten network through DaCe's own compiler, a second opinion on ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dcir.cost.costs import Costs
from dcir.cost.cpu import cpu_costs
from dcir.driver.targets.base import DriverTarget
from dcir.errors import OptionError
from dcir.frontends.torch.importer import Imported
from dcir.transforms.base import Pass


@dataclass(frozen=True)
class DaceTarget(DriverTarget):
    """The passes of "cpp", and no code of ours."""

    name: ClassVar[str] = "dace"
    plans_memory: ClassVar[bool] = False

    @property
    def costs(self) -> Costs:
        """A CPU's: its passes are to do what they do there."""
        return cpu_costs(self.machine.isa)

    @property
    def backend(self) -> Any:
        """None: DaCe allocates and compiles as it likes."""
        raise OptionError("DaCe makes its own code", where=f"target={self.name!r}", hint="target='cpp'")

    def pipeline(self, level: int) -> tuple[Pass, ...]:
        """All passes up to a level."""
        from dcir.transforms.pipelines import pipeline

        return pipeline(level)

    def whole_program(
        self, done: Imported, keep: Callable[[str, str], None] | None
    ) -> Callable[[Sequence[Any]], list[Any]]:
        """Through DaCe's generator and its compiler."""
        from dcir.driver.verify.through_dace import dace_program

        return dace_program(done, keep)
