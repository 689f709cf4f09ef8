"""When a product of halves by a kernel of the target's own, with its neighbours inside, takes less time on a GPU than a library and these.

    own     = max(bytes / bandwidth, operations / (share of peak))
    library = the same of the product alone + bytes of the neighbours + their starts

No measurement is behind the own kernels' share: they were made where there is no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.cost.cuda import CudaMachine, cuda_costs

PEAK = 989e12 / 132
"""Operations on halves of a multiprocessor's matrix units a second (NVIDIA H100/H200 data sheet, SXM, dense)."""

OWN_SHARE = 0.3
"""Of it for kernels of ``mma.sync`` with one step of k in flight: an assumption on the careful side, not measured. Only ``wgmma`` reaches
the peak of this machine, and copies that do not run beside the products cost about as much time as these."""

LIBRARY_SHARE = 0.6
"""Of it for cuBLAS and cuDNN at sizes of networks: 781 of 989 TFLOP/s at 8192 x 8192 x 8192 (docs/measurements/gpu.md), less at
smaller ones."""

START = 3e-6
"""Seconds that a further kernel takes to start and to get under way (docs/measurements/gpu.md)."""

BLOCK_ROWS, BLOCK_COLUMNS = 128, 128
"""Results of a block of the own kernels."""


LEAST_STEPS = 512
"""Steps of k that a block should have where several share them: partial sums are written and read once for each."""


def parts_of(m: int, n: int, k: int, multiprocessors: int) -> int:
    """How many blocks should share the steps of a tile, for all multiprocessors to have work; 1: none."""
    blocks = -(-m // BLOCK_ROWS) * -(-n // BLOCK_COLUMNS)
    return max(1, min(2 * multiprocessors // blocks, k // LEAST_STEPS)) if blocks < multiprocessors else 1


@dataclass(frozen=True)
class Work:
    """A product and what would run inside of it.

    Attributes:
        m, n, k: its sizes.
        product, neighbours: bytes that it moves, and that they move, apart.
        together: bytes that all of it moves as one kernel.
        kernels: how many neighbours there are.
        parts: blocks that share the steps of a tile (``parts_of``), where none of its columns are summed.
    """

    m: int
    n: int
    k: int
    product: int
    neighbours: int
    together: int
    kernels: int
    parts: int = 1


def own_seconds(work: Work, machine: CudaMachine) -> float:
    """Of one kernel for all of it."""
    blocks = -(-work.m // BLOCK_ROWS) * -(-work.n // BLOCK_COLUMNS)
    busy = min(blocks * work.parts, machine.multiprocessors)
    return max(work.together * cuda_costs(machine).memory.memory, _operations(work) / (OWN_SHARE * PEAK * busy))


def library_seconds(work: Work, machine: CudaMachine) -> float:
    """Of a library's product and kernels of the neighbours' own."""
    memory = cuda_costs(machine).memory.memory
    product = max(work.product * memory, _operations(work) / (LIBRARY_SHARE * PEAK * machine.multiprocessors))
    return product + work.neighbours * memory + work.kernels * START


def own_pays(work: Work, machine: CudaMachine) -> bool:
    """Whether bytes and time fall."""
    fewer = work.together < work.product + work.neighbours
    return fewer and own_seconds(work, machine) < library_seconds(work, machine)


def has_matrix_units(arch: str) -> bool:
    """Whether an architecture ("sm_90a") multiplies both half types on matrix units, with fragments of 16 by 8 by 16."""
    digits = "".join(c for c in arch if c.isdigit())
    return bool(digits) and int(digits) >= 80


def _operations(work: Work) -> float:
    return 2.0 * work.m * work.n * work.k
