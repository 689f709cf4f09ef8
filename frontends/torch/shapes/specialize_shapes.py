"""A graph with symbolic sizes: programs for pieces of a batch, one for all sizes, or one for every combination of them, up to a limit.

Where nothing but a batch changes, the first one is compiled as it is. From the second on, a graph that does the same to every image of
it is run in pieces (``batch_buckets.py``), so that further batches need no compilation. Where other sizes change, there is one program
for all of them if all of its kernels can be such (``moving_sizes.py``); else each combination is compiled.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext

from dcir.errors import RecompileWarning, Unsupported
from dcir.frontends.torch.admission import argument_name
from dcir.frontends.torch.constant_sizes import calls_graphs
from dcir.frontends.torch.context import Sizes
from dcir.frontends.torch.shapes.batch_buckets import SHOWN, Batch, BatchBuckets, Trace, Traced, find_batch, in_pieces
from dcir.frontends.torch.shapes.moving_sizes import Moving
from dcir.frontends.torch.shapes.programs import NoProgramForSizes
from dcir.ir.refusal import Refusal
from dcir.user_code import warn_user

OnSizes = Callable[[Sizes, Sequence[Sizes]], None]
"""Called with the sizes that are about to be compiled, and those that were before."""
Specialise = Callable[[fx.GraphModule, Sequence[Any], Sizes, str], Callable[..., Any]]
"""From a graph, its arguments, their sizes and a remark to what runs it."""
Pieces = dict[int, Traced] | Refusal
Judged = Callable[[fx.GraphModule, Sequence[Any], Callable[[], Pieces]], Pieces]
"""From a graph, arguments that it would be looked at for, and what looks at it, to whether it can be run in pieces."""

# Dynamo's note that a trace is being made, where this torch has it.
_told = getattr(torch.compiler, "_compile_session_context", contextlib.nullcontext)
_SIZE = re.compile(r"\.size\(\)\[(\d+)\]")


class BySize:
    """The graph as something to call.

    Args:
        gm: Dynamo's graph.
        examples: its arguments, with symbolic numbers in them.
        specialise: compiles it for the sizes of a list of arguments; the graph it is given has Python's numbers as constants.
        trace: traces a graph for a list of arguments.
        limit: how many combinations are compiled. A call with a further one runs the graph in torch: a program whose sizes never
            come back then costs what it costs without dcir, instead of a compilation for each call.
        on_sizes: hears of every combination before it is compiled.
        strict: whether such a call is an error.
        inputs: names of positional arguments, where the traced frame has ``*args`` in their place.
        own_first: whether the first combinations may have programs of their own where those are much faster.
        overlap: whether arguments lie in each other so that the graph has to run in torch; known once it is traced.
        judged: says whether a graph can be run in pieces: by arguments that it would be looked at for, and by what looks at it.
        noting: a context in which what is traced for pieces of a batch is noted.

    Attributes:
        paths: of each symbol where Dynamo's guards find it, as code.
        by_batch: where a batch moves, the programs by all else that they depend on, and by their number of images.
    """

    def __init__(
        self, gm: fx.GraphModule, examples: Sequence[Any], specialise: Specialise, trace: Callable[[fx.GraphModule], Trace], limit: int,
        on_sizes: OnSizes | None = None, inputs: Sequence[str] = (), overlap: Callable[[Sequence[Any]], bool] = lambda _: False,
        *, strict: bool = False, own_first: bool = True,
        judged: Judged = lambda gm, like, judge: judge(),
        noting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:  # fmt: skip
        self.gm, self._specialise, self._limit, self._on_sizes = gm, specialise, limit, on_sizes
        self._trace, self._overlap, self._judged, self._noting = trace, overlap, judged, noting
        self.by_batch: dict[Any, dict[int, Callable[..., Any]]] = {}
        self.batch = find_batch(gm)
        self.pieces: dict[Any, BatchBuckets | Refusal] = {}
        found = symbolic_places(gm, examples, inputs)
        self.places = dict(found.values())
        self.names = {symbol: name for symbol, (name, _) in found.items()}
        self.paths = {symbol: path for symbol, (_, place) in found.items() if (path := _path(gm, *place))}
        self._numbers = _number_places(gm)
        self._trains = trains(gm, examples)
        self.programs: dict[Any, Callable[..., Any]] = {}
        self.made: list[Sizes] = []
        self._beyond, self._strict, self._own_first = False, strict, own_first
        # Set by who traces; asked for sizes that no program is for.
        self.moving: Moving | Refusal = Refusal("nothing was traced for all sizes")

    def __call__(self, *args: Any) -> Any:
        if self._overlap(args):
            return self.gm(*args)
        program = self.programs.get(self._key(args)) if self.programs else None
        if program is None:
            program = self._in_pieces(args)
        if program is None and self.only_batch and self.made and self._key(args) not in self.programs:
            with compile_lock, _told(), self._noted():
                self._split(args)  # what cannot be run in pieces may still be one program for all sizes
        # Where DistributedDataParallel cuts a graph, Dynamo asks for the results of a part with fake tensors: then it is traced.
        moving = self.moving if not self.only_batch and TracingContext.try_get() is None else None
        if program is None and isinstance(moving, Moving) and not self._own(moving):
            with contextlib.suppress(NoProgramForSizes):
                return moving(args)
            if moving.hopeless:
                self.moving = Refusal(moving.reason)
        if program is None:
            # Tracing is as little safe among threads here as within Dynamo, and other threads' calls must be told of it the same way.
            key = self._key(args)
            with compile_lock, _told(), self._noted():
                program = self.programs.get(key) or self._new(key, args)
        return program(*args)

    def _noted(self) -> AbstractContextManager[None]:
        return self._noting() if self.only_batch else contextlib.nullcontext()

    def _own(self, moving: Moving) -> bool:
        """Whether the next combination of sizes had better have a program of its own."""
        return self._own_first and len(self.made) < min(moving.own_first, self._limit)

    @property
    def only_batch(self) -> bool:
        """Whether nothing changes but a batch that is run in pieces of constant sizes: in inference, if images have no part in others."""
        refused = any(isinstance(found, Refusal) for found in self.pieces.values())
        return isinstance(self.batch, Batch) and len(self.places) == 1 and not self._trains and not refused

    def _key(self, args: Sequence[Any], but: Sequence[int] = (), numbers: Sequence[int] = ()) -> Any:
        """What a program belongs to; without the first dimension of the arguments ``but``, and without ``numbers``."""
        return kind_of_call(args, tuple(self._numbers.values()), but, numbers)

    @property
    def floats(self) -> tuple[int, ...]:
        """Numbers of the arguments that are tensors in the place of Python's numbers."""
        return tuple(self._numbers.values())

    def _in_pieces(self, args: Sequence[Any]) -> Callable[..., Any] | None:
        """The program of any batch, if it is ready for this one."""
        if isinstance(self.batch, Refusal) or not self.pieces or self.batch.size(args) < 2:
            return None
        found = self.pieces.get(self._key(args, self.batch.tensors, self.batch.numbers))
        return found if isinstance(found, BatchBuckets) and found.ready(args) else None

    def sizes(self, args: Sequence[Any]) -> Sizes:
        """The symbolic sizes in a list of arguments."""
        return tuple((name, _at(args[i], dim)) for name, (i, dim) in self.places.items())

    def _with_numbers(self, args: Sequence[Any]) -> fx.GraphModule:
        """The graph with the Python numbers of a call, which Dynamo passes as tensors, as constants.

        Where there is control flow, its whole numbers, too: what such a graph is traced in would make a symbol of each.
        """
        whole = {i: a for i, a in enumerate(args) if type(a) is int} if calls_graphs(self.gm) else {}
        if not self._numbers and not whole:
            return self.gm
        graph = copy.deepcopy(self.gm.graph)
        for i, place in enumerate(graph.find_nodes(op="placeholder")):
            for user in list(place.users) if i in whole else ():
                user.args, user.kwargs = _put((user.args, user.kwargs), place, whole[i])
        for node in list(graph.nodes):
            if _is_item(node) and node.args[0].name in self._numbers:
                value = args[self._numbers[node.args[0].name]].item()
                for user in list(node.users):
                    user.args, user.kwargs = _put((user.args, user.kwargs), node, value)
                graph.erase_node(node)
        return fx.GraphModule(self.gm, graph)

    def _new(self, key: Any, args: Sequence[Any]) -> Callable[..., Any]:
        remark = ""
        if self.made:
            found = self._split(args)
            if isinstance(found, BatchBuckets):
                found.prepare(args)
                return found
            remark = f"each batch is compiled for itself: {found.reason}"
        if isinstance(self.moving, Moving) and self._own(self.moving):
            remark = "compiled for itself, as the first sizes of a graph are whose program for all sizes is slower"
        elif not self.only_batch and self.moving.reason:
            remark = f"each combination is compiled for itself: {self.moving.reason}"
        sizes = self.sizes(args)
        if len(self.programs) >= self._limit and self._strict:
            raise Unsupported(
                f"{len(self.programs)} combinations of sizes are compiled, which is the limit",
                details=[("sizes", text(sizes))], hint="shape_limit=... sets it; strict=False runs further ones in torch",
            )  # fmt: skip
        if len(self.programs) >= self._limit:
            if not self._beyond:
                self._beyond = True
                warn_user(
                    f"{len(self.programs)} combinations of sizes are compiled, which is the limit; "
                    f"calls with further ones ({text(sizes)}) run in torch; shape_limit=... sets the limit",
                    RecompileWarning,
                )
            return self.gm
        program = self._compile(args, remark)
        if self._overlap(args):  # which is known to matter only now
            return self.gm
        self.programs[key] = program
        return program

    def _compile(self, args: Sequence[Any], remark: str, traced: Traced | None = None) -> Callable[..., Any]:
        sizes = self.sizes(args)
        if self._on_sizes is not None:
            self._on_sizes(sizes, self.made)
        if traced is not None:
            program = traced.compiled(sizes, remark)
        else:
            program = self._specialise(self._with_numbers(args), args, sizes, remark)
        self.made.append(sizes)
        if isinstance(self.batch, Batch):
            alike = self.by_batch.setdefault(self._key(args, self.batch.tensors, self.batch.numbers), {})
            alike[self.batch.size(args)] = program
        return program

    def _piece(self, like: Sequence[Any], images: int, traced: Traced | None) -> Callable[..., Any]:
        known = self.programs.get(self._key(like))  # a batch that was compiled as a whole may be of that size
        return known if known is not None else self._compile(like, f"a piece of any batch: {images} images", traced)

    def _split(self, args: Sequence[Any]) -> BatchBuckets | Refusal:
        """The program of any batch, or why there is none."""
        batch = self.batch
        if isinstance(batch, Refusal):
            return batch
        if batch.size(args) < 2:
            return Refusal("there are no two images")
        if self._trains:
            return Refusal("only inference is done in pieces")
        key = self._key(args, batch.tensors, batch.numbers)
        if key not in self.pieces:
            (output,) = (n for n in self.gm.graph.nodes if n.op == "output")
            results = len(output.args[0]) if isinstance(output.args[0], tuple | list) else 1
            graph = self._with_numbers(args)
            like = batch.examples(args, SHOWN[0])
            found = self._judged(graph, like, lambda: in_pieces(self._trace(graph), batch, args, results))
            self.pieces[key] = found if isinstance(found, Refusal) else BatchBuckets(batch, found, self._piece)
        return self.pieces[key]


