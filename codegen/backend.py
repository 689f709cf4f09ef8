"""What a target brings for its code: emitters of kernels, a printer, a toolchain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dcir.cache import Cache
from dcir.codegen.plan import KernelPlan
from dcir.codegen.registry import Emitters
from dcir.codegen.steps import AnyStep, Flow
from dcir.cost.machine import Machine

Shared = tuple[tuple[str, str], ...]
"""Operands of a kernel that lie where another one does: its name, and the other's."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to print.

    Attributes:
        name: of its entry; what it is made of decides it.
        plan: its code.
        ins, outs: types of its operands.
        shared: operands that lie where an input does which the kernel overwrites, with that input: ``("o0", "a1")``.
        text: its code as ``build`` takes it, where that was printed before; see ``PrintsBefore``.
    """

    name: str
    plan: KernelPlan
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    shared: Shared = ()
    text: str = field(default="", compare=False, repr=False)

    @property
    def parallel(self) -> bool:
        """Whether more than one thread has work in it."""
        return any(p.jobs != 1 for p in self.plan.phases)

    @property
    def checked(self) -> bool:
        """Whether it may report a bad index."""
        return any("status" in p.code for p in self.plan.phases)


@dataclass(frozen=True)
class Steps:
    """What a driver does.

    Attributes:
        calls: in every call.
        before: what prepares what calls read.
        static: (slot, bytes) of every input that ``before`` reads.
        flows: the streams that calls refer to.
        overwriting: numbers of the operators that write in place of inputs, which they are not to do once an index was bad.
        sizes: the table slot of the values of the sizes that move, and the names of these in C.
        stops: numbers of the calls that a part of the driver begins with, where it can be run part by part.
        recorded: whether the driver also has a run that tells torch's profiler of its steps; asked of targets that say so alone.
    """

    calls: Sequence[AnyStep]
    before: Sequence[AnyStep] = ()
    static: Sequence[tuple[int, int]] = ()
    flows: Sequence[Flow] = ()
    sizes: tuple[int, tuple[str, ...]] = (-1, ())
    stops: Sequence[int] = ()
    recorded: bool = False
    overwriting: Collection[int] = ()


class Backend(Protocol):
    """What ``compile_network`` asks of a target.

    Attributes:
        emitters: of its kernels.
    """

    @property
    def emitters(self) -> Emitters: ...

    def size_generic(self, spec: Any, machine: Machine) -> tuple[Any, tuple[int, ...]] | None:
        """A spec whose kernel takes its sizes as a table of numbers, and the numbers; None if there is none for this spec."""
        ...

    def driver_text(self, steps: Steps, *, profile: bool) -> str:
        """The driver; with ``profile`` one that measures its steps."""
        ...

    def kernel_text(self, kernel: Kernel) -> str:
        """A kernel, as a source of its own."""
        ...

    def identity(self, machine: Machine, cache: Cache) -> str:
        """What of compiler and flags decides the machine code that comes out.

        Raises:
            CompilerNotFound: there is none.
        """
        ...

    def build(
        self,
        draft: Path,
        key: str,
        driver: str,
        kernels: Sequence[Kernel],
        machine: Machine,
        cache: Cache,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Compile and link driver and kernels to a shared library at ``draft``; ``key`` tells it from all others.

        Raises:
            CompilerFailed: the compiler refused the code.
        """
        ...


@runtime_checkable
class PrintsBefore(Protocol):
    """A backend whose ``build`` only waits for compilers once kernels are printed: a thread of its own may call it then."""

    def printed(self, kernel: Kernel) -> Kernel:
        """The kernel with its text."""
        ...
