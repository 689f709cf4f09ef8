"""`dcir scaling`: what data-parallel training of a model would take on many processes."""

from __future__ import annotations

import re
from typing import Any

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


def _read_checked(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    return None if value is None else _read_nodes(ctx, param, value)


@click.command("scaling", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option("--nodes", metavar="LIST", default="1..64", show_default=True, callback=_read_nodes, help="Processes.")
@click.option(
    "--link", metavar="LINK", default="10Gbit", show_default=True,
    help="10Gbit, 100Gbit, nvlink, local (gloo here, measured), or RATE[,LATENCY[,PROCESSOR TIME PER BYTE]] as 25Gbit,10us.",
)  # fmt: skip
@click.option("--algorithm", type=click.Choice(ALGORITHMS), default="ring", show_default=True, help="Of the exchanges.")
@click.option("--bucket", type=common.Finite(min=0.001), default=25.0, show_default=True, help="MiB of a bucket.")
@click.option("--loss", metavar="FUNCTION", help="Of MODEL's file, from results to a scalar. [the sum of mean squares]")
@click.option("--optimiser", default="sgd", show_default=True, help="sgd, adam, adamw, or milliseconds.")
@click.option("--beside", type=click.IntRange(min=0), default=0, help="Processes here that compute meanwhile. [0]")
@click.option(
    "--check", metavar="LIST", callback=_read_checked,
    help="Train with so many processes of this machine over gloo, as 2,4, and print predicted beside measured.",
)  # fmt: skip
@click.option("--eager/--no-eager", default=True, help="Predict eager PyTorch, too.", show_default=True)
@click.option("--seconds", type=common.Finite(min=0.01), default=2.0, show_default=True, help="Time for each.")
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
    check: list[int] | None,
    eager: bool,
    seconds: float,
    threads: int | None,
    plain: bool,
) -> None:
    """Predict the step time of MODEL's training under DistributedDataParallel, on several numbers of processes.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs) of one process. What one process computes is
    measured: kernels in their order, and when each gradient is complete. The exchanges of the buckets are computed.

    With --check that is held against training: in turns all processes measure a step alone, at once, and train together. The link is the
    measured one of this machine, and each process has its own cores, as far as there are.
    """
    from dcir.driver.measure import api

    besides = common.given("nodes", "link", "beside")
    if check is not None and besides:
        raise click.UsageError(
            f"--check says itself how many processes there are, and where: without {', '.join(besides)}."
        )
    result: Any
    with progress_bar(plain=plain, still=True) as progress:
        settings: dict[str, Any] = {
            "level": level, "shapes": shapes, "batch": batch, "seconds": seconds, "threads": threads, "loss": loss,
            "optimiser": optimiser, "bucket_mib": bucket, "algorithm": algorithm, "eager": eager, "progress": progress,
        }  # fmt: skip
        if check is not None:
            result = api.scaling_check_file(model, nodes=check, **settings)
        else:
            result = api.scaling_file(model, nodes=nodes, link=link, beside=beside, **settings)
    common.emit(result.to_text().rstrip(), result.to_json())
