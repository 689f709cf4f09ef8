"""`dcir bench`: how long a model takes, next to other ways to run it."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common


@click.command("bench", cls=common.Verb)
@common.model
@click.option(
    "--against", default="eager", show_default=True, help="Rivals: eager, inductor, ort, with commas between."
)
@click.option("--seconds", type=click.FloatRange(min=0.01), default=5.0, show_default=True, help="Time for each.")
@click.option("--threads", type=click.IntRange(min=1), help="Size of the thread team. [as many as torch uses]")
def command(model: Path, against: str, seconds: float, threads: int | None) -> None:
    """Measure MODEL (.onnx or .dcir): median, 95th percentile, speed-up, error."""
    from dcir.driver import api

    rivals = [name.strip() for name in against.split(",") if name.strip()]
    result = api.bench_file(model, rivals, seconds, threads)
    common.emit(result.to_text().rstrip(), result.to_json())
