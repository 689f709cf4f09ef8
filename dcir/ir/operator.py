"""The contract of an operator: what every spec of a node says of itself, whoever wrote it."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dcir.errors import InvalidOperator

Temporary = tuple[str, str, int]
"""An array that exists while an operator runs: its name, its element type, its elements."""
Step = tuple["Operator", list[str], list[str]]
"""A loop nest with the names of its operands: a0, o0 … or those of temporaries."""
Steps = tuple[list[Temporary], list[Step]]


class OperandWindow(NamedTuple):
    """How an operator walks an operand from where that begins.

    Attributes:
        shape, strides: extents and steps, in elements.
        field, place: the field that holds the strides, and the entry in it if it holds several; "" where they are fixed.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    field: str = ""
    place: int | None = None


class ArgumentWindow(NamedTuple):
    """What the body of an operator sees of an operand: so many elements from where that begins.

    Attributes:
        dtype, size: element type and elements.
        moves: how far from there the last one begins, in elements.
    """

    dtype: str
    size: int
    moves: int = 0


Windows = tuple[list[OperandWindow | None], list[OperandWindow | None]]
"""Of inputs and of outputs; None where an operand is packed and has no strides."""


@dataclass(frozen=True)
class IndexCheck:
    """Indices that an operator looks at.

    Attributes:
        operand: the number of the input that has them; -1 where they are computed.
        walk: which elements of it, as (stride, extent) of as few loops as possible, the smallest stride first.
        extent: what they must be smaller than.
        always: whether it looks at all of these.
    """

    operand: int = -1
    walk: tuple[tuple[int, int], ...] = ()
    extent: int = 0
    always: bool = False

    @staticmethod
    def of(operand: int, dims: Iterable[int], strides: Iterable[int], extent: int, *, always: bool) -> IndexCheck:
        """Of an input that is walked along by loops of ``dims``."""
        walk: list[tuple[int, int]] = []
        for step, n in sorted((s, n) for n, s in zip(dims, strides, strict=True) if n > 1 and s):
            if walk and step == walk[-1][0] * walk[-1][1]:
                walk[-1] = walk[-1][0], walk[-1][1] * n
            else:
                walk.append((step, n))
        return IndexCheck(operand, tuple(walk), extent, always)

    @property
    def known(self) -> bool:
        """Whether an input has them."""
        return self.operand >= 0


