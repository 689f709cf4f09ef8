"""Where operators come from: the operators that a network was imported from, by number, and their places in the user's model.

    relu(x @ w + b), x.sum()   -->   0: mm  1: add  2: relu  3: sum   -->   one kernel, from (0, 1, 2), and another, from (3,)

Passes join, split and replace operators; each carries the numbers of all that it came from, and places follow from these. Numbers and
labels are those of the graph in its order, so another process gives the same ones. Nothing here decides what code is made.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dcir.user_code import is_users

Numbers = tuple[int, ...]
"""Imported operators, sorted."""
ANNOTATION = "dcir_place"
"""Under this name a frontend annotates what a tracer follows (``torch.fx.traceback.annotate``) with a ``note_of`` its place."""

# The line of code is missing where Python has not found the file; then the next frame follows at once.
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in ([^\n]*))?(?:\n(?![ \t]*File ")[ \t]+([^\n]*))?')


class Frame(NamedTuple):
    """A line of Python that was running: file with its folders, number of the line, function, and what stands there."""

    file: str
    line: int
    function: str
    code: str


@functools.lru_cache(maxsize=4096)
def frames_of(trace: str) -> tuple[Frame, ...]:
    """The frames of a stack as Python prints it, the innermost one last; many operators have the same one."""
    return tuple(Frame(m[1], int(m[2]), m[3] or "", (m[4] or "").strip()) for m in _FRAME.finditer(trace))


def of_users(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames in the user's own code; all where there are none."""
    return [f for f in frames if is_users(f.file)] or frames


def innermost(frames: Sequence[Frame]) -> Frame | None:
    """The last frame in the user's own code, else the last one."""
    return next(reversed(of_users(frames)), None)


def note_of(title: str, module: str, frames: Sequence[Frame]) -> str:
    """A place as one text, which goes through tracers as it is; for the arguments see ``Place``."""
    return json.dumps([title, module, frames])


@functools.lru_cache(maxsize=4096)
def noted(note: Any) -> tuple[str, str, tuple[Frame, ...]] | None:
    """The title, module and frames of a note; None of what is none."""
    try:
        title, module, frames = json.loads(note)
        return str(title), str(module), tuple(Frame(str(f), int(n), str(in_), str(code)) for f, n, in_, code in frames)
    except (ValueError, TypeError, RecursionError):
        return None


@dataclass(frozen=True)
class Place:
    """An operator of the imported graph.

    Attributes:
        label: its name there.
        operator: what it calls.
        module: path of the module that it belongs to, as in ``named_modules``; "" of the model itself or where nobody knows.
        frames: lines of Python that led to it, the innermost one last; of one in a backward those of what it is the derivative of.
            Of a node of a file its number in the file is the last line, and those before it are of the model that was exported.
        title: what a node of a file is called, with its operator, its file and its number there.
    """

    label: str
    operator: str = ""
    module: str = ""
    frames: tuple[Frame, ...] = ()
    title: str = ""

    def __str__(self) -> str:
        """Module and line, as short as they can be found by."""
        if self.title:
            return self.title
        at = innermost(self.frames)
        return " ".join(filter(None, (self.module, at and f"({at.file}:{at.line})"))) or self.label


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's model, and the module for which it ran; ``file`` is "" where only the module is known."""

    module: str
    file: str
    line: int
    code: str


class Origins:
    """The table of one import. Networks that are copies, stages or bodies of one another share it.

    Attributes:
        places: by number.
        now: what an importer is importing at the moment.
        gone: numbers of operators of which some pass has said that nobody needs any more what they, or parts of them, have computed.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self.places = list(places)
        self.now: Numbers = ()
        self.gone: set[int] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Origins:
        """Itself: copies of a network have the same origins."""
        return self

    def add(self, place: Place) -> Numbers:
        """A new imported operator."""
        self.places.append(place)
        return (len(self.places) - 1,)

    def of(self, numbers: Iterable[int]) -> list[Place]:
        """The places of some numbers, as far as this table has them."""
        return [self.places[n] for n in numbers if 0 <= n < len(self.places)]

    def public(self) -> Origins:
        """The same without folders of files, lines of code and frames that are not the user's, for what is handed on to others."""

        def known(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
            users = of_users(frames)
            return tuple(Frame(os.path.basename(f.file), f.line, f.function, "") for f in users)

        return Origins(Place(p.label, p.operator, p.module, known(p.frames), p.title) for p in self.places)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data; stacks, which many share, apart."""
        stacks: dict[tuple[Frame, ...], int] = {}
        rows = [[p.label, p.operator, p.module, stacks.setdefault(p.frames, len(stacks)), p.title] for p in self.places]
        return {"places": rows, "stacks": [[list(f) for f in frames] for frames in stacks]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Origins:
        """The inverse of ``to_json``; raises a ValueError, TypeError or LookupError for what that did not write."""
        stacks = [tuple(Frame(str(f), int(n), str(in_), str(code)) for f, n, in_, code in s) for s in data["stacks"]]
        return cls(
            Place(str(a), str(b), str(c), stacks[int(n)], *map(str, title)) for a, b, c, n, *title in data["places"]
        )


def union(sources: Iterable[Numbers]) -> Numbers:
    """All numbers of some operators."""
    found: Numbers = ()
    for numbers in sources:
        if not found:
            found = numbers
        elif numbers is not found and not (len(numbers) == 1 and numbers[0] in found):
            found = tuple(sorted({*found, *numbers}))
    return found


def source_lines(places: Iterable[Place]) -> tuple[SourceLine, ...]:
    """Every line of the user's code that led to some operators, each once, in their order; of an operator the innermost one first."""
    found: dict[tuple[str, str, int], SourceLine] = {}
    for place in places:
        for frame in reversed(of_users(place.frames)):
            key = (place.module, frame.file, frame.line)
            if key not in found:
                found[key] = SourceLine(place.module, frame.file, frame.line, frame.code)
        if not place.frames and place.module:
            found.setdefault((place.module, "", 0), SourceLine(place.module, "", 0, ""))
    return tuple(found.values())


def summary(places: Iterable[Place]) -> str:
    """The first of some places, file without folders, and how many others there are; "" if nothing is known."""
    found = dict.fromkeys(text for p in places if (text := _short(p)))
    first = next(iter(found), "")
    return first + f" + {len(found) - 1} more" * (len(found) > 1)


def _short(place: Place) -> str:
    if place.title:
        return place.title
    at = innermost(place.frames)
    return " ".join(filter(None, (place.module, at and f"({os.path.basename(at.file)}:{at.line})")))
