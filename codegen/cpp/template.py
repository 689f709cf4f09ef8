"""Templates: C++ with $names in files of ``templates/``, read once and rendered strictly.

A file holds named parts. A line ``//@ name`` begins one, lines ``//# …`` after it say why and are no part of it, the rest is C++ up to the
next part, without its last line break:

    //@ add
    //# In the order of memory.
    $inline T add(const T *a) { return a[0] + a[${step}LL]; }

``part(step=2)`` is the text. A name that the part has and that is not given is an error, and so is one that is given and that the part does
not have. Facts that many parts share, each using some of them, are given as one mapping: ``part(facts, step=2)``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "templates"
INLINE = "static inline __attribute__((always_inline))"
NOINLINE = "static __attribute__((noinline, noclone))"
"""What $inline and $noinline are everywhere."""

_PART = re.compile(r"^//@ (\w+)\n((?://#.*\n)*)", re.MULTILINE)
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_ALWAYS = {"inline": INLINE, "noinline": NOINLINE}
_NONE: Mapping[str, object] = {}


@dataclass(frozen=True)
class Template:
    """C++ with names to be filled in.

    Attributes:
        place: where it stands, for errors.
        pieces: text, a name, text, a name, …, text.
        names: all of them.
    """

    place: str
    pieces: tuple[str, ...]
    names: frozenset[str]

    @staticmethod
    def of(text: str, place: str = "text") -> Template:
        """The template that a text is."""
        found = [""]
        for piece, is_name in _pieces(text):
            if is_name and piece not in _ALWAYS:
                found += [piece, ""]
            else:
                found[-1] += _ALWAYS[piece] if is_name else piece
        if any("$" in piece for piece in found):
            raise ValueError(f"{place}: a $ that begins no name")
        return Template(place, tuple(found), frozenset(found[1::2]))

    @property
    def text(self) -> str:
        """What it was made from, but for $inline and $noinline."""
        return "".join(f"${{{piece}}}" if i % 2 else piece for i, piece in enumerate(self.pieces))

    def __call__(self, shared: Mapping[str, object] = _NONE, /, **values: object) -> str:
        """The text with its names filled in.

        Args:
            shared: values of which the template may leave some out.
            values: values that it has to have.

        Raises:
            LookupError: a name without a value, or a value without a name.
        """
        if not values.keys() <= self.names:
            raise LookupError(f"{self.place} has no {', '.join(sorted(values.keys() - self.names))}")
        texts = list(self.pieces)
        for i in range(1, len(texts), 2):
            name = texts[i]
            if name in values:
                texts[i] = str(values[name])
            elif name in shared:
                texts[i] = str(shared[name])
            else:
                raise LookupError(f"{self.place} wants {name}")
        return "".join(texts)


class Templates:
    """The parts of a file, as attributes. The file is read, and each part taken apart, when it is asked for: most graphs need few."""

    def __init__(self, file: str) -> None:
        self._file = file

    @functools.cached_property
    def _texts(self) -> dict[str, str]:
        before, *found = _PART.split((FOLDER / self._file).read_text(encoding="utf-8"))
        names = found[::3]
        if before or len(set(names)) != len(names):
            raise ValueError(f"templates/{self._file}: text before the first part, or two parts of one name")
        return dict(zip(names, found[2::3], strict=True))

    def __getattr__(self, name: str) -> Template:
        if name.startswith("_") or name not in self._texts:
            raise AttributeError(f"templates/{self._file} has no part {name}")
        part = Template.of(self._texts[name].removesuffix("\n"), f"templates/{self._file}: {name}")
        self.__dict__[name] = part  # the next look finds it there
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)


@functools.cache
def templates(name: str) -> Templates:
    """The parts of ``templates/<name>.inc``. The first look at one reads the file.

    That look raises:
        ValueError: something stands before the first part, two parts have one name, or a $ begins no name.
    """
    return Templates(f"{name}.inc")


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for match in _NAME.finditer(text):
        yield text[at : match.start()], False
        yield match.group(1) or match.group(2), True
        at = match.end()
    yield text[at:], False
