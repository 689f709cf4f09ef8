"""Remarks of passes as a table, as JSON, and as what is left of them when one asks about an operator, a pass or a kind."""

from __future__ import annotations

import difflib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dcir.errors import OptionError
from dcir.ir.remarks import KINDS, PASSED, NamedOperator, Remark
from dcir.ir.sites import labels_of

MOST_ROWS = 200
_COLORS = {"passed": "green", "missed": "yellow", "analysis": "cyan"}


class GraphRemark(NamedTuple):
    """A remark, and the number of the graph that it is about."""

    graph: int
    remark: Remark


class Remarks(Sequence[GraphRemark]):
    """What passes said of the places of some graphs, in the order in which they ran.

    Args:
        rows: the remarks.
    """

    def __init__(self, rows: Sequence[GraphRemark] = ()) -> None:
        self._rows = tuple(rows)

    @classmethod
    def of(cls, graphs: Sequence[Any]) -> Remarks:
        """Those in records of compiled graphs (``driver.record.GraphRecord``)."""
        return cls([GraphRemark(i, r) for i, g in enumerate(graphs) for p in g.passes for r in p.remarks])

    def __getitem__(self, at: Any) -> Any:
        return Remarks(self._rows[at]) if isinstance(at, slice) else self._rows[at]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[GraphRemark]:
        return iter(self._rows)

    def where(self, *, operator: str | None = None, by: str | None = None, kind: str | None = None) -> Remarks:
        """Those that are about something.

        Args:
            operator: a label (also of an imported operator that others were made of), or a part of what an operator computes or of its
                place in the user's model.
            by: the name of a pass.
            kind: "passed", "missed" or "analysis".

        Raises:
            OptionError: there is no such kind.
        """
        if kind is not None and kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            raise OptionError(
                f"there is no kind of remarks {kind!r}", where=f"kind={kind!r}", hint=near[0] if near else " or ".join(KINDS)
            )  # fmt: skip
        return Remarks(
            [
                row
                for row in self._rows
                if (kind is None or row.remark.kind == kind)
                and (by is None or row.remark.by == by)
                and (operator is None or _about(row.remark, operator))
            ]
        )

    def to_json(self) -> list[dict[str, Any]]:
        """The remarks as plain data."""
        return [{"graph": row.graph, **row.remark.to_json()} for row in self._rows]

    def to_text(self, *, width: int = 160, most: int = MOST_ROWS, color: bool = False) -> str:
        """The remarks as a table.

        Args:
            width: of a line, in characters.
            most: rows to show; how many there are besides is said.
            color: whether to mark kinds by colors, for a terminal.
        """
        counts = Counter[str]()
        for row in self._rows:
            counts[row.remark.kind] += row.remark.count
        title = "remarks: " + (", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]) or "none")
        if not self._rows:
            return title
        # Here, since a report without remarks does without.
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name, ratio in (
            ("graph", None),
            ("pass", None),
            ("", None),
            ("operators", 4),
            ("why, and what it saves", 3),
        ):
            table.add_column(name, ratio=ratio, overflow="fold")
        for row in self._rows[:most]:
            r = row.remark
            # Names from models are text: none is read as markup.
            kind = Text(r.kind, _COLORS[r.kind] if color else "")
            table.add_row(Text(str(row.graph)), Text(f"{r.index} {r.by}"), kind, Text(_operators(r)), Text(_why(r)))
        out = io.StringIO()
        Console(file=out, width=width, force_terminal=color, highlight=False, legacy_windows=False).print(table)
        lines = [title, *(line.rstrip() for line in out.getvalue().splitlines())]
        left = len(self._rows) - most
        if left > 0:
            lines.append(f"and {left} more: ask about an operator, a pass or a kind, or for JSON")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()


def _about(r: Remark, operator: str) -> bool:
    ops = (*r.ops, *r.made)
    if any(o.label == operator for o in ops) or operator in labels_of(r.site):
        return True
    return any(operator in text for o in ops for text in (o.what, o.origin))


def _operators(r: Remark) -> str:
    lines = [_named(o) for o in r.ops]
    new = [o.label for o in r.made]
    return "\n".join([*lines, *(["-> " + ", ".join(new)] if new else [])])


def _named(o: NamedOperator) -> str:
    return f"{o.label}: {o.what}" + (f"  {o.origin}" if o.origin else "")


def _why(r: Remark) -> str:
    """The reason, the figures, and what switches it off."""
    figures = [f"{name.replace('_', ' ')} {_figure(name, value)}" for name, value in r.figures.items()]
    told = r.reason if r.count == 1 else f"{r.count} times: {r.reason}" if r.reason else f"{r.count} times"
    lines = [told, ", ".join(figures)]
    lines += [f"skip={r.site}"] if r.kind == PASSED and r.site else []
    return "\n".join(line for line in lines if line)


def _figure(name: str, value: float) -> str:
    if "bytes" not in name and "peak" not in name:
        return f"{value:.4g}"
    power = next((p for p in (3, 2, 1) if abs(value) >= 1000**p), 0)
    return f"{value / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"
