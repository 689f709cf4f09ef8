"""`dcir passes`: the passes of a level, tier by tier."""

from __future__ import annotations

import click

from dcir.cli import common


@click.command("passes", cls=common.Verb)
@common.level
def command(level: int) -> None:
    """List the passes that a level runs, in order, with their options."""
    from dcir.driver import api

    passes = api.list_passes(level)
    rows = [("tier", "pass", "what it does", "options")]
    rows += [(str(item.tier), item.name, item.summary, _options(item.options)) for item in passes]
    data = [{"name": item.name, "tier": item.tier, "summary": item.summary, "options": item.options} for item in passes]
    common.emit(common.table(rows), {"level": level, "passes": data})


def _options(options: object) -> str:
    if isinstance(options, dict):
        return " ".join(f"{name}={value}" for name, value in options.items())
    return " ".join(map(str, options)) if isinstance(options, list | tuple) else str(options or "")
