"""What PyTorch is asked to trace in another form where code is for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

from dcir.ops.reach import device


@contextmanager
def gpu_forms() -> Iterator[None]:
    """Attention as products and a softmax: its fused kernels there keep the state of a generator, and no page knows them."""
    if device() == "cpu":
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield
