"""`dcir explain`: what each tier did to a model, what was refused, and why; on request place by place."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common


@click.command("explain", cls=common.Verb)
@common.options(common.model, common.level, common.target, common.shapes, common.strict)
@click.option("--remarks", is_flag=True, help="Show what passes say of each place.")
@click.option("--at", metavar="OPERATOR", help="Remarks on an operator: its label, or a part of what it is or where.")
@click.option("--pass", "by", metavar="PASS", help="Remarks of one pass.")
@click.option("--kind", metavar="KIND", help="Remarks of one kind: passed, missed or analysis.")
@click.option("--skip", metavar="SITE", multiple=True, help="Switch a place off, as remarks name it.")
def command(
    model: Path,
    level: int,
    target: str,
    shapes: dict[str, list[int | str]],
    strict: bool,
    remarks: bool,
    at: str | None,
    by: str | None,
    kind: str | None,
    skip: tuple[str, ...],
) -> None:
    """Say what was done to MODEL (.onnx or .dcir), what was refused, and why."""
    from dcir.driver import api

    about = {"operator": at, "by": by, "kind": kind}
    remarks = remarks or any(about.values())
    report = api.explain_file(
        model, level=level, target=target, shapes=shapes, strict=strict, remarks=remarks, about=about, skip=skip
    )
    common.emit(report.to_text().rstrip(), report.to_json())
