"""What a network is compiled for: one object that passes, emitters and the driver ask, instead of comparing names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dcir.cost.costs import Costs
from dcir.cost.machine import Machine
from dcir.errors import InvalidGraph

if TYPE_CHECKING:
    from dcir.ir.network import Network


@dataclass(frozen=True)
class Target(ABC):
    """A kind of code and the machine that it is made for.

    What only the driver asks (pipeline, run time) is in ``dcir.driver.targets``.

    Attributes:
        name: what users write for it.
        schedules: whether its kernels are printed from schedules that a node may ask for (``ir.schedule``).
        machine: that code is made for.
    """

    name: ClassVar[str]
    schedules: ClassVar[bool] = False
    machine: Machine

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """Figures and cost functions."""

    @property
    @abstractmethod
    def backend(self) -> Any:
        """What makes its kernels and libraries (``dcir.codegen.backend.Backend``).

        Raises:
            OptionError: another compiler makes its code.
        """


def target_of(net: Network) -> Target:
    """The target that the driver compiles a network for.

    Raises:
        InvalidGraph: nobody has said one.
    """
    if not isinstance(net.target, Target):
        raise InvalidGraph("the network is compiled for no target", hint="net.target = a Target, before passes run")
    return net.target
