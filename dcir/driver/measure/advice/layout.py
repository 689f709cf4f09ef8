"""Images that come in as the kernels want them: a call that begins by turning all of its images spends that time in every call."""

from __future__ import annotations

from dataclasses import replace

from dcir.driver.measure.advice.facts import Facts
from dcir.report.advice_pieces import MODELLED, Piece

_TORCH = {True: "torch.contiguous_format", False: "torch.channels_last"}
_WORDS = {True: "channels apart", False: "channels last"}


def layout(facts: Facts) -> list[Piece]:
    """The other layout of images, if a kernel does nothing but copy them, every byte read and written once."""
    if facts.trains:
        return []
    run = facts.clearest
    kernels, saved, together = list(run.without_work), 0.0, None
    for size, lie_together in facts.images:
        found = next((p for p in kernels if p.calls == 1 and p.bytes == 2 * size), None)
        if found is not None:
            kernels.remove(found)
            saved, together = saved + found.ms, lie_together
    if together is None:
        return []
    ms = run.whole.ms
    gain = ms / max(ms - saved, 1e-9)
    return [
        Piece(
            "layout", f"images with {_WORDS[together]}", gain, 1 / gain, MODELLED,
            f"a kernel that only copies the images takes {saved:.4g} of {ms:.4g} ms, and is not needed then",
            f"x = x.contiguous(memory_format={_TORCH[together]})  # where images are made", "",
            replace(facts.call, turned=True),
        )
    ]  # fmt: skip
