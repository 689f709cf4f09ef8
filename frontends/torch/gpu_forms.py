"""What PyTorch is asked to trace in another form where code is for a target without attention as one operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch.nn.attention import SDPBackend, sdpa_kernel

from dcir.ops.reach import device

_WANTED: ContextVar[bool] = ContextVar("gpu forms", default=False)


@contextmanager
def in_gpu_forms(*, wanted: bool) -> Iterator[None]:
    """Have what is captured in here, in this thread, be traced in these forms though its tensors are the CPU's."""
    before = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(before)


@contextmanager
def gpu_forms() -> Iterator[None]:
    """Attention as products and a softmax: its fused kernels on GPUs keep the state of a generator, and no page knows them."""
    if device() == "cpu" and not _WANTED.get():
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield
