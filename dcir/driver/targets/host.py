"""The machine at hand: the one place that asks the processor what it can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.cost.machine import Machine
from dcir.isa import host_isa, slow_to_fill
from dcir.targets import DEFAULT, target_class


def host_machine(threads: int | None = None) -> Machine:
    """This machine, for a team of ``threads``, as many as torch uses unless given.

    Raises:
        OptionError: DCIR_ISA names no known instruction set.
    """
    isa = replace(host_isa(), slow_fills=slow_to_fill())
    return Machine(isa, threads or torch.get_num_threads(), cpu_identity())


def host_target(threads: int | None = None, name: str = DEFAULT) -> Any:
    """A target (``base.DriverTarget``) for this machine.

    Raises:
        OptionError: there is no target of this name.
    """
    return target_class(name)(host_machine(threads))
