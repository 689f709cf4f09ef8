"""Measures the machine's constants with small generated kernels: peaks, bandwidths of every memory, cost of a team."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dcir.cache import Cache, key_of
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.cost.machine import MachineRates, Rate, assumed, remember, remembered
from dcir.driver.targets.host import host_machine
from dcir.errors import MachineBusy
from dcir.isa import Isa

_REPEATS = 25
_SECONDS = 0.005  # of one repeat: long against a clock tick, short against a slice of the scheduler
_LOOK_SECONDS = 0.5
_MOST_SPREAD = 0.15
_MOST_OTHERS = 0.10
text_of = templates("measure")
_CHUNK = 8 * 64  # bytes that one turn of the reading loop takes, for every vector width


def rates() -> MachineRates:
    """What was measured on this machine if the cache has it, else what is assumed. Measures nothing."""
    return host_machine().rates


def measure(*, force: bool = False, again: bool = False, cache: Cache | None = None) -> MachineRates:
    """The measured model of this machine, from the cache or by measuring for a few seconds.

    Args:
        force: accept what was measured while others were working.
        again: measure although the cache has a result.
        cache: where it is kept.

    Raises:
        MachineBusy: other processes worked, or repeats differed too much.
        CompilerNotFound, CompilerFailed: no compiler.
    """
    host = host_machine()
    known = None if again else remembered(host.identity, cache)
    if known is not None:
        return known
    base = assumed(host.isa)
    if not force:
        refuse_if_busy(share_of_others(base.threads, lambda: time.sleep(_LOOK_SECONDS)))
    bench = _Bench(host.isa, base, cache or Cache.default())
    made: list[MachineRates] = []
    others = share_of_others(base.threads, lambda: made.append(bench.run()))
    model = replace(made[0], others=others)
    if not force:
        refuse_if_busy(others, model.spread)
    remember(model, host.identity, cache)
    return model


def refuse_if_busy(others: float, spread: float = 0.0) -> None:
    """Refuse what was measured while others worked.

    Args:
        others: part of the processors' time that other processes took.
        spread: between the median and the best of equal measurements.

    Raises:
        MachineBusy: either is too large.
    """
    details = []
    if others > _MOST_OTHERS:
        details.append(("others", f"{others:.0%} of the processors' time went to others (at most {_MOST_OTHERS:.0%})"))
    if spread > _MOST_SPREAD:
        text = f"{spread:.0%} between the median and the best of {_REPEATS} repeats (at most {_MOST_SPREAD:.0%})"
        details.append(("spread", text))
    if not details:
        return
    raise MachineBusy(
        "the machine is too busy to be measured",
        details=details,
        hint="wait until it is quiet, or accept the figures with --force (force=True)",
    )


def share_of_others(threads: int, work: Callable[[], None]) -> float:
    """The part of the processors' time that others took while ``work`` ran; 0 where the system does not tell."""
    busy, own, start = _busy_seconds(), sum(os.times()[:4]), time.perf_counter()
    work()
    took = time.perf_counter() - start
    now = _busy_seconds()
    if busy is None or now is None or took <= 0:
        return 0.0
    # The clock of /proc/stat ticks every 10 ms per processor.
    rest = now - busy - (sum(os.times()[:4]) - own) - 0.01 * threads
    return min(1.0, max(0.0, rest / (took * threads)))


