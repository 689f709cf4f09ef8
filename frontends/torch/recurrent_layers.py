"""Recurrent layers as loops: the inputs' products for all steps at once, then a step after the other; and their gradients.

    lstm(x, h, w)  --> gates = x w_ih' + b       one product for all steps
                       for t: h, c = cell(gates[t] + h w_hh', c)
    its gradient   --> for t backwards: the gates' gradients
                       those of the weights      one product each for all steps

All options of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``; chance between layers is drawn as PyTorch does. Packed sequences (``packing.py``) are
multiplied as they lie, and spread over the steps of the longest, which leave the states of those that are done alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dcir.frontends.torch import steps_operator  # noqa: F401  # defines the operator
from dcir.frontends.torch.as_eager import stacked
from dcir.frontends.torch.packing import Packing


def _steps(
    name: str, carried: Sequence[Tensor], moving: Sequence[Tensor], fixed: Sequence[Tensor], there: Tensor | None,
    reverse: bool,
) -> list[Tensor]:  # fmt: skip
    """All steps of a cell; ``there`` says which sequences [T, B, 1] have an element at each, None that all have."""
    if there is not None:
        name, moving = f"{name}_of_some", [*moving, there]
    found: list[Tensor] = torch.ops.dcir.steps(name, list(carried), list(moving), list(fixed), reverse)
    return found


def _before(first: Tensor, every: Tensor, reverse: bool) -> Tensor:
    """The value before each step: the one before the first, and those after all but the last."""
    return torch.cat([every[1:], first[None]]) if reverse else torch.cat([first[None], every[:-1]])


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


class _Lstm(torch.autograd.Function):
    """(gates' inputs [T, B, 4H], h [B, P], c [B, H], weights [4H, P], projection [P, H]) -> output of all steps, last h, last c."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, w: Tensor, projection: Tensor | None, there: Tensor | None,
        reverse: bool,
    ) -> Any:  # fmt: skip
        fixed = [w] if projection is None else [w, projection]
        last_h, last_c, y, cells, gates = _steps("lstm", [h, c], [x], fixed, there, reverse)
        ctx.save_for_backward(h, c, w, projection, there, y, cells, gates)
        ctx.reverse = reverse
        return y, last_h, last_c

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        h, c, w, projection, there, y, cells, gates = ctx.saved_tensors
        gy, gh, gc = gradients
        fixed = [w] if projection is None else [w, projection]
        moving = [gy, gates, cells, _before(c, cells, ctx.reverse)]
        dh, dc, dx, *outputs = _steps("lstm_backward", [gh, gc], moving, fixed, there, not ctx.reverse)
        dw = _rows(dx).t() @ _rows(_before(h, y, ctx.reverse))
        dp = None
        if projection is not None:
            full = gates.chunk(4, 2)[3] * cells.tanh()
            dp = _rows(outputs[0]).t() @ _rows(full)
        return dx, dh, dc, dw, dp, None, None


class _Gru(torch.autograd.Function):
    """(gates' inputs [T, B, 3H], h [B, H], weights [3H, H], bias of n [H]) -> output of all steps, last h."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w: Tensor, b: Tensor, there: Tensor | None, reverse: bool) -> Any:
        last, y, given = _steps("gru", [h], [x], [w, b], there, reverse)
        ctx.save_for_backward(h, w, there, y, given)
        ctx.reverse = reverse
        return y, last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        h, w, there, y, given = ctx.saved_tensors
        gy, gh = gradients
        before = _before(h, y, ctx.reverse)
        dh, dx, dn = _steps("gru_backward", [gh], [gy, given, before], [w], there, not ctx.reverse)
        both = torch.cat([dx[..., : 2 * h.shape[-1]], dn], -1)
        return dx, dh, _rows(both).t() @ _rows(before), _rows(dn).sum(0), None, None


class _Rnn(torch.autograd.Function):
    """(inputs [T, B, H], h [B, H], weights [H, H]) -> output of all steps, last h."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, w: Tensor, there: Tensor | None, kind: str, reverse: bool) -> Any:
        last, y = _steps(kind, [h], [x], [w], there, reverse)
        ctx.save_for_backward(h, w, there, y)
        ctx.kind, ctx.reverse = kind, reverse
        return y, last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        h, w, there, y = ctx.saved_tensors
        gy, gh = gradients
        dh, dx = _steps(f"{ctx.kind}_backward", [gh], [gy, y], [w], there, not ctx.reverse)
        return dx, dh, _rows(dx).t() @ _rows(_before(h, y, ctx.reverse)), None, None, None


def _direction(
    kind: str, x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, reverse: bool,
    packing: Packing | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One layer in one direction: the output of all steps, and its last states."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if biases else (None, None)
    projection = rest[2 * biases] if len(rest) > 2 * biases else None
    there = None if packing is None else packing.there
    if kind == "gru":
        hidden = w_hh.shape[1]
        own = x.new_zeros(hidden)
        if b_ih is not None and b_hh is not None:
            own = b_hh[2 * hidden :]
            b_ih = torch.cat([b_ih[: 2 * hidden] + b_hh[: 2 * hidden], b_ih[2 * hidden :]])
        bias = b_ih
    else:
        bias = None if b_ih is None or b_hh is None else b_ih + b_hh
    inputs = F.linear(x, w_ih, bias)
    if packing is not None:
        inputs = packing.spread(inputs)
    found: tuple[Tensor, ...]
    if kind == "gru":
        found = _Gru.apply(inputs, state[0], w_hh, own, there, reverse)  # type: ignore[no-untyped-call]
    elif kind == "lstm":
        found = _Lstm.apply(inputs, state[0], state[1], w_hh, projection, there, reverse)  # type: ignore[no-untyped-call]
    else:
        found = _Rnn.apply(inputs, state[0], w_hh, there, kind, reverse)  # type: ignore[no-untyped-call]
    y, *last = found
    return (y if packing is None else packing.packed(y), *last)


def recurrent_layers(
    kind: str, data: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, layers: int,
    dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What torch's function of the name ``kind`` gives: the output, and the last states.

    Args:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        data: [steps, batch, features], or [batch, steps, features].
        state: h, for an LSTM also c, each [layers * directions, batch, width].
        weights: per layer and direction those of inputs and state, the biases of both, and of a projection.
        biases, layers, dropout, train, both, batch_first: as in torch.
    """
    return _layers(kind, data, None, state, weights, biases, layers, dropout, train, both, batch_first)


def packed_layers(
    kind: str, data: Tensor, sizes: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], biases: bool,
    layers: int, dropout: float, train: bool, both: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What torch's function gives for packed sequences: ``data`` [elements, features] step by step, ``sizes`` how many each step has.

    Raises:
        IndexError: ``sizes`` grow, are more than the states, or are not as many elements as there are; torch's errors differ.
    """
    packing = Packing(sizes, state[0].shape[1], data.shape[0])
    return _layers(kind, data, packing, state, weights, biases, layers, dropout, train, both, False)


def _layers(
    kind: str, data: Tensor, packing: Packing | None, state: Sequence[Tensor], weights: Sequence[Tensor], biases: bool,
    layers: int, dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    places = range(layers * (1 + both))
    per = len(weights) // len(places)
    own = [weights[at * per : (at + 1) * per] for at in places]
    states = [[s[at] for s in state] for at in places]

    def layer(x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, *, reverse: bool) -> Any:
        y, *last = _direction(kind, x, state, weights, biases, reverse, packing)
        return y, last

    y, every = stacked(data, states, own, biases, layers, dropout, train, both, batch_first, layer)
    return (y, *(torch.stack(last) for last in zip(*every, strict=True)))
