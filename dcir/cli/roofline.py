"""`dcir roofline`: a model's kernels under the roofs of the machine, and how they move over threads, batch and level."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar
from dcir.errors import OptionError
from dcir.options import LEVELS, parse_size

_MOST = 64
_APPLY = 3


def _read_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    """Numbers from texts like 1,2,8 and 0..4."""
    numbers: list[int] = []
    for word in (value or "").split(","):
        match = re.fullmatch(r"\s*O?([0-9]{1,6})(?:\.\.O?([0-9]{1,6}))?\s*", word)
        if match is None:
            if word.strip() or numbers or value:
                raise click.BadParameter(f"{value!r} is no list of numbers such as 1,2,4 or 0..4.", ctx, param)
            continue
        least, most = int(match[1]), int(match[2] or match[1])
        if most < least or most - least >= _MOST or len(numbers) >= _MOST:
            raise click.BadParameter(f"{word.strip()!r} has its ends the other way around, or is too long.", ctx, param)
        numbers += range(least, most + 1)
    return list(dict.fromkeys(numbers))


def _read_sizes(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    numbers = _read_numbers(ctx, param, value)
    if 0 in numbers:
        raise click.BadParameter(f"{value!r} has a zero in it.", ctx, param)
    return numbers


def _read_threads(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    numbers = _read_sizes(ctx, param, value)
    if numbers and max(numbers) > common.MOST_THREADS:
        raise click.BadParameter(f"{value!r} has more than {common.MOST_THREADS} threads in it.", ctx, param)
    return numbers


def _read_levels(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    levels = _read_numbers(ctx, param, value)
    if not levels or not set(levels) <= set(LEVELS):
        raise click.BadParameter(f"{value!r} names levels that are none of 0, 1, 2, 3, 4.", ctx, param)
    return levels


def _read_memory(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except OptionError as e:
        raise click.BadParameter(f"{value!r} is no size such as 512MB or 8GiB.", ctx, param) from e


@click.command("roofline", cls=common.Verb)
@common.options(common.source, common.shapes)
@click.option(
    "--threads", metavar="LIST", callback=_read_threads, help="Sizes of the team, as 1,2. [as many as torch uses]"
)
@click.option("--batch", "batches", metavar="LIST", callback=_read_sizes, help="Batches, as 1,4,16. [the model's own]")
@click.option(
    "--levels", metavar="LIST", callback=_read_levels, default="4", show_default=True, help="As 0..4, or 0,2,4."
)
@click.option(
    "--mode", type=click.Choice(("infer", "train")), default="infer", show_default=True,
    help="Train: forward and backward.",
)  # fmt: skip
@click.option(
    "--precision", type=click.Choice(("fp32", "bf16", "fp16")), help="Cast a Python module and its inputs. [the model's own]"
)  # fmt: skip
@click.option(
    "--seconds",
    type=common.Finite(min=0.01),
    default=1.0,
    show_default=True,
    help="How long to measure each setting.",
)
@click.option("--advise", is_flag=True, help="Say what to change of the call, and what that would bring.")
@click.option(
    "--apply", is_flag=False, flag_value=_APPLY, type=click.IntRange(min=1), metavar="[N]",
    help=f"Measure the first N pieces of advice, in turns with the model as it is called. [{_APPLY}]",
)  # fmt: skip
@click.option(
    "--optimiser", type=click.Choice(("sgd", "adam", "adamw")), default="sgd", show_default=True,
    help="Of the training steps that advice is for.",
)  # fmt: skip
@click.option(
    "--update", type=click.Choice(("loop", "foreach", "fused")),
    help="How the optimiser updates now. [as torch does for an optimised module: fused]",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE", callback=_read_memory,
    help="Memory that a training step may take, parameters and all, as 8GB. [advice on it from half of the machine's]",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=30, show_default=True, help="Kernels to show.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Draw it: FILE.svg, or FILE.html with the text.",
)  # fmt: skip
@common.options(common.plain)
def command(
    model: str,
    shapes: dict[str, list[int | str]],
    threads: list[int],
    batches: list[int],
    levels: list[int],
    mode: str,
    precision: str | None,
    seconds: float,
    advise: bool,
    apply: int | None,
    optimiser: str,
    update: str | None,
    memory: int | None,
    rows: int,
    output: Path | None,
    plain: bool,
) -> None:
    """Show the kernels of MODEL under the ceilings of this machine, and how they move over threads, batch and level.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs), and takes a batch if --batch is
    given. Every combination is compiled and measured. The ceilings are those that `dcir machine` measures.

    With --advise the model is looked at with one thread and all, its own batch (the first of --batch) and a larger one, unless they are
    named. --apply includes --advise.
    """
    from dcir.driver.measure import api
    from dcir.report.roofline import check_picture

    if output is not None:
        check_picture(output)  # before minutes of measuring
    if (besides := common.given("optimiser", "update", "memory")) and not (advise or apply):
        raise click.UsageError(f"{', '.join(besides)} would say what advice is for: --advise, or --apply.")
    if precision is not None and (advise or apply):
        raise click.UsageError("--precision is for rooflines alone: advice offers bfloat16 by itself.")
    result: Any
    with progress_bar(plain=plain, still=True) as progress:
        settings: dict[str, Any] = {
            "threads": threads, "batches": batches, "levels": levels, "mode": mode, "shapes": shapes, "seconds": seconds,
            "progress": progress,
        }  # fmt: skip
        if advise or apply:
            settings |= {"optimiser": optimiser, "update": update, "memory": memory}
            result = api.advise_file(model, apply=apply or 0, **settings)
        else:
            result = api.roofline_file(model, precision=precision, **settings)
    text, data = result.to_text(rows).rstrip(), result.to_json()
    if output is not None:
        result.save(output)
        text, data = f"{text}\nwrote {output}", {"output": str(output), **data}
    common.emit(text, data)
