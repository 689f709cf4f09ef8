"""`dcir plan`: how many threads each kernel of a model gets, and which kernels could run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar
from dcir.errors import OptionError

if TYPE_CHECKING:
    from dcir.cost.threads.topology import Cores


def _read_cores(ctx: click.Context, param: click.Parameter, value: str | None) -> Cores | None:
    from dcir.cost.threads.topology import parse_cores

    try:
        return None if value is None else parse_cores(value)
    except OptionError as e:
        raise click.BadParameter(
            f"{value!r} does not look like 16 or 2x64, with up to a thousand cores.", ctx, param
        ) from e


@click.command("plan", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option(
    "--mode", type=click.Choice(("infer", "train")), default="infer", show_default=True,
    help="Train: forward and backward.",
)  # fmt: skip
@click.option(
    "--cores", metavar="CORES", callback=_read_cores, help="Plan for another machine: 16, or 2x64. [for this one]"
)
@click.option(
    "--measure", "sweep", is_flag=True,
    help="Run every way to share this machine's cores between calls, beside those that are planned.",
)  # fmt: skip
@click.option(
    "--seconds", type=common.Finite(min=0.01), default=1.0, show_default=True,
    help="How long to measure each setting.",
)  # fmt: skip
@common.options(common.threads)
@click.option("--rows", type=click.IntRange(min=1), default=30, show_default=True, help="Kernels to show.")
@common.options(common.plain)
def command(
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    mode: str,
    cores: Cores | None,
    sweep: bool,
    seconds: float,
    threads: int | None,
    rows: int,
    plain: bool,
) -> None:
    """Plan the threads of MODEL's calls: how wide its graphs are, which kernels stop scaling, and what settings would bring.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs). Kernels are measured on teams of 1, 2, 4, ...
    threads, and modelled on more. Settings that this machine can run are measured, too; plans that it cannot run are predicted only.

    --measure compiles the model for every team, and runs as many calls at a time as have cores of their own: how good the planned way,
    the hint's, and the guideline's pools are, each pool a call.
    """
    from dcir.driver.measure import api

    if sweep and cores is not None:
        raise click.UsageError("--measure runs on this machine, and --cores is another one.")
    with progress_bar(plain=plain, still=True) as progress:
        result = api.plan_file(
            model, level=level, shapes=shapes, batch=batch, mode=mode, cores=cores, seconds=seconds, threads=threads,
            sweep=sweep, progress=progress,
        )  # fmt: skip
    common.emit(result.to_text(rows).rstrip(), result.to_json())
