"""Trajectories on a roofline: how the whole call and its heaviest kernels move as threads, batch or level change, and what that shows.

    threads   straight up at one intensity: scales        bends left: more bytes for the same work
              along the diagonal: bandwidth-bound         flat, far below every roof: overhead, serial parts
    batch     right and up: weights are used again        flat: nothing is
    level     right: fewer bytes                          up at one intensity: better code
(Ibrahim, Williams, Oliker: Roofline Scaling Trajectories, HPCS 2018; Javed, Ibrahim, Lu, CCF Trans. HPC 1, 2019.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dcir.cost.bounds import FLOP, LAUNCH, NOTHING, PYTHON, TEAM, Bound
from dcir.report.roofline_points import WHOLE, Point, Run, Setting

PARAMETERS = ("threads", "batch", "level")
HEAVIEST = 3
# Less than a tenth more or less, as a power of two, is no move.
_STILL = math.log2(1.1)
_SCALES, _FLAT = 0.7, 0.3  # parts of the gain that as many times the threads could give, as powers of two


@dataclass(frozen=True)
class Place:
    """Where a path is at one value of its parameter: FLOP per byte, GFLOP/s, milliseconds, what bounds it there."""

    value: int
    intensity: float
    gflops: float
    ms: float
    bound: Bound


@dataclass(frozen=True)
class Path:
    """One trajectory.

    Attributes:
        parameter: threads, batch or level.
        what: the kernel at the path's end, or "whole call"; ``origin`` is its place in the model.
        at: the setting of the path's end.
        places: one for each value of the parameter. Along levels the work is that of the lowest level, so that height is speed.
        shape: up, left, diagonal, right-up, right, flat, part, down.
        shows: what this shows, in words.
    """

    parameter: str
    what: str
    origin: str
    at: Setting
    places: tuple[Place, ...]
    shape: str
    shows: str

    @property
    def title(self) -> str:
        """What it is the path of, and what does not change along it."""
        rest = [str(v) for k, v in _fixed(self.at, self.parameter).items() if v is not None]
        name = self.what if self.what == WHOLE else f"{self.what} ({self.origin or '-'})"
        return f"{name}, {', '.join(rest)}"

    def to_json(self) -> dict[str, Any]:
        """The path as plain data."""
        return asdict(self)


def paths_of(runs: Sequence[Run], reference: Setting) -> list[Path]:
    """All paths of the whole call, and those of the heaviest kernels that go through the reference.

    Kernels of different settings are the same if they stand for operators of one kind from one place in the model, of several
    those that are as heavy among them; kernels that some setting has no counterpart of have no path.
    """
    found = []
    for parameter in PARAMETERS:
        for line in _lines(runs, parameter):
            wholes = [run.whole for run in line]
            found.append(_path(parameter, line, wholes))
            if reference in [run.setting for run in line]:
                found += [_path(parameter, line, points) for points in _heaviest(line, reference)]
    return found


def _lines(runs: Sequence[Run], parameter: str) -> Iterator[list[Run]]:
    """Runs that differ in one parameter alone, in its order."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(_fixed(run.setting, parameter).values()), []).append(run)
    for line in groups.values():
        if len(line) > 1:
            yield sorted(line, key=lambda run: _value(run.setting, parameter))


def _fixed(setting: Setting, parameter: str) -> dict[str, str | None]:
    batch = None if setting.batch is None else f"batch {setting.batch}"
    threads = f"{setting.threads} thread{'s' * (setting.threads != 1)}"
    named = {"level": f"-O{setting.level}", "threads": threads, "batch": batch}
    return {k: v for k, v in named.items() if k != parameter}


def _value(setting: Setting, parameter: str) -> int:
    value = getattr(setting, parameter)
    return 0 if value is None else int(value)


def _heaviest(line: Sequence[Run], reference: Setting) -> list[list[Point]]:
    """Of the heaviest kernels with work, the points of every run of a line."""
    by_key = [_by_key(run) for run in line]
    number = [run.setting for run in line].index(reference)
    rows: list[list[Point]] = []
    for key in by_key[number]:
        counterparts = [known.get(key, []) for known in by_key]
        # As many everywhere, or nobody knows which is which.
        if len({len(points) for points in counterparts}) == 1:
            rows += [list(row) for row in zip(*counterparts, strict=True)]
    rows = [row for row in rows if all(p.intensity for p in row)]
    return sorted(rows, key=lambda row: -row[number].ms)[:HEAVIEST]


