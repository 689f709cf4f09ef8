"""What is known of a GPU's speed: the rates that `dcir machine --target cuda` measured, or those of a data sheet; for reports alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dcir.cache import Cache, key_of

_FORMAT = "1"
_KIND = "machine"


@dataclass(frozen=True)
class DeviceRates:
    """Rates of one kind of GPU.

    Attributes:
        name: of the device.
        memory: bytes per second that a copy of large arrays reads and writes.
        flops: operations per second of products, by the element type of their operands ("f32", "bf16", ...).
        measured: whether they were measured here.
    """

    name: str
    memory: float
    flops: Mapping[str, float] = field(default_factory=dict)
    measured: bool = False

    def floor_seconds(self, flops: int, bytes_touched: int, *, threads: int | None = None, dtype: str = "f32") -> float:
        """A time that no kernel goes below which does so many operations on so many distinct bytes, all of them in memory.

        Args:
            flops, bytes_touched: the work.
            threads: of the CPU, which have no part in it.
            dtype: of the arithmetic; of one that was not measured float32's.
        """
        rate = self.flops.get(dtype, self.flops["f32"])
        return max(flops / rate, bytes_touched / self.memory)

    def to_text(self) -> str:
        """The rates for people."""
        state = "measured" if self.measured else "assumed; dcir machine --target cuda measures"
        rows = [f"{self.name} ({state})", f"  copy of memory  {self.memory * 1e-9:.0f} GB/s read and written"]
        rows += [f"  products {dtype:<7} {rate * 1e-12:.1f} TFLOP/s" for dtype, rate in self.flops.items()]
        return "\n".join(rows)

    def to_json(self) -> dict[str, Any]:
        """The rates as plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeviceRates:
        """What ``to_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: the data is something else.
        """
        flops = {str(k): float(v) for k, v in data["flops"].items()}
        found = DeviceRates(str(data["name"]), float(data["memory"]), flops, bool(data["measured"]))
        if found.memory <= 0 or "f32" not in flops or min(flops.values()) <= 0:
            raise ValueError("a rate must be positive")
        return found


def remembered_device(name: str, cache: Cache | None = None) -> DeviceRates | None:
    """The rates in the user's cache of a device, or None."""
    path = (cache or Cache.default()).path_of(_KIND, _key(name), ".json")
    if path is None:
        return None
    try:
        return DeviceRates.from_json(json.loads(path.read_text()))
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def remember_device(rates: DeviceRates, cache: Cache | None = None) -> None:
    """Keep rates in the user's cache, in place of older ones."""
    cache = cache or Cache.default()
    old = cache.path_of(_KIND, _key(rates.name), ".json")
    if old is not None:
        old.unlink(missing_ok=True)  # what has no file is built again

    def write(draft: Path) -> None:
        draft.write_text(json.dumps(rates.to_json(), sort_keys=True) + "\n")

    cache.get_or_build(_KIND, _key(rates.name), ".json", write)


def _key(name: str) -> str:
    return key_of("device", _FORMAT, name)
