"""A progress bar, on a terminal only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from dcir.cli.common import wants_json

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and how much there is."""


@contextlib.contextmanager
def progress_bar(*, plain: bool, still: bool = False) -> Iterator[Progress | None]:
    """A bar per step on standard error; None where nobody would see it, or where it was not wanted.

    Args:
        plain: it is not wanted.
        still: it is drawn when a step is told of and not in between, where a thread that draws would be measured as well.
    """
    if plain or wants_json() or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True, auto_refresh=not still) as bars:
        tasks = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                # Markup in a name from a model would be read as a command to rich.
                tasks[step] = bars.add_task(step.replace("[", "("), total=total)
            bars.update(tasks[step], completed=done, total=total, refresh=still)

        yield show
