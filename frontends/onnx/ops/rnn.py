"""Recurrent networks: RNN, GRU, LSTM.

The common forms go to torch's own fused networks (with the gates reordered); the rest is a loop over time, which is one operator where it
is compiled (``regions.py``), behind the products of all steps' inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx.regions import repeated
from dcir.frontends.onnx.registry import Node, onnx_op

Activation = Callable[[Tensor], Tensor]
_SLOPES: dict[str, tuple[float, float]] = {
    "Affine": (1.0, 0.0), "LeakyRelu": (0.01, 0.0), "ThresholdedRelu": (1.0, 0.0), "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5), "Elu": (1.0, 0.0),
}  # fmt: skip


def _activation(name: str, alpha: float, beta: float) -> Activation:
    table: dict[str, Activation] = {
        "Relu": torch.relu,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "Softsign": torch.nn.functional.softsign,
        "Softplus": torch.nn.functional.softplus,
        "Affine": lambda x: alpha * x + beta,
        "LeakyRelu": lambda x: torch.nn.functional.leaky_relu(x, alpha),
        "ThresholdedRelu": lambda x: torch.where(x > alpha, x, 0),
        "ScaledTanh": lambda x: alpha * torch.tanh(beta * x),
        "HardSigmoid": lambda x: (alpha * x + beta).clamp(0, 1),
        "Elu": lambda x: torch.nn.functional.elu(x, alpha),
    }
    if name not in table:
        raise InvalidModel(f"attribute 'activations' names {name[:40]!r}", hint=f"one of {', '.join(table)}")
    return table[name]


def _activations(node: Node, directions: int, defaults: tuple[str, ...]) -> list[list[Activation]]:
    # The schema's own default for RNN names two activations, also when there is one direction.
    names = list(node.get("activations") or defaults * directions)[: directions * len(defaults)]
    if len(names) != directions * len(defaults):
        message = f"attribute 'activations' names {len(names)}, {directions * len(defaults)} are needed"
        raise InvalidModel(message, hint=f"{len(defaults)} for each direction, or none")
    alphas, betas = list(node.get("activation_alpha") or ()), list(node.get("activation_beta") or ())
    built = []
    for name in names:
        known = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}.get(name.lower(), name)
        alpha, beta = _SLOPES.get(known, (0.0, 0.0))
        if known in _SLOPES:
            alpha = alphas.pop(0) if alphas else alpha
            if known not in ("LeakyRelu", "ThresholdedRelu", "Elu"):
                beta = betas.pop(0) if betas else beta
        built.append(_activation(known, alpha, beta))
    per = len(defaults)
    return [built[i * per : (i + 1) * per] for i in range(directions)]


class _RecurrentPlan:
    """Operands in time-major layout and the split by direction."""

    def __init__(self, node: Node, x: Tensor, w: Tensor, lengths: Tensor | None) -> None:
        self.layout = node.get("layout", 0)
        self.x = x.transpose(0, 1) if self.layout else x
        self.directions = w.shape[0]
        if (node["direction"] == "bidirectional") != (self.directions == 2):
            message = f"attribute 'direction' is {node['direction']!r}, the weights are for {self.directions}"
            raise InvalidModel(message, hint="two directions in the weights of a bidirectional network, else one")
        self.backward = [node["direction"] == "reverse"] if self.directions == 1 else [False, True]
        self.lengths = lengths
        clip = node.get("clip")
        if clip is not None and not clip >= 0:
            raise InvalidModel(f"attribute 'clip' is {clip}", hint="a positive number")
        self.clip: Activation = (lambda t: t.clamp(-clip, clip)) if clip else (lambda t: t)

    def state(self, given: Tensor | None, hidden: int) -> Tensor:
        if given is None:
            return self.x.new_zeros(self.directions, self.x.shape[1], hidden)
        return given.transpose(0, 1) if self.layout else given

    def products(self, w: Tensor, bias: Tensor) -> Tensor:
        """The inputs of all steps through their weights, at once."""
        return self.x @ w.t() + bias

    def scan(
        self, direction: int, cell: Callable[..., tuple[Tensor, ...]], inputs: Tensor, state: tuple[Tensor, ...]
    ) -> Any:
        """Run the cell over time; steps beyond an entry's length leave its state alone and give zeros."""
        moving = [inputs]
        if self.lengths is not None:
            moving.append(torch.arange(inputs.shape[0], dtype=self.lengths.dtype))
        if self.backward[direction]:
            moving = [part.flip(0) for part in moving]

        def turn(values: list[Tensor], parts: list[Tensor]) -> tuple[list[Any], list[Any]]:
            new = cell(parts[0], *values)
            out = new[0]
            if self.lengths is not None:
                alive = (self.lengths > parts[1]).unsqueeze(1)
                new = tuple(torch.where(alive, a, b) for a, b in zip(new, values, strict=True))
                out = torch.where(alive, out, 0)
            return list(new), [out]

        values = list(state)
        made = repeated(turn, values, moving)
        if made is None:
            rows = []
            for t in range(inputs.shape[0]):
                values, out = turn(values, [part[t] for part in moving])
                rows += out
            made = values, [torch.stack(rows)]
        values, (outputs,) = made
        return outputs.flip(0) if self.backward[direction] else outputs, tuple(values)

    def results(self, outputs: list[Tensor], *finals: list[Tensor]) -> tuple[Tensor, ...]:
        y = torch.stack(outputs, 1)
        states = [torch.stack(f) for f in finals]
        if self.layout:
            return (y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in states))
        return (y, *states)


