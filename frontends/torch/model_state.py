"""What a traced forward pass assigns to its model: buffers are written where they lie, all else is put back and refused."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dcir.errors import Unsupported


@dataclass(frozen=True)
class ModelState:
    """What a model holds when its forward pass begins. The pass is traced, not run: what it assigns would be lost without a word.

    Attributes:
        tensors: module, its parameters or its buffers, name, tensor.
        others: module, its other attributes, and what is in those that are lists, dicts or sets.
    """

    tensors: tuple[tuple[nn.Module, dict[str, Any], str, Tensor | None], ...]
    others: tuple[tuple[nn.Module, dict[str, Any], dict[str, Any]], ...]

    @staticmethod
    def of(model: nn.Module) -> ModelState:
        every = list(model.modules())
        return ModelState(
            tuple((m, held, n, t) for m in every for held in _held(m) for n, t in held.items()),
            tuple((m, dict(vars(m)), {n: copy.copy(v) for n, v in vars(m).items() if _filled(n, v)}) for m in every),
        )

    def keep(self) -> None:
        """Write new buffers where the old ones lie; all else is as it was.

        Raises:
            Unsupported: something else was assigned, or a buffer of another shape or type, or one that is part of the graph.
        """
        assigned = []
        for m, held, n, old in self.tensors:
            new, held[n] = held.get(n), old
            if new is old:
                continue
            if held is not m._buffers or old is None or new is None or new.requires_grad or not _alike(old, new):
                assigned.append((m, n))
            else:
                with torch.no_grad():
                    old.copy_(new)
        for m, before, contents in self.others:
            now = dict(vars(m))
            assigned += [
                (m, n) for n in before.keys() | now.keys() if _other(before.get(n), now.get(n), contents.get(n))
            ]
            vars(m).clear()
            vars(m).update(before)
            for n, content in contents.items():
                _refill(before[n], content)
        # Weights that a hook computes before every call (torch.nn.utils.weight_norm) are attributes, too.
        assigned = [
            (m, n)
            for m, n in assigned
            if all(getattr(h, "name", "") != n for h in m._forward_pre_hooks.values())
            and not (isinstance(m, nn.RNNBase) and n in _FLAT)
        ]
        if assigned:
            module, name = assigned[0]
            raise Unsupported(
                f"the forward pass assigns to {name}", where=type(module).__name__,
                hint="keep it in a buffer of one shape, without gradients, or use dcir.optimize(model) with torch's own optimiser",
            )  # fmt: skip


@contextlib.contextmanager
def tensors_put_back(model: nn.Module) -> Iterator[None]:
    """While torch traces with others in the place of a model's tensors: afterwards its own are there again.

    Torch changes them name by name, and back in the same order. Of a module that is reached by two names the second change finds what the
    first one put there, and puts that back.
    """
    before = [(held, dict(held)) for m in model.modules() for held in _held(m)]
    try:
        yield
    finally:
        for held, own in before:
            held.update(own)


def _filled(name: str, value: object) -> bool:
    """Whether it is a collection of the user's that a forward pass may add to."""
    return type(value) in (list, dict, set) and name not in _EVERY


def _refill(collection: Any, content: Any) -> None:
    collection.clear()
    (collection.extend if isinstance(collection, list) else collection.update)(content)


def _other(old: Any, new: Any, content: Any) -> bool:
    """Whether an attribute is another one; of equal numbers and texts each is the other."""
    if content is not None:
        pairs = (
            zip(content.items(), new.items(), strict=False)
            if isinstance(content, dict)
            else zip(content, new, strict=False)
        )
        return new is not old or len(new) != len(content) or any(_differ(a, b) for a, b in pairs)
    return _differ(old, new)


def _differ(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and type(a) is type(b) and len(a) == len(b):
        return any(map(_differ, a, b))
    return a is not b and (type(a) is not type(b) or not isinstance(a, bool | int | float | str) or a != b)


_EVERY = frozenset(vars(nn.Module()))
"""Attributes of every module."""
_FLAT = {"_flat_weights", "_flat_weight_refs"}
"""What torch's recurrent layers remember of their parameters, and renew in a forward pass that sees others."""


def _held(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._parameters, module._buffers


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype
