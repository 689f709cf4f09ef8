"""The entry point for ``torch.compile(module, backend="dcir")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from dcir.options import Options


def dcir(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The Dynamo backend; ``options`` are those of ``dcir.optimize``."""
    from dcir.driver.compile import Session
    from dcir.driver.limit import limited
    from dcir.frontends.torch.capture import dynamo_backend

    session = Session(Options.make(**(options or {})))
    return dynamo_backend(session.compile_graph, limited=limited(session))(gm, example_inputs)
