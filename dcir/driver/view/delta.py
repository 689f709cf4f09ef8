"""A change of how a model is compiled, as data: passes left out, their fields, places, level, threads, batch."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dcir.driver.targets.host import host_target
from dcir.errors import OptionError
from dcir.options import Options
from dcir.transforms.base import Pass

_MOST_NUMBER = 1 << 40
_MOST_THREADS = 4096


@dataclass(frozen=True)
class Delta:
    """What is other than in a session.

    Attributes:
        disable: names of passes that do not run.
        fields: values of fields by pass.
        skip: places at which passes do nothing.
        level, threads, batch: None as in the session.
    """

    disable: tuple[str, ...] = ()
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    level: int | None = None
    threads: int | None = None
    batch: int | None = None

    @classmethod
    def from_json(cls, data: Any) -> Delta:
        """Read what a page, a file or a caller says.

        Raises:
            OptionError: it is no such change.
        """
        if not isinstance(data, dict):
            raise _bad("a change", data, "an object with disable, fields, skip, level, threads or batch")
        known = [f.name for f in dataclasses.fields(cls)]
        for name in data:
            if name not in known:
                raise _bad("a change", name, f"one of {', '.join(known)}")
        disable, skip = (_texts(data.get(name), name) for name in ("disable", "skip"))
        fields = data.get("fields") or {}
        if not isinstance(fields, dict) or not all(isinstance(v, dict) for v in fields.values()):
            raise _bad("fields", fields, "{pass: {field: value}}")
        numbers = {
            name: _number(data.get(name), name, least) for name, least in (("level", 0), ("threads", 1), ("batch", 1))
        }
        if numbers["threads"] is not None and numbers["threads"] > _MOST_THREADS:
            raise _bad("threads", numbers["threads"], f"at most {_MOST_THREADS}")
        return cls(disable, {p: dict(v) for p, v in fields.items() if v}, skip, **numbers)

    def to_json(self) -> dict[str, Any]:
        """The change as plain data."""
        return {
            "disable": list(self.disable), "fields": {p: dict(v) for p, v in self.fields.items()}, "skip": list(self.skip),
            "level": self.level, "threads": self.threads, "batch": self.batch,
        }  # fmt: skip

    @property
    def rewrites(self) -> bool:
        """Whether passes are others than those of a level."""
        return bool(self.disable or self.fields)

    def options(self, base: Options) -> Options:
        """The options of a session, changed.

        Raises:
            OptionError: there is no such pass, field, level or place.
        """
        level = base.level if self.level is None else self.level
        threads = base.threads if self.threads is None else self.threads
        changed = replace(base, level=level, threads=threads, skip=(*base.skip, *self.skip))
        if not self.rewrites:
            return changed
        # Options stands below the passes and cannot name their type.
        passes: Any = base.pipeline if base.pipeline is not None else host_target(threads, base.target).pipeline(level)
        highest: Any = host_target(threads, base.target).pipeline(4)
        return replace(changed, pipeline=self.passes(passes, (*passes, *highest)))

    def passes(self, passes: tuple[Pass, ...], known: tuple[Pass, ...]) -> tuple[Pass, ...]:
        """A pipeline, changed.

        Args:
            passes: the pipeline.
            known: passes that may be named, whether they run or not.

        Raises:
            OptionError: there is no such pass or field, or a field cannot have the value.
        """
        names = list(dict.fromkeys(p.name for p in known))
        for name in (*self.disable, *self.fields):
            if name not in names:
                near = difflib.get_close_matches(name, names, n=3)
                raise OptionError(
                    f"there is no pass {name!r}", where="a change",
                    hint=" or ".join(near) or "one of " + ", ".join(names),
                )  # fmt: skip
        return tuple(_with(p, self.fields.get(p.name, {})) for p in passes if p.name not in self.disable)


def _with(p: Pass, values: Mapping[str, Any]) -> Pass:
    known = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
    for name, value in values.items():
        if name not in known:
            raise OptionError(
                f"pass {p.name} has no field {name!r}", where=f"{p.name}.{name}",
                hint=f"one of {', '.join(known)}" if known else "it has none",
            )  # fmt: skip
        old = known[name]
        fits = type(value) is type(old) or (isinstance(old, float) and type(value) is int)
        if (
            not isinstance(old, bool | int | float | str)
            or not fits
            or (isinstance(value, int) and not -_MOST_NUMBER < value < _MOST_NUMBER)
        ):
            raise _bad(f"{p.name}.{name}", value, f"a {type(old).__name__}, as {old!r}")
        known[name] = type(old)(value)
    return replace(p, **{name: known[name] for name in values})


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _bad(name, value, "a list of texts")
    return tuple(dict.fromkeys(value))


def _number(value: Any, name: str, least: int) -> int | None:
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MOST_NUMBER
    ):
        raise _bad(name, value, f"a number from {least} up")
    number: int | None = value
    return number


def _bad(name: str, value: Any, wanted: str) -> OptionError:
    return OptionError(f"{name} cannot be {str(value)[:80]!r}", where=name, hint=wanted)
