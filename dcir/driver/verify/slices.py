"""Part of an ATen graph as plain data: its operators' calls, how its inputs are drawn, and the graph made of them again."""

from __future__ import annotations

import base64
import math
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from dcir.errors import Unsupported
from dcir.ir.types import words
from dcir.ops.registry import overload
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES

Values = dict[str, Tensor]
ITEM = "getitem"


@dataclass(frozen=True)
class V:
    """Stands for the value of that name among the arguments of a call."""

    name: str


@dataclass(frozen=True)
class Source:
    """An input of a slice and how to draw its elements.

    Attributes:
        name, shape, strides, dtype: the tensor.
        low, high: floats are uniform between them, whole numbers from ``low`` to ``high``, both included.
        constant: whether the network holds it itself, as it does a model's weights, instead of being given it.
        data: its elements themselves (``packed``), should drawn ones not do.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    low: float = 0.0
    high: float = 1.0
    constant: bool = False
    data: str = ""


@dataclass(frozen=True)
class SliceCall:
    """One call of an ATen operator: the name of its value, the overload's name (or ``ITEM``), the arguments."""

    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Slice:
    """Some calls of a graph, in order; the results are named values."""

    sources: tuple[Source, ...]
    calls: tuple[SliceCall, ...]
    results: tuple[str, ...]

    def graph(self, values: Mapping[str, Tensor]) -> fx.GraphModule:
        """The ATen graph, as AOTAutograd would hand it over: fake tensors in its nodes, constants as attributes."""
        mode, graph, root = FakeTensorMode(allow_non_fake_inputs=True), fx.Graph(), torch.nn.Module()
        nodes: dict[str, fx.Node] = {}
        for s in self.sources:
            if s.constant:
                root.register_buffer(s.name, values[s.name])
                nodes[s.name] = graph.get_attr(s.name)
            else:
                nodes[s.name] = graph.placeholder(s.name)
            nodes[s.name].meta["val"] = mode.from_tensor(values[s.name])
        for c in self.calls:
            args, kwargs = _filled((c.args, dict(c.kwargs)), nodes.__getitem__)
            node = nodes[c.name] = graph.call_function(function(c.target), args, kwargs)
            fake_args, fake_kwargs = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
            with mode:
                node.meta["val"] = function(c.target)(*fake_args, **fake_kwargs)
        graph.output(tuple(nodes[r] for r in self.results))
        return fx.GraphModule(root, graph)

    def given(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Of the values, those that a call of the network gets."""
        return [values[s.name] for s in self.sources if not s.constant]

    def evaluate(
        self, values: Mapping[str, Tensor], seed: int = 0, seen: Callable[[str, Tensor], None] | None = None
    ) -> list[Tensor]:
        """The results in eager PyTorch; ``seen`` is told every tensor on the way."""
        last = {name: number for number, c in enumerate(self.calls) for name in used(c)}
        env: dict[str, Any] = dict(values)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for number, c in enumerate(self.calls):
                args, kwargs = _filled((c.args, dict(c.kwargs)), env.__getitem__)
                env[c.name] = function(c.target)(*args, **kwargs)
                if seen is not None and isinstance(env[c.name], Tensor):
                    seen(c.name, env[c.name])
                for name in used(c):
                    if last[name] == number and name not in self.results:
                        env.pop(name, None)
        return [env[r] for r in self.results]

    def draw(self, seed: int) -> Values:
        """Values for the inputs."""
        return {s.name: _drawn(s, seed, number) for number, s in enumerate(self.sources)}

    def only(self, chosen: Iterable[str], known: Mapping[str, Source], results: Sequence[str] = ()) -> Slice:
        """The calls with these names; what they take from elsewhere becomes an input.

        Args:
            chosen: names of calls.
            known: for every value, how it would be drawn.
            results: of the new slice; if none are given, whatever is used outside it. What they do not need is dropped.
        """
        names = set(chosen)
        if not results:
            outside = {n for c in self.calls if c.name not in names for n in used(c)} | set(self.results)
            results = [c.name for c in self.calls if c.name in names and c.name in outside and c.name in known]
        needed, kept = set(results), []
        for c in reversed(self.calls):
            if c.name in names and c.name in needed:
                kept.append(c)
                needed.update(used(c))
        made = {c.name for c in kept}
        own = {s.name: s for s in self.sources}
        inputs = dict.fromkeys(n for c in reversed(kept) for n in used(c) if n not in made)
        return Slice(
            tuple(own[n] if n in own else known[n] for n in inputs), tuple(reversed(kept)), tuple(results)
        )  # fmt: skip


def used(call: SliceCall) -> list[str]:
    """Names of the values a call takes."""
    names: list[str] = []
    _filled((call.args, dict(call.kwargs)), names.append)
    return names


def function(target: str) -> Callable[..., Any]:
    """The operator of a call.

    Raises:
        Unsupported: this torch has none of that name.
    """
    if target == ITEM:
        return operator.getitem
    found = overload(target) if target.count(".") == 2 else None
    if found is None:
        raise Unsupported(f"this torch has no operator {target}")
    return found  # type: ignore[no-any-return]


def slice_of(graph: fx.GraphModule, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Slice, Values]:
    """A whole ATen graph as a slice, and the values of its inputs.

    Args:
        graph: its first placeholders are ``constants``, the others ``inputs``; attributes are constants too.
        constants, inputs: real tensors.

    Raises:
        Unsupported: an operator that is none of ATen's, as control flow is.
    """
    names: dict[fx.Node, str] = {}
    sources: list[Source] = []
    values: Values = {}
    calls: list[SliceCall] = []
    results: list[str] = []
    left = iter((*((t, True) for t in constants), *((t, False) for t in inputs)))
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            value, constant = next(left) if node.op == "placeholder" else (_attribute(graph, str(node.target)), True)
            if not isinstance(value, Tensor):
                raise Unsupported(f"a graph with a {type(value).__name__} among its inputs is not bisected")
            names[node] = f"{'c' if constant else 'x'}{len(sources)}"
            values[names[node]] = value.detach()
            sources.append(described(names[node], value, constant=constant))
        elif node.op == "call_function":
            names[node] = f"v{len(calls)}"
            target = ITEM if node.target is operator.getitem else str(node.target)
            if target != ITEM and not isinstance(node.target, torch._ops.OpOverload):
                raise Unsupported(f"a graph with the operator {node.target} is not bisected")
            named = tuple((k, _plain(v, names)) for k, v in node.kwargs.items())
            calls.append(SliceCall(names[node], target, _plain(tuple(node.args), names), named))
        elif node.op == "output":
            results = [names[n] for n in node.args[0] if isinstance(n, fx.Node) and isinstance(_meta(n), Tensor)]
    return Slice(tuple(sources), tuple(calls), tuple(dict.fromkeys(results))), values


def described(name: str, value: Tensor, *, constant: bool = False) -> Source:
    """A value as an input that is drawn from the range of its elements."""
    dtype = TORCH_TYPES.get(value.dtype)
    if dtype is None:
        raise Unsupported.collect([(f"tensors of type {value.dtype}", "")])
    plain = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    if words(dtype) != "all" and not value.is_complex():
        plain = plain.to(torch.float64)  # torch neither compares nor orders these
    plain = plain[plain.isfinite()] if plain.is_floating_point() else plain
    low, high = (float(plain.min()), float(plain.max())) if plain.numel() else (0.0, 0.0)
    if value.is_floating_point() or value.is_complex():
        low, high = float(f"{low:.3g}"), float(f"{high:.3g}")
    return Source(name, tuple(value.shape), tuple(value.stride()), dtype, low, high, constant)


def with_data(part: Slice, values: Mapping[str, Tensor]) -> Slice:
    """The slice with its inputs' elements written down instead of drawn."""
    return replace(part, sources=tuple(replace(s, data=packed(values[s.name])) for s in part.sources))


def packed(value: Tensor) -> str:
    """A tensor's elements as text."""
    plain = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    raw = plain.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return base64.b85encode(zlib.compress(raw, 9)).decode()


def _unpacked(s: Source) -> Tensor:
    raw = np.frombuffer(bytearray(zlib.decompress(base64.b85decode(s.data))), np.uint8)
    return torch.from_numpy(raw).view(FROM_NAME[s.dtype]).reshape(s.shape)


def _drawn(s: Source, seed: int, number: int) -> Tensor:
    kind = FROM_NAME[s.dtype]
    extent = 0 if 0 in s.shape else 1 + sum((d - 1) * st for d, st in zip(s.shape, s.strides, strict=True))
    place = torch.as_strided(torch.zeros(extent, dtype=kind), s.shape, s.strides)
    if s.data:
        return place.copy_(_unpacked(s)) if extent else place
    generator = torch.Generator().manual_seed(seed * 1009 + number)
    flat = place.as_strided((extent,), (1,))
    if kind.is_floating_point or kind.is_complex:
        unit = torch.rand((2, extent), generator=generator, dtype=torch.float64) * (s.high - s.low) + s.low
        flat.copy_(torch.complex(unit[0], unit[1]) if kind.is_complex else unit[0])
    else:
        most = min(int(s.high), 2**63 - 2)  # torch draws signed numbers
        flat.copy_(torch.randint(min(int(s.low), most), most + 1, (extent,), generator=generator))
    return place


def _filled(tree: Any, value: Callable[[str], Any]) -> Any:
    if isinstance(tree, V):
        return value(tree.name)
    if isinstance(tree, dict):
        return {k: _filled(v, value) for k, v in tree.items()}
    return type(tree)(_filled(v, value) for v in tree) if isinstance(tree, tuple | list) else tree


def _plain(tree: Any, names: Mapping[fx.Node, str]) -> Any:
    """Arguments of a node, with tuples for fx's own lists."""
    if isinstance(tree, fx.Node):
        return V(names[tree])
    return tuple(_plain(v, names) for v in tree) if isinstance(tree, tuple | list) else tree


def _attribute(graph: fx.GraphModule, path: str) -> Any:
    value: Any = graph
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _meta(node: fx.Node) -> Any:
    return node.meta.get("val")


def smaller(part: Slice, old: int, new: int) -> Slice:
    """The slice with every extent ``old``, of inputs and among the calls' arguments, replaced by ``new``."""

    def extents(tree: Any) -> Any:
        if isinstance(tree, tuple):
            return tuple(new if v is not True and isinstance(v, int) and v == old else extents(v) for v in tree)
        return tree

    def shrunk(s: Source) -> Source:
        if s.data or old not in s.shape:
            return s
        shape = tuple(new if d == old else d for d in s.shape)
        order = sorted(range(len(shape)), key=lambda d: (s.strides[d], -d))
        strides, step = [0] * len(shape), 1
        for d in order:
            strides[d], step = step, step * max(shape[d], 1)
        high = s.high if FROM_NAME[s.dtype].is_floating_point else min(s.high, max(s.low, new - 1))
        return replace(s, shape=shape, strides=tuple(strides), high=high)

    calls = tuple(replace(c, args=tuple(extents(a) for a in c.args)) for c in part.calls)
    return replace(part, sources=tuple(shrunk(s) for s in part.sources), calls=calls)


def size_of(part: Slice) -> int:
    """Elements of all inputs."""
    return sum(math.prod(s.shape) for s in part.sources)
