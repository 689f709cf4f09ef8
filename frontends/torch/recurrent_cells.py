"""One step of an LSTM, a GRU and a plain recurrent layer, and of their gradients: functions of what is handed on, what moves, what stays.

    (what is handed on, a step's own tensors, what does not change) -> (what is handed on, what the step gives)

The products with the inputs, which need no step before them, are made for all steps at once by who calls these; so are the weights'
gradients. Gates stand as torch has them: i f g o, and r z n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Step = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]


def lstm(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """State and cell; the input's part of the gates; recurrent weights, perhaps those of a projection. Gives h, c and the gates."""
    (h, c), (x,) = carried, moving
    i, f, g, o = (x + h @ fixed[0].t()).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    h = o * c.tanh()
    if len(fixed) > 1:
        h = h @ fixed[1].t()
    return (h, c), (h, c, torch.cat([i, f, g, o], 1))


def lstm_backward(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """Gradients of state and cell; that of the output, the gates, c and the c before; the weights. Gives the gates' gradients, and h's."""
    (dh, dc), (gradient, gates, c, before) = carried, moving
    dh = dh + gradient
    full = dh @ fixed[1] if len(fixed) > 1 else dh
    i, f, g, o = gates.chunk(4, 1)
    squashed = c.tanh()
    dc = dc + full * o * (1 - squashed * squashed)
    made = torch.cat(
        [
            dc * g * i * (1 - i),
            dc * before * f * (1 - f),
            dc * i * (1 - g * g),
            full * squashed * o * (1 - o),
        ],
        1,
    )
    return (made @ fixed[0], dc * f), ((made, dh) if len(fixed) > 1 else (made,))


def gru(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """The state; the input's part of the gates; recurrent weights and the bias of n. Gives h, and r z n with the state's part of n."""
    (h,), (x,), (w, b) = carried, moving, fixed
    hr, hz, hn = (h @ w.t()).chunk(3, 1)
    xr, xz, xn = x.chunk(3, 1)
    r, z, hn = (xr + hr).sigmoid(), (xz + hz).sigmoid(), hn + b
    n = (xn + r * hn).tanh()
    h = (h - n) * z + n
    return (h,), (h, torch.cat([r, z, n, hn], 1))


def gru_backward(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """The state's gradient; that of the output, what a step gave, the state before; weights. Gives gradients of gates and n's own part."""
    (dh,), (gradient, given, before), (w,) = carried, moving, fixed
    dh = dh + gradient
    r, z, n, hn = given.chunk(4, 1)
    dz = dh * (before - n) * z * (1 - z)
    dn = dh * (1 - z) * (1 - n * n)
    dhn = dn * r
    dr = dn * hn * r * (1 - r)
    return (dh * z + torch.cat([dr, dz, dhn], 1) @ w,), (torch.cat([dr, dz, dn], 1), dhn)


def rnn_tanh(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """The state; the input's part; recurrent weights. Gives the state."""
    h = (moving[0] + carried[0] @ fixed[0].t()).tanh()
    return (h,), (h,)


def rnn_relu(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """As ``rnn_tanh``."""
    h = (moving[0] + carried[0] @ fixed[0].t()).relu()
    return (h,), (h,)


def rnn_tanh_backward(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """The state's gradient; that of the output, and the state; weights. Gives the gradient before the activation."""
    made = (carried[0] + moving[0]) * (1 - moving[1] * moving[1])
    return (made @ fixed[0],), (made,)


def rnn_relu_backward(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
    """As ``rnn_tanh_backward``."""
    made = torch.where(moving[1] <= 0, 0, carried[0] + moving[0])
    return (made @ fixed[0],), (made,)


def of_some(step: Step, back: bool) -> Step:
    """A step for sequences of several lengths: what moves last says, [batch, 1], which of them have an element there.

    The others hand on what they were given. Their parts of what else a step gives are used by nobody; those of a gradient are 0.
    """

    def some(carried: Tensors, moving: Tensors, fixed: Tensors) -> tuple[Tensors, Tensors]:
        *own, there = moving
        made, given = step(carried, tuple(own), fixed)
        made = tuple(torch.where(there, new, old) for new, old in zip(made, carried, strict=True))
        if back:
            return made, tuple(torch.where(there, g, 0) for g in given)
        return made, (*made, *given[len(made) :])

    return some


_WHOLE = (lstm, lstm_backward, gru, gru_backward, rnn_tanh, rnn_relu, rnn_tanh_backward, rnn_relu_backward)
STEPS: dict[str, Step] = {f.__name__: f for f in _WHOLE} | {
    f"{f.__name__}_of_some": of_some(f, f.__name__.endswith("_backward")) for f in _WHOLE
}
"""By name, as a graph has them."""


def flat(step: Step, carried: int, moving: int) -> Callable[..., tuple[Any, ...]]:
    """A step as a function of all its tensors in a row, the results in a row, too."""

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        handed_on, given = step(
            tensors[:carried], tensors[carried : carried + moving], tensors[carried + moving :]
        )  # fmt: skip
        return (*handed_on, *given)

    return call