def kind_of_call(
    args: Sequence[Any], floats: Sequence[int], but: Sequence[int] = (), numbers: Sequence[int] = ()
) -> Any:  # fmt: skip
    """What a program for the sizes of a call belongs to.

    Args:
        args: of the call.
        floats: numbers of those that are tensors in the place of Python's numbers.
        but: numbers of those whose first dimension does not count.
        numbers: numbers of those that do not count.
    """
    return (
        torch.is_grad_enabled(),
        # As text, in which -0.0 is not 0.0 and NaN equals itself.
        tuple(repr(args[i].item()) for i in floats),
        tuple(
            (tuple(a.shape[i in but :]), tuple(a.stride()), a.dtype, a.requires_grad)
            if isinstance(a, torch.Tensor)
            else None
            if i in numbers
            else a
            for i, a in enumerate(args)
        ),
    )


def trains(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether somebody may ask for gradients of a graph of Dynamo's."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in (*inputs, *gm.parameters())
    )


def text(sizes: Sizes) -> str:
    """Sizes for people."""
    return ", ".join(f"{name}={value}" for name, value in sizes)


def symbolic_places(
    gm: fx.GraphModule, examples: Sequence[Any], inputs: Sequence[str] = ()
) -> Mapping[str, tuple[str, tuple[int, int | None]]]:
    """Where each symbol's value is found: its name for people, and (argument, dimension, or None for the argument itself).

    Symbols stand where they are first alone; sizes that follow from others (2 * s) are left out.
    """
    found: dict[str, tuple[str, tuple[int, int | None]]] = {}
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for i, (node, value) in enumerate(zip(nodes, examples, strict=True)):
        name = _name(node, inputs)
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                _note(found, size, f"{name}[{dim}]", (i, dim))
        else:
            _note(found, value, _SIZE.sub(r"[\1]", name), (i, None))
    return found


