"""`dcir passes`: the passes of a level in the order in which they run."""

from __future__ import annotations

import click

from dcir.cli import common

OURS = "dcir"


@click.command("passes", cls=common.Verb)
@common.level
def command(level: int) -> None:
    """List the passes that a level runs, in order, with their options, and the packages that passes of others come from."""
    from dcir.driver import api

    passes = api.list_passes(level)
    head, rows = ["tier", "pass", "what it does", "options"], []
    others = any(item.origin != OURS for item in passes)
    for item in passes:
        row = [str(item.tier), item.name, item.summary, _options(item.options)]
        rows.append((*row[:2], item.origin, *row[2:]) if others else tuple(row))
    if others:
        head.insert(2, "from")
    data = [
        {"name": p.name, "tier": p.tier, "summary": p.summary, "options": p.options, "origin": p.origin} for p in passes
    ]
    common.emit(common.table([tuple(head), *rows]), {"level": level, "passes": data})


def _options(options: object) -> str:
    if isinstance(options, dict):
        return " ".join(f"{name}={value}" for name, value in options.items())
    return " ".join(map(str, options)) if isinstance(options, list | tuple) else str(options or "")
