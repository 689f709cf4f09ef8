"""What an exchange between processes costs: links by latency and bandwidth, and the messages of reductions along a ring or a tree.

With N processes that each hold the same n bytes, and messages that take ``latency + bytes / bandwidth``:

    ring   2 (N - 1) messages of n / N bytes, one after the other: 2 (N - 1) latency + 2 (N - 1) / N * n / bandwidth
    tree   up and down again, pieces of a long message following each other: 2 ceil(log2 N) latency + 2 n / bandwidth

The ring is Baidu's and Horovod's (Patarasuk and Yuan 2009), and gloo's; the tree is two complementary ones at once (Sanders, Speck,
Traeff 2009), as NCCL has them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from dcir.errors import OptionError

ALGORITHMS = ("ring", "tree")
LOCAL = "local"

_RATES = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"
_LATENCY = 20e-6
"""Of a message by TCP through a switch, where a link is given by its rate alone."""


@dataclass(frozen=True)
class Link:
    """A way between two processes.

    Attributes:
        name: what the user wrote.
        bandwidth: bytes per second and direction.
        latency: seconds of a message beside its bytes.
        work: seconds of computing that each byte costs which a process sends; 0 where other hardware does.
        computing: bandwidth and latency while the processes compute, on the processors that also send; None: they are the same.
    """

    name: str
    bandwidth: float
    latency: float
    work: float = 0.0
    computing: tuple[float, float] | None = None

    def reduction_seconds(
        self, nbytes: float, nodes: int, algorithm: str = "ring", *, computing: bool = False
    ) -> float:
        """Until all of ``nodes`` processes have the sum of what each holds; 0 for one.

        Args:
            nbytes: that each holds.
            nodes: processes.
            algorithm: of ``ALGORITHMS``.
            computing: whether the processes compute all the while, or wait.
        """
        if nodes < 2:
            return 0.0
        bandwidth, latency = self.computing if computing and self.computing else (self.bandwidth, self.latency)
        messages = 2 * (nodes - 1 if algorithm == "ring" else math.ceil(math.log2(nodes)))
        return messages * latency + self.sent_bytes(nbytes, nodes, algorithm) / bandwidth

    @staticmethod
    def sent_bytes(nbytes: float, nodes: int, algorithm: str = "ring") -> float:
        """What a process sends for that."""
        if nodes < 2:
            return 0.0
        return 2 * nbytes * ((nodes - 1) / nodes if algorithm == "ring" else 1)

    def broadcast_seconds(self, nbytes: float, nodes: int) -> float:
        """Until all of ``nodes`` processes have what one holds, along a tree of whole messages."""
        return math.ceil(math.log2(nodes)) * (self.latency + nbytes / self.bandwidth) if nodes > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        work = f", {self.work * 1e9:.3g} ns of a processor per byte" if self.work else ""
        if self.computing:
            bandwidth, latency = self.computing
            work += f"; beside computing {bandwidth * 1e-9:.4g} GB/s, {latency * 1e6:.3g} us"
        return f"{self.name} ({self.bandwidth * 1e-9:.4g} GB/s, {self.latency * 1e6:.3g} us a message{work})"

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Link:
        """What ``to_json`` gave.

        Raises:
            KeyError, TypeError, ValueError: the data is something else.
        """
        found = Link(**data)
        if found.computing is None:
            return found
        bandwidth, latency = found.computing
        return replace(found, computing=(bandwidth, latency))


NAMED = {
    "10gbit": Link("10Gbit", 10e9 / 8, _LATENCY),
    "100gbit": Link("100Gbit", 100e9 / 8, 5e-6),
    "nvlink": Link("nvlink", 300e9, 3e-6),
}
"""Nominal rates: Ethernet by TCP, InfiniBand EDR or Ethernet with remote memory access, NVLink of the third generation (twelve lanes)."""


def parse_link(text: str) -> Link:
    """A link from its name, or from ``RATE[,LATENCY[,WORK]]`` such as ``10Gbit,20us`` or ``400MB,50us,0.5ns``.

    Args:
        text: rates are bits (bit) or bytes (B) per second with k, M or G before them; work is a processor's time per byte.

    Raises:
        OptionError: anything else, or a rate of nothing.
    """
    known = NAMED.get(text.strip().lower())
    if known is not None:
        return known
    words = [word.strip() for word in text.split(",")]
    rate = _amount(words[0], _RATES)
    times = [_amount(word, _TIMES) for word in words[1:]]
    if rate is None or rate <= 0 or len(times) > 2 or None in times:
        raise OptionError(
            "a link has a name, or a rate and perhaps a latency", where=f"link={text!r}",
            hint=f"{', '.join(link.name for link in NAMED.values())}, {LOCAL}, or as 25Gbit,10us",
        )  # fmt: skip
    latency, work, *_ = *(t for t in times if t is not None), *(_LATENCY, 0.0)[len(times) :]
    return Link(text.strip(), rate, latency, work)


def _amount(word: str, units: dict[str, float]) -> float | None:
    """A number with a unit, None of anything else."""
    match = re.fullmatch(_NUMBER + r"\s*([a-zA-Z]+)(?:/s)?", word)
    unit = units.get(match[2].lower()) if match is not None else None
    amount = float(match[1]) * unit if match is not None and unit is not None else None
    return amount if amount is not None and math.isfinite(amount) else None