class Operator:
    """What a node of the network computes; all of it but where its operands begin.

    An operator is a frozen dataclass that inherits from this class, of plain values, so that equal operators share one kernel
    (its ``repr`` names it) and ``serialize.register`` can save it. It says

    - ``kind``: its name for labels and reports; a class attribute, a field or a property;
    - ``footprint``, ``operations``, ``reference``: what it moves, what it computes, and the numbers themselves,

    and, where it has something to say, what follows below. An operator without a ``loop_nest`` or ``steps`` needs an emitter of its own
    (``codegen.registry.Emitters``).

    A loop nest is an operator too; what the contract calls a loop nest is one (``loop_nest.py``), which the class above it cannot name.

    The class is no ABC: passes ask a thousand nodes for their class many times, which an ABC answers five times slower; what is
    missing is told when a subclass is defined (``partial=True`` in the class's header puts that off to its subclasses).

    Attributes:
        kind: name for labels and reports.
        epilogue: what is done to every element of the result before it is stored (``ops/library/epilogue.py``), None for nothing.
        calls_out: what it calls outside the generated code, by a call back into torch at its place in the order; "" for nothing.
        has_effects: whether it does more than compute its results: it may not vanish, merge with its like, or overtake another such.
    """

    def __init_subclass__(cls, *, partial: bool = False, **kwargs: Any) -> None:
        """Refuse a class that does not say what every operator must.

        Raises:
            InvalidOperator: with all that is missing.
        """
        super().__init_subclass__(**kwargs)
        if partial:
            return
        missing = [f"{name}()" for name in _REQUIRED if getattr(cls, name) is getattr(Operator, name)]
        if missing:
            raise _incomplete(
                cls, missing, "define what is missing, or write class …(…, partial=True) for a base of others"
            )

    # Fields may override read-only properties; but a dataclass would take a real one for the default of a field of its name.
    if TYPE_CHECKING:

        @property
        def kind(self) -> str: ...

        @property
        def epilogue(self) -> Operator | None: ...

        @property
        def calls_out(self) -> str: ...

        @property
        def has_effects(self) -> bool: ...
    else:
        epilogue = None
        calls_out = ""
        has_effects = False

    @abstractmethod
    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes that each input operand and each output operand touches."""
        raise NotImplementedError

    @abstractmethod
    def operations(self) -> int:
        """Scalar arithmetic operations of one run."""
        raise NotImplementedError

    @abstractmethod
    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it with NumPy, to check what everything else makes.

        Args:
            ins, outs: per operand, a 1-D array of its storage type whose element 0 is where the operand begins.
        """
        raise NotImplementedError

    def reference_at(
        self, ins: Sequence[Any], outs: Sequence[Any], in_starts: Sequence[int], out_starts: Sequence[int]
    ) -> None:
        """``reference`` over whole containers, with the element in each where the operand begins."""
        self.reference(
            [a[start:] for a, start in zip(ins, in_starts, strict=True)],
            [a[start:] for a, start in zip(outs, out_starts, strict=True)],
        )

    def bytes_moved(self) -> int:
        """Bytes read plus bytes written, each distinct element once."""
        reads, writes = self.footprint()
        return sum(reads) + sum(writes)

    def loop_nest(self) -> Operator | None:
        """The same as one loop nest; None where there is none."""
        return None

    def steps(self) -> Steps | None:
        """The same as loop nests one after the other, over temporaries; None where there are none."""
        nest = self.loop_nest()
        if nest is None:
            return None
        reads, writes = self.footprint()
        return [], [(nest, [f"a{i}" for i in range(len(reads))], [f"o{i}" for i in range(len(writes))])]

    @property
    def stored_by(self) -> Operator | None:
        """The loop nest whose statements store the results: an epilogue, or the operator that is one; None where it stores by itself."""
        return self.epilogue

    def bodies(self) -> tuple[Any, ...]:
        """The networks that it runs (``ir.body.Body``, which is made of operators): of a loop, a branch; none of others."""
        return ()

    def runs(self) -> int:
        """How often each of its bodies runs, as far as that is known: at least once."""
        return 1

    def in_all(self, each: Sequence[int]) -> int:
        """How much its bodies do of something in one run of it, by how much each does when it runs."""
        return self.runs() * sum(each)

    def with_bodies(self, bodies: tuple[Any, ...]) -> Operator:
        """The same over other bodies that compute the same of the same operands."""
        assert not bodies
        return self

    def fixed(self) -> list[int]:
        """Of one that repeats bodies, the inputs that do not change while it runs; each body has them at the same place."""
        return []

    def argument_windows(self) -> tuple[list[ArgumentWindow], list[ArgumentWindow]]:
        """Of one with bodies, what these see of its inputs and of its results."""
        raise NotImplementedError

    def control(self) -> Any | None:
        """What it runs and how, as ``ir.control`` has it; None of an operator without bodies."""
        return None

    def windows(self) -> Windows | None:
        """How it walks its operands, those of an epilogue left out; None where their layout is not for others to choose."""
        return None

    def with_strides(self, window: OperandWindow, strides: tuple[int, ...]) -> Operator | None:
        """The same with other strides of one of its ``windows``, None where they are fixed."""
        if strides == window.strides:
            return self
        if not window.field:
            return None
        if window.place is None:
            return self._having(window.field, strides)
        table = list(getattr(self, window.field))
        table[window.place] = strides
        return self._having(window.field, tuple(table))

    def _having(self, field: str, value: object) -> Operator:
        return dataclasses.replace(cast("Any", self), **{field: value})  # type: ignore[no-any-return]

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """The indices that it looks at, and for which it may fail when it runs."""
        if self.stored_by is not None and self.stored_by.index_checks():
            return (IndexCheck(),)
        inside = (op.spec for body in self.bodies() for op in body.operators)
        return (IndexCheck(),) if any(spec.index_checks() for spec in inside) else ()

    @property
    def updates_first_input(self) -> bool:
        """Whether its one result is its first input with some elements changed, each where it lies there: the two may share memory."""
        return False

    def with_result_apart(self) -> Operator:
        """The same where the result does not share memory with the first input."""
        return self

    def stored_as(self, nest: Operator) -> Operator:
        """The same with ``nest`` in place of ``stored_by``, where there is one."""
        assert self.epilogue is not None
        return self._having("epilogue", nest)

    def describe(self) -> str:
        """The operator with the sizes that decide its time, on one line."""
        return self.kind


def check_operator(cls: type[Any]) -> None:
    """What can be told of a class of operators only once it is a dataclass.

    Raises:
        InvalidOperator: it is no frozen dataclass, or has no ``kind``.
    """
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise _incomplete(cls, ["frozen fields"], "write @dataclass(frozen=True) under @register")
    if not hasattr(cls, "kind") and "kind" not in {f.name for f in dataclasses.fields(cls)}:
        raise _incomplete(cls, ["kind"], 'kind = "…", a field, or a property')


def _incomplete(cls: type[Operator], missing: list[str], hint: str) -> InvalidOperator:
    what = ", ".join(missing)
    return InvalidOperator(
        f"operator {cls.__name__} lacks {what}", where=f"{cls.__module__}.{cls.__qualname__}", hint=hint
    )


_REQUIRED = ("footprint", "operations", "reference")
