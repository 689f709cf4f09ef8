"""A graph that was traced with symbolic sizes, for some values of them: one trace serves all sizes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv, Mod, ModularIndexing, PythonMod

from dcir.errors import Unsupported
from dcir.ir.many_sizes import PoolWindows

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ROUNDED = (FloorDiv, Mod, PythonMod, ModularIndexing)


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


def values_at(places: Iterable[tuple[int, int | None]], args: Sequence[Any]) -> tuple[int, ...]:
    """The sizes at ``places`` of a list of arguments."""
    return tuple([int(args[i] if d is None else args[i].shape[d]) for i, d in places])


def tensor_places(gm: fx.GraphModule) -> dict[str, list[tuple[int, int]]]:
    """Where each of ``symbols`` is a size of a tensor: (argument, dimension)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        shape: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else ()
        for d, number in enumerate(shape):
            if isinstance(number, torch.SymInt) and number.node.expr.is_symbol:
                found.setdefault(str(number.node.expr), []).append((i, d))
    return found


def extents(gm: fx.GraphModule) -> set[int]:
    """The extents in a graph that do not depend on its symbolic sizes."""
    values = [node.meta.get("val") for node in _nodes(gm)]
    tensors = [t for v in values for t in (v if isinstance(v, tuple | list) else (v,)) if isinstance(t, torch.Tensor)]
    shapes: list[Any] = [d for t in tensors for d in t.shape]
    return {d for d in shapes if not isinstance(d, torch.SymInt)}


def divisions(gm: fx.GraphModule) -> dict[str, list[Callable[[int], int]]]:
    """Of every size the functions of it alone that are rounded quotients in a graph, or that have remainders in them."""
    found: dict[str, dict[Any, Callable[[int], int]]] = {name: {} for name in symbols(gm)}
    for expression in expressions(gm):
        if isinstance(expression, sympy.Add) and len(expression.free_symbols) == 1 and _of_remainders(expression):
            # s + (8 - s % 8) % 8 is a multiple of 8, and neither of its remainders has a rung; s - s // 2 * 2 is a remainder.
            (symbol,) = expression.free_symbols
            found.setdefault(str(symbol), {})[expression] = _function(expression, symbol)
        for part in sympy.preorder_traversal(expression):
            if isinstance(part, _ROUNDED) and len(part.free_symbols) == 1:
                (symbol,) = part.free_symbols
                found.setdefault(str(symbol), {})[part] = _function(part, symbol)
    if (unit := pool_windows(gm).unit) > 1:
        for node in _nodes(gm):
            for size, out in _pooled(node) if "adaptive" in str(node.target) else ():
                if isinstance(size, torch.SymInt) and out > 1 and len(size.node.expr.free_symbols) == 1:
                    part, (symbol,) = FloorDiv(size.node.expr + unit - 1, unit), size.node.expr.free_symbols
                    found.setdefault(str(symbol), {})[part] = _function(part, symbol)
    return {name: list(of_size.values()) for name, of_size in found.items()}


def _of_remainders(total: Any) -> bool:
    """Whether a sum has remainders in it, or is one: a size less what is left of it when it is rounded."""
    return total.has(Mod, PythonMod) or (total.has(FloorDiv) and sum(bool(a.free_symbols) for a in total.args) > 1)


def pool_windows(gm: fx.GraphModule) -> PoolWindows:
    """What the pools of a graph have in common along the sizes that move, and which of their dimensions do not.

    How many elements a window of an adaptive pool has follows from the quotient of a size by the first.
    """
    outs, constant = [1], set()
    for node in _nodes(gm):
        for size, out in _pooled(node):
            if isinstance(size, int):
                constant.add((size, out))
            elif "adaptive" in str(node.target):
                outs.append(out)
    return PoolWindows(math.lcm(*outs), frozenset(constant))


def _pooled(node: fx.Node) -> list[tuple[Any, Any]]:
    """(size, windows) of each dimension of a pool; none for another node, and of adaptive ones if the windows move."""
    name = getattr(node.target, "_opname", "")
    _, found, rest = name.partition("_pool")
    if not found or not rest[:1].isdigit():
        return []
    # Of a gradient the windows are what comes in first, and the image second.
    windows, image = node.args[:2] if name.endswith("_backward") else (node, node.args[0])
    n = int(rest[0])
    pairs = list(zip(_shape(image)[-n:], _shape(windows)[-n:], strict=True))
    return pairs if "adaptive" not in name or all(isinstance(out, int) for _, out in pairs) else []


def _shape(node: Any) -> Sequence[Any]:
    """That of a node's only or first result."""
    value = node.meta["val"]
    shape: Sequence[Any] = (value[0] if isinstance(value, tuple | list) else value).shape
    return shape


def fractions(gm: fx.GraphModule) -> list[tuple[Any, Any]]:
    """What is divided by what, to a float, in a graph: expressions for ``value_of``."""
    parts = (p for expression in expressions(gm) for p in sympy.preorder_traversal(expression))
    return list(dict.fromkeys(p.args for p in parts if isinstance(p, IntTrueDiv)))


def unknown_sizes(gm: fx.GraphModule) -> list[str]:
    """Symbols in a graph that are not ``symbols``: sizes of slices whose bounds the trace could not compare with nothing."""
    known = set(symbols(gm))
    return sorted({str(s) for e in expressions(gm) for s in getattr(e, "free_symbols", ())} - known)


