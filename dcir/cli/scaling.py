"""`dcir scaling`: what data-parallel training of a model would take on many processes."""

from __future__ import annotations

import re

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar
from dcir.cost.links import ALGORITHMS

_MOST = 1 << 20


def _read_nodes(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Numbers of processes from texts like 1..64, which doubles, or 1,2,12."""
    found: set[int] = set()
    for word in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:\.\.([0-9]{1,7}))?\s*", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
        if not 1 <= first <= last <= _MOST:
            raise click.BadParameter(f"{value!r} does not look like 1..64 or 1,2,12.", ctx, param)
        found.add(last)
        while first < last:
            found.add(first)
            first *= 2
    return sorted(found)


@click.command("scaling", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option("--nodes", metavar="LIST", default="1..64", show_default=True, callback=_read_nodes, help="Processes.")
@click.option(
    "--link", metavar="LINK", default="10Gbit", show_default=True,
    help="10Gbit, 100Gbit, nvlink, local (gloo here, measured), or RATE[,LATENCY[,PROCESSOR TIME PER BYTE]] as 25Gbit,10us.",
)  # fmt: skip
@click.option("--algorithm", type=click.Choice(ALGORITHMS), default="ring", show_default=True, help="Of the exchanges.")
@click.option("--bucket", type=click.FloatRange(min=0.001), default=25.0, show_default=True, help="MiB of a bucket.")
@click.option("--loss", metavar="FUNCTION", help="Of MODEL's file, from results to a scalar. [the sum of mean squares]")
@click.option("--optimiser", default="sgd", show_default=True, help="sgd, adam, adamw, or milliseconds.")
@click.option("--beside", type=click.IntRange(min=0), default=0, help="Processes here that compute meanwhile. [0]")
@click.option("--eager/--no-eager", default=True, help="Predict eager PyTorch, too.", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.01), default=2.0, show_default=True, help="Time for each.")
@common.options(common.threads, common.plain)
def command(
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    nodes: list[int],
    link: str,
    algorithm: str,
    bucket: float,
    loss: str | None,
    optimiser: str,
    beside: int,
    eager: bool,
    seconds: float,
    threads: int | None,
    plain: bool,
) -> None:
    """Predict the step time of MODEL's training under DistributedDataParallel, on several numbers of processes.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs) of one process. What one process computes is
    measured: kernels in their order, and when each gradient is complete. The exchanges of the buckets are computed.
    """
    from dcir.driver import api

    with progress_bar(plain=plain, still=True) as progress:
        result = api.scaling_file(
            model, nodes=nodes, link=link, level=level, shapes=shapes, batch=batch, seconds=seconds, threads=threads, loss=loss,
            optimiser=optimiser, bucket_mib=bucket, algorithm=algorithm, beside=beside, eager=eager, progress=progress,
        )  # fmt: skip
    common.emit(result.to_text().rstrip(), result.to_json())
