"""One case of ONNX's backend suite through compiled code: what became of it, and whether it was compiled at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dcir.errors import DcirError, NotCompiledWarning, Unsupported
from dcir.frontends.torch.tape import taping
from tests.frontends.onnx.backend_suite import DATA, RANDOM, REFUSED, ROUNDING, Compiled, Eager, cases_of

RIGHT, WRONG, REFUSED_KIND, ERROR = "right", "wrong", "refused", "error"
NATIVE, TORCH, NOTHING, OUTSIDE, BROKEN = (
    "native", "through torch", "nothing to compute", "outside", "graph breaks",
)  # fmt: skip


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        kind: right, wrong (numbers, shapes or types), refused (dcir says why), error (any other exception).
        how: of a right case: native, through torch (some operators), nothing to compute (no tensor operator runs in eager
            either: constants, strings, views), outside (tensor operators run, and dcir compiled none), graph breaks.
        graphs, operators: that dcir compiled.
        detail: of what is not right and compiled.
        through: the operators that ran through torch.
        expected: on the list of refusals.
    """

    name: str
    kind: str
    how: str = ""
    graphs: int = 0
    operators: int = 0
    detail: str = ""
    through: list[str] = field(default_factory=list)
    expected: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @property
    def compiled(self) -> bool:
        """Whether the case is right and ran compiled as a whole."""
        return self.kind == RIGHT and self.how in (NATIVE, TORCH, NOTHING)

    @property
    def well(self) -> bool:
        """Whether the case is right and ran compiled, or reads data or is refused as the lists say."""
        if self.kind == REFUSED_KIND:
            return self.expected
        if self.name in DATA:
            return self.kind == RIGHT and not self.compiled
        return self.compiled


@cache
def cases() -> dict[str, Callable[[], None]]:
    """The comparable cases: those whose stored results are the only right ones."""
    apart = {*RANDOM, *ROUNDING}
    return {name: run for name, run in sorted(cases_of(Compiled).items()) if name not in apart}


def check(name: str) -> Outcome:
    """Run one case."""
    outcome = Outcome(name, RIGHT, expected=name in REFUSED)
    Compiled.prepared = None
    with warnings.catch_warnings(record=True) as told, taping() as tape:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", NotCompiledWarning)
        try:
            cases()[name]()
        except Unsupported as error:
            outcome.kind, outcome.detail = REFUSED_KIND, _line(error)
            outcome.expected = REFUSED.get(name, "\0") in str(error)
        except AssertionError as error:
            outcome.kind, outcome.detail = WRONG, _line(error)
        except Exception as error:
            outcome.kind = REFUSED_KIND if isinstance(error, DcirError) else ERROR
            outcome.detail, outcome.expected = f"{type(error).__name__}: {_line(error)}", False
    if Compiled.prepared is not None:
        _describe(outcome, Compiled.prepared.module, len(tape), [str(w.message) for w in told])
    Compiled.prepared = None
    return outcome


def _describe(outcome: Outcome, module: Any, runs: int, told: list[str]) -> None:
    report = module.dcir.explain()
    outcome.graphs = len(report.graphs)
    outcome.operators = sum(g.operators for g in report.graphs)
    outcome.through = sorted({operator for operator, _ in report.fallbacks})
    if outcome.kind != RIGHT:
        return
    apart = [part for part in getattr(module.program, "parts", ()) if part.reads]
    if runs and outcome.graphs and not (report.breaks or told or apart):
        outcome.how = TORCH if outcome.through else NATIVE
        return
    computed = _computed(outcome.name)
    if not computed:
        outcome.how = NOTHING
    elif outcome.operators:
        outcome.how = BROKEN
        outcome.detail = "; ".join(sorted({f"{reason} {place}" for reason, place in report.breaks}) or told)
        outcome.detail += "".join(f" reads: {part.steps[0].node.op}" for part in apart)
    else:
        outcome.how, outcome.detail = OUTSIDE, ", ".join(sorted(computed))


class _Operators(TorchDispatchMode):
    """Names of the operators that make new numbers from tensors: neither views nor fills."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = any(isinstance(v, torch.Tensor) for v in leaves)
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        if tensors and not aliases:
            self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def _computed(name: str) -> set[str]:
    """The operators that the case runs in eager torch, between its inputs and its results."""
    with _Operators() as mode:
        _eager()[name]()
    return mode.names


class _Loaded(Eager):
    """What is done to read the file is nothing that the model computes."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
        with _disable_current_modes():
            return super().prepare(model, device, **kwargs)


@cache
def _eager() -> dict[str, Callable[[], None]]:
    return cases_of(_Loaded)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
