"""What is known of a machine: instructions and threads that code is made for, and what `dcir machine` measured (or what is assumed).

Machine
    isa       the instruction set                       decides code
    threads   the team                                  decides code
    identity  a digest of the processor's abilities     where code may run, and what was measured for it
    rates     peaks and bandwidths                      for reports and limits; decides no code
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of
from dcir.cores import usable_threads
from dcir.isa import Isa

_FORMAT = "1"
_CPU = Path("/sys/devices/system/cpu")

# Assumed where nothing was measured: what a laptop of the last ten years does at least.
_CLOCK = 2.0e9
_DRAM = 8.0e9
_BYTES_PER_CYCLE = {1: 32, 2: 16, 3: 8}
_TEAM_SCALING = 2
_REGION_SECONDS = 5e-6
_BARRIER_SECONDS = 2e-6
_CACHES = {1: 32 << 10, 2: 256 << 10, 3: 4 << 20}
# Multiply-adds of bfloat16 for each of float32 by vectors: tiles of a matrix unit do 512 a cycle, where two vectors do 32.
_HALVES = {"amx": 512 / 32, "avx512bf16": 2.0}


@dataclass(frozen=True)
class CacheLevel:
    """A data cache: its level, bytes, ways, bytes of a line, and how many hardware threads share one."""

    level: int
    bytes: int
    ways: int
    line: int
    shared_by: int


@dataclass(frozen=True)
class Rate:
    """Something per second: of one thread alone, and of all threads together."""

    one: float
    all: float

    def of(self, threads: int, team: int) -> float:
        """Of ``threads`` out of ``team``: as many times one, but no more than all."""
        return self.all if threads >= team else min(self.one * threads, self.all)


@dataclass(frozen=True)
class MachineRates:
    """Peaks and bandwidths of a machine.

    Attributes:
        processor: its name.
        isa: name of the instruction set (``isa.py``).
        threads: hardware threads this process may use; the team of every ``Rate.all``.
        caches: data caches, the nearest first.
        flops_f32, flops_f64: peak operations per second; a fused multiply-add is two.
        reads: bytes per second read from each of ``caches``, and last from memory.
        region_seconds: opening and closing a team of all threads.
        barrier_seconds: one barrier of all threads.
        measured: whether the rates were measured; else they are conservative guesses.
        spread: (median - best) / best of the repeats, the worst of all measurements; 0 if not measured.
        others: processor time other processes took while measuring, as a part of all of it.
    """

    processor: str
    isa: str
    threads: int
    caches: tuple[CacheLevel, ...]
    flops_f32: Rate
    flops_f64: Rate
    reads: tuple[Rate, ...]
    region_seconds: float
    barrier_seconds: float
    measured: bool = False
    spread: float = 0.0
    others: float = 0.0

    @property
    def arithmetic(self) -> tuple[str, ...]:
        """The types that have peaks of their own."""
        return ("f32", "f64", *(("bf16",) if self.isa in _HALVES else ()))

    def flops(self, threads: int | None = None, dtype: str = "f32") -> float:
        """Peak operations per second of a team (all threads unless given); of a type that has none of its own those of float32."""
        rate = self.flops_f64 if dtype == "f64" else self.flops_f32
        faster = _HALVES.get(self.isa, 1.0) if dtype == "bf16" else 1.0
        if dtype != "f64" and dtype != "bf16" and self.isa == "amx":
            faster = _HALVES["amx"] / 6  # products of parts make one of float32
        return rate.of(threads or self.threads, self.threads) * faster

    def read_rate(self, bytes_touched: int, threads: int | None = None) -> float:
        """Bytes per second at which a team reads data of this size again and again: that of the nearest cache that holds it.

        A team of t threads has t of every cache that is not shared.
        """
        team = threads or self.threads
        return self.reads[self.memory_of(bytes_touched, team)].of(team, self.threads)

    def memory_of(self, bytes_touched: int, threads: int | None = None) -> int:
        """The number in ``reads`` of the nearest memory that holds data of this size for a team."""
        team = threads or self.threads
        for number, cache in enumerate(self.caches):
            if bytes_touched <= cache.bytes * max(1, -(-team // cache.shared_by)):
                return number
        return len(self.caches)

    def memory_names(self) -> tuple[str, ...]:
        """What each of ``reads`` is called: L1, L2, ..., memory."""
        return (*(f"L{c.level}" for c in self.caches), "memory")

    def floor_seconds(self, flops: int, bytes_touched: int, *, threads: int | None = None, dtype: str = "f32") -> float:
        """A time that no kernel goes below which does so many operations on so many distinct bytes.

        The roofline (Williams et al. 2009) with the roof of the nearest memory that can hold the bytes, since they may be there
        when the kernel starts.
        """
        return max(
            flops / self.flops(threads, dtype),
            bytes_touched / self.read_rate(bytes_touched, threads) if bytes_touched else 0.0,
        )

    def to_json(self) -> dict[str, Any]:
        """All constants as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MachineRates:
        """The model that ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is something else.
        """
        rates = {n: Rate(**{k: float(v) for k, v in data[n].items()}) for n in ("flops_f32", "flops_f64")}
        caches = tuple(CacheLevel(**{k: int(v) for k, v in c.items()}) for c in data["caches"])
        reads = tuple(Rate(**{k: float(v) for k, v in r.items()}) for r in data["reads"])
        model = MachineRates(**{**data, **rates, "caches": caches, "reads": reads})
        if len(reads) != len(caches) + 1 or model.threads < 1:
            raise ValueError("a machine needs a rate per cache and one of its memory")
        if min(r for pair in (*reads, *rates.values()) for r in (pair.one, pair.all)) <= 0:
            raise ValueError("a rate must be positive")
        return model

    def to_text(self) -> str:
        """The constants for people."""
        kind = f"measured, spread {self.spread:.0%}, others {self.others:.0%}" if self.measured else "assumed"
        rows = [
            f"{self.processor}, {self.isa}, {self.threads} threads ({kind})",
            f"{'':<22} {'one thread':>12} {'all':>12}",
            f"{'fp32 GFLOP/s':<22} {self.flops_f32.one * 1e-9:>12.1f} {self.flops_f32.all * 1e-9:>12.1f}",
            f"{'fp64 GFLOP/s':<22} {self.flops_f64.one * 1e-9:>12.1f} {self.flops_f64.all * 1e-9:>12.1f}",
        ]
        names = [f"read L{c.level} {c.bytes >> 10} KB GB/s" for c in self.caches] + ["read memory GB/s"]
        for name, rate in zip(names, self.reads, strict=True):
            rows.append(f"{name:<22} {rate.one * 1e-9:>12.1f} {rate.all * 1e-9:>12.1f}")
        rows.append(f"{'parallel region us':<22} {'':>12} {self.region_seconds * 1e6:>12.2f}")
        rows.append(f"{'barrier us':<22} {'':>12} {self.barrier_seconds * 1e6:>12.2f}")
        for c in self.caches:
            rows.append(f"L{c.level}: {c.bytes >> 10} KB, {c.ways} ways, lines of {c.line}, shared by {c.shared_by}")
        return "\n".join(rows)


