"""Which GPU a call runs on, and what is known of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from dcir.errors import ArtefactInvalid
from dcir.kernel_images import architecture_for


def architecture_of(device: int, made: Collection[str]) -> str:
    """The architecture whose machine code a GPU runs, of those that there is code for.

    Args:
        device: the GPU's number.
        made: architectures with code.

    Raises:
        ArtefactInvalid: it runs none of them.
    """
    capability = torch.cuda.get_device_capability(device)
    found = architecture_for(capability, made)
    if found is None:
        own = "sm_{}{}".format(*capability)
        raise ArtefactInvalid(
            f"there is code for GPUs of {', '.join(sorted(made))}, and this one is {own}",
            where=torch.cuda.get_device_name(device),
            hint=f"compile again, for {own} too",
        )
    return found


def capturing(device: torch.device) -> bool:
    """Whether somebody captures what is put on the current stream."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def device_of(args: Sequence[Any], constants: Sequence[torch.Tensor]) -> torch.device:
    """The GPU that a call's tensors are on."""
    for t in (*args, *constants):
        if isinstance(t, torch.Tensor) and t.is_cuda:
            return t.device
    return torch.device("cuda", torch.cuda.current_device())
