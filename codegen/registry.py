"""The table from a node's spec to the emitter that plans its kernel, and the alternatives that an emitter has for one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcir.codegen.choices import MODELS, Choice, Decisions, deciding
from dcir.codegen.plan import KernelPlan, SizeGeneric
from dcir.errors import Unsupported
from dcir.ir.operator import Operator


@dataclass(frozen=True)
class Machine:
    """What emitters may know of the machine.

    Attributes:
        isa: name of the instruction set (``isa.py``).
        threads: threads the kernel will run on; a hint for splitting work, never for results.
    """

    isa: str
    threads: int


Kernel = Operator | SizeGeneric
"""What a kernel is made of."""
Planner = Callable[[Any, Machine], KernelPlan]
_PLANNERS: dict[type, Planner] = {}
_loaded = False


def planner(spec: type) -> Callable[[Planner], Planner]:
    """Register the emitter of a spec class."""

    def register(fn: Planner) -> Planner:
        _PLANNERS[spec] = fn
        return fn

    return register


def plan(spec: Kernel, machine: Machine, choice: Choice | None = None) -> KernelPlan:
    """The kernel of a spec: by its own emitter, else as the loop nest that it is equal to.

    Args:
        spec: the node's spec.
        machine: what the kernel is for.
        choice: decisions that differ from the cost model's. None: inside another plan, as that one decides.

    Raises:
        Unsupported: no emitter is registered for it.
    """
    if choice is not None:
        with deciding(choice):
            return plan(spec, machine)
    global _loaded
    if not _loaded:
        import dcir.codegen.cpp.kernels as package

        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            importlib.import_module(f"{package.__name__}.{info.name}")
        _loaded = True
    emitter = _PLANNERS.get(type(spec))
    if emitter is not None:
        return emitter(spec, machine)
    nest = spec.loop_nest() if isinstance(spec, Operator) else None
    if nest is None:
        raise Unsupported.collect([(f"generated code for {type(spec).__name__}", "")])
    return plan(nest, machine)


def makers(spec: Kernel) -> list[Any]:
    """The classes and functions that decide a kernel's text besides those of the package: the spec's, its emitter."""
    found = _PLANNERS.get(type(spec))
    return [type(spec), *([found] if found is not None else [])]


def decisions(spec: Kernel, machine: Machine, choice: Choice = MODELS) -> Decisions:
    """What the emitter of a spec decides under a choice, and what else it offers."""
    with deciding(choice) as made:
        plan(spec, machine)
    return made


def alternatives(
    spec: Kernel, machine: Machine, start: Choice = MODELS, fixed: frozenset[str] = frozenset()
) -> list[Choice]:
    """``start``, and then every choice that differs from it in one decision: those that a model ranks higher first.

    Choices whose kernels have equal text count once.

    Args:
        spec, machine: the kernel.
        start: the choice to vary.
        fixed: decisions that stay as they are.
    """
    with deciding(start) as made:
        texts = {plan(spec, machine)}
    found = [start]
    most = max((len(o) for o in made.offered.values()), default=0)
    ranked = (
        (name, made.offered[name][rank])
        for rank in range(most)
        for name in made.offered
        if rank < len(made.offered[name])
    )
    for name, value in ranked:
        if name in fixed or made.taken[name] == value:
            continue
        other = start.having(name, value)
        text = plan(spec, machine, other)
        if text not in texts:
            texts.add(text)
            found.append(other)
    return found
