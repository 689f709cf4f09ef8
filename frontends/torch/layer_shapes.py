"""While Dynamo looks at a recurrent layer it learns the shapes from one step, so that any number of steps is one graph.

PyTorch's decompositions walk through all steps, also where nothing is computed: that takes time with their number, and makes a constant
of it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_LAYERS = ("one_layer_rnn", "one_layer_lstm")
_OF_PACKED = ("one_layer_rnn_data", "one_layer_lstm_data")
"""Of packed sequences: how many each step has is in a tensor, whose numbers a fake one has not."""


class _Active(threading.local):
    depth = 0


_active = _Active()


@contextlib.contextmanager
def shapes_from_one_step() -> Iterator[None]:
    """This thread's fake tensors go through one step of a layer, while this lasts."""
    _install()
    _active.depth += 1
    try:
        yield
    finally:
        _active.depth -= 1


@functools.cache
def _install() -> None:
    """Once and for good: what another thread is doing at the moment must not depend on when this one is done."""
    for name in _LAYERS:
        setattr(decompositions, name, _of_one_step(getattr(decompositions, name)))
    for name in _OF_PACKED:
        setattr(decompositions, name, _of_one_element(getattr(decompositions, name)))


def _of_one_element(layer: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    @functools.wraps(layer)
    def shaped(data: Tensor, hidden: Any, *args: Any, **options: Any) -> tuple[Tensor, Any]:
        if not _active.depth or not isinstance(data, FakeTensor) or get_proxy_mode() is not None:
            return layer(data, hidden, *args, **options)
        states = hidden if isinstance(hidden, list | tuple) else (hidden,)
        first = [s[:1] for s in states]
        options["batch_sizes"] = [1]
        output, _ = layer(data[:1], tuple(first) if len(first) > 1 else first[0], *args, **options)
        return output.repeat(data.shape[0], 1), hidden

    return shaped


def _of_one_step(layer: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    @functools.wraps(layer)
    def shaped(data: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Any]:
        if not _active.depth or not isinstance(data, FakeTensor) or get_proxy_mode() is not None:
            return layer(data, *args, **options)
        output, state = layer(data[:1], *args, **options)
        return output.repeat(data.shape[0], 1, 1), state

    return shaped
