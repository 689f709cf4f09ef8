"""Times one kernel in several ways of making it: interleaved, over operands that are not in the nearest caches; and checks its results."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcir.cache import Cache
from dcir.codegen.choices import Choice
from dcir.codegen.compile import compile_network
from dcir.cost.machine import MachineRates
from dcir.cost.target import Target
from dcir.driver.verify.compare import compare
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.types import TYPES, itemsize

_LINE = 64
_APART = 4096 + 5 * _LINE  # between buffers: neighbours lie in different sets of a cache
_MOST_BYTES = 1 << 30
_HOT, _COLD = 4, 3  # times the second-level cache, the last cache: what operands rotate over
_UNTOUCHED = 7
_CALL_BACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
# As NumPy has them: bf16 as its bits.
_TYPES = {name: getattr(torch, t.numpy) for name, t in TYPES.items()}


@dataclass(frozen=True)
class BenchedKernel:
    """A distinct kernel of a network.

    Attributes:
        spec: what it computes.
        ins, outs: element types of its operands.
        sizes: elements of the containers behind the operands, inputs first.
        offsets: where in its container each operand begins.
        cold: per operand, whether it is a parameter or made of one: a large network finds it in memory.
        calls: runs in a call of the network.
        team: threads that run it.
    """

    spec: Operator
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    cold: tuple[bool, ...]
    calls: int
    team: int

    @property
    def types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Types of inputs and of outputs, as the code generator names them."""
        return self.ins, self.outs


