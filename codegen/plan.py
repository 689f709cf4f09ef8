"""What every kernel emitter hands back: C++ text for phases of independent jobs, over numbered operand pointers."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcir.ir.schedule import Schedule


class SizeGeneric:
    """Base of what stands for all operators that differ only in sizes, which their one kernel reads from a table: a frozen dataclass."""


@dataclass(frozen=True)
class Phase:
    """One parallel step of a kernel: ``jobs`` independent iterations, then an implicit barrier.

    Attributes:
        jobs: number of jobs, which may move with the sizes (``symbolic.Symbolic``).
        code: C++ statements for job ``j`` (``long long``); they see the operand pointers ``a0, a1, …`` (inputs),
            ``o0, o1, …`` (outputs), ``scratch`` (``unsigned char*``, 64-byte aligned, shared by all jobs and phases)
            and ``status`` (``int*``; a kernel that meets a bad index writes a non-zero code and goes on safely).
    """

    jobs: int
    code: str


@dataclass(frozen=True)
class KernelPlan:
    """A kernel ready to become an SDFG of one map per phase around a raw tasklet.

    Attributes:
        name: a short readable stem (identifier characters only).
        globals: C++ at namespace scope: ``static`` functions and types, using only the prelude header.
        phases: run in order, with a barrier in between.
        scratch: bytes of shared scratch memory, 0 if none.
        holds_sizes: whether what stands in ``globals`` is given the sizes by who calls it.
        sizes: names of the sizes that the text computes with; the last input is a table of their values.
        schedule: what the text was printed from; None of a kernel that has one form only. It says no more than the text.
    """

    name: str
    globals: str
    phases: tuple[Phase, ...]
    scratch: int = 0
    holds_sizes: bool = False
    sizes: tuple[str, ...] = ()
    schedule: Schedule | None = field(default=None, compare=False, repr=False)
