"""A graph that was traced with symbolic sizes, for some values of them: one trace serves all sizes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from dcir.errors import Unsupported

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def symbols(gm: fx.GraphModule) -> list[str]:
    """Names of the sizes that the inputs of an ATen graph depend on, in the order of the inputs."""
    found: dict[str, None] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(number, _SYMBOLIC):
                found.update(dict.fromkeys(sorted(str(s) for s in number.node.expr.free_symbols)))
    return list(found)


def places(gm: fx.GraphModule) -> dict[str, tuple[int, int | None]]:
    """Where each of ``symbols`` is in the arguments: (argument, dimension, or None for the argument itself).

    Raises:
        Unsupported: one is not there by itself.
    """
    found: dict[str, tuple[int, int | None]] = {}
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        for d, number in enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]:
            if isinstance(number, torch.SymInt) and number.node.expr.is_symbol:
                found.setdefault(str(number.node.expr), (i, d))
    for name in symbols(gm):
        if name not in found:
            raise Unsupported(f"a size ({name}) that shows in no input by itself")
    return {name: found[name] for name in symbols(gm)}


def extents(gm: fx.GraphModule) -> set[int]:
    """The extents in a graph that do not depend on its symbolic sizes."""
    values = [node.meta.get("val") for node in gm.graph.nodes]
    tensors = [t for v in values for t in (v if isinstance(v, tuple | list) else (v,)) if isinstance(t, torch.Tensor)]
    shapes: list[Any] = [d for t in tensors for d in t.shape]
    return {d for d in shapes if not isinstance(d, torch.SymInt)}


def unmet(gm: fx.GraphModule, values: Mapping[str, int]) -> str:
    """A condition of the trace that does not hold for some values of the sizes; empty if all do.

    Args:
        gm: an ATen graph traced with symbolic sizes.
        values: of all its symbols, by name.
    """
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        numbers = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, _SYMBOLIC):
                guards = [guard.expr for guard in number.node.shape_env.guards]
                return next((str(g) for g in guards if not holds(g, values)), "")
    return ""


def holds(condition: Any, values: Mapping[str, int]) -> bool:
    """Whether a condition of a trace holds for some values of its symbols, by name; one on symbols without a value is none."""
    known = {s: values[str(s)] for s in condition.free_symbols if str(s) in values}
    return len(known) < len(condition.free_symbols) or bool(condition.xreplace(known))


def given_sizes(gm: fx.GraphModule, values: Mapping[str, int]) -> fx.GraphModule:
    """A copy of an ATen graph whose nodes stand for tensors of constant sizes.

    Args:
        gm: a graph whose nodes carry fake tensors with symbolic sizes in ``meta['val']``.
        values: of all its symbols, by name.
    """
    given = Given(values)
    made = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta.update(gm.meta)
    for node in made.graph.nodes:
        if "val" in node.meta:
            node.meta = {**node.meta, "val": given(node.meta["val"])}
    return made


class Given:
    """What symbolic numbers, and tensors that have such, are for some values.

    Attributes:
        mode: of the tensors, which have no contents.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values, self.mode = values, FakeTensorMode()
        self._known: dict[Any, int | float | bool] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _SYMBOLIC):
            return self._number(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        return type(value)(map(self, value)) if type(value) in (tuple, list) else value

    def _number(self, number: Any) -> int | float | bool:
        kind: type = int if isinstance(number, torch.SymInt) else float if isinstance(number, torch.SymFloat) else bool
        key = kind, number.node.expr
        if key not in self._known:
            expression = number.node.expr
            self._known[key] = kind(expression.xreplace({s: self._values[str(s)] for s in expression.free_symbols}))
        return self._known[key]

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        if not any(isinstance(n, _SYMBOLIC) for n in numbers):
            return tensor
        *both, start = map(self, numbers)
        shape, strides = both[: tensor.ndim], both[tensor.ndim :]
        with self.mode:
            if not start:
                return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
            size = 1 + sum(max(d - 1, 0) * s for d, s in zip(shape, strides, strict=True))
            return torch.empty(start + size, dtype=tensor.dtype, device=tensor.device).as_strided(shape, strides, start)