def value_of(expression: Any, values: Mapping[str, int]) -> int:
    """What an expression is for values of all symbols in it."""
    return int(expression.xreplace({s: sympy.Integer(values[str(s)]) for s in expression.free_symbols}))


def _function(expression: Any, symbol: Any) -> Callable[[int], int]:
    known: dict[int, int] = {}

    def of(value: int) -> int:
        if value not in known:
            known[value] = int(expression.xreplace({symbol: sympy.Integer(value)}))
        return known[value]

    return of


def expressions(gm: fx.GraphModule) -> list[Any]:
    """The distinct expressions of sizes in a graph, those of the graphs that it calls included."""
    found: dict[Any, None] = {}

    def note(value: Any) -> None:
        if isinstance(value, _SYMBOLIC):
            found[value.node.expr] = None
        elif isinstance(value, torch.Tensor):
            for number in (*value.shape, *value.stride(), value.storage_offset()):
                note(number)
        elif isinstance(value, tuple | list):
            for v in value:
                note(v)

    for node in _nodes(gm):
        note(node.meta.get("val"))
    return list(found)


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Those of a graph and of the graphs that it calls."""
    yield from gm.graph.nodes
    for called in _called(gm).values():
        yield from _nodes(called)


def _called(gm: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """The graphs that a graph calls, as branches and bodies of loops, by name."""
    named = {str(node.target): getattr(gm, str(node.target), None) for node in gm.graph.find_nodes(op="get_attr")}
    return {name: called for name, called in named.items() if isinstance(called, fx.GraphModule)}


class GivenSizes:
    """A copy of an ATen graph whose nodes stand for tensors of constant sizes, of one combination after another.

    Args:
        gm: a graph whose nodes carry fake tensors with symbolic sizes in ``meta['val']``.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self._made = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        self._made.meta.update(gm.meta)
        self._values = [
            (node, node.meta["val"]) for graph in self._graphs(self._made) for node in graph.nodes if "val" in node.meta
        ]
        self._arguments = list(self._made.graph.find_nodes(op="placeholder"))

    def _graphs(self, gm: fx.GraphModule) -> Iterator[fx.Graph]:
        """The graph, and copies of those that it calls, which it calls from now on."""
        yield gm.graph
        for name, called in _called(gm).items():
            copied = fx.GraphModule(called, copy.deepcopy(called.graph))
            setattr(gm, name, copied)
            yield from self._graphs(copied)

    def at(
        self, values: Mapping[str, int], floats: Mapping[Any, float] | None = None,
        layouts: Mapping[int, tuple[int, ...]] | None = None,
    ) -> fx.GraphModule:  # fmt: skip
        """The graph for one combination, until it is asked for the next one.

        Args:
            values: of all its symbols, by name.
            floats: what stands for some of its ``fractions``, if that is not what they are.
            layouts: strides of some arguments, by number, if those are not what the graph says; without gaps.
        """
        given = Given(values, floats, alike=True)
        for node, value in self._values:
            node.meta["val"] = given(value)
        for number, strides in (layouts or {}).items():
            meta = self._arguments[number].meta
            if meta["val"].stride() != strides:
                meta["val"] = meta["val"].as_strided(meta["val"].shape, strides)
        return self._made


class Given:
    """What symbolic numbers, and tensors that have such, are for some values.

    Args:
        values: of the symbols, by name.
        floats: what stands for some of the ``fractions``, if that is not what they are.
        alike: tensors that look alike are one; to make them takes most of the time. Not for those that something may be written to.

    Attributes:
        mode: of the tensors, which have no contents.
    """

    def __init__(
        self, values: Mapping[str, int], floats: Mapping[Any, float] | None = None, *, alike: bool = False
    ) -> None:
        self._values, self._floats, self.mode = values, floats or {}, FakeTensorMode()
        self._known: dict[Any, int | float | bool] = {}
        self._made: dict[Any, torch.Tensor] | None = {} if alike else None

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _SYMBOLIC):
            return self._number(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) in (tuple, list, torch.Size):
            return type(value)(map(self, value))
        # What sort, max and topk return together, to Dynamo.
        return tuple(map(self, value)) if isinstance(value, tuple) else value

    def _number(self, number: Any) -> int | float | bool:
        kind: type = int if isinstance(number, torch.SymInt) else float if isinstance(number, torch.SymFloat) else bool
        key = kind, number.node.expr
        if key not in self._known:
            expression = number.node.expr
            if isinstance(expression, IntTrueDiv) and expression.args in self._floats:
                return self._floats[expression.args]
            self._known[key] = kind(expression.xreplace({s: self._values[str(s)] for s in expression.free_symbols}))
        return self._known[key]

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        if not any(isinstance(n, _SYMBOLIC) for n in numbers):
            return tensor
        given = tuple(map(self, numbers))
        if self._made is None:
            return self._like(tensor, given)
        key = given, tensor.dtype, tensor.device
        if key not in self._made:
            self._made[key] = self._like(tensor, given)
        return self._made[key]

    def _like(self, tensor: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
        *both, start = numbers
        shape, strides = both[: tensor.ndim], both[tensor.ndim :]
        with self.mode:
            if not start:
                return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
            size = 1 + sum(max(d - 1, 0) * s for d, s in zip(shape, strides, strict=True))
            return torch.empty(start + size, dtype=tensor.dtype, device=tensor.device).as_strided(shape, strides, start)
