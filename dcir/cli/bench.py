"""`dcir bench`: how long a model takes, next to other ways to run it."""

from __future__ import annotations

import os

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
@click.option("--seconds", type=common.Finite(min=0.01), default=5.0, show_default=True, help="Time for each.")
@common.options(common.threads)
@click.option("--percentiles", metavar="LIST", default="", callback=_read_percentiles, help="More of them, as 90,99.")
@click.option(
    "--sizes", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Run a stream of calls of these sizes: a line each, as b=4 s=37, or a JSON list.",
)  # fmt: skip
@click.option(
    "--hint", type=click.Choice(["latency", "throughput"]), default="latency", show_default=True,
    help="How long one call takes, or how many a second there are when several run at once.",
)  # fmt: skip
@click.option("--streams", type=click.IntRange(min=1), help="Calls of dcir that run at once. [a cost model chooses]")
@common.options(common.plain)
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    against: str,
    seconds: float,
    threads: int | None,
    percentiles: list[float],
    sizes: str | None,
    hint: str,
    streams: int | None,
    plain: bool,
) -> None:
    """Measure MODEL: least and median time, percentiles, speed-up, error; or calls a second.

    MODEL is an .onnx or .dcir file, or file.py:function, where the function returns (model, inputs). With --sizes it is measured over a
    stream of calls: the median, the 95th and the 99th of a hundred calls, and a whole pass. With --hint throughput several calls run at
    once: dcir's streams, OpenVINO's, and as many threads of the others as there are processors.
    """
    from dcir.driver.ahead.compile import is_artefact
    from dcir.driver.measure import api

    baselines = [name.strip() for name in against.split(",") if name.strip()]
    if sizes is not None and batch is not None:
        raise click.UsageError("--sizes names all sizes; leave out --batch.", ctx)
    throughput = hint == "throughput"
    if throughput and (sizes is not None or percentiles):
        raise click.UsageError("--hint throughput counts calls a second: leave out --sizes and --percentiles.", ctx)
    if streams is not None and not throughput:
        raise click.UsageError("--streams is for --hint throughput.", ctx)
    if common.given("level") and os.path.isfile(model) and is_artefact(model):
        raise click.UsageError("-O is for models: the code in a .dcir file has the level that it was compiled at.", ctx)
    with progress_bar(plain=plain, still=True) as progress:
        if throughput:
            rates = api.bench_throughput(
                model, baselines, seconds, threads, streams=streams, level=level, shapes=shapes, batch=batch, progress=progress
            )  # fmt: skip
            common.emit(rates.to_text().rstrip(), rates.to_json())
            return
        if sizes is not None:
            stream = api.bench_stream(
                model, sizes, baselines, seconds, threads, level=level, shapes=shapes, percentiles=percentiles, progress=progress
            )  # fmt: skip
            common.emit(stream.to_text().rstrip(), stream.to_json())
            return
        result = api.bench_file(
            model, baselines, seconds, threads, level=level, shapes=shapes, batch=batch, percentiles=percentiles, progress=progress
        )  # fmt: skip
    common.emit(result.to_text().rstrip(), result.to_json())
