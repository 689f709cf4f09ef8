"""Runs a program so that gates between parameters and its graph decide when each part of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcir.frontends.torch.gates import Gates
from dcir.runtime.program import Program


def run_through(gates: Gates, program: Program, args: Sequence[Any]) -> list[Any]:
    """The results of a backward, which are complete once they have passed the gates."""
    memory = gates.memory()
    if program.info.parts == 1:
        return program(args)
    results, run = program.part_by_part(args, memory)
    gates.begin(run, program.info.ready)
    return results
