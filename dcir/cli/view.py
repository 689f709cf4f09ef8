"""`dcir view`: all that became of a model, as a page: served, or in one file; for other viewers, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar

FORMATS = ("model-explorer", "chrome-trace", "sdfg", "json")


@click.command("view", cls=common.Verb)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@common.options(common.level, common.target, common.shapes, common.batch)
@click.option(
    "--mode", type=click.Choice(("infer", "train")), default="infer", show_default=True,
    help="Train: forward and backward of mean squares.",
)  # fmt: skip
@click.option(
    "--seconds", type=common.Finite(min=0), default=1.0, show_default=True,
    help="How long to measure; 0 measures nothing, and needs no compiler.",
)  # fmt: skip
@click.option(
    "--advise", is_flag=True, help="Find out what to change of the call, by measuring more threads, batches and levels."
)
@common.options(common.threads)
@click.option("--skip", metavar="SITE", multiple=True, help="Switch a place off, as remarks name it.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write FILE.html, one page that needs nothing else, or FILE.dcirsession, instead of serving.",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="Write -o FILE for another viewer.")
@common.options(common.plain)
def command(
    models: tuple[str, ...],
    level: int,
    target: str,
    shapes: dict[str, list[int | str]],
    batch: int | None,
    mode: str,
    seconds: float,
    advise: bool,
    threads: int | None,
    skip: tuple[str, ...],
    output: Path | None,
    form: str | None,
    plain: bool,
) -> None:
    """Look at MODEL: where its time goes, its graph after every pass, its kernels, its memory, and what else it could be.

    MODEL is an .onnx file, file.py:function, where the function returns (model, inputs), or a .dcirsession file; of two the
    second is compared with the first. Without -o the page is served on this machine until Ctrl-C.
    """
    from dcir.driver.view.files import view_files
    from dcir.driver.view.view import check_name
    from dcir.report.session_file import is_session
    from dcir.view.server import check_installed

    if form is not None and output is None:
        raise click.UsageError("--format wants -o FILE.")
    if form is not None and len(models) > 1:
        raise click.UsageError("--format is for one model.")
    if all(Path(model).is_file() and is_session(model) for model in models):
        names = ("level", "target", "shapes", "batch", "mode", "advise", "threads", "skip")
        if besides := common.given(*names):
            raise click.UsageError(
                f"A session file keeps what was compiled and measured: without {', '.join(besides)}, or dcir view MODEL."
            )
    if output is not None and form is None:
        check_name(output)  # before seconds of compiling
    if output is None:
        check_installed()
    settings: dict[str, Any] = {"level": level, "target": target, "threads": threads, "skip": skip}
    with progress_bar(plain=plain, still=True) as progress:
        view = view_files(
            models,
            mode=mode,
            batch=batch,
            shapes=shapes,
            seconds=seconds or None,
            advise=advise,
            progress=progress,
            **settings,
        )
    if output is not None:
        view.save(output, form)
        common.emit(f"wrote {output}", {"output": str(output)})
        return
    server = view.server()
    common.emit(f"open {server.address}\nCtrl-C ends it", {"address": server.address})
    server.run()
