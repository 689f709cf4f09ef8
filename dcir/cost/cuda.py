"""The figures of a GPU that passes and emitters count with, each with where it comes from; and what is known of the one at hand.

Code is made for an architecture and a number of multiprocessors, never for what a measurement came to, so that equal networks have equal
kernels on equal GPUs.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace

from dcir.cost.costs import Costs, LayoutCosts, MemoryCosts
from dcir.cost.cpu import cpu_costs
from dcir.cost.machine import Machine
from dcir.errors import OptionError
from dcir.ir.types import HALVES
from dcir.isa import ISAS

SETTING = "DCIR_CUDA"
TWIN = "twin"

FLOPS = 0.5e12
"""A multiprocessor's multiply-adds of float32 on ordinary units: 67 TFLOP/s of 132 (NVIDIA H100/H200 data sheet, SXM)."""

BUSY_THREADS = 132 * 2048
"""Threads that all multiprocessors hold at once (CUDA C++ Programming Guide, compute capability 9.0)."""

MEMORY = MemoryCosts(
    # Shared memory and first-level cache of a multiprocessor, and the second-level cache (Programming Guide; H100 white paper), less
    # what passes through meanwhile.
    near_bytes=128 << 10,
    far_bytes=30 << 20,
    # 128 bytes a cycle and multiprocessor at 1.7 GHz; the second-level cache as microbenchmarks of Hopper have it (arXiv 2402.13499);
    # a copy of large arrays on an H200, bytes read and written.
    near=1 / 28e12,
    far=1 / 5.5e12,
    memory=1 / 4.3e12,
    packing=1 / 4.3e12,
    # A sector is 32 bytes; a warp reads four of them at once.
    line_bytes=128,
    # There are no sets that rows could meet in: an address is hashed.
    conflict_bytes=1 << 62,
    row_bytes=64 << 10,
    block_bytes=128 << 10,
    weight_bytes=128 << 10,
    image_bytes=30 << 20,
)

LAYOUT = LayoutCosts(across=8, apart=4, turn=2, copy=2, few_channels=8, narrow=8, flops_per_byte=15)
"""A warp whose lanes lie apart reads a sector of 32 bytes for each of 4. Tensor cores take channels side by side, so cuDNN turns images
around that lie otherwise (cuDNN developer guide, tensor layouts)."""


@dataclass(frozen=True)
class CudaMachine(Machine):
    """A GPU that code is made for, and the CPU that drives it.

    Attributes:
        arch: as NVRTC calls it ("sm_90a").
        multiprocessors: how many it has.
        twin: whether the kernels run on the CPU instead, as the tests want it.
        asked: the architectures that somebody wants code for, wherever it may run; () is that of the GPU at hand.
        tf32: whether the library's convolutions of float32 run on tensor cores, as PyTorch's settings have it.
    """

    arch: str = "sm_90a"
    multiprocessors: int = 132
    twin: bool = False
    asked: tuple[str, ...] = ()
    tf32: bool = False

    @property
    def architectures(self) -> tuple[str, ...]:
        """Those that there is to be machine code for."""
        return self.asked or (self.arch,)

    @property
    def key(self) -> str:
        """All that generated code may depend on."""
        return f"{self.arch} {self.multiprocessors}"


def is_twin() -> bool:
    """Whether kernels are to run on the CPU (``DCIR_CUDA=twin``).

    Raises:
        OptionError: the setting is another word.
    """
    setting = os.environ.get(SETTING, "").strip()
    if setting not in ("", TWIN):
        raise OptionError(
            f"{SETTING} cannot be {setting!r}", where=f"{SETTING}={setting}", hint=f"{TWIN!r}, or nothing"
        )
    return setting == TWIN


def cuda_machine(host: Machine) -> CudaMachine:
    """The GPU at hand, with its host; an H100 where there is none or kernels run on the CPU."""
    # The CPU's vectors have no part in it: no pass is to wait for them.
    host = replace(host, isa=ISAS["generic"])
    known = ("sm_90a", 132) if is_twin() else _at_hand()
    return CudaMachine(host.isa, host.threads, host.identity, *known, is_twin(), tf32=_convolves_in_tf32())


def _convolves_in_tf32() -> bool:
    import torch

    return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined]  # made when it is asked for


def _at_hand() -> tuple[str, int]:
    import torch

    return _device(torch.cuda.current_device()) if torch.cuda.is_available() else ("sm_90a", 132)


@functools.cache
def _device(number: int) -> tuple[str, int]:
    import torch

    p = torch.cuda.get_device_properties(number)
    # Code for exactly this architecture may use all that it has; before the ninth there was no such form.
    return f"sm_{p.major}{p.minor}" + "a" * (p.major >= 9), p.multi_processor_count


def cuda_costs(machine: CudaMachine) -> Costs:
    """The costs of a GPU; what belongs to CPUs alone (Winograd's form) is a CPU's, and no pass asks for it."""
    busy = BUSY_THREADS * machine.multiprocessors // 132
    layout = replace(LAYOUT, last_alone=frozenset((*HALVES, *["f32"] * machine.tf32)))
    return Costs(FLOPS, busy, MEMORY, layout, cpu_costs(machine.isa).winograd, None)
