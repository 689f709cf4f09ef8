"""The table from a node's spec to the emitter that plans its kernel."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcir.codegen.plan import KernelPlan
from dcir.errors import Unsupported


@dataclass(frozen=True)
class Machine:
    """What emitters may know of the machine.

    Attributes:
        isa: "avx512", "avx2" or "generic".
        threads: threads the kernel will run on; a hint for splitting work, never for results.
    """

    isa: str
    threads: int


Planner = Callable[[Any, Machine], KernelPlan]
_PLANNERS: dict[type, Planner] = {}
_loaded = False


def planner(spec: type) -> Callable[[Planner], Planner]:
    """Register the emitter of a spec class."""

    def register(fn: Planner) -> Planner:
        _PLANNERS[spec] = fn
        return fn

    return register


def plan(spec: Any, machine: Machine) -> KernelPlan:
    """The kernel of a spec: by its own emitter, else as the loop program that it is equal to.

    Raises:
        Unsupported: no emitter is registered for it.
    """
    global _loaded
    if not _loaded:
        import dcir.codegen.cpp.kernels as package

        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            importlib.import_module(f"{package.__name__}.{info.name}")
        _loaded = True
    if type(spec) not in _PLANNERS and hasattr(spec, "program"):
        return plan(spec.program(), machine)
    if type(spec) not in _PLANNERS:
        raise Unsupported.collect([(f"generated code for {type(spec).__name__}", "")])
    return _PLANNERS[type(spec)](spec, machine)
