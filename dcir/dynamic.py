"""Which sizes may change from call to call, as people write it down: names and bounds of dimensions of inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dcir.errors import InvalidInput, OptionError

_FORMS = "True, False, None, or {input: {dimension: name or torch.export.Dim(name, min=..., max=...)}}"
_RELATED = re.compile(r"\s*(?:([1-9][0-9]{0,5})\s*\*\s*)?([A-Za-z_]\w*)\s*(?:([+-])\s*([0-9]{1,9}))?\s*")


@dataclass(frozen=True)
class DynamicDim:
    """One dimension of an input whose size may change.

    Attributes:
        name: dimensions of one name have equal sizes; None: this one has nothing to do with others.
        least, most: bounds of the size that has the name, both included; None: no bound.
        firm: whether a model that works for one size alone is an error (else it is compiled for each size).
        factor, summand: this one is so many times that one, and so much more.
    """

    name: str | None = None
    least: int | None = None
    most: int | None = None
    firm: bool = True
    factor: int = 1
    summand: int = 0

    @property
    def related(self) -> bool:
        """Whether it follows from the one that has the name."""
        return (self.factor, self.summand) != (1, 0)

    @property
    def label(self) -> str:
        """The name, with what is made of it."""
        return related_text(self.name or "", self.factor, self.summand)

    @property
    def bounds(self) -> str:
        """The bounds as text."""
        return f"{'' if self.least is None else self.least}..{'' if self.most is None else self.most}"

    def holds(self, size: int) -> bool:
        """Whether a size lies within the bounds, or follows from one that does."""
        size, rest = divmod(size - self.summand, self.factor)
        return not rest and (self.least is None or size >= self.least) and (self.most is None or size <= self.most)

    def root(self, size: int) -> int:
        """The size that has the name, for one that it holds."""
        return (size - self.summand) // self.factor


@dataclass(frozen=True)
class DynamicInputs:
    """Dimensions of inputs: rows of (name or position, rows of (dimension, what is known of it))."""

    rows: tuple[tuple[str | int, tuple[tuple[int, DynamicDim], ...]], ...] = ()


def check_size(label: str, dim: int, known: DynamicDim, size: int, seen: dict[str, tuple[str, int]], hint: str) -> None:
    """Hold one size of a call against what is known of its dimension.

    Args:
        label: name of the input; ``dim`` is the dimension's number.
        size: in this call.
        seen: (place, size) of the names met before in it; this one is added.
        hint: what to try if the size lies outside.

    Raises:
        InvalidInput: it does, or it differs from another dimension of the same name.
    """
    if not known.holds(size):
        name = f" ({known.label})" if known.name else ""
        bounds = f"its bounds {known.bounds}" if not known.related else f"{known.label} for {known.name}={known.bounds}"
        raise InvalidInput(f"input {label}: dimension {dim}{name} has size {size}, outside {bounds}", hint=hint)
    if known.name is not None:
        size = known.root(size)
        place, other = seen.setdefault(known.name, (f"{label}[{dim}]", size))
        if other != size:
            raise InvalidInput(f"dimension {known.name!r} is {other} in {place} and {size} in {label}[{dim}]")


def related_text(name: str, factor: int, summand: int) -> str:
    """A size that follows from another, as ``2*s + 1``."""
    text = name if factor == 1 else f"{factor}*{name}"
    return text if not summand else f"{text} {'+' if summand > 0 else '-'} {abs(summand)}"


def parse_related(text: str) -> tuple[str, int, int] | None:
    """Name, factor and summand of a size as ``2*s + 1``; None if the text is no such."""
    found = _RELATED.fullmatch(text)
    if found is None:
        return None
    factor, name, sign, summand = found.groups()
    return name, int(factor or 1), int(summand or 0) * (-1 if sign == "-" else 1)


def parse_dynamic(value: object) -> bool | DynamicInputs | None:
    """What ``dynamic=`` means.

    Raises:
        OptionError: the value is nothing that can be meant by it.
    """
    if value is None or isinstance(value, bool | DynamicInputs):
        return value
    if not isinstance(value, Mapping):
        raise _bad(value, value)
    known: dict[str, DynamicDim] = {}
    rows = []
    for key, dims in value.items():
        if not isinstance(key, str | int) or isinstance(key, bool) or (isinstance(key, int) and key < 0):
            raise _bad(value, key, "the name of an input, or its position from 0 up")
        if not isinstance(dims, Mapping) or not dims:
            raise _bad(value, dims)
        row = []
        for dim, said in dims.items():
            if not isinstance(dim, int) or isinstance(dim, bool):
                raise _bad(value, dim, "dimensions are numbers, from 0 or from -1 down")
            row.append((dim, _same_bounds(_dim(value, said), known)))
        rows.append((key, tuple(row)))
    return DynamicInputs(tuple(rows))


def _dim(value: object, said: object) -> DynamicDim:
    """From a name, a ``torch.export.Dim``, one of its hints, bounds as a pair, or None."""
    if said is None:
        return DynamicDim()
    if isinstance(said, str) and said:
        return DynamicDim(said)
    if isinstance(said, tuple) and len(said) == 2 and all(b is None or _is_size(b) for b in said):
        return _checked(value, DynamicDim(None, *said))
    hint = getattr(getattr(said, "type", None), "name", None)  # torch is not imported for this
    if hint in ("AUTO", "DYNAMIC"):
        return DynamicDim(None, getattr(said, "min", None), getattr(said, "max", None), hint == "DYNAMIC")
    if type(said).__name__ == "Dim" and hasattr(said, "min") and hasattr(said, "max"):
        return _checked(value, DynamicDim(str(said.__name__), said.min or None, _bound(said.max)))  # type: ignore[attr-defined]
    if type(said).__name__ == "_DerivedDim":
        parsed = parse_related(str(said.__name__))  # type: ignore[attr-defined]
        if parsed is not None:
            known = _dim(value, said.root)  # type: ignore[attr-defined]
            return replace(known, factor=parsed[1], summand=parsed[2])
    raise _bad(value, said)


def _bound(most: object) -> int | None:
    """torch writes no upper bound as an infinite one, or as one that nothing reaches."""
    return most if _is_size(most) and most < 1 << 40 else None  # type: ignore[operator,return-value]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked(value: object, dim: DynamicDim) -> DynamicDim:
    if dim.least is not None and dim.most is not None and dim.least > dim.most:
        raise _bad(value, dim.bounds, "the lower bound first")
    return dim


def _same_bounds(dim: DynamicDim, known: dict[str, DynamicDim]) -> DynamicDim:
    """A name may be written with its bounds once and without them elsewhere; two kinds of bounds are a mistake."""
    if dim.name is None:
        return dim
    if dim.related:
        return replace(_same_bounds(replace(dim, factor=1, summand=0), known), factor=dim.factor, summand=dim.summand)
    other = known.setdefault(dim.name, dim)
    if dim == DynamicDim(dim.name) or dim == other:
        return other
    if other != DynamicDim(dim.name):
        raise OptionError(
            f"dimension {dim.name!r} has two kinds of bounds: {other.bounds} and {dim.bounds}", where="dynamic"
        )
    known[dim.name] = dim
    return dim


def _bad(value: object, part: object, hint: str = _FORMS) -> OptionError:
    return OptionError(f"option dynamic cannot hold {part!r}", where=f"dynamic={value!r}", hint=hint)
