"""`dcir profile`: where the time of a call goes, kernel by kernel."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar


@click.command("profile", cls=common.Verb)
@common.options(common.source, common.level, common.shapes, common.batch)
@click.option("--seconds", type=common.Finite(min=0.01), default=2.0, show_default=True, help="How long to measure.")
@common.options(common.threads)
@click.option("--rows", type=click.IntRange(min=1), default=30, show_default=True, help="Kernels to show.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write a Chrome trace, for Perfetto: FILE.json.",
)  # fmt: skip
@common.options(common.plain)
def command(
    model: str,
    level: int,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    seconds: float,
    threads: int | None,
    rows: int,
    output: Path | None,
    plain: bool,
) -> None:
    """Measure every kernel inside the calls of MODEL: time, rates, distance to the floor, place in the model.

    MODEL is an .onnx file, or file.py:function, where the function returns (model, inputs). The floor needs the constants
    that `dcir machine` measures.
    """
    from dcir.driver.measure import api
    from dcir.report.profile import check_trace

    if output is not None:
        check_trace(output)  # before seconds of measuring
    with progress_bar(plain=plain, still=True) as progress:
        result = api.profile_file(
            model, level=level, shapes=shapes, batch=batch, seconds=seconds, threads=threads, progress=progress
        )
    text, data = result.to_text(rows).rstrip(), result.to_json()
    if output is not None:
        result.save(output)
        text, data = f"{text}\nwrote {output}", {"output": str(output), **data}
    common.emit(text, data)
