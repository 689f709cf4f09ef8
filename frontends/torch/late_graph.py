"""A traced graph whose program is made later than AOTAutograd thinks, and may be another one for other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dcir.frontends.torch.context import GraphContext


class LateGraph:
    """What AOTAutograd takes for the compiled graph.

    Attributes:
        graph, context: what is to be compiled.
        program: what runs it, set before the first call.
    """

    def __init__(self, graph: fx.GraphModule, context: GraphContext) -> None:
        self.graph, self.context = graph, context
        self.program: Callable[[list[Any]], list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process can run."""
        return {"program": self.program}

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph."""
        assert self.program is not None
        return self.program(args)


def in_torch(graph: fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    """The results of an ATen graph of inference, by torch."""
    with torch.no_grad():
        return list(graph(*args))
