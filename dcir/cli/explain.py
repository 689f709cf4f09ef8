"""`dcir explain`: what each tier did to a model, what was refused, and why."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common


@click.command("explain", cls=common.Verb)
@common.options(common.model, common.level, common.target, common.shapes, common.strict)
def command(model: Path, level: int, target: str, shapes: dict[str, list[int | str]], strict: bool) -> None:
    """Say what was done to MODEL (.onnx or .dcir), what was refused, and why."""
    from dcir.driver import api

    report = api.explain_file(model, level=level, target=target, shapes=shapes, strict=strict)
    common.emit(report.to_text().rstrip(), report.to_json())
