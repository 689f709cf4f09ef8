"""Emitters by target and operator: who plans the kernel of a spec, and which alternatives it has."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from dcir.codegen.asked import answered, asked, asking
from dcir.codegen.choices import MODELS, Choice, Decisions, deciding
from dcir.codegen.plan import KernelPlan, SizeGeneric
from dcir.cost.machine import Machine
from dcir.errors import InvalidSchedule, Unsupported
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.schedule import NESTS, OPEN, Schedule

Planned = Operator | SizeGeneric
"""What a kernel is made of."""
Planner = Callable[[Any, Machine], KernelPlan]


class Emitters:
    """The emitters of one target.

    Attributes:
        target: its name.
        package: where they lie; all its modules are imported when the first kernel is planned. Empty: they are registered already.
        table: the emitter of each class of specs.
        any_size: classes whose emitters write code for numbers that are known when it runs (``symbolic.Symbolic``).
    """

    def __init__(self, target: str, package: str = "") -> None:
        self.target, self.package = target, package
        self.table: dict[type, Planner] = {}
        self.any_size: set[type] = set()
        self._loaded = not package

    def planner(self, spec: type, *, any_size: bool = False) -> Callable[[Planner], Planner]:
        """Register the emitter of a spec class."""

        def register(fn: Planner) -> Planner:
            self.table[spec] = fn
            if any_size:
                self.any_size.add(spec)
            return fn

        return register

    def plan(
        self, spec: Planned, machine: Machine, choice: Choice | None = None, schedule: Schedule | None = None
    ) -> KernelPlan:
        """The kernel of a spec: by its own emitter, else as the loop nest that it is equal to.

        Args:
            spec: the node's spec.
            machine: what the kernel is for.
            choice: decisions that differ from the cost model's. None: inside another plan, as that one decides.
            schedule: what the node asks for, given with a choice.

        Raises:
            Unsupported: no emitter is registered for it.
            InvalidSchedule: the kernel cannot have the schedule.
        """
        if choice is not None:
            with deciding(choice), asking(schedule or OPEN):
                return answered(self.plan(spec, machine), _kind(spec))
        if not self._loaded:
            self._load()
        emitter = self.table.get(type(spec))
        as_nest = asked().method in NESTS and not isinstance(spec, LoopNest)
        if emitter is not None and not as_nest:
            return emitter(spec, machine)
        nest = spec.loop_nest() if isinstance(spec, Operator) else None
        if nest is None and as_nest:
            raise InvalidSchedule(f"{_kind(spec)} is equal to no loop nest", hint="another method, or none")
        if nest is None:
            raise Unsupported.collect([(f"generated code for {type(spec).__name__}", "")])
        return self.plan(nest, machine)

    def moves(self, spec: Operator) -> bool:
        """Whether there may be a kernel of a spec for all sizes: by its own emitter, or as a loop nest."""
        if not self._loaded:
            self._load()
        return type(spec) in self.any_size or (type(spec) not in self.table and LoopNest in self.any_size)

    def makers(self, spec: Planned) -> list[Any]:
        """The classes and functions that decide a kernel's text besides those of the package: the spec's, its emitter."""
        found = self.table.get(type(spec))
        return [type(spec), *([found] if found is not None else [])]

    def decisions(self, spec: Planned, machine: Machine, choice: Choice = MODELS) -> Decisions:
        """What the emitter of a spec decides under a choice, and what else it offers."""
        with deciding(choice) as made:
            self.plan(spec, machine)
        return made

    def alternatives(
        self, spec: Planned, machine: Machine, start: Choice = MODELS, fixed: frozenset[str] = frozenset()
    ) -> list[Choice]:
        """``start``, and then every choice that differs from it in one decision: those that a model ranks higher first.

        Choices whose kernels have equal text count once.

        Args:
            spec, machine: the kernel.
            start: the choice to vary.
            fixed: decisions that stay as they are.
        """
        with deciding(start) as made:
            texts = {self.plan(spec, machine)}
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
            text = self.plan(spec, machine, other)
            if text not in texts:
                texts.add(text)
                found.append(other)
        return found

    def _load(self) -> None:
        package = importlib.import_module(self.package)
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            importlib.import_module(f"{package.__name__}.{info.name}")
        self._loaded = True


def _kind(spec: Planned) -> str:
    return spec.describe() if isinstance(spec, Operator) else type(spec).__name__