def _busy_seconds() -> float | None:
    """Time that the processors this process may use have worked (or lost to other virtual machines) since they started."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        mine = {f"cpu{i}" for i in os.sched_getaffinity(0)}
        ticks = 0
        for line in lines:
            name, *fields = line.split()
            if name in mine:
                user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
                ticks += user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


class _Bench:
    """One library of measuring kernels, and what they found."""

    def __init__(self, isa: Isa, base: MachineRates, cache: Cache) -> None:
        self.base = base
        text = kernels_text(isa.vector_bytes, 12 if isa.registers >= 16 else 6)
        toolchain = Toolchain.find(cache)
        objects = compile_objects([Unit("machine", text)], toolchain, default_flags(isa), cache)
        self._library: Any = ctypes.CDLL(str(link_shared(objects, key_of("machine", text), toolchain, cache)))
        self.vector_bytes, self.accumulators = isa.vector_bytes, 12 if isa.registers >= 16 else 6
        self.spread = 0.0

    def run(self) -> MachineRates:
        team = self.base.threads
        reads = []
        for number, cache in enumerate(self.base.caches):
            last = number == len(self.base.caches) - 1 and cache.shared_by > 1
            reads.append(self._both(partial(self._read, cache.bytes // 2, last)))
        far = max(128 << 20, min(8 * sum(c.bytes for c in self.base.caches), 1 << 30))
        reads.append(self._both(lambda threads: self._read(far // threads, False, threads)))
        f32 = self._both(lambda threads: self._peak("f32", 4, threads))
        f64 = self._both(lambda threads: self._peak("f64", 8, threads))
        region = 1 / self._best("dcir_region", 1.0, team, None, 0, 0)
        barrier = 1 / self._best("dcir_barrier", 1.0, team, None, 0, 0)
        return replace(
            self.base, flops_f32=f32, flops_f64=f64, reads=tuple(reads), region_seconds=region,
            barrier_seconds=barrier, measured=True, spread=self.spread,
        )  # fmt: skip

    def _both(self, rate: Callable[[int], float]) -> Rate:
        one = rate(1)
        # A team can leave threads idle, so it is never slower than one.
        return Rate(one, max(one, rate(self.base.threads)) if self.base.threads > 1 else one)

    def _peak(self, dtype: str, size: int, threads: int) -> float:
        work = 2.0 * self.accumulators * self.vector_bytes / size * threads
        return self._best(f"dcir_fma_{dtype}", work, threads, None, 0, 0)

    def _read(self, each: int, shared: bool, threads: int) -> float:
        """Bytes per second of threads that read ``each`` bytes of their own, or all of them the same from different starts."""
        each = max(each // _CHUNK * _CHUNK, _CHUNK)
        total = each if shared else each * threads
        block = torch.empty(total + 64, dtype=torch.uint8)
        start = -(-block.data_ptr() // 64) * 64
        # Pages that nobody wrote to are all the same page of zeros, which lies in the nearest cache.
        self._library.dcir_touch(ctypes.c_int(threads), ctypes.c_void_p(start), ctypes.c_long(total))
        return self._best("dcir_read", float(each) * threads, threads, start, each, int(shared))

    def _best(self, name: str, work: float, threads: int, block: int | None, each: int, shared: int) -> float:
        """``work`` per second in the best of several repeats, each long enough to be timed."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_int]

        def seconds(rounds: int, team: int = threads) -> float:
            return float(function(team, rounds, block, each, shared))

        waits = name.endswith(("region", "barrier"))
        rounds, alone = 1, threads if waits else 1
        # One thread tells how long: of several, one may wait for a slice of the scheduler, and all repeats would be too short.
        while (took := min(seconds(rounds, alone) for _ in range(3))) < _SECONDS / 4 and rounds < 1 << 40:
            rounds *= 4
        rounds = max(1, round(rounds * _SECONDS / max(took, 1e-9)))
        times = [seconds(rounds) for _ in range(_REPEATS)]
        best = min(times)
        if not waits:  # what waiting costs depends on what each thread was doing
            self.spread = max(self.spread, statistics.median(times) / best - 1)
        return work * rounds / best


def kernels_text(vector_bytes: int, accumulators: int) -> str:
    """C++ of the measuring kernels, for vectors of so many bytes and so many sums at once."""
    names = [f"s{i}" for i in range(accumulators)]
    lanes = range(8)
    return text_of.kernels(
        vector_bytes=vector_bytes,
        chunk=_CHUNK,
        load=" ".join(f"s{i} ^= p[i + {i}];" for i in lanes),
        starts=", ".join(f"s{i} = {{}}" for i in lanes),
        together=" ^ ".join(f"s{i}" for i in lanes),
        peaks="\n".join(_peak_text(name, c, vector_bytes, names) for name, c in (("f32", "float"), ("f64", "double"))),
    )


def _peak_text(name: str, c_type: str, vector_bytes: int, sums: list[str]) -> str:
    return text_of.peak(
        name=name,
        c_type=c_type,
        vector_bytes=vector_bytes,
        lanes=vector_bytes // (4 if c_type == "float" else 8),
        starts=", ".join(f"{s} = x + {i}" for i, s in enumerate(sums)),
        turn=" ".join(f"{s} = {s} * x + y;" for s in sums),
        total=" + ".join(sums),
    )
