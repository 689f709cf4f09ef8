"""A look at many objects that is not repeated until one of them is another one.

    first   places --> the objects there, in order --> what is found
    later   the objects in the same places --> all of them the same --> what was found

To look at torch's functions and kernels takes long, as each is judged by itself; to see that they are the same ones takes a comparison
of addresses each. Objects that were looked at are held, so that no other one gets such an address.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import chain, compress, repeat
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar

_P = TypeVar("_P")
_F = TypeVar("_F")
_CODE = operator.attrgetter("__code__")
_VALUES = operator.methodcaller("values")


class Sign(NamedTuple):
    """What decides what a look finds.

    Attributes:
        objects: compared one by one, as objects.
        numbers: compared as numbers.
    """

    objects: list[Any]
    numbers: list[int]

    def same(self, other: Sign) -> bool:
        """Whether another one has the same objects and equal numbers."""
        objects = len(self.objects) == len(other.objects) and all(map(operator.is_, self.objects, other.objects))
        return objects and self.numbers == other.numbers


class Look(Generic[_P, _F]):
    """Something that is found by looking at many objects.

    Args:
        places: where they are. It is asked again once an object is another one.
        sign: the objects in some places. Where they hold further places (a module its classes), they are among the objects.
        find: looks at them.
    """

    def __init__(
        self, places: Callable[[], _P], sign: Callable[[_P], Sign], find: Callable[[_P], Iterable[_F]]
    ) -> None:
        self._places_of, self._sign_of, self._find = places, sign, find
        self._known: tuple[_P, Sign, list[_F]] | None = None

    def found(self) -> list[_F]:
        """What there is."""
        if self._known is not None:
            places, sign, found = self._known
            if sign.same(self._sign_of(places)):
                return found
        places = self._places_of()
        sign = self._sign_of(places)  # before the look: what changes meanwhile is looked at again
        found = list(self._find(places))
        self._known = places, sign, found
        return found


def contents(tables: Iterable[Any], kinds: Any) -> list[Any]:
    """What dictionaries hold of some classes: its keys, and then itself, in order."""
    every = list(tables)
    keys = [*chain.from_iterable(every)]
    values = [*chain.from_iterable(map(_VALUES, every))]
    wanted = [*map(isinstance, values, repeat(kinds))]
    return [*compress(keys, wanted), *compress(values, wanted)]


def codes(functions: Iterable[FunctionType]) -> Iterable[Any]:
    """The bytecode of functions, which can be given another one."""
    return map(_CODE, functions)
