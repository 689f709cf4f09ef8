"""Random cases from choices, and the smallest case that fails like one that was found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import torch

from tests.fuzz.case import Case, Input
from tests.fuzz.pick import LARGEST, Nothing, Pick, Value
from tests.fuzz.steps import STEPS

_MOST_STEPS = 12


def random_case(seed: int) -> tuple[Case, list[int]]:
    """Case number ``seed`` and the choices it was made of."""
    return _case(Pick(rng=random.Random(seed)))


def shrunk(choices: list[int], fails: Callable[[Case], bool], tries: int = 150) -> Case:
    """A case that still fails though choices were left out and lowered, after at most so many tries."""
    best, choices = _case(Pick(choices))
    progress = True
    while progress and tries > 0:
        progress = False
        for candidate in _simpler(choices):
            case, made = _case(Pick(candidate))
            if (len(made), made) >= (len(choices), choices) or case == best:
                continue
            tries -= 1
            if fails(case):
                best, choices, progress = case, made, True
                break
            if tries <= 0:
                break
    return best


def _simpler(choices: list[int]) -> Iterator[list[int]]:
    size = len(choices)
    while size:
        for start in range(0, len(choices) - size + 1, max(1, size // 2)):
            yield choices[:start] + choices[start + size :]
        size //= 2
    for i, value in enumerate(choices):
        for lower in sorted({0, value // 2, value - 1}):
            if 0 <= lower < value:
                yield [*choices[:i], lower, *choices[i + 1 :]]


def _case(p: Pick) -> tuple[Case, list[int]]:
    """A network of up to a dozen steps over one to three arguments."""
    inputs: list[Input] = []
    grad = p.flag(0.75)
    for i in range(p.int(1, 3)):
        inputs.append(_input(p, inputs, grad))
        p.values.append(Value(f"x{i}", torch.empty(inputs[-1].shape, device="meta")))
    for i, x in enumerate(inputs):
        # What a step writes to must not need its old value for a gradient, nor hold two elements in one place.
        # Nor may it be shared: AOTAutograd refuses writes to arguments that overlap otherwise than as views of each other.
        if not x.grad and _dense(x) and sum(x.storage == other.storage for other in inputs) == 1:
            p.writable.add(f"x{i}")
    for _ in range(p.int(1, _MOST_STEPS)):
        before = (len(p.values), len(p.lines))
        try:
            p.of(STEPS)(p)
        except (Nothing, RuntimeError, ValueError, IndexError, NotImplementedError):
            continue  # torch refuses the step
        finally:
            if len(p.lines) == before[1]:
                del p.values[before[0] :]
    outputs = [p.values[-1].name]
    for _ in range(p.int(0, 3)):
        outputs.append(p.value().name)
    if p.flag(0.1):
        outputs.append("x0")
    case = Case(
        inputs=tuple(inputs),
        layers=tuple(p.layers),
        lines=tuple(p.lines),
        outputs=tuple(dict.fromkeys(outputs)),
        train=p.flag(),
        loss=p.of(("weighted", "sum")) if grad else "",
        seed=p.int(0, 3),
    )
    return case, p.chosen


def _input(p: Pick, others: list[Input], grad: bool) -> Input:
    if others and p.flag(0.15):  # the same elements once more, whole or transposed
        known = p.of(others)
        order = list(range(len(known.shape)))
        if p.flag():
            order.reverse()
        return Input(
            tuple(known.shape[i] for i in order), tuple(known.strides[i] for i in order), known.offset, known.storage
        )
    rank = p.of((4, 3, 2, 2, 3, 4, 5, 1, 0))
    shape = [p.size(17 if rank > 2 else 33) for _ in range(rank)]
    while math.prod(shape) > LARGEST // 2:
        shape[shape.index(max(shape))] //= 2
    order, gap = list(range(rank)), p.of((1, 1, 1, 2, 3))
    layout = p.of(("plain", "plain", "plain", "channels_last", "permuted", "expanded"))
    if layout == "channels_last" and rank >= 3:
        order = [0, *range(2, rank), 1]
    if layout == "permuted":
        order.reverse()
    strides, step = [0] * rank, gap
    for i in reversed(order):
        strides[i] = step
        step *= shape[i]
    if layout == "expanded" and rank:
        strides[p.int(0, rank - 1)] = 0
    return Input(tuple(shape), tuple(strides), p.of((0, 0, 1, 5)), len(others), grad and p.flag(0.6))


def _dense(x: Input) -> bool:
    return all(s > 0 or d == 1 for d, s in zip(x.shape, x.strides, strict=True))