def _by_key(run: Run) -> dict[tuple[str, str], list[Point]]:
    """Kernels by kind and place in the model; several of one place by their work, and in order."""
    found: dict[tuple[str, str], list[Point]] = {}
    for p in sorted(run.kernels, key=lambda p: (-p.flops, p.order)):
        found.setdefault((p.family, p.origins[0] if p.origins else ""), []).append(p)
    return found


def _path(parameter: str, line: Sequence[Run], points: Sequence[Point]) -> Path:
    flops = [points[0].flops] * len(points) if parameter == "level" else [p.flops for p in points]
    places = tuple(
        Place(
            _value(run.setting, parameter),
            n / p.bytes if p.bytes else 0.0,
            n * 1e-6 / p.ms if p.ms else 0.0,
            p.ms,
            p.bound,
        )
        for run, p, n in zip(line, points, flops, strict=True)
    )
    shape, shows = reading(parameter, places)
    last = points[-1]
    return Path(parameter, last.what, last.origins[0] if last.origins else "", line[-1].setting, places, shape, shows)


def reading(parameter: str, places: Sequence[Place]) -> tuple[str, str]:
    """The shape of a path, and what it shows.

    Args:
        parameter: threads, batch or level.
        places: two or more, in order of the parameter.
    """
    first, last = places[0], places[-1]
    if min(first.intensity, last.intensity, first.gflops, last.gflops) <= 0:
        return "flat", "no operations, so no place on these axes"
    right, up = math.log2(last.intensity / first.intensity), math.log2(last.gflops / first.gflops)
    moves = f"{2**up:.2f}x the speed at {2**right:.2f}x the operations per byte"
    shape, words = {"threads": _over_threads, "batch": _over_batch, "level": _over_levels}[parameter](right, up, places)
    return shape, f"{words} ({moves})"


def _over_threads(right: float, up: float, places: Sequence[Place]) -> tuple[str, str]:
    possible = math.log2(places[-1].value / places[0].value)
    if right < -_STILL:
        return "left", "bends left: more bytes for the same work, caches are shared or lines are written by several"
    if right > _STILL and _alike(right, up):
        return "diagonal", "along the diagonal: bandwidth-bound"
    if up >= _SCALES * possible:
        return "up", "straight up: scales"
    if up >= _FLAT * possible:
        return "part", f"rises less than threads are added: {_why(places[-1].bound)}"
    return "flat", f"flat: {_why(places[-1].bound)}"


def _over_batch(right: float, up: float, places: Sequence[Place]) -> tuple[str, str]:
    if up < -_STILL:
        return "down", f"down: a larger batch is slower for each image, {_why(places[-1].bound)}"
    if right > _STILL and up > _STILL:
        if _alike(right, up):
            return "diagonal", "along the diagonal: weights are used again, and bytes set the pace"
        return "right-up", "right and up: weights are used again"
    if right > _STILL:
        return "right", f"right, not up: weights are used again, but it is no faster, {_why(places[-1].bound)}"
    if right < -_STILL:
        return "left", "bends left: more bytes for the same work"
    if up > _STILL:
        return "up", "straight up: fixed costs are shared by more images"
    return "flat", f"flat: nothing is used again, {_why(places[-1].bound)}"


def _over_levels(right: float, up: float, places: Sequence[Place]) -> tuple[str, str]:
    if up < -_STILL:
        return "down", "down: slower, although more was done"
    if right > _STILL and up > _STILL:
        if _alike(right, up):
            return "diagonal", "along the diagonal: as much faster as it moves fewer bytes"
        return "right-up", "right and up: fewer bytes, and other code"
    if right > _STILL:
        return "right", f"right, not up: fewer bytes, but no faster, {_why(places[-1].bound)}"
    if up > _STILL:
        if right < -_STILL:
            return "left", "left and up: faster, although more bytes are moved"
        return "up", "straight up: better code for the same bytes"
    return "flat", f"flat: levels change nothing here, {_why(places[-1].bound)}"


def _alike(right: float, up: float) -> bool:
    return abs(right - up) <= max(_STILL / 2, abs(right) / 4)


def _why(bound: Bound) -> str:
    if bound.name == NOTHING:
        return "far below every roof: serial parts, imbalance or latency"
    if bound.name in (TEAM, LAUNCH, PYTHON):
        return f"overhead ({bound.name})"
    if bound.share < 0.5:
        return f"far below every roof, {bound.name} the nearest ({bound.share:.0%})"
    return "at the roof of arithmetic" if bound.name == FLOP else f"at the roof of {bound.name}: bandwidth-bound"
