"""One entry of the database through dcir and through eager PyTorch: results, written arguments and gradients.

The rule is that of ``dcir/driver/verify/compare.py``: error against float64, at most three times eager's own. Where that fails, an
ill-conditioned sample gets what float64 itself changes by when its operators see operands off by float32's rounding; a
result that passes only so says it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import dcir
from dcir.driver.verify.compare import _widen, compare
from dcir.errors import DcirError, NotCompiledWarning
from dcir.frontends.torch.tape import programs_run
from tests.fuzz.check import Computing, _Disturbed
from tests.opinfo.entries import calls
from tests.opinfo.modules import PREFIX, module_calls

_DISTURBED = 4.0

PASS, WRONG, REFUSED, ERROR, SKIPPED, SILENT = "pass", "wrong", "refused", "error", "skipped", "silent"
NATIVE, TORCH, OUTSIDE, NOTHING = "native", "through torch", "outside", "nothing to compile"


class Sample(Protocol):
    """One call that is compared (see ``entries.Call``)."""

    @property
    def comparable(self) -> Callable[[Any], Any]:
        """Makes of the result what is unique in it."""

    def function(self, change: Callable[[Any], Any] = ...) -> Callable[..., Any]:
        """What is called, made anew, with its state changed."""

    def result(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """The call of it."""

    def tensors(self, change: Callable[[Any], Any] = ...) -> list[Tensor]:
        """New tensors for it."""


@dataclass
class Outcome:
    """What became of an entry.

    Attributes:
        kind: pass, wrong, refused (dcir says why), error (any other exception), skipped (eager refuses every sample), or silent:
            something is computed, no compiled graph ran, and nothing says so.
        how: native, through torch (some operator of the forward or backward), outside (all or a part of it is not compiled, and
            ``explain().uncompiled`` says so), or nothing to compile: eager itself computes nothing.
        gradients: how many were compared.
        detail: of what is wrong, refused or outside.
        through: the operators that ran through torch.
        conditioned: whether it passes only for what its sample's conditioning allows.
    """

    name: str
    kind: str
    how: str = ""
    gradients: int = 0
    detail: str = ""
    through: list[str] = field(default_factory=list)
    conditioned: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


class _Double(TorchDispatchMode):
    """Requests for a narrower type are requests for float64, or for its complex pairs; random numbers are those of float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            narrow = pytree.tree_map(_narrow, (args, kwargs or {}))
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            try:
                return pytree.tree_map(_widen, func(*narrow[0], **narrow[1]))
            finally:
                torch.set_default_dtype(before)
        args, kwargs = pytree.tree_map(lambda v: _widen(v) if isinstance(v, torch.dtype) else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def _narrow(value: Any) -> Any:
    if value is torch.float64:
        return torch.float32
    return value.float() if isinstance(value, Tensor) and value.dtype is torch.float64 else value


def check(name: str, **options: Any) -> Outcome:
    """Try the first sample of an entry that eager accepts."""
    return check_calls(name, module_calls(name) if name.startswith(PREFIX) else calls(name), **options)


def check_calls(name: str, samples: Iterable[Sample], **options: Any) -> Outcome:
    """Try the first sample that eager accepts."""
    reason = "no sample"
    for call in samples:
        try:
            want = _run(call.function(), call, call.tensors())
        except Exception as e:  # eager refuses the sample, in whatever way the operator does that: try another one
            reason = _text(e)
            continue
        return _check(name, call, want, options)
    return Outcome(name, SKIPPED, detail=reason)


def _check(name: str, call: Sample, want: dict[str, Any], options: dict[str, Any]) -> Outcome:
    torch._dynamo.reset()
    fast = dcir.optimize(call.function(), **options)
    before = programs_run()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", NotCompiledWarning)
            got = _run(fast, call, call.tensors())
    except DcirError as e:
        return Outcome(name, REFUSED, detail=_text(e))
    except Exception as e:  # anything that is no refusal of ours is an outcome too, one that fails the sweep
        return Outcome(name, ERROR, detail=_text(e))
    report = fast.dcir.explain()
    through = sorted({operator for operator, _ in report.fallbacks})
    out = Outcome(name, PASS, TORCH if through else NATIVE, sum(n.startswith("grad") for n in want), through=through)
    compiled = programs_run() > before and any(g.operators for g in report.graphs)
    if report.uncompiled and any(issubclass(w.category, NotCompiledWarning) for w in told):
        out.how, out.detail = OUTSIDE, "; ".join(sorted({u.reason for u in report.uncompiled}))
    elif not compiled and _computes(call):
        out.kind, out.detail = SILENT, "no compiled graph ran, and nothing says so"
    elif not compiled:
        out.how = NOTHING
    if name.partition("-")[0].split("_like")[0].removeprefix("new_").startswith("empty"):  # nobody knows what it holds
        got, want = ({n: (t.shape, t.dtype) for n, t in seen.items()} for seen in (got, want))
        exact, disturbed = want, []
    else:
        exact, disturbed = _exact(call, want)
    wrong = _compare(out, got, want, exact, disturbed)
    if wrong and out.kind == PASS:
        out.kind, out.detail = WRONG, "; ".join(wrong[:4])
    return out


def _computes(call: Sample) -> bool:
    """Whether eager computes anything in the forward; a result without elements takes none."""
    function, tensors = call.function(), call.tensors()
    with torch.no_grad(), Computing() as computing:
        result = call.result(function, tensors)
    sizes = [t.numel() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
    return computing.any and (not sizes or any(sizes))


def _run(function: Callable[..., Any], call: Sample, tensors: list[Tensor]) -> dict[str, Any]:
    """Everything a caller sees: results, arguments and buffers afterwards, gradients."""
    torch.manual_seed(1)
    # A leaf that requires a gradient may not be written to; its alias may.
    given = [t.view_as(t) if t.requires_grad else t for t in tensors]
    result = call.result(function, given)
    seen = _named("out", pytree.tree_leaves(result)) | _named("argument", given)
    generator = torch.Generator().manual_seed(3)
    loss: Any = 0
    for t in pytree.tree_leaves(call.comparable(result)):
        if isinstance(t, Tensor) and t.requires_grad:
            t = t.to_dense() if t.layout is not torch.strided else t
            t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
            loss = loss + (t * torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype)).sum()
    if isinstance(loss, Tensor):
        loss.backward()
        seen |= {f"gradient{i}": t.grad for i, t in enumerate(tensors) if t.grad is not None}
    if isinstance(function, nn.Module):
        seen |= {f"gradient of {n}": p.grad for n, p in function.named_parameters() if p.grad is not None}
        seen |= {f"buffer {n}": b.detach().clone() for n, b in function.named_buffers()}
    return seen


def _named(prefix: str, leaves: Sequence[Any]) -> dict[str, Any]:
    dense = (v.detach().to_dense() if isinstance(v, Tensor) and v.layout is not torch.strided else v for v in leaves)
    return {f"{prefix}{i}": v.detach().clone() if isinstance(v, Tensor) else v for i, v in enumerate(dense)}


def _exact(call: Sample, want: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """In float64, and in float64 with disturbed operands. What has no float64 kernel is compared with eager's values."""
    disturbed: list[dict[str, Any]] = []
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            exact = _run(call.function(_widen), call, call.tensors(_widen))
            for seed in range(2):
                # Disturbed operands may leave an operator's domain; the floor is then what the other run shows, or nothing.
                with contextlib.suppress(Exception), _Disturbed(seed):
                    disturbed.append(_run(call.function(_widen), call, call.tensors(_widen)))
    except (
        Exception
    ):  # what a missing kernel raises differs from operator to operator, as do refusals of the widened types
        exact = {n: _widen(t) for n, t in want.items()}
    finally:
        torch.set_default_dtype(before)
    return exact, disturbed


def _compare(
    out: Outcome, got: dict[str, Any], want: dict[str, Any], exact: dict[str, Any], disturbed: list[dict[str, Any]]
) -> list[str]:
    wrong = []
    for name in set(got) - set(want):
        # An argument whose value is used for no result: AOTAutograd gives zeros where eager gives none.
        if name.startswith("gradient") and not got[name].any():
            del got[name]
    if set(got) != set(want):
        wrong.append(f"{sorted(set(got) ^ set(want))} are there on one side only")
    for name in sorted(set(got) & set(want)):
        found = compare([name], [got[name]], [want[name]], [exact.get(name, _widen(want[name]))])
        if found.ok:
            continue
        floor = max((_distance(d.get(name), exact.get(name)) for d in disturbed), default=0.0)
        if found.error <= found.tolerance + _DISTURBED * floor:
            out.conditioned = True
            continue
        shapes = " ".join(
            f"{getattr(t[name], 'dtype', t[name])}{list(getattr(t[name], 'shape', []))}" for t in (got, want)
        )
        wrong.append(f"{name}: {found.details[name]}, conditioning {floor:.3g} [{shapes}]")
    return wrong


def _distance(one: Any, other: Any) -> float:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape or not one.numel():
        return 0.0
    away = (one - other).abs()
    return float(away[away.isfinite()].max()) if away.isfinite().any() else 0.0


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
