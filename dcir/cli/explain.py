"""`dcir explain`: what each tier did to a model, what was refused, and why; and its network for Model Explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dcir.cli import common

FORMATS = ("text", "model-explorer")


@click.command("explain", cls=common.Verb)
@common.options(common.model, common.level, common.target, common.shapes, common.strict)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
    help="model-explorer: also write the network to FILE, as Google's Model Explorer reads it.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Where to, as graph.json."
)
def command(
    model: Path,
    level: int,
    target: str,
    shapes: dict[str, list[int | str]],
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Say what was done to MODEL (.onnx or .dcir), what was refused, and why."""
    from dcir.driver import api

    if (output is not None) != (form != "text"):
        raise click.UsageError("--format model-explorer and -o FILE.json go together.")
    settings: dict[str, Any] = {"level": level, "target": target, "shapes": shapes, "strict": strict}
    if output is None:
        report = api.explain_file(model, **settings)
        common.emit(report.to_text().rstrip(), report.to_json())
        return
    report = api.model_explorer_file(model, output, **settings)
    common.emit(f"{report.to_text().rstrip()}\nwrote {output}", {"output": str(output), **report.to_json()})