@functools.cache
def processor_name() -> str:
    """The processor's name in /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def data_caches(folder: Path = _CPU) -> tuple[CacheLevel, ...]:
    """Data and unified caches of the first processor, the nearest first; typical ones where the system does not tell."""
    found: dict[int, CacheLevel] = {}
    for index in sorted(folder.glob("cpu0/cache/index*")):
        try:
            facts = {f.name: f.read_text().strip() for f in index.iterdir() if f.is_file() and os.access(f, os.R_OK)}
            if facts["type"] == "Instruction":
                continue
            size = int(facts["size"].rstrip("KM")) << (20 if facts["size"].endswith("M") else 10)
            line, ways = int(facts.get("coherency_line_size", 64)), int(facts.get("ways_of_associativity", 8))
            level = int(facts["level"])
            found[level] = CacheLevel(level, size, ways, line, _count(facts.get("shared_cpu_list", "0")))
        except (OSError, KeyError, ValueError):
            continue
    if not found:
        return tuple(CacheLevel(level, size, 8, 64, 1 if level < 3 else 4) for level, size in _CACHES.items())
    return tuple(found[level] for level in sorted(found))


def _count(listing: str) -> int:
    """Members of a list such as "0-3,8"."""
    ends = [part.partition("-") for part in listing.split(",") if part]
    return max(1, sum(int(high or low) - int(low) + 1 for low, _, high in ends))


def assumed(isa: Isa) -> MachineRates:
    """The rates of a machine that nobody measured: caches as the system tells them, and guesses that are rather too small.

    One fused multiply-add of the instruction set's vectors a cycle is assumed.
    """
    threads, caches = usable_threads(), data_caches()
    f32 = _CLOCK * 2 * isa.vector_bytes / 4
    reads = [Rate(r := _CLOCK * _BYTES_PER_CYCLE.get(c.level, 8), r * threads) for c in caches]
    # More threads get a little more out of a memory, not as many times more.
    reads.append(Rate(_DRAM, _DRAM * min(threads, _TEAM_SCALING)))
    return MachineRates(
        processor_name(), isa.name, threads, caches, Rate(f32, f32 * threads), Rate(f32 / 2, f32 / 2 * threads),
        tuple(reads), _REGION_SECONDS, _BARRIER_SECONDS,
    )  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What passes, emitters, reports and files may know of a machine.

    Attributes:
        isa: its instruction set.
        threads: that the code will run on; a hint for splitting work, never for results.
        identity: a digest of the processor's abilities; empty for a machine that is only compiled for.
    """

    isa: Isa
    threads: int
    identity: str = ""

    @property
    def key(self) -> str:
        """All that generated code may depend on."""
        return f"{self.isa.name} {self.threads}{' slow fills' * self.isa.slow_fills}"

    @property
    def rates(self) -> MachineRates:
        """What was measured on a processor like this, else what is assumed. No code depends on it.

        Measurements differ from run to run, and equal networks have equal kernels.
        """
        return remembered(self.identity) or assumed(self.isa)


def _key(identity: str) -> str:
    return key_of("machine", _FORMAT, identity, str(usable_threads()))


def remembered(identity: str, cache: Cache | None = None) -> MachineRates | None:
    """The measured model in the user's cache of a processor (``Machine.identity``), or None."""
    path = (cache or Cache.default()).path_of("machine", _key(identity), ".json")
    if path is None:
        return None
    try:
        return MachineRates.from_json(json.loads(path.read_text()))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def remember(model: MachineRates, identity: str, cache: Cache | None = None) -> None:
    """Keep a measured model in the user's cache, in place of an older one."""
    cache = cache or Cache.default()
    old = cache.path_of("machine", _key(identity), ".json")
    if old is not None:
        # What has no file is built again.
        old.unlink(missing_ok=True)
    cache.get_or_build("machine", _key(identity), ".json", lambda draft: _write(draft, model))


def _write(draft: Path, model: MachineRates) -> None:
    draft.write_text(json.dumps(model.to_json(), sort_keys=True) + "\n")
