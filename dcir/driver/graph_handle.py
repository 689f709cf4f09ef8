"""What a graph that ``torch.compile(backend="dcir")`` handed over answers about itself: its records, and a twin to be profiled."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor

from dcir.driver.compile import compiling
from dcir.driver.handle import Handle
from dcir.driver.limit import limited
from dcir.driver.session import Session
from dcir.errors import InvalidInput
from dcir.frontends.torch.admission import is_of_module
from dcir.frontends.torch.capture import dynamo_backend
from dcir.report.profile import Profile

_FRAME = re.compile(r'File "(.*?)", line (\d+), in (\S+)')
_COUNTING = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


class GraphHandle(Handle):
    """The handle of one graph of Dynamo's.

    Args:
        gm: the graph, with parameters and buffers among its inputs.
        examples: its inputs as they are when it is compiled; no tensor among them is kept alive.
    """

    def __init__(self, session: Session, gm: fx.GraphModule, examples: Sequence[Any]) -> None:
        super().__init__(session, name_of(gm))
        self._gm, self._gradients = gm, torch.is_grad_enabled()
        places = gm.graph.find_nodes(op="placeholder")
        self._given = [_given(node, example) for node, example in zip(places, examples, strict=True)]

    def profile(self, /, *inputs: Any, seconds: float = 2.0, loss: Any = None, **named: Any) -> Profile:
        """Where the time of a call of this graph goes, kernel by kernel.

        Args:
            inputs: those of the graph that are no parameters; if none are given, such as the first call had are drawn at random.
            seconds: how long to measure.
            loss: a function from the tuple of the graph's results to a scalar; if given, the backward pass is measured too.

        Raises:
            InvalidInput: the model is gone, or the number of inputs is another one.
        """
        from dcir.driver.measure.profile import profile

        if named:
            raise InvalidInput(f"a graph has no inputs by name: {', '.join(named)}", where=self.name)
        own = [g.tensor() if g.tensor is not None else None for g in self._given]
        if any(t is None for g, t in zip(self._given, own, strict=True) if g.tensor is not None):
            raise InvalidInput(f"the model of {self.name} is gone", hint="keep it, and compile it again")
        wanted = [g.drawn for g in self._given if g.tensor is None]
        given = inputs or tuple(draw() for draw in wanted)
        if len(given) != len(wanted):
            raise InvalidInput(f"{self.name} has {len(wanted)} inputs, not {len(given)}", hint="or give none at all")
        left = iter(given)
        # The graph may write to buffers, such as running statistics, and those of the user's stay as they are.
        whole = [next(left) if t is None else t if isinstance(t, nn.Parameter) else t.clone() for t in own]
        with torch.set_grad_enabled(self._gradients):
            return profile(_twin(self._gm), _compiled_as_before, self.options, whole, seconds=seconds, loss=loss)


def _compiled_as_before(twin: fx.GraphModule, session: Session) -> Callable[..., Any]:
    """A graph by the way that it was compiled at first."""
    first: list[Callable[..., Any]] = []

    def call(*inputs: Any) -> Any:
        if not first:
            first.append(dynamo_backend(compiling(session), None, limited(session))(twin, inputs))
        return first[0](*inputs)

    return call


@dataclass(frozen=True)
class _Given:
    """One input of a graph.

    Attributes:
        tensor: gives it while it is alive, if it is a parameter or buffer; else None.
        drawn: gives another one like it.
    """

    tensor: Callable[[], Tensor | None] | None
    drawn: Callable[[], Any]


def _twin(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph of Dynamo's again, to be compiled once more."""
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(gm.graph, values))
    twin = fx.GraphModule(gm, graph)
    twin.meta.update(gm.meta)
    # AOTAutograd reads from these what belongs to the module.
    twin._param_name_to_source = getattr(gm, "_param_name_to_source", {})  # type: ignore[assignment]
    for old, new in values.items():
        if hasattr(old, "_dynamo_source"):
            new._dynamo_source = old._dynamo_source
    return twin.eval()  # it has no modes, and would be copied without the above


def name_of(gm: fx.GraphModule) -> str:
    """The function that Dynamo traced, and the line of its first operator."""
    for node in gm.graph.nodes:
        found = _FRAME.search(node.stack_trace or "") if node.op != "placeholder" else None
        if found is not None:
            return f"{found[3]} ({Path(found[1]).name}:{found[2]})"
    return "a graph"


def _given(node: fx.Node, example: Any) -> _Given:
    argument = node.meta.get("grapharg")
    real = getattr(argument, "example", example)
    if isinstance(real, Tensor) and is_of_module(node):
        return _Given(weakref.ref(real), _as_it_is(None))
    if not isinstance(real, Tensor):
        return _Given(None, _as_it_is(_hint(real)))
    shape, stride = [[_hint(n) for n in numbers] for numbers in (real.shape, real.stride())]
    dtype, needs = real.dtype, real.requires_grad
    # Numbers that choose (classes, rows of tables, masks) must be possible ones.
    known = dtype in _COUNTING and real.numel() and not isinstance(real, FakeTensor)
    least, most = map(int, real.aminmax()) if known else (0, 1)

    def drawn() -> Tensor:
        reach = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
        chosen = dtype in _COUNTING
        memory = torch.randint(least, most + 1, (reach,)) if chosen else torch.randn(reach)
        return memory.to(dtype).as_strided(shape, stride).requires_grad_(needs)

    return _Given(None, drawn)


def _hint(value: Any) -> Any:
    """What a symbolic number stands for now; to ask it itself would have Dynamo compile for that number alone."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def _as_it_is(value: Any) -> Callable[[], Any]:
    return lambda: value
