"""AOTAutograd computes numbers as tensors where it can; of a remainder it has to be told that it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn
from unittest import mock

from torch.utils._sympy.reference import TensorReferenceAnalysis


def _none(x: object, y: object) -> NoReturn:
    raise NotImplementedError("a remainder as Python has it, of tensors")


@contextmanager
def remainders_stay_numbers() -> Iterator[None]:
    """While it lasts a float that depends on ``size % n`` is left as it is, where PyTorch 2.13 fails with an AttributeError."""
    if hasattr(TensorReferenceAnalysis, "python_mod"):
        yield
        return
    with mock.patch.object(TensorReferenceAnalysis, "python_mod", staticmethod(_none), create=True):
        yield
