"""`dcir compile`: an ONNX file becomes one .dcir file."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar


@click.command("compile", cls=common.Verb)
@common.options(common.model, common.level)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file to write. [MODEL.dcir]")
@common.options(common.target, common.shapes, common.bounds)
@click.option(
    "--threads",
    type=common.team_size,
    help="Size of the team that will run it, on this machine or another. [as many as torch uses]",
)
@click.option(
    "--arch",
    multiple=True,
    metavar="NAME",
    help="With --target cuda, a GPU's architecture that the file is for (sm_80, sm_90a); several times. [the GPU at hand]",
)
@click.option("--until", metavar="PASS", help="Stop after this pass.")
@common.options(common.strict, common.verify, common.plain)
def command(
    model: Path,
    level: int,
    output: Path | None,
    target: str,
    shapes: dict[str, list[int | str]],
    bounds: dict[str, tuple[int | None, int | None]],
    threads: int | None,
    arch: tuple[str, ...],
    until: str | None,
    strict: bool,
    verify: str,
    plain: bool,
) -> None:
    """Compile MODEL (an ONNX file) to one file with code, weights and graph.

    Sizes that the file leaves open are fixed with --shape, or may change from call to call within bounds:
    --shape x=[b,3,224,224] --bound b=1..64
    """
    from dcir.driver import api

    destination = output or model.with_suffix(".dcir")
    with progress_bar(plain=plain) as progress:
        report = api.compile_file(
            model,
            destination,
            level=level,
            target=target,
            shapes=shapes,
            bounds=bounds,
            threads=threads,
            arch=arch,
            until=until,
            strict=strict,
            verify=verify,
            progress=progress,
        )
    data = {"output": str(destination), **report.to_json()}
    common.emit(f"{report.to_text().rstrip()}\nwrote {destination}", data)
