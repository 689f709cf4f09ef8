"""What an emitter of CUDA kernels hands back: starts of kernels, in order, over numbered operand pointers."""

from __future__ import annotations

from dataclasses import dataclass

Argument = str
"""A pointer that a kernel is given: ``a0, a1, …`` the inputs, ``o0, o1, …`` the outputs, ``scratch`` the operator's own memory
(256-byte aligned, undefined at first), ``status`` an ``int`` that a kernel which meets a bad index sets and goes on safely."""


@dataclass(frozen=True)
class Launch:
    """One start of a kernel.

    Attributes:
        kernel: the function's name, found by content: ``k_`` and a digest of its text.
        text: CUDA C++ of that one function, ``extern "C" __global__ void NAME(T0* a0, const T1* a1, ...)``, without the prelude.
        grid, block: blocks of the grid, and threads of a block.
        shared_bytes: dynamic shared memory of a block.
        arguments: in the order of the parameters.
    """

    kernel: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CudaPlan:
    """What one operator does on the device.

    Attributes:
        launches: in order, on one stream.
        workspace: bytes of ``scratch``, 0 if none.
    """

    launches: tuple[Launch, ...]
    workspace: int = 0
