"""Loops and branches of a file as operators with bodies, where they are compiled: torch's scan, map, while_loop and cond.

    Scan, Loop with a known count    --> scan (map, where nothing is carried); a loop's xs are the rounds' numbers
    Loop that data ends              --> while_loop, of the count, whether it goes on, and what is carried
    If on data                       --> cond

A body must run on tensors alone (``repeatable.py``), and hand on what it was given: the same shapes and types, which one round tells that
no result is taken of. What does not fit runs in Python: a loop is unrolled there, or stops for data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from dcir.frontends.onnx.program import Subprogram
from dcir.frontends.onnx.values import TEXT, Host, to_tensor

LEAST_STEPS = 3
"""Fewer are no loop."""

Step = Callable[[list[Tensor], list[Tensor]], tuple[list[Any], list[Any]]]
"""What is carried, and this round's parts, to what is carried on, and parts of the results."""


def tensors_of(values: Sequence[Any]) -> list[Tensor] | None:
    """The values as tensors; None if one is none."""
    for value in values:
        if not isinstance(value, Tensor) and not (isinstance(value, Host) and value.dtype is not TEXT):
            return None
    return [to_tensor(value) for value in values]


def own_operands(bodies: Sequence[Subprogram], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The operands of control flow, with copies of those that its bodies capture and that may share memory."""
    own = list(operands)
    for body in bodies:
        for place in body.shared:
            if isinstance(own[place], Tensor):
                own[place] = own[place].clone(memory_format=torch.contiguous_format)
    return tuple(own)


def repeated(
    step: Step, carried: list[Tensor], moving: list[Tensor], nested: bool = False
) -> tuple[list[Any], list[Any]] | None:
    """A step for each part of ``moving`` along the first dimension, as one operator.

    Args:
        step: is followed twice; what it takes besides may not share memory.
        carried: before the first round.
        moving: tensors of one length, at least one.
        nested: whether a step has control flow of its own.

    Returns:
        What is carried at the end, and the results of all rounds, stacked; None if it must run in Python.
    """
    if not torch.compiler.is_compiling() or moving[0].shape[0] < LEAST_STEPS:
        return None
    after, made = step(carried, [part[0] for part in moving])
    if not _alike(carried, after) or tensors_of(made) is None or not (carried or made):
        return None
    if _differentiated([*after, *made]) and (nested or not all(t.is_floating_point() for t in carried)):
        return None  # torch's derivative of a scan takes neither whole numbers along nor, with those, others inside
    if not carried:
        stacked = _followed(lambda: _mapped(lambda parts: _apart(step([], list(parts))[1]), _apart(moving)))
        return None if stacked is None else ([], list(stacked))

    def one(state: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> Any:
        new, out = step(list(state), list(parts))
        return _apart(new), _apart(out)

    done = _followed(lambda: _scanned(one, _apart(carried), _apart(moving)))
    return None if done is None else (list(done[0]), list(done[1]))


def repeated_while(
    step: Callable[[Tensor, list[Tensor]], tuple[Any, list[Any]]],
    limit: Tensor | int | None, running: Tensor | bool, carried: list[Tensor],
) -> list[Any] | None:  # fmt: skip
    """Rounds until a step says that it was the last one, as one operator.

    Args:
        step: of the round's number and what is carried, to whether it goes on, and what is carried on; followed twice.
        limit: the most rounds.
        running: whether the first round runs.
        carried: before the first round.

    Returns:
        What is carried at the end; None if it must run in Python.
    """
    if not torch.compiler.is_compiling() or not carried:
        return None
    first = torch.zeros((), dtype=torch.int64)
    goes_on, after = step(first, carried)
    if not _alike(carried, after) or not isinstance(goes_on, (Tensor, Host)) or tuple(goes_on.shape) not in ((), (1,)):
        return None
    if _differentiated(after):
        return None  # its derivative is of a size that data decide
    go = running.reshape(()) if isinstance(running, Tensor) else torch.full((), running)
    most = limit.reshape(()) if isinstance(limit, Tensor) else limit

    def more(number: Tensor, on: Tensor, *_: Tensor) -> Tensor:
        return on.clone() if most is None else on & (number < most)

    def body(number: Tensor, on: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        again, new = step(number, list(state))
        return (number + 1, to_tensor(again).reshape(()).clone(), *_apart(new))

    last = _followed(lambda: torch.while_loop(more, body, (first, go.clone(), *_apart(carried))))
    return None if last is None else list(last)[2:]


def chosen(
    flag: Tensor, then: Callable[[], Sequence[Any]], otherwise: Callable[[], Sequence[Any]]
) -> tuple[Tensor, ...] | None:
    """The results of one of two branches, as one operator; None if they are not alike, and one of them must run in Python."""
    first, second = tensors_of(then()), tensors_of(otherwise())
    if first is None or second is None or not _alike(first, second):
        return None
    results: tuple[Tensor, ...] = torch.cond(flag.reshape(()), lambda: _apart(then()), lambda: _apart(otherwise()), ())
    return results


def _alike(given: Sequence[Tensor], made: Sequence[Any]) -> bool:
    """Whether values have the shapes and types of those they follow."""
    if len(given) != len(made):
        return False
    for a, b in zip(given, made, strict=True):
        if not isinstance(b, (Tensor, Host)) or b.dtype != a.dtype or len(b.shape) != len(a.shape):
            return False
        for d, e in zip(a.shape, b.shape, strict=True):
            if d != e:
                return False
    return True


def _differentiated(made: Sequence[Any]) -> bool:
    """Whether gradients will be asked of one of these."""
    return any(isinstance(value, Tensor) and value.requires_grad for value in made)


def _apart(values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Tensors of their own: torch's operators take no operands and results that share memory."""
    return tuple(to_tensor(v).clone(memory_format=torch.contiguous_format) for v in values)


def _followed(operator: Callable[[], Any]) -> Any:
    """What an operator makes; None if it is exported, and PyTorch cannot follow its body there."""
    if torch.compiler.is_dynamo_compiling():
        return operator()
    try:
        return operator()
    except TorchDynamoException:
        return None


def _scanned(
    one: Callable[..., Any], carried: tuple[Tensor, ...], moving: tuple[Tensor, ...]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    from torch._higher_order_ops.scan import scan

    last, rows = scan(one, carried, moving)
    return last, rows


def _mapped(one: Callable[..., Any], moving: tuple[Tensor, ...]) -> Sequence[Tensor]:
    from torch._higher_order_ops.map import map as map_parts

    rows: Sequence[Tensor] = map_parts(one, moving)
    return rows
