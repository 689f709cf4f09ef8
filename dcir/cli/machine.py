"""`dcir machine`: what this machine can do at most, measured once."""

from __future__ import annotations

import click

from dcir.cli import common


@click.command("machine", cls=common.Verb)
@click.option("--remeasure", is_flag=True, help="Measure again although the cache has a result.")
@click.option("--force", is_flag=True, help="Accept what is measured while other processes work.")
@click.option("--target", type=click.Choice(["cpp", "cuda"]), default="cpp", help="The processor, or the GPU at hand.")
def command(remeasure: bool, force: bool, target: str) -> None:
    """Show peaks, bandwidths and costs of threads of this machine; measure them the first time."""
    if target == "cuda":
        from dcir.driver.measure.device_rates import measure_device

        rates = measure_device(again=remeasure)
        common.emit(rates.to_text(), rates.to_json())
        return
    from dcir.driver.measure.machine import measure

    model = measure(force=force, again=remeasure)
    common.emit(model.to_text(), model.to_json())
