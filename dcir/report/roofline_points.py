"""Points of a roofline: of a profile every kernel and the whole call, with work, bytes, time, and what bounds each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dcir.cost.bounds import PYTHON, TEAM, Bound, bound_of
from dcir.cost.machine import MachineRates
from dcir.report.profile import Profile, ProfileStep

WHOLE = "whole call"


@dataclass(frozen=True)
class Setting:
    """What a profile was made with: threads, images in a batch (None: as the model has it), level."""

    threads: int
    batch: int | None
    level: int

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"-O{self.level}, {self.threads} thread{'s' * (self.threads != 1)}{batch}"


def settings_of(threads: Sequence[int], batches: Sequence[int | None], levels: Sequence[int]) -> list[Setting]:
    """All combinations, each value once: batches outermost, since each has inputs of its own."""
    return [
        Setting(t, b, level)
        for b in dict.fromkeys(batches)
        for level in dict.fromkeys(levels)
        for t in dict.fromkeys(threads)
    ]


@dataclass(frozen=True)
class Point:
    """Steps that run the same kernel, or a whole call.

    Attributes:
        what: the operator with its sizes.
        origins: places in the model, each once.
        calls: in one call of the model.
        ms: time of all of them, in the faster half of the measured calls.
        share: of the whole call.
        flops: operations, by the specs.
        bytes: distinct bytes of every call of the kernel, read off the graph's edges.
        counted: the same as counted when the references ran; None where it was not counted.
        bound: what keeps it from being faster.
        order: number of the first of its steps in a call.
    """

    what: str
    origins: tuple[str, ...]
    calls: int
    ms: float
    share: float
    flops: int
    bytes: int
    counted: int | None
    bound: Bound
    order: int = 0

    @property
    def intensity(self) -> float | None:
        """Operations per byte; None where there are none of either."""
        return self.flops / self.bytes if self.flops and self.bytes else None

    @property
    def gflops(self) -> float:
        """10^9 operations per second."""
        return self.flops * 1e-6 / self.ms if self.ms else 0.0

    @property
    def gbytes(self) -> float:
        """10^9 bytes per second."""
        return self.bytes * 1e-6 / self.ms if self.ms else 0.0

    @property
    def family(self) -> str:
        """The kind of operator: convolution, product, loops, ..."""
        return self.what.partition(" ")[0]

    @property
    def place(self) -> str:
        """Where in the model, with how many more places."""
        if not self.origins:
            return "-"
        return self.origins[0] + (f" and {len(self.origins) - 1} more" if len(self.origins) > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """The point as plain data."""
        return {
            **asdict(self), "intensity": self.intensity, "gflops": self.gflops, "gbytes": self.gbytes,
            "family": self.family,
        }  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What was measured with one setting.

    Attributes:
        setting: threads, batch, level.
        graphs: kinds of the graphs that ran.
        calls: how many calls were measured.
        whole: of a call, with all that is around the kernels; the kernels' work and bytes.
        kernels: the longest first.
        team_ms: opening and closing teams, per call.
        around_ms: outside of the compiled code, per call; kernels, teams and this are the call.
        parts: milliseconds of a call by what bounds them, the longest first.
    """

    setting: Setting
    graphs: tuple[str, ...]
    calls: int
    whole: Point
    kernels: tuple[Point, ...]
    team_ms: float
    around_ms: float
    parts: dict[str, float]

    @property
    def kernel_ms(self) -> float:
        """All kernels together."""
        return sum(p.ms for p in self.kernels)

    @property
    def with_work(self) -> list[Point]:
        """The kernels that have a place on axes of operations."""
        return [p for p in self.kernels if p.intensity is not None]

    @property
    def without_work(self) -> list[Point]:
        """The kernels that move bytes and compute nothing."""
        return [p for p in self.kernels if p.intensity is None]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            **asdict(self.setting), "graphs": list(self.graphs), "calls": self.calls, "whole": self.whole.to_json(),
            "kernels": [p.to_json() for p in self.kernels], "kernel_ms": self.kernel_ms, "team_ms": self.team_ms,
            "around_ms": self.around_ms, "parts": self.parts,
        }  # fmt: skip


def run_of(profile: Profile, setting: Setting, rates: MachineRates) -> Run:
    """The points of one profile, before the roofs of a machine."""
    groups: dict[tuple[str, str], list[ProfileStep]] = {}
    first: dict[tuple[str, str], int] = {}
    for number, step in enumerate(profile.steps):
        groups.setdefault((step.kernel, step.what), []).append(step)
        first.setdefault((step.kernel, step.what), number)
    wall = profile.wall_ms or 1.0
    kernels = sorted((_point(groups[key], first[key], wall, setting, rates) for key in groups), key=lambda p: -p.ms)
    parts, least = dict[str, float](), dict[str, float]()
    rows = [(p.bound.name, p.ms, p.bound.share * p.ms) for p in kernels]
    rows += [(TEAM, profile.team_ms, profile.team_ms), (PYTHON, profile.around_ms, profile.around_ms)]
    for name, ms, least_ms in rows:
        if ms > 0:
            parts[name], least[name] = parts.get(name, 0.0) + ms, least.get(name, 0.0) + least_ms
    parts = dict(sorted(parts.items(), key=lambda row: -row[1]))
    largest = next(iter(parts), PYTHON)
    whole = Point(
        WHOLE, (), 1, profile.wall_ms, 1.0, sum(p.flops for p in kernels), sum(p.bytes for p in kernels),
        _sum([p.counted for p in kernels]), Bound(largest, least.get(largest, 0.0) / wall),
    )  # fmt: skip
    return Run(
        setting, tuple(profile.graphs), profile.calls, whole, tuple(kernels), profile.team_ms, profile.around_ms, parts
    )


def _point(steps: Sequence[ProfileStep], order: int, wall: float, setting: Setting, rates: MachineRates) -> Point:
    first, n = steps[0], len(steps)
    ms, flops, moved = sum(s.ms for s in steps), sum(s.flops for s in steps), sum(s.bytes for s in steps)
    bound = bound_of(
        rates, flops / n, moved / n, ms * 1e-3 / n, threads=setting.threads, dtype=first.dtype,
        torch=first.what.startswith("torch "),
    )  # fmt: skip
    origins = tuple(dict.fromkeys(s.origin for s in steps if s.origin))
    return Point(first.what, origins, n, ms, ms / wall, flops, moved, _sum([s.counted for s in steps]), bound, order)


def _sum(counts: Sequence[int | None]) -> int | None:
    """None where one of them was not counted."""
    known = [n for n in counts if n is not None]
    return sum(known) if known and len(known) == len(counts) else None
