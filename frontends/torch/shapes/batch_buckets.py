"""A batch of any size in pieces of a few sizes: no number of images is compiled for itself.

    y = f(x), x of 30 images   -->   y[0:16], y[14:30] = f of 16 images each

It is done where the graph is shown to do the same to every image (``analysis/batch_independence.py``), with pieces as in
``dcir/batch_buckets.py``; kernels keep constant sizes, and memory stays that of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from dcir.batch_buckets import SIZES, cover
from dcir.frontends.torch.context import Sizes
from dcir.frontends.torch.importer import Imported
from dcir.frontends.torch.recurrent import layers_as_loops
from dcir.ir.refusal import Refusal
from dcir.ops.analysis.batch_independence import inseparable

SHOWN = (2, 4)
"""The batches for which a graph is looked at."""


@dataclass(frozen=True)
class Batch:
    """Where the batch is in a graph with symbolic sizes.

    Attributes:
        tensors: numbers of the arguments whose first dimension it is.
        numbers: numbers of the arguments that are the size itself.
    """

    tensors: tuple[int, ...]
    numbers: tuple[int, ...]

    def size(self, args: Sequence[Any]) -> int:
        """Images in a call."""
        return int(args[self.tensors[0]].shape[0])

    def examples(self, args: Sequence[Any], images: int) -> list[Any]:
        """Arguments like those of a call, for another number of images; their contents are undefined."""
        like = list(args)
        for i in self.tensors:
            t = args[i]
            made = torch.empty_strided((images, *t.shape[1:]), t.stride(), dtype=t.dtype)
            made = made.conj() if t.is_conj() else made
            like[i] = torch._neg_view(made) if t.is_neg() else made
        for i in self.numbers:
            like[i] = images
        return like

    def part(self, args: Sequence[Any], start: int, images: int) -> list[Any]:
        """The arguments of some images of a call."""
        part = list(args)
        for i in self.tensors:
            part[i] = args[i].narrow(0, start, images)
        for i in self.numbers:
            part[i] = images
        return part


def find_batch(gm: fx.GraphModule) -> Batch | Refusal:
    """The symbol that is a batch: the first dimension of arguments and of all results, and nothing else; or why there is none."""
    if any(isinstance(n.target, HigherOrderOperator) or n.target in layers_as_loops() for n in gm.graph.nodes):
        return Refusal("loops and branches are not shown to do the same to every image")
    examples = [_value(n) for n in gm.graph.nodes if n.op == "placeholder"]
    results = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    results = [_value(n) for n in (results if isinstance(results, tuple | list) else (results,))]
    symbols: dict[Any, None] = {}
    for value in examples:
        if isinstance(value, torch.Tensor) and value.ndim and (s := _symbol(value.shape[0])) is not None:
            symbols[s] = None
    refusal = Refusal("no first dimension of an input changes")
    for s in symbols:
        found = _batch(gm, examples, results, s)
        if isinstance(found, Batch):
            return found
        refusal = found
    return refusal


def _batch(gm: fx.GraphModule, examples: Sequence[Any], results: Sequence[Any], s: Any) -> Batch | Refusal:
    tensors, numbers = [], []
    for i, value in enumerate(examples):
        if isinstance(value, torch.Tensor):
            if _symbol(value.shape[0] if value.ndim else 1) == s:
                tensors.append(i)
            elif s in _free(*value.shape):
                return Refusal("the batch is in another dimension than the first")
            if s in _free(*value.shape[1:], *value.stride(), value.storage_offset()):
                return Refusal("the batch is in several dimensions of an input")
        elif s in _free(value):
            if _symbol(value) != s:
                return Refusal("an input is a number made from the batch")
            numbers.append(i)
    for value in results:
        if value is None or isinstance(value, bool | int | float | str):
            continue
        if not isinstance(value, torch.Tensor) or not value.ndim or _symbol(value.shape[0]) != s:
            return Refusal("a result has no dimension of images in front")
        if s in _free(*value.shape[1:]):
            return Refusal("the batch is in several dimensions of a result")
    for node in gm.graph.nodes:
        value = _value(node)
        for number in value if isinstance(value, tuple | list) else (value,):
            if s in _free(number) and not _affine(number, s):
                return Refusal(f"a number is made from the batch ({node.name})")
    return Batch(tuple(tensors), tuple(numbers))


def _value(node: Any) -> Any:
    """What a node of Dynamo's graph, or of an exported one, stands for."""
    return node.meta.get("example_value", node.meta.get("val")) if isinstance(node, fx.Node) else node