def _number_places(gm: fx.GraphModule) -> dict[str, int]:
    """Names and positions of placeholders that are Python numbers in the user's program."""
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return {
        n.name: i
        for i, n in enumerate(nodes)
        if getattr(n.meta.get("grapharg"), "pass_arg_as_tensor", False) and any(map(_is_item, n.users))
    }


def _put(arguments: Any, node: fx.Node, value: float) -> Any:
    """Arguments of a node with a number in place of another node."""
    return fx.node.map_arg(arguments, lambda n: value if n is node else n)


def _is_item(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item" and isinstance(node.args[0], fx.Node)


def _note(found: dict[str, Any], size: Any, name: str, place: tuple[int, int | None]) -> None:
    if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
        found.setdefault(str(size.node.expr), (name, place))


def _path(gm: fx.GraphModule, argument: int, dim: int | None) -> str | None:
    """Where Dynamo's guards find a size of an argument, or an argument that is one; None if they do not."""
    node = [n for n in gm.graph.nodes if n.op == "placeholder"][argument]
    source = _source(node)
    return source if source is None or dim is None else f"{source}.size()[{dim}]"


def _source(node: fx.Node) -> str | None:
    source = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
    return source if isinstance(source, str) else None


def _name(node: fx.Node, inputs: Sequence[str]) -> str:
    """A placeholder's source as the user would write it."""
    source = _source(node)
    if source is None:
        return str(node.name)
    return argument_name(source, inputs)


def _at(value: Any, dim: int | None) -> int:
    return int(value if dim is None else value.shape[dim])