def _own(t: Tensor) -> Tensor:
    """A copy: what a cell takes besides its arguments may not share memory (``regions.py``)."""
    return t.clone(memory_format=torch.contiguous_format)


def _biases(b: Tensor | None, direction: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    if b is None:
        zero = like.new_zeros(width)
        return zero, zero
    return b[direction, :width], b[direction, width:]


def _reordered(t: Tensor, hidden: int, order: tuple[int, ...]) -> Tensor:
    parts = t.split(hidden)
    return torch.cat([parts[i] for i in order])


def _fused(
    kind: str, p: _RecurrentPlan, w: Tensor, r: Tensor, b: Tensor | None, states: Any, order: tuple[int, ...]
) -> Any:
    """torch's network; None for a lone backward direction, which torch does not have."""
    if p.backward == [True]:
        return None
    hidden = r.shape[2]
    weights = []
    for d in range(p.directions):
        weights += [_reordered(w[d], hidden, order), _reordered(r[d], hidden, order)]
        if b is not None:
            wb, rb = _biases(b, d, w.shape[1], w)
            weights += [_reordered(wb, hidden, order), _reordered(rb, hidden, order)]
    function = {"lstm": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh}[kind]
    bidirectional = p.directions == 2
    y, *finals = function(p.x, states, weights, b is not None, 1, 0.0, False, bidirectional, False)  # type: ignore[operator]
    y = y.unflatten(2, (p.directions, hidden)).transpose(1, 2)
    if p.layout:
        return (y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in finals))
    return (y, *finals)


def _plain(node: Node, lengths: Tensor | None) -> bool:
    return lengths is None and not node.get("activations") and not node.get("clip")


@onnx_op("RNN")
def rnn(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h0: Tensor | None = None,
) -> Any:  # fmt: skip
    p = _RecurrentPlan(node, x, w, lengths)
    hidden = r.shape[2]
    start = p.state(h0, hidden)
    default = tuple(node.get("activations") or ())[: p.directions] in ((), ("Tanh",) * p.directions)
    if default and lengths is None and not node.get("clip"):
        fused = _fused("tanh", p, w, r, b, start, (0,))
        if fused is not None:
            return fused
    acts = _activations(node, p.directions, ("Tanh",))
    outputs, finals = [], []
    for d in range(p.directions):
        wb, rb = _biases(b, d, hidden, w)

        recurrent = _own(r[d].t())

        def cell(xt: Tensor, h: Tensor, d: int = d, recurrent: Tensor = recurrent) -> tuple[Tensor, ...]:
            return (acts[d][0](p.clip(xt + h @ recurrent)),)

        out, (h,) = p.scan(d, cell, p.products(w[d], wb + rb), (start[d],))
        outputs.append(out)
        finals.append(h)
    return p.results(outputs, finals)


