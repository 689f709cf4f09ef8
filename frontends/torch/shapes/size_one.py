"""Sizes of 1 in traces for many sizes: Dynamo is asked not to set them apart, and asked again where they make a difference.

Left to itself, Dynamo compiles an input of one row, or a prompt of one token, in a trace of its own, for the sake of what is broadcast
or squeezed. Most networks have no place where that matters.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import TensorifyScalarRestartAnalysis, UnspecializeRestartAnalysis
from torch._dynamo.utils import counters
from torch.fx.experimental import _config
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from dcir.frontends.torch.shapes.conditions import holds
from dcir.frontends.torch.shapes.given_sizes import Given


class TraceAnew(TensorifyScalarRestartAnalysis, UnspecializeRestartAnalysis):
    """Has Dynamo trace a frame once more: one that a backend may raise, and after which the trace may take another path."""


_SEVERAL = 3
"""A size in the place of 1."""


class _Here(threading.local):
    current: OneAmongSizes | None = None


_HERE = _Here()


class OneAmongSizes:
    """Whether the traces of one callable are to hold for sizes of 1, which ends for good where one cannot be had.

    Attributes:
        on: whether it is so.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._shapes: dict[str | int, tuple[int, ...]] = {}

    @contextlib.contextmanager
    def tracing(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Around a call that may be traced."""
        if not self.on or self._changed_to_one(args, kwargs):
            yield
            return
        before, outer = _config.backed_size_oblivious, _HERE.current
        _config.backed_size_oblivious, _HERE.current = True, self
        try:
            yield
        finally:
            _config.backed_size_oblivious, _HERE.current = before, outer

    def _changed_to_one(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a size of an argument is 0 or 1 in this call and was another one before: a program may well ask for that."""
        found = False
        given: Iterable[tuple[str | int, Any]] = itertools.chain(enumerate(args), kwargs.items())
        for key, value in given:
            if isinstance(value, torch.Tensor) and not value.is_nested:
                shape = tuple(value.shape)
                usual = self._shapes.setdefault(key, shape)
                if len(usual) != len(shape):
                    self._shapes[key] = shape
                elif shape != usual:
                    found |= any(new < 2 and new != old for new, old in zip(shape, usual, strict=True))
                    # The larger ones: what was 1 in the first call may be 1 again.
                    self._shapes[key] = tuple(map(max, shape, usual))
        return found

    def failed(self, frames: int) -> bool:
        """Whether to try again without, after an error of Dynamo's: it may be due to this, and nothing has run yet.

        Args:
            frames: how many Dynamo had begun to trace before the call that failed.
        """
        tried, self.on = self.on, False
        return tried and counters["frames"]["total"] == frames + 1


def hold_for_one(gm: fx.GraphModule, *, breaks: bool = False) -> None:
    """Have a trace of Dynamo's hold where sizes are 1, if it is right there; to be called before Dynamo writes its guards.

    Sizes of 0 are kept out of it: they have a trace of their own.

    Args:
        gm: Dynamo's graph.
        breaks: whether it ends at a graph break, which may be due to a size that is not known to be more than 1.

    Raises:
        TraceAnew: nothing is known of that. Dynamo traces once more, with 0 and 1 as constants.
    """
    if not _config.backed_size_oblivious:
        return
    sizes = _sizes(gm)
    if not sizes:
        return
    environment = sizes[0].node.shape_env
    known = environment.backed_var_to_val
    hints = [int(known.get(size.node.expr, 0)) for size in sizes]
    if any(hint < 1 for hint in hints):
        _apart("sizes of 0, or numbers that are no sizes")
    if breaks:
        set_one_apart("the graph breaks")
    apart = _different_at_one(gm, sizes)
    if any(hints[number] == 1 for number in apart):
        _apart("the trace is not one for a size of 1, which it has")
    for number, size in enumerate(sizes):
        # A trace that does not set 1 apart is one for 2 and more. The expressions of torch take sizes for positive in any case; the
        # range is what becomes a guard.
        environment._update_var_to_range(size.node.expr, ValueRanges(2 if number in apart else 1, int_oo))


def holds_at_one(gm: fx.GraphModule) -> bool:
    """Whether an ATen graph that was traced without setting sizes of 1 apart holds for those."""
    sizes = _sizes(gm, "val")
    return not sizes or not _different_at_one(gm, sizes, "val")


def set_one_apart(reason: str) -> None:
    """Have Dynamo trace once more, with 0 and 1 as constants, now and in later traces, if it did not do so anyway.

    Raises:
        TraceAnew: it did not.
    """
    if _config.backed_size_oblivious:
        if _HERE.current is not None:
            _HERE.current.on = False
        _apart(reason)


def _apart(reason: str) -> None:
    _config.backed_size_oblivious = False  # until the context ends
    raise TraceAnew(restart_reason=reason)


def _sizes(gm: fx.GraphModule, key: str = "example_value") -> list[torch.SymInt]:
    """The sizes that were not set apart from 0 and 1; ``key`` is under which the nodes have their values."""
    found: dict[Any, torch.SymInt] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get(key)
        for number in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(number, torch.SymInt) and number.node.expr.is_symbol:
                span = number.node.shape_env.var_to_range.get(number.node.expr)
                if span is not None and span.lower < 2:
                    found[number.node.expr] = number
    return list(found.values())


def _different_at_one(gm: fx.GraphModule, sizes: list[torch.SymInt], key: str = "example_value") -> set[int]:
    """Numbers of the sizes that are to be more than 1 for all shapes in the graph to be what it says, however many of the others are 1."""
    environment = sizes[0].node.shape_env
    usual = {str(s): int(v) for s, v in environment.backed_var_to_val.items()}
    guards = [guard.expr for guard in environment.guards]
    # A symbol that turned out to be equal to another one is in no shape any more.
    equal: dict[Any, list[str]] = {}
    for symbol in environment.backed_var_to_val:
        equal.setdefault(environment.replace(symbol), []).append(str(symbol))
    groups = [equal[environment.replace(size.node.expr)] for size in sizes]

    # What is 1 in the trace was not 1 to operators that ask what is broadcast: it is looked at as more, too.
    traced = [usual, *(usual | dict.fromkeys(names, _SEVERAL) for names in groups if usual[names[0]] == 1)]

    def right(ones: Iterable[int]) -> bool | None:
        """Whether the shapes are right where these are 1; None if the guards do not let them."""
        given = [values | {name: 1 for i in ones for name in groups[i]} for values in traced]
        found = [_Shapes(gm, v, key).agree() for v in given if all(holds(g, v) for g in guards)]
        return all(found) if found else None

    every = set(range(len(sizes)))
    if len(traced) > 1 and right([]) is False:
        return every
    if right(every):
        return set()
    found = {i for i in every if right([i]) is False}
    rest = every - found
    if len(rest) < 2 or right(rest):
        return found
    # Some make a difference together, or the guards exclude all of them at once.
    some = [i for pair in itertools.combinations(sorted(rest), 2) if right(pair) is False for i in pair]
    return every if some or len(rest) > 2 else found


class _Shapes(fx.Interpreter):
    """A run of the graph on shapes alone, which are held against what the trace says of them."""

    def __init__(self, gm: fx.GraphModule, values: Mapping[str, int], key: str) -> None:
        super().__init__(gm)
        self._graph, self._key = gm.graph, key
        self._given = Given(values)
        self._right = True

    def agree(self) -> bool:
        """Whether no shape differs."""
        inputs = [n.meta.get(self._key) for n in self._graph.find_nodes(op="placeholder")]
        try:
            with self._given.mode, torch.no_grad():
                self.run(*map(self._fake, inputs), enable_io_processing=False)
        except Exception:  # whatever an operator says of sizes that it refuses
            return False
        return self._right

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and compare."""
        found = super().run_node(n)
        if n.op == "get_attr":
            return self._fake(found)
        if n.op in ("call_function", "call_method", "call_module") and self._key in n.meta:
            self._right &= _shapes(found) == _shapes(self._given(n.meta[self._key]))
        return found

    def _fake(self, value: Any) -> Any:
        made = self._given(value)
        if made is value and isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return made


def _shapes(value: Any) -> Any:
    """Of tensors their shapes, of what holds several those of each, and numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list):
        return [_shapes(v) for v in value]
    return value if isinstance(value, bool | int | float) else None
