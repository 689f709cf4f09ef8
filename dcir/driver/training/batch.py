"""A batch of a training step: its tensors, what is around them, and what is known of the sizes of batches like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from dcir.errors import InvalidInput, Unsupported
from dcir.frontends.torch.admission import of_call, refuse_unless_plain
from dcir.frontends.torch.arguments import written_out
from dcir.frontends.torch.shapes.batch_sizes import Pattern
from dcir.ops.reach import out_of_reach


@dataclass(frozen=True)
class StepFrame:
    """A batch without its tensors.

    Attributes:
        spec: how what the batch consists of is nested.
        plain: in order, the type and the text of everything that is no tensor, None where a tensor stands. (As a key: 1, 1.0 and
            True are equal, so are 0.0 and -0.0, and NaN is not.)
        values: the same, itself.
    """

    spec: pytree.TreeSpec
    plain: tuple[tuple[type, str] | None, ...]
    values: tuple[Any, ...] = field(compare=False)

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The batch with other tensors."""
        rest = iter(tensors)
        filled = [next(rest) if p is None else v for p, v in zip(self.plain, self.values, strict=True)]
        return pytree.tree_unflatten(filled, self.spec)


def split_batch(batch: tuple[Any, ...]) -> tuple[list[Tensor], StepFrame]:
    """The tensors of a batch in order, and what is around them.

    Raises:
        InvalidInput: see ``TrainStep.__call__``.
    """
    if len(batch) < 2:
        raise InvalidInput("a training step takes the model's inputs and a target")
    leaves, spec = pytree.tree_flatten(batch)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    if any(map(out_of_reach, tensors)):
        refuse_unless_plain(of_call((), {"batch": batch}, ()))
    tensors = [written_out(t) for t in tensors]
    if any(t.requires_grad for t in tensors):
        raise InvalidInput("a tensor of the batch wants gradients", hint="x.detach()")
    values = tuple(None if isinstance(v, Tensor) else v for v in leaves)
    for v in values:
        if not (v is None or isinstance(v, bool | int | float | complex | str)):
            raise InvalidInput(
                f"a {type(v).__name__} in the batch of a training step", hint="torch.as_tensor(...), or a plain number"
            )
    plain = tuple(None if isinstance(t, Tensor) else (type(t), repr(t)) for t in leaves)
    return tensors, StepFrame(spec, plain, values)


def refuse_written(batch: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Refuse a batch that lies in memory which the step writes: eager PyTorch would read what was just written.

    Raises:
        Unsupported: one of its tensors does.
    """
    starts = {t.data_ptr() for t in written}
    for number, t in enumerate(batch):
        if t.numel() and t.untyped_storage().data_ptr() in starts:
            raise Unsupported(
                "the batch lies in memory of the model that a step writes", where=f"tensor {number}", hint="clone it"
            )


class Alike:
    """Batches that differ in their sizes and in how they lie at most.

    Attributes:
        pattern: what is known of their sizes.
        own: layouts that have a program of their own.
        refused: why there is no program for all sizes, by the rows of the pattern that were to move.
    """

    def __init__(self, batch: Sequence[Tensor]) -> None:
        self.pattern = Pattern(shapes(batch))
        self.own: set[Any] = set()
        self.refused: dict[Any, str] = {}

    def may_move(self, batch: Sequence[Tensor]) -> bool:
        """Whether a batch is one for a program for all sizes: its strides are to follow from its sizes."""
        self.pattern.see(shapes(batch))
        return self.pattern.moves and layout(batch) not in self.own and all(t.is_contiguous() for t in batch)


def shapes(batch: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Of every tensor."""
    return tuple(tuple(t.shape) for t in batch)


def layout(batch: Sequence[Tensor]) -> Any:
    """What a program of constant sizes asks of a batch."""
    return tuple((tuple(t.shape), t.stride()) for t in batch)