@onnx_op("GRU")
def gru(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h0: Tensor | None = None,
) -> Any:  # fmt: skip
    p = _RecurrentPlan(node, x, w, lengths)
    hidden = r.shape[2]
    start = p.state(h0, hidden)
    late = bool(node.get("linear_before_reset", 0))
    if late and _plain(node, lengths):
        # ONNX orders the gates z r h, torch r z n.
        fused = _fused("gru", p, w, r, b, start, (1, 0, 2))
        if fused is not None:
            return fused
    acts = _activations(node, p.directions, ("Sigmoid", "Tanh"))
    outputs, finals = [], []
    for d in range(p.directions):
        wb, rb = _biases(b, d, 3 * hidden, w)

        gates, inner_weight = r[d].split((2 * hidden, hidden))
        gate_bias, inner_bias = rb.split((2 * hidden, hidden))
        gates, inner_weight = _own(gates.t()), _own(inner_weight.t())
        before = wb + torch.cat((gate_bias, inner_bias.new_zeros(hidden) if late else inner_bias))
        own_bias = _own(inner_bias)

        def cell(
            xt: Tensor,
            h: Tensor,
            d: int = d,
            gates: Tensor = gates,
            weight: Tensor = inner_weight,
            bias: Tensor = own_bias,
        ) -> tuple[Tensor, ...]:
            f, g = acts[d]
            xg, xh = xt.split((2 * hidden, hidden), 1)
            z, reset = (f(p.clip(t)) for t in (xg + h @ gates).split(hidden, 1))
            inner = reset * (h @ weight + bias) if late else (reset * h) @ weight
            return ((1 - z) * g(p.clip(xh + inner)) + z * h,)

        out, (h,) = p.scan(d, cell, p.products(w[d], before), (start[d],))
        outputs.append(out)
        finals.append(h)
    return p.results(outputs, finals)


@onnx_op("LSTM")
def lstm(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h0: Tensor | None = None, c0: Tensor | None = None, peep: Tensor | None = None,
) -> Any:  # fmt: skip
    p = _RecurrentPlan(node, x, w, lengths)
    hidden = r.shape[2]
    start, carry = p.state(h0, hidden), p.state(c0, hidden)
    coupled = bool(node.get("input_forget", 0))
    if peep is None and not coupled and _plain(node, lengths):
        # ONNX orders the gates i o f c, torch i f c o.
        fused = _fused("lstm", p, w, r, b, (start, carry), (0, 2, 3, 1))
        if fused is not None:
            return fused
    if x.ndim != 3:
        raise Unsupported(f"a recurrent network over rank {x.ndim} is not supported")
    acts = _activations(node, p.directions, ("Sigmoid", "Tanh", "Tanh"))
    outputs, finals, carries = [], [], []
    for d in range(p.directions):
        wb, rb = _biases(b, d, 4 * hidden, w)
        recurrent = _own(r[d].t())
        pi, po, pf = map(_own, peep[d].split(hidden)) if peep is not None else (None, None, None)

        def cell(
            xt: Tensor,
            h: Tensor,
            c: Tensor,
            d: int = d,
            recurrent: Tensor = recurrent,
            pi: Any = pi,
            po: Any = po,
            pf: Any = pf,
        ) -> tuple[Tensor, ...]:
            f, g, e = acts[d]
            i, o, forget, new = (xt + h @ recurrent).split(hidden, 1)
            i = f(p.clip(i if pi is None else i + pi * c))
            forget = 1 - i if coupled else f(p.clip(forget if pf is None else forget + pf * c))
            c = forget * c + i * g(p.clip(new))
            o = f(p.clip(o if po is None else o + po * c))
            return o * e(c), c

        out, (h, c) = p.scan(d, cell, p.products(w[d], wb + rb), (start[d], carry[d]))
        outputs.append(out)
        finals.append(h)
        carries.append(c)
    return p.results(outputs, finals, carries)
