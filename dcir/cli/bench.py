"""`dcir bench`: how long a model takes, next to other ways to run it."""

from __future__ import annotations

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar


def _read_percentiles(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    try:
        numbers = [float(word) for word in value.split(",") if word.strip()]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= n <= 100 for n in numbers):
        raise click.BadParameter(f"{value!r} is no list of numbers from 0 to 100.", ctx, param)
    return numbers


@click.command("bench", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option(
    "--against", default="eager", show_default=True, help="Rivals: eager, inductor, ort, ov, with commas between."
)
@click.option("--seconds", type=click.FloatRange(min=0.01), default=5.0, show_default=True, help="Time for each.")
@click.option("--threads", type=click.IntRange(min=1), help="Size of the thread team. [as many as torch uses]")
@click.option("--percentiles", metavar="LIST", default="", callback=_read_percentiles, help="More of them, as 90,99.")
@common.options(common.plain)
def command(
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    against: str,
    seconds: float,
    threads: int | None,
    percentiles: list[float],
    plain: bool,
) -> None:
    """Measure MODEL: least and median time, percentiles, speed-up, error.

    MODEL is an .onnx or .dcir file, or file.py:function, where the function returns (model, inputs).
    """
    from dcir.driver import api

    baselines = [name.strip() for name in against.split(",") if name.strip()]
    with progress_bar(plain=plain, still=True) as progress:
        result = api.bench_file(
            model, baselines, seconds, threads, level=level, shapes=shapes, batch=batch, percentiles=percentiles, progress=progress
        )  # fmt: skip
    common.emit(result.to_text().rstrip(), result.to_json())
