"""The positional arguments of an example call, as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dcir.errors import InvalidInput


def example_arguments(inputs: Sequence[Any] | torch.Tensor) -> tuple[Any, ...]:
    """The arguments of a call; a tensor alone is the only one, as for ``torch.onnx.export``.

    Raises:
        InvalidInput: something else that is no tuple or list, whose members one would have to guess.
    """
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if not isinstance(inputs, tuple | list):
        raise InvalidInput(
            "the arguments of an example call are a tuple", where=f"inputs: {type(inputs).__name__}",
            hint="inputs=(x,); arguments by name are named={'x': x}",
        )  # fmt: skip
    return tuple(inputs)
