"""While Dynamo looks at a recurrent layer it is shown a form for packed sequences that reads no number of a tensor.

torch's own asks the sizes how many sequences there are, for the states that nobody gave and to check those that somebody did: Dynamo
leaves a layer to Python for that, with all around it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import skip_code
from torch.nn.utils.rnn import PackedSequence

LAYERS = (nn.RNN, nn.LSTM, nn.GRU)
CUT = "how many sequences are packed is a number in a tensor (enforce_sorted=False, or states that are given, have it as a size)"
"""Why Dynamo ends a graph in front of a layer: nothing of it runs in PyTorch."""
_FUNCTIONS: dict[str, Any] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}
_NUMBERS = itertools.count()
_frames: WeakKeyDictionary[nn.Module, FunctionType] = WeakKeyDictionary()
"""Of each layer behind a cut: Dynamo learns per frame what changes from call to call, which must not mix layers."""


def _form(kind: type[nn.RNNBase], own: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` of a kind of layer."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, PackedSequence):
            return own(self, input, hx)
        if hx is None:
            if input.sorted_indices is None:
                return _counted(self, input)
            return _layer(self, input, _zeros(self, input.data, input.sorted_indices.shape[0]))
        return _layer(self, input, self.permute_hidden(hx, input.sorted_indices))

    # Called by Python, behind a cut, it is no frame to compile; called in one it is followed all the same.
    skip_code(forward.__code__)
    forward.__doc__, forward.__qualname__ = own.__doc__, f"{kind.__qualname__}.forward"
    return forward


@torch._dynamo.disable(recursive=False, reason=CUT)  # type: ignore[untyped-decorator]
def _counted(layer: Any, input: PackedSequence) -> Any:
    """Out of Dynamo's sight, what it calls is in it again."""
    frame = _frames.get(layer)
    if frame is None:
        code = _layer.__code__.replace(co_name=f"_layer_{next(_NUMBERS)}")
        frame = _frames[layer] = FunctionType(code, _layer.__globals__)
    return frame(layer, input, _counted_zeros(layer, input.data, int(input.batch_sizes[0])))


def _zeros(layer: Any, data: Tensor, sequences: int) -> Any:
    places = layer.num_layers * (2 if layer.bidirectional else 1)
    h = data.new_zeros(places, sequences, layer.proj_size if layer.proj_size > 0 else layer.hidden_size)
    return (h, data.new_zeros(places, sequences, layer.hidden_size)) if layer.mode == "LSTM" else h


_counted_zeros = torch._dynamo.disable(_zeros)


def _layer(layer: Any, input: PackedSequence, hx: Any) -> Any:
    layer._update_flat_weights()
    data, sizes, order, back = input
    layer.check_input(data, sizes)
    places, width = layer.num_layers * (2 if layer.bidirectional else 1), layer.hidden_size
    if layer.mode == "LSTM":
        first, second = hx
        sequences = first.shape[1]
        layer.check_hidden_size(first, (places, sequences, layer.proj_size if layer.proj_size > 0 else width))
        layer.check_hidden_size(second, (places, sequences, width))
    else:
        layer.check_hidden_size(hx, (places, hx.shape[1], width))
    y, *last = _FUNCTIONS[layer.mode](
        data, sizes, hx, layer._flat_weights, layer.bias, layer.num_layers, layer.dropout, layer.training,
        layer.bidirectional,
    )  # fmt: skip
    state = tuple(last) if layer.mode == "LSTM" else last[0]
    return PackedSequence(y, sizes, order, back), layer.permute_hidden(state, back)


class _Installed:
    """How many calls want the forms at the moment; torch's own are back when none does."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._own = {kind: kind.forward for kind in LAYERS}
        self._forms = {kind: _form(kind, own) for kind, own in self._own.items()}

    def put(self, by: int) -> None:
        with self._lock:
            before, self._users = self._users, self._users + by
            if bool(before) != bool(self._users):
                for kind, form in (self._forms if self._users else self._own).items():
                    setattr(kind, "forward", form)  # noqa: B010  # torch has it as one of overloads


_installed: _Installed | None = None


def is_exchanged(forward: Any) -> bool:
    """Whether a function is a layer's ``forward`` that is exchanged while something is compiled, or what is put in its place."""
    if _installed is None:
        return any(forward is kind.forward for kind in LAYERS)
    return any(forward is f for known in (_installed._own, _installed._forms) for f in known.values())


@contextlib.contextmanager
def packed_forms() -> Iterator[None]:
    """Recurrent layers have these forms, in all threads, while this lasts; outside of Dynamo they give what torch's own give."""
    global _installed
    if _installed is None:
        _installed = _Installed()
    own = _installed
    own.put(1)
    try:
        yield
    finally:
        own.put(-1)
