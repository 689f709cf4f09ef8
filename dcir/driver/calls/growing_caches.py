"""Caches of keys and values that grow with every call: their length is no constant, and need not be seen twice to be known for none.

A cache is what transformers' ``DynamicCache`` is: an object with ``layers``, each of which says how it is called and has ``keys`` and
``values`` of shape (batch, heads, length, width).
"""

from __future__ import annotations

from typing import Any

import torch

_GROWING = frozenset({"DynamicLayer"})
"""Classes of layers whose keys and values are one longer in every call; others keep their size, or have a limit."""
_LENGTH = 2


def mark_growing(value: Any) -> None:
    """Have Dynamo take the lengths in a cache for sizes that change; what is no such cache is left alone."""
    layers = getattr(value, "layers", None) if not isinstance(value, torch.Tensor) else None
    if not isinstance(layers, list):
        return
    for layer in layers:
        if type(layer).__name__ not in _GROWING:
            continue
        for held in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            # Dynamo sets lengths of 0 and 1 apart in any case.
            if isinstance(held, torch.Tensor) and held.ndim > _LENGTH and held.shape[_LENGTH] > 1:
                torch._dynamo.maybe_mark_dynamic(held, _LENGTH)
