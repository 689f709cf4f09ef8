"""`dcir tune`: measures other ways to make a model's kernels, and keeps those that win."""

from __future__ import annotations

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar


def _read_budget(ctx: click.Context, param: click.Parameter, value: str) -> float:
    from dcir.errors import OptionError
    from dcir.options import parse_duration

    try:
        seconds = parse_duration(value)
    except OptionError:
        seconds = None
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no time such as 60s or 5m.", ctx, param)
    return seconds


@click.command("tune", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option("--budget", metavar="TIME", callback=_read_budget, default="60s", show_default=True, help="How long.")
@common.options(common.threads)
@click.option("--train", is_flag=True, help="Tune the backward pass, too.")
@click.option("--force", is_flag=True, help="Accept what is measured while other processes work.")
@click.option("--remeasure", is_flag=True, help="Measure again what the database has a verdict on.")
@common.options(common.plain)
def command(
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    budget: float,
    threads: int | None,
    train: bool,
    force: bool,
    remeasure: bool,
    plain: bool,
) -> None:
    """Measure other tiles, blocks and divisions of work for the kernels of MODEL, and keep what is faster.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs). Kernels that take most of the time
    come first, those with a verdict in the cache are not measured again, and the next compilation uses what won.
    """
    from dcir.driver.measure import api

    with progress_bar(plain=plain, still=True) as progress:
        result = api.tune_file(
            model, budget=budget, level=level, shapes=shapes, batch=batch, threads=threads, train=train, force=force, again=remeasure,
            progress=progress,
        )  # fmt: skip
    common.emit(result.to_text(), result.to_json())
