"""The entry point for ``torch.compile(module, backend="dcir")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from dcir.driver.team import fit_team
from dcir.errors import NotCompiledWarning, OptionError, RecompileWarning
from dcir.options import Options
from dcir.user_code import warn_user

if TYPE_CHECKING:
    from dcir.frontends.torch.by_size import Sizes

# This is read when torch.compile looks the backend up, before it traces.
fit_team()


def dcir(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """The Dynamo backend; ``options`` are those of ``dcir.optimize``."""
    from dcir.driver.compile import Session
    from dcir.driver.limit import limited
    from dcir.frontends.torch.capture import dynamo_backend

    _refuse(options or {})
    session = Session(Options.make(**(options or {})))
    backend = dynamo_backend(
        session.compile_graph, _tell_break, limited(session), shape_limit=session.options.shape_limit, on_sizes=_tell,
        on_plain=session.coverage.leave, strict=session.options.strict,
    )  # fmt: skip
    return backend(gm, example_inputs)


def _refuse(options: dict[str, Any]) -> None:
    if options.get("dynamic") is not None:
        raise OptionError(
            "dynamic is no option of the backend", where=f"dynamic={options['dynamic']!r}",
            hint="torch.compile(model, backend='dcir', dynamic=...), or torch._dynamo.mark_dynamic",
        )  # fmt: skip


def _tell_break(reason: str, place: str) -> None:
    """Warn of a graph that ends at a graph break: what follows runs in PyTorch, or as a graph of its own."""
    from dcir.frontends.torch.capture import BUCKET_CUT

    if (reason, place) == BUCKET_CUT:  # the graph goes on in the next one
        return
    warn_user(f"a part of this call is not compiled: {reason} {place}", NotCompiledWarning)


def _tell(sizes: Sizes, before: Sequence[Sizes]) -> None:
    """Warn of sizes that are compiled after others (``torch.compile`` is told by its own option what is dynamic)."""
    if before:
        nearest = min(before, key=lambda b: sum(x != y for x, y in zip(b, sizes, strict=True)))
        pairs = zip(nearest, sizes, strict=True)
        changed = "; ".join(f"{name} was {old}, is {new}" for (name, old), (_, new) in pairs if old != new)
        cause = changed or "nothing in the sizes; strides, types or modes differ"
        warn_user(f"compiled again: {cause}", RecompileWarning)
