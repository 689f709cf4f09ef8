"""The table of operator pages: which ATen overloads dcir lowers natively, each with its lowering and its samples."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from dcir.extensions import OPERATORS, extensions


@dataclass(frozen=True)
class Sample:
    """Arguments of one call, used by every operator test.

    Attributes:
        args, kwargs: the call; tensors are real, on the CPU.
        name: what is special about it.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class OperatorPage:
    """One ATen overload that dcir lowers natively.

    Attributes:
        name: "aten.relu.default".
        lower: (context, *args, **kwargs) -> Ref, or a tuple of Refs and None.
        samples: makes the sample calls.
        view: the lowering only makes new windows on its input's container (no node, no bytes).
        tolerance: allowed multiple of eager's own error in tests.
    """

    name: str
    lower: Callable[..., Any]
    samples: Callable[[], Iterable[Sample]]
    view: bool = False
    tolerance: float = 3.0

    @property
    def overload(self) -> Any:
        """The torch operator."""
        return overload(self.name)


HIGHER_ORDER = "higher_order"
"""Namespace of the operators that call graphs."""
PAGES: dict[str, OperatorPage] = {}
_loaded = False


def overload(name: str) -> Any:
    """The torch OpOverload called ``name`` ("aten.add.Tensor"), or the operator over graphs ("higher_order.cond"), if there is one."""
    space, op, *rest = name.split(".")
    if not rest:
        return getattr(torch.ops.higher_order, op, None) if space == HIGHER_ORDER else None
    (over,) = rest
    packet = getattr(getattr(torch.ops, space), op, None)
    return getattr(packet, over, None) if packet is not None else None


def operator(
    *names: str, samples: Callable[[], Iterable[Sample]], view: bool = False, tolerance: float = 3.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering under one or more overload names.

    Raises:
        ValueError: a name is taken.
    """

    def register(lower: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in PAGES:
                raise ValueError(f"two pages for {name}")
            PAGES[name] = OperatorPage(name, lower, samples, view, tolerance)
        return lower

    return register


def pages() -> dict[str, OperatorPage]:
    """All pages; the modules of ``pages``, and other packages' (``dcir.extensions``), are imported on first use."""
    global _loaded
    if not _loaded:
        import dcir.ops.pages as package

        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            importlib.import_module(f"{package.__name__}.{info.name}")
        _loaded = True
        extensions(OPERATORS)
    return PAGES