def _free(*values: Any) -> set[Any]:
    """Symbols in symbolic numbers."""
    return {
        s
        for v in values
        if isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool)
        for s in v.node.expr.free_symbols
    }


def _symbol(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) and value.node.expr.is_symbol else None


def _affine(value: Any, s: Any) -> bool:
    if not isinstance(value, torch.SymInt):
        return False
    expression = value.node.expr
    return bool(expression.is_polynomial(s)) and not expression.diff(s).has(s)


@dataclass(frozen=True)
class Traced:
    """A graph traced for some arguments.

    Attributes:
        done: its network before any pass.
        kind: "inference", "forward" or "backward".
        compiled: compiles what was traced, for the record of those sizes and a remark; gives what runs it.
    """

    done: Imported
    kind: str
    compiled: Callable[[Sizes, str], Callable[..., Any]]


Trace = Callable[[Sequence[Any]], list[Traced]]
"""From arguments to what a graph becomes for them."""


def in_pieces(trace: Trace, batch: Batch, args: Sequence[Any], results: int) -> dict[int, Traced] | Refusal:
    """Why a graph is not one function of every image; if it is, it as it was traced for some numbers of images."""
    traced: dict[int, Traced] = {}
    for images in SHOWN:
        like = batch.examples(args, images)
        found = trace(like)
        if len(found) != 1 or found[0].kind != "inference":
            return Refusal("only inference is done in pieces")
        done = found[0].done
        shapes = [(name and done.network.containers[name].shape) for name in done.network.inputs]
        wanted = [tuple(a.shape) if isinstance(a, torch.Tensor) else "" for a in like]
        if shapes != wanted or len(done.outputs) != results or any(kind != "result" for kind, _ in done.outputs):
            return Refusal("the graph writes to its inputs, or returns something else than new tensors")
        traced[images] = found[0]
    first, second = (traced[images].done for images in SHOWN)
    refusal = difference(first, second, batch.tensors, results)
    return traced if refusal is None else refusal


def difference(first: Imported, second: Imported, batched: Sequence[int], results: int) -> Refusal | None:
    """Why a graph, imported for `SHOWN` numbers of images, is not one function of every image; None if it is.

    Args:
        first, second: before any pass.
        batched: numbers of the inputs whose first dimension is the batch.
        results: how many the graph has.
    """
    if [v for _, v in first.outputs] != list(range(results)) or first.outputs != second.outputs:
        return Refusal("results share memory")
    same = first.constants.keys() == second.constants.keys() and all(
        torch.equal(t, second.constants[name]) for name, t in first.constants.items()
    )
    if not same:
        return Refusal("a constant changes with the batch")
    return inseparable(first.network, second.network, SHOWN, batched)


class BatchBuckets:
    """A graph that is called with batches of any size, everything else being as in a call before.

    Args:
        batch: where the batch is.
        traced: the graph for some numbers of images.
        specialise: compiles the graph for arguments, of so many images, or takes what was traced for them.
        sizes: of the pieces, ascending.
    """

    def __init__(
        self,
        batch: Batch,
        traced: dict[int, Traced],
        specialise: Callable[[Sequence[Any], int, Traced | None], Callable[..., Any]],
        sizes: tuple[int, ...] = SIZES,
    ) -> None:
        self._batch, self._traced, self._specialise, self._sizes = batch, traced, specialise, sizes
        self.programs: dict[int, Callable[..., Any]] = {}

    def ready(self, args: Sequence[Any]) -> bool:
        """Whether nothing has to be compiled for a call."""
        return all(size in self.programs for _, size in cover(self._batch.size(args), self._sizes))

    def prepare(self, args: Sequence[Any]) -> None:
        """Compile what a call needs."""
        for _, size in cover(self._batch.size(args), self._sizes):
            if size not in self.programs:
                self.programs[size] = self._specialise(
                    self._batch.examples(args, size), size, self._traced.pop(size, None)
                )

    def __call__(self, *args: Any) -> Any:
        images = self._batch.size(args)
        whole: list[torch.Tensor] | None = None
        kind: Any = tuple
        for start, size in cover(images, self._sizes):
            part = self.programs[size](*self._batch.part(args, start, size))
            if size == images:
                return part
            if whole is None:
                kind = type(part)
                whole = [torch.empty_strided((images, *t.shape[1:]), t.stride(), dtype=t.dtype) for t in part]
            for into, t in zip(whole, part, strict=True):
                into.narrow(0, start, size).copy_(t)
        return kind(whole)