class Buffers:
    """Memory of a kernel's operands, each so many times that no cache keeps them from one turn to the next.

    Together they exceed the second-level cache, in which a network leaves nothing but what it touched last; parameters exceed the
    last cache, if the network has as many.
    """

    def __init__(self, kernel: BenchedKernel, parameters: int, machine: MachineRates) -> None:
        self.kernel = kernel
        second = next((c.bytes for c in machine.caches if c.level == 2), 1 << 20) * kernel.team
        last = machine.caches[-1].bytes if machine.caches else 8 << 20
        types = (*kernel.ins, *kernel.outs)
        sizes = [size * itemsize(t) + _APART for t, size in zip(types, kernel.sizes, strict=True)]
        hot = sum(size for size, cold in zip(sizes, kernel.cold, strict=True) if not cold)
        room = _MOST_BYTES // len(sizes)
        self._turns = random.Random(0)
        self._pools: list[torch.Tensor] = []
        self._sets: list[int] = []
        for number, (t, size, cold) in enumerate(zip(types, sizes, kernel.cold, strict=True)):
            wanted = min(parameters, _COLD * last) // size if cold else _HOT * second // max(1, hot)
            sets = max(1, min(wanted + 1, room // size))
            self._sets.append(sets)
            self._pools.append(_filled(_TYPES[t], sets * self._step(t, kernel.sizes[number]) + _LINE, number))

    @staticmethod
    def _step(dtype: str, size: int) -> int:
        """Elements between two buffers."""
        return -(-(size * itemsize(dtype) + _APART) // _LINE) * _LINE // itemsize(dtype)

    def start(self) -> int:
        """A turn to begin with."""
        return self._turns.randrange(1 << 20)

    def address(self, operand: int, turn: int) -> int:
        """Of one of an operand's buffers."""
        return self.window(operand, turn).data_ptr()

    def window(self, operand: int, turn: int) -> torch.Tensor:
        """One of an operand's buffers, aligned to a cache line."""
        types = (*self.kernel.ins, *self.kernel.outs)
        pool, size = self._pools[operand], self.kernel.sizes[operand]
        start = (_aligned(pool.data_ptr()) - pool.data_ptr()) // pool.element_size()
        start += turn % self._sets[operand] * self._step(types[operand], size)
        return pool[start : start + max(size, 1)]


class Trial:
    """One library in which a kernel stands once for every entry of ``choices``; equal entries share their code.

    Args:
        buffers: what it works on.
        choices: how it is made.
        target: what kernels are planned for.
        cache: where built files go.
    """

    def __init__(self, buffers: Buffers, choices: Sequence[Choice], target: Target, cache: Cache) -> None:
        self.buffers, self.kernel, self.choices = buffers, buffers.kernel, list(choices)
        # One more goes first and does not count: what runs after other code than a kernel is faster or slower for it.
        net, self._names = _network(self.kernel, 1 + len(self.choices))
        net.target = target
        given = {op.label: choice for op, choice in zip(net.ops(), [choices[0], *choices], strict=True)}
        self.library = compile_network(net, cache=cache, profile=True, choices=given)
        self._code: Any = ctypes.CDLL(str(self.library.path))
        self._code.dcir_run.argtypes = [ctypes.c_void_p, _CALL_BACK]
        self._ticks = (ctypes.c_ulonglong * (len(self.choices) + 2)).in_dll(self._code, "dcir_ticks")
        self._call_back = _CALL_BACK(lambda number: 1)
        self._arena = torch.zeros(self.library.arena_bytes + _LINE, dtype=torch.uint8)

    def run(self, seconds: float, least: int, most: int = 1000) -> list[list[float]]:
        """Per entry its times in seconds, in rounds of all entries."""
        times: list[list[float]] = [[] for _ in self.choices]
        self._call(self._table())  # the first round does not count
        stop = time.perf_counter() + seconds
        done = 0
        while done < least or (time.perf_counter() < stop and done < most):
            self._call(self._table())
            done += 1
            for column, tick in zip(times, self._ticks[1:], strict=False):
                column.append(tick * 1e-9)
        return times

    def right(self, number: int) -> bool:
        """Whether an entry's results are as near to the kernel's reference as those of the first entry.

        Its error may be a few times that of the first, as everywhere in dcir (``verify/compare.py``).
        """
        first, other, exact = (self._results(n) for n in (0, number, None))
        return compare([f"o{i}" for i in range(len(exact))], other, first, exact).ok

    def _results(self, number: int | None) -> list[torch.Tensor]:
        """What an entry (None: the reference) leaves in outputs that held a number before."""
        kernel, ins = self.kernel, len(self.kernel.ins)
        held = [
            torch.full((size + _LINE,), _UNTOUCHED, dtype=_TYPES[t])
            for t, size in zip(kernel.outs, kernel.sizes[ins:], strict=True)
        ]
        results = []
        for t, size in zip(held, kernel.sizes[ins:], strict=True):
            start = (_aligned(t.data_ptr()) - t.data_ptr()) // t.element_size()
            results.append(t[start : start + size])
        if number is None:
            sources = [self.buffers.window(i, 0) for i in range(ins)]
            operands = [t.numpy()[o:] for t, o in zip((*sources, *results), kernel.offsets, strict=True)]
            kernel.spec.reference(operands[:ins], operands[ins:])
            return results
        table = self._table()
        for i, name in enumerate(self._names[1 + number]):
            table[self.library.slots[name]] = (
                self.buffers.address(i, 0) if i < ins else _aligned(held[i - ins].data_ptr())
            )
        self._call(table)
        return results

    def _table(self) -> Any:
        """The next round's pointers: every entry has operands of its own as far as there are any."""
        table = (ctypes.c_void_p * self.library.table_size)()
        table[0] = _aligned(self._arena.data_ptr())
        start = self.buffers.start()
        for turn, names in enumerate(self._names, start):
            for i, name in enumerate(names):
                table[self.library.slots[name]] = self.buffers.address(i, turn)
        return table

    def _call(self, table: Any) -> None:
        threads = self._code.omp_get_max_threads()
        self._code.omp_set_num_threads(self.kernel.team)
        try:
            self._code.dcir_run(ctypes.addressof(table), self._call_back)
        finally:
            self._code.omp_set_num_threads(threads)


def _network(kernel: BenchedKernel, entries: int) -> tuple[Network, list[list[str]]]:
    """The kernel so many times, each over containers of its own; their names per entry."""
    net, names = Network(), []
    ins = len(kernel.ins)
    for _ in range(entries):
        made = [
            net.add_container((size,), t, "input" if i < ins else "transient", (1,))
            for i, (t, size) in enumerate(zip((*kernel.ins, *kernel.outs), kernel.sizes, strict=True))
        ]
        operands = [Operand(n, o) for n, o in zip(made, kernel.offsets, strict=True)]
        net.add_op(kernel.spec, operands[:ins], operands[ins:])
        for n in made[ins:]:
            net.promote(n)
        names.append(made)
    return net, names


def _filled(dtype: torch.dtype, size: int, seed: int) -> torch.Tensor:
    """Numbers on which every kernel can work: none is so small that the processor takes longer for it, and indices are 0."""
    if not dtype.is_floating_point:
        return torch.zeros(size, dtype=dtype)
    random_numbers = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return random_numbers.sub_(0.45).to(dtype)


def _aligned(address: int) -> int:
    return -(-address // _LINE) * _LINE
