"""Pieces of HTML for notebooks: tables, folded text and pictures that run no script, load nothing, and take the page's own colours.

Whatever is named in a model or a file is escaped here, in one place: callers hand over text.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from dcir.report.roofline_axes import escaped

# Colours and type are the page's, so that both light and dark ones can be read; lines are of the text's colour.
_TABLE = "border-collapse:collapse;font-size:12px"
_CELL = "padding:2px 10px 2px 0;vertical-align:top;border-bottom:1px solid rgba(128,128,128,.35);text-align:"
_PRE = "font-size:12px;overflow-x:auto;white-space:pre;background:none;color:inherit"


def shown(title: str, *parts: str) -> str:
    """One object: its title, and parts made here."""
    return "\n".join(
        [f'<div style="color:inherit"><p><strong>{escaped(title)}</strong></p>', *filter(None, parts), "</div>"]
    )


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{escaped(text)}</p>"


def lines(texts: Iterable[str]) -> str:
    """A list; empty if there is nothing in it."""
    items = "".join(f"<li>{escaped(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[int] = (-1,)) -> str:
    """A table.

    Args:
        head: of the columns.
        rows: their cells; None is a dash.
        words: numbers of the columns that hold words, which begin at the left; numbers end at the right.
    """
    left = {number % len(head) for number in words}
    sides = ["left" if number in left else "right" for number in range(len(head))]
    out = [f'<table style="{_TABLE}"><thead>{_row("th", head, sides)}</thead><tbody>']
    out += [_row("td", ["-" if cell is None else cell for cell in row], sides) for row in rows]
    return "\n".join([*out, "</tbody></table>"])


def folded(summary: str, text: str) -> str:
    """A text of lines that the reader opens."""
    return f'<details><summary>{escaped(summary)}</summary><pre style="{_PRE}">{escaped(text)}</pre></details>'


def picture(svg: str, title: str) -> str:
    """An SVG as an image: its styles reach nothing else on the page."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escaped(title)}" style="width:100%;max-width:1000px" src="data:image/svg+xml;base64,{data}" />'


def _row(tag: str, cells: Sequence[object], sides: Sequence[str]) -> str:
    parts = (f'<{tag} style="{_CELL}{side}">{escaped(str(c))}</{tag}>' for c, side in zip(cells, sides, strict=True))
    return f"<tr>{''.join(parts)}</tr>"
