"""The entry point for ``torch.compile(module, backend="dcir")``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from dcir.driver.team import fit_team
from dcir.errors import DcirError, MachineBusy, NotCompiledWarning, OptionError, RecompileWarning
from dcir.frontends.torch.kept.frames import chooses_keeper
from dcir.frontends.torch.whole_graphs import keeps_graphs_whole
from dcir.options import Options
from dcir.targets import DEFAULT, target_class
from dcir.user_code import warn_user

if TYPE_CHECKING:
    from dcir.driver.session import Session
    from dcir.frontends.torch.context import Sizes
    from dcir.ir.network import Network

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},  # on a CPU a call is one call of C with planned memory in every mode
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""The modes of ``torch.compile``, and which options each stands for, as far as the target has them."""

# This is read when torch.compile looks the backend up, before it traces.
fit_team()


@keeps_graphs_whole
def dcir(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend; ``dcir.sessions()`` lists what it compiled.

    Args:
        gm, example_inputs: Dynamo's graph and its inputs.
        options: those of ``dcir.optimize``; what they say goes before what the mode says.
        mode: one of ``MODES``; None is "default".

    Raises:
        OptionError: there is no such mode or option.
    """
    from dcir.driver.compile import compiling
    from dcir.driver.graph_handle import GraphHandle, name_of
    from dcir.driver.kept.graph_keeper import GraphsKeeper
    from dcir.driver.kept.of_backend import session_of
    from dcir.driver.limit import limited
    from dcir.driver.session import Session
    from dcir.driver.targets.of_device import reading_device, with_target
    from dcir.frontends.torch.capture import dynamo_backend

    _refuse(options or {})
    chosen = Options.make(**_of_mode(mode, with_target(options or {}, example_inputs)))
    chosen.refuse_streams("what torch.compile makes")
    session = session_of(chosen) or Session(chosen, name=name_of(gm), next_step="dcir.sessions()[-1].explain()")
    if mode is not None and session.options.tune is not None and "tune" not in (options or {}):
        session.tuner = _tuner_of_mode(session)
    graphs = GraphsKeeper(session, at_once=True)
    if not session.options.keep_traces:
        session.on_late = graphs.settle
    backend = dynamo_backend(
        compiling(session), _tell_break, limited(session), shape_limit=session.options.shape_limit,
        on_sizes=functools.partial(_tell, set()), on_plain=session.coverage.leave, strict=session.options.strict,
        later=session.later, keeper=graphs,
    )  # fmt: skip
    compiled: Any = reading_device(backend, session)(gm, example_inputs)
    compiled.dcir = GraphHandle(session, gm, example_inputs)  # lives as long as what it tells of
    return compiled  # type: ignore[no-any-return]


def _keeper(compile_call: Any) -> Any:
    """Who keeps the traces of a ``torch.compile``, if anybody; what is wrong with its options is said when it compiles."""
    from dcir.driver.kept.of_backend import traces_of

    try:
        return traces_of(compile_call, lambda mode, options: Options.make(**_of_mode(mode, options)))
    except DcirError:
        return None


chooses_keeper(dcir, _keeper)


def _of_mode(mode: str | None, options: dict[Any, Any]) -> dict[str, Any]:
    """The options with those that a mode stands for and the target has."""
    odd = [name for name in options if not isinstance(name, str)]
    if odd:
        raise OptionError(
            f"{odd[0]!r} is no name of an option", where=f"options={options!r}", hint='options={"level": 2}'
        )
    if mode is not None and mode not in MODES:
        raise OptionError(f"there is no mode {mode!r}", where=f"mode={mode!r}", hint="one of " + ", ".join(MODES))
    meant = dict(MODES[mode or "default"])
    target = target_class(options.get("target", DEFAULT))
    if not target.replays:
        meant.pop("cuda_graphs", None)
    if not target.tunes:
        meant.pop("tune", None)
    return meant | options


def _tuner_of_mode(session: Session) -> Any:
    """Measures as ``tune`` does; but a mode is no order to measure, so a busy machine is a warning and no error."""
    from dcir.driver.measure.tune import Tuner

    class Tunes(Tuner):
        def tune(self, net: Network, share: float = 1.0) -> None:
            try:
                super().tune(net, share)
            except MachineBusy as busy:
                warn_user(f"kernels are not tuned: {busy.message}", UserWarning)

    assert session.options.tune is not None
    return Tunes(session.options.tune, progress=session.progress)


def _refuse(options: dict[str, Any]) -> None:
    if options.get("dynamic") is not None:
        raise OptionError(
            "dynamic is no option of the backend", where=f"dynamic={options['dynamic']!r}",
            hint="torch.compile(model, backend='dcir', dynamic=...), or torch._dynamo.mark_dynamic",
        )  # fmt: skip


def _tell_break(reason: str, place: str) -> None:
    """Warn of a graph that ends at a graph break: what follows runs in PyTorch, or as a graph of its own."""
    warn_user(f"a part of this call is not compiled: {reason} {place}", NotCompiledWarning)


def _tell(told: set[tuple[str, ...]], sizes: Sizes, before: Sequence[Sizes]) -> None:
    """Warn of sizes that are compiled after others (``torch.compile`` is told by its own option what is dynamic).

    Args:
        told: of which names that was said before.
        sizes, before: pairs of name and size, now and in earlier compilations.
    """
    if before:
        nearest = min(before, key=lambda b: sum(x != y for x, y in zip(b, sizes, strict=True)))
        changed = [(name, old, new) for (name, old), (_, new) in zip(nearest, sizes, strict=True) if old != new]
        names = tuple(name for name, _, _ in changed)
        if names in told:
            return
        told.add(names)
        cause = "; ".join(f"{name} was {old}, is {new}" for name, old, new in changed)
        cause = cause or "nothing in the sizes; strides, types or modes differ"
        warn_user(f"compiled again: {cause}", RecompileWarning)
