"""`dcir check`: whether a model gives PyTorch's results."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common
from dcir.cli.progress import progress_bar


@click.command("check", cls=common.Verb)
@common.options(common.model, common.level, common.shapes, common.bounds, common.verify)
@click.option(
    "--seed", type=click.IntRange(-(2**63), 2**63 - 1), default=0, show_default=True, help="Seed of the random inputs."
)
@click.option(
    "--bisect", is_flag=True, help="Find the pass or the kernel that changes numbers, and write a reproducer."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default="repro.py", show_default=True,
    help="With --bisect, the reproducer.",
)  # fmt: skip
@common.options(common.plain)
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    level: int,
    shapes: dict[str, list[int | str]],
    bounds: dict[str, tuple[int | None, int | None]],
    verify: str,
    seed: int,
    bisect: bool,
    output: Path,
    plain: bool,
) -> None:
    """Compare the results of MODEL on random inputs with PyTorch's; exit code 1 if they differ.

    Sizes that the file leaves open are fixed with --shape, or one file is compiled for all sizes within bounds and compared at
    their ends, in the middle and at random: --shape x=[b,3,224,224] --bound b=1..64
    """
    from dcir.driver import api

    if bisect and bounds:
        raise click.UsageError("--bisect looks at one call; fix its sizes with --shape.", ctx)
    if bisect:
        _bisect(ctx, model, output, level, seed, shapes)
        return
    with progress_bar(plain=plain) as progress:
        result = api.check_file(
            model, level=level, verify=verify, seed=seed, shapes=shapes, bounds=bounds, progress=progress
        )
    verdict = "agrees" if result.ok else "DIFFERS"
    text = f"{model} {verdict}: error {result.error:.3g}, tolerance {result.tolerance:.3g}"
    data = {
        "ok": result.ok,
        "error": result.error,
        "tolerance": result.tolerance,
        "details": result.details,
    }
    details = dict(result.details or {})
    rows = common.table([("", str(name), str(value)) for name, value in details.items()])
    common.emit(f"{text}\n{rows}".rstrip(), data)
    if not result.ok:
        ctx.exit(common.WRONG_RESULT)


def _bisect(
    ctx: click.Context, model: Path, output: Path, level: int, seed: int, shapes: dict[str, list[int | str]]
) -> None:
    from dcir.driver import api

    result = api.bisect_file(model, output, level=level, seed=seed, shapes=shapes)
    finding = result.finding
    if finding is None:
        common.emit(f"{model}: no step changes numbers by more than rounding", {"ok": True, "found": None})
        return
    rows = [
        ("", "error", f"{finding.error:.3g}, tolerance {finding.tolerance:.3g}"),
        *([("", "where", finding.where)] if finding.where else []),
        (
            "",
            "reproducer",
            f"{result.path}, {result.calls} operators" if result.path else "none: no smaller graph shows it",
        ),
    ]
    data = {
        "ok": False,
        "found": {"kind": finding.kind, "culprit": finding.culprit, "passes": [p.name for p in finding.passes]},
        "error": finding.error,
        "tolerance": finding.tolerance,
        "where": finding.where or None,
        "reproducer": str(result.path) if result.path else None,
        "operators": result.calls,
    }
    common.emit(f"{model}: {finding.culprit} changes numbers\n{common.table(rows)}", data)
    ctx.exit(common.WRONG_RESULT)
