"""The names of targets, dcir's own and other packages', and where their classes are.

Another package says in its own metadata

    [project.entry-points."dcir.targets"]
    name = "package.module:Class"       # a dcir.driver.targets.base.DriverTarget

Options stand below the driver and know names alone. A class is imported when somebody asks for the target: a program with another
one must not wait for it, and one that asks is told what is wrong with it.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint
from typing import Any

from dcir.errors import OptionError
from dcir.extensions import TARGETS, entry_points_of

DEFAULT = "cpp"

_OWN = {
    name: EntryPoint(name, value, TARGETS)
    for name, value in {
        DEFAULT: "dcir.driver.targets.cpp:CppTarget",
        "dace": "dcir.driver.targets.dace:DaceTarget",
        "cuda": "dcir.driver.targets.cuda:CudaTarget",
    }.items()
}


@functools.cache
def known_targets() -> dict[str, EntryPoint]:
    """All targets by name, dcir's own first; no other package can take their names."""
    return _OWN | {e.name: e for e in entry_points_of(TARGETS) if e.name not in _OWN}


@functools.cache
def target_class(name: str) -> Any:
    """The class of a target.

    Raises:
        OptionError: there is none of this name, or its package cannot be imported.
    """
    found = _OWN.get(name) or known_targets().get(name)
    if found is None:
        raise OptionError(f"there is no target {name!r}", hint="one of " + ", ".join(known_targets()))
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"target {name!r} cannot be loaded: {error}", where=found.value, hint="install its package again"
        ) from error
