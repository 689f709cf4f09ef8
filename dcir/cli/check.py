"""`dcir check`: whether a model gives PyTorch's results."""

from __future__ import annotations

from pathlib import Path

import click

from dcir.cli import common


@click.command("check", cls=common.Verb)
@common.options(common.model, common.level, common.verify)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")
@click.pass_context
def command(ctx: click.Context, model: Path, level: int, verify: str, seed: int) -> None:
    """Compare the results of MODEL on random inputs with PyTorch's; exit code 1 if they differ."""
    from dcir.driver import api

    result = api.check_file(model, level=level, verify=verify, seed=seed)
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
