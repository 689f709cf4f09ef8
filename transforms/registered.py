"""Passes of other packages, which name them in their metadata, and the place of a pass among others.

    [project.entry-points."dcir.passes"]
    count-traffic = "package.module:CountTraffic"       # a dcir.transforms.base.Pass that can be made without arguments

A pass says by ``after`` and ``before`` where it belongs; one that says neither runs at the end of its tier.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence

from dcir.errors import OptionError
from dcir.extensions import PASSES, Extension, extensions, refuse
from dcir.transforms.base import Pass


def with_passes(passes: Sequence[Pass], *added: Pass) -> tuple[Pass, ...]:
    """A pipeline with more passes, each where it wants to be.

    That is behind the last run of every pass that it names in ``after``, else in front of the first that it names in ``before``, else
    at the end of its tier: behind all passes of tiers up to its own that rewrite the graph (if it is ``final``, behind all of them).

    Raises:
        OptionError: what is added is no pass, names one that is not there, or wants to be in two places at once.
    """
    done = tuple(passes)
    for p in added:
        _declared(p, where="with_passes")
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
    for p, found in registered():
        try:
            if p.name in {q.name for q in passes}:
                raise OptionError(f"there is a pass {p.name} already", where=_where(p))
            passes = with_passes(passes, p)
        except OptionError as error:
            refuse(PASSES, found.name, found.package, str(error))
    return passes


@functools.cache
def registered() -> tuple[tuple[Pass, Extension], ...]:
    """The passes of other packages in the order of their names, and who registered them; what is none is told of and left out."""
    made = []
    for found in extensions(PASSES):
        try:
            made.append((_made(found), found))
        except OptionError as error:
            refuse(PASSES, found.name, found.package, str(error))
    return tuple(made)


def origin_of(p: Pass) -> str:
    """The package that registered a pass, "dcir" of all others."""
    return next((found.package for other, found in registered() if other == p), "dcir")


def _place(p: Pass, passes: Sequence[Pass], names: Sequence[str]) -> int:
    if p.after:
        return 1 + max(i for i, name in enumerate(names) if name in p.after)
    if p.before:
        return min(names.index(name) for name in p.before)
    return 1 + max((i for i, q in enumerate(passes) if q.tier <= p.tier and q.final <= p.final), default=-1)


def _made(found: Extension) -> Pass:
    """The pass that an entry point names.

    Raises:
        OptionError: it cannot be made, is no pass, or declares something impossible.
    """
    value = found.value
    try:
        made = value() if isinstance(value, type) and issubclass(value, Pass) else value
    except Exception as error:  # another package's code: whatever it raises
        hint = "options of a pass need defaults"
        raise OptionError(f"{type(error).__name__}: {error}", where=found.package, hint=hint) from error
    _declared(made, where=found.package)
    assert isinstance(made, Pass)
    return made


def _declared(p: object, where: str) -> None:
    """Refuse what is no pass, or one that declares something impossible.

    Raises:
        OptionError: that.
    """
    if not isinstance(p, Pass):
        hint = "inherit from dcir.transforms.base.Pass"
        if isinstance(p, type) and issubclass(p, Pass):
            hint = f"{p.__name__}()"
        raise OptionError(f"{p!r} is no pass", where=where, hint=hint)
    if p.tier not in range(5):
        raise OptionError(f"tier cannot be {p.tier!r}", where=_where(p), hint="one of 0, 1, 2, 3, 4")
    for field in ("after", "before"):
        names = getattr(p, field)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise OptionError(f"{field} cannot be {names!r}", where=_where(p), hint=f'{field} = ("fuse-epilogues",)')


def _where(p: Pass) -> str:
    return f"{type(p).__module__}.{type(p).__qualname__}"
