"""What other installed packages add to dcir: operators, passes and targets, found by their entry points.

A package names them in its metadata, in the groups ``dcir.operators``, ``dcir.passes`` and ``dcir.targets``. They are imported when dcir
first asks for their kind, not before. One that cannot be imported is left out with a warning: a broken package must not stop a program
that does not ask for it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dcir.user_code import warn_user

OPERATORS, PASSES, TARGETS = GROUPS = ("dcir.operators", "dcir.passes", "dcir.targets")


class ExtensionWarning(UserWarning):
    """An entry point of another package could not be used."""


@dataclass(frozen=True)
class Extension:
    """One entry point that was loaded.

    Attributes:
        name: as the package names it.
        package: name and version of the package.
        value: what it names: a module of operators, a pass, a target.
    """

    name: str
    package: str
    value: Any


@functools.cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group in the order of their names, none of them loaded. All installed packages are read once for all groups."""
    return tuple(sorted(_all().select(group=group), key=lambda p: p.name))


@functools.cache
def _all() -> Any:  # of another class in Python 3.11 than later
    return entry_points()


@functools.cache
def extensions(group: str) -> tuple[Extension, ...]:
    """What the entry points of a group name, in the order of their names; those that fail are left out with a warning."""
    found = []
    for point in entry_points_of(group):
        try:
            found.append(Extension(point.name, _package(point), point.load()))
        except Exception as e:  # whatever a package's import raises
            refuse(group, point.name, _package(point), f"{type(e).__name__}: {e}")
    return tuple(found)


def read_again() -> None:
    """Forget what packages are installed, and what they name: a process that installs one calls this."""
    for known in (_all, entry_points_of, extensions):
        known.cache_clear()


def refuse(group: str, name: str, package: str, reason: str) -> None:
    """Warn of an entry point that is left out."""
    warn_user(f"entry point {name!r} of group {group!r} ({package}) is left out: {reason}", ExtensionWarning)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
