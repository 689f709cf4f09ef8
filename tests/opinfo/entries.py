"""The operators of PyTorch's own test databases with float32 samples, by name, and the sample each is tried with.

Higher-order operators (``hop_db``) are named ``higher_order:...``; modules, ``module:...``, are in ``modules.py``.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_LOOKED_AT = 32
_ELEMENTS = 20_000


@dataclass(frozen=True)
class Call:
    """One sample of an entry.

    Attributes:
        op: the operator as a Python function.
        leaves: of the arguments, tensors and others; every run gets copies.
        shape: of the tree the leaves are taken from, ``(args, kwargs)``.
        comparable: makes of the result what is unique in it (a singular vector has no sign), for the gradients.
    """

    op: Callable[..., Any]
    leaves: tuple[Any, ...]
    shape: Any
    comparable: Callable[[Any], Any]

    def function(self, change: Callable[[Tensor], Tensor] = lambda t: t) -> Callable[..., Any]:
        """The call as a function of its tensors alone; it has no state to change."""
        leaves, shape, op = self.leaves, self.shape, self.op

        def call(*tensors: Tensor) -> Any:
            left = iter(tensors)
            filled = [next(left) if isinstance(v, Tensor) else v for v in leaves]
            args, kwargs = pytree.tree_unflatten(filled, shape)
            return op(*args, **kwargs)

        return call

    def result(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """What the function gives for tensors in place of the sample's."""
        return function(*tensors)

    def tensors(self, change: Callable[[Tensor], Tensor] = lambda t: t) -> list[Tensor]:
        """New leaves for one run, in the memory layout of the sample."""
        out = []
        for t in self.leaves:
            if isinstance(t, Tensor):
                out.append(change(copy.deepcopy(t.detach())).requires_grad_(t.requires_grad))
        return out


@functools.cache
def entries() -> dict[str, Any]:
    """Every entry that takes float32 on the CPU, in the database's order."""
    from torch.testing._internal import common_methods_invocations as database

    # Random operators come wrapped in a seeding of their own, which TorchDynamo cannot trace. Every run here is seeded.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    found = {}
    for info in database.op_db:
        if torch.float32 in info.supported_dtypes("cpu"):
            found[info.name + (f"-{info.variant_test_name}" if info.variant_test_name else "")] = info
    return found


@functools.cache
def higher_order() -> dict[str, Any]:
    """Every higher-order operator, also those whose entry names no type for the CPU: eager says whether it has any."""
    from torch.testing._internal.hop_db import hop_db

    return {f"higher_order:{info.name}-{info.variant_test_name}": info for info in hop_db}


def calls(name: str) -> Iterator[Call]:
    """The samples of an entry, those with most elements first: the first ones are often scalars."""
    info = (higher_order() if name.startswith("higher_order:") else entries())[name]
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    samples = itertools.islice(
        info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd), _LOOKED_AT
    )
    found = []
    for sample in samples:
        leaves, shape = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        size = sum(v.numel() for v in leaves if isinstance(v, Tensor))
        if size <= _ELEMENTS or name.startswith("higher_order:"):
            found.append((size, Call(info.op, tuple(leaves), shape, sample.output_process_fn_grad)))
    yield from (call for _, call in sorted(found, key=lambda pair: -pair[0]))
