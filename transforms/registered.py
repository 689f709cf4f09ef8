"""Passes of other packages, which name them in their metadata, and the place of a pass among others.

    [project.entry-points."dcir.passes"]
    count-traffic = "package.module:CountTraffic"       # a dcir.transforms.base.Pass that can be made without arguments

A pass says by ``after`` and ``before`` where it belongs; one that says neither runs at the end of its tier.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from dcir.errors import OptionError
from dcir.transforms.base import Pass
from dcir.user_code import warn_user

GROUP = "dcir.passes"


@dataclass(frozen=True)
class Registered:
    """A pass of another package, and that package with its version."""

    run: Pass
    origin: str


def with_passes(passes: Sequence[Pass], *added: Pass) -> tuple[Pass, ...]:
    """A pipeline with more passes, each where it wants to be.

    That is behind the last run of every pass that it names in ``after``, else in front of the first that it names in ``before``, else
    at the end of its tier: behind all passes of tiers up to its own that rewrite the graph (if it is ``final``, behind all of them).

    Raises:
        OptionError: a pass names one that is not there, or wants to be in two places at once.
    """
    done = tuple(passes)
    for p in added:
        names = [q.name for q in done]
        for name in (*p.after, *p.before):
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise OptionError(
                    f"pass {p.name} names a pass {name!r}, which the pipeline does not have",
                    where=_where(p),
                    hint=near[0] if near else "one of " + ", ".join(dict.fromkeys(names)),
                )
        at = _place(p, done, names)
        late = [name for name in p.before if name in names[:at]]
        if late:
            raise OptionError(
                f"pass {p.name} cannot run after {', '.join(p.after)} and before {', '.join(late)}", where=_where(p)
            )
        done = (*done[:at], p, *done[at:])
    return done


def with_registered(passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The pipeline with the passes of other packages; one that cannot be placed is told of and left out."""
    for found in registered():
        try:
            if found.run.name in {p.name for p in passes}:
                raise OptionError(f"there is a pass {found.run.name} already", where=_where(found.run))
            passes = with_passes(passes, found.run)
        except OptionError as error:
            _left_out(found.run.name, found.origin, error)
    return passes


@functools.cache
def registered() -> tuple[Registered, ...]:
    """The passes of other packages by name; what cannot be loaded is told of and left out."""
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        try:
            found.append(Registered(_loaded(entry), _origin(entry)))
        except OptionError as error:
            _left_out(entry.name, _origin(entry), error)
    return tuple(found)


def origin_of(p: Pass) -> str:
    """The package that registered a pass, "dcir" of all others."""
    return next((found.origin for found in registered() if found.run == p), "dcir")


def _place(p: Pass, passes: Sequence[Pass], names: Sequence[str]) -> int:
    if p.after:
        return 1 + max(i for i, name in enumerate(names) if name in p.after)
    if p.before:
        return min(names.index(name) for name in p.before)
    return 1 + max((i for i, q in enumerate(passes) if q.tier <= p.tier and q.final <= p.final), default=-1)


def _loaded(entry: EntryPoint) -> Pass:
    """The pass that an entry point names.

    Raises:
        OptionError: it cannot be imported, is no pass, or declares something impossible.
    """
    try:
        found = entry.load()
        made = found() if isinstance(found, type) and issubclass(found, Pass) else found
    except Exception as error:  # another package's code: whatever it raises
        raise OptionError(
            f"{type(error).__name__}: {error}", where=entry.value, hint="install its package again"
        ) from error
    if not isinstance(made, Pass):
        raise OptionError(f"{made!r} is no pass", where=entry.value, hint="inherit from dcir.transforms.base.Pass")
    if made.tier not in range(5):
        raise OptionError(f"tier cannot be {made.tier!r}", where=entry.value, hint="one of 0, 1, 2, 3, 4")
    for field in ("after", "before"):
        value = getattr(made, field)
        if not isinstance(value, tuple) or not all(isinstance(name, str) for name in value):
            raise OptionError(f"{field} cannot be {value!r}", where=entry.value, hint=f'{field} = ("fuse-epilogues",)')
    return made


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def _where(p: Pass) -> str:
    return f"{type(p).__module__}.{type(p).__qualname__}"


def _left_out(name: str, origin: str, error: OptionError) -> None:
    warn_user(f"dcir runs without the pass {name} of {origin}: {error}", RuntimeWarning)
