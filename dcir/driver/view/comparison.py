"""Measures a changed compilation next to that of a session: their calls take turns, and both are compared with float64."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.measure.models import BenchModel
from dcir.driver.measure.turns import measure, reference_of, relative_error
from dcir.driver.session import Progress, Session
from dcir.driver.view.delta import Delta
from dcir.driver.view.subject import Call, Subject
from dcir.options import Options

SECONDS = 1.0


def compare(
    subject: Subject,
    base: Options,
    delta: Delta,
    *,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Times and errors of the model as it is and as it would be, as plain data; see ``predict``.

    Args:
        subject: the model.
        base: options of the session.
        delta: the change.
        seconds: time for each.
        progress: hears of the steps.

    Raises:
        DcirError: there is no such change, or no compilation with it.
    """
    changed = delta.options(base)
    before = torch.get_num_threads()
    try:
        was, now = _Way(subject, base, None, progress), _Way(subject, changed, delta.batch, progress)
        rows = {row.name: row for row in measure({"dcir": now, "base": was}, seconds, progress=progress)}
        error, reference = now.error()
        base_error, _ = was.error()
    finally:
        torch.set_num_threads(before)
    # JSON has no infinity.
    error, base_error = (None if e is None else min(e, sys.float_info.max) for e in (error, base_error))
    new, old = rows["dcir"], rows["base"]
    # Of other batches times are told as they are; what is gained is per item.
    items = (delta.batch or 1) / (subject.batch or 1) if delta.batch and subject.batch else 1.0
    return {
        "ms": new.median, "least_ms": new.least, "spread": new.spread, "base_ms": old.median, "base_least_ms": old.least,
        "gain": items * old.median / new.median, "error": error, "base_error": base_error, "reference": reference,
    }  # fmt: skip


class _Way:
    """A model compiled in one way, ready to run again and again with the threads that it is made for."""

    def __init__(self, subject: Subject, options: Options, batch: int | None, progress: Progress | None) -> None:
        self.call: Call = subject.call(batch)
        self.threads = options.threads or torch.get_num_threads()
        torch.set_num_threads(self.threads)
        self.fast = subject.compiled(self.call.model, Session(options, progress=progress))

    def __call__(self) -> list[Any]:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        with torch.set_grad_enabled(self.call.trains):
            return self.call.run(self.fast)

    def error(self) -> tuple[float | None, str]:
        """The largest difference from the reference, and what that is."""
        name, exact = exact_results(self.call)
        found = self()
        pairs = [(a, b) for a, b in zip(found, exact, strict=True) if isinstance(b, torch.Tensor) and a is not None]
        if not pairs:
            return None, name
        return relative_error([a for a, _ in pairs], [b for _, b in pairs]), name


def exact_results(call: Call) -> tuple[str, Sequence[Any]]:
    """What a call gives in float64; by eager PyTorch in its own types where it cannot be had."""
    if not call.trains and not call.named:
        return reference_of(BenchModel("", call.model, call.inputs))
    if isinstance(call.model, nn.Module):
        try:
            double = copy.deepcopy(call.model).double()
            inputs, named = pytree.tree_map_only(torch.Tensor, _widened, (call.inputs, call.named))
            wide = Call(double, inputs, named, call.loss, call.trains)
            with torch.set_grad_enabled(call.trains):
                return "float64", wide.run(double)
        except (RuntimeError, TypeError):
            pass
    plain: Callable[..., Any] = copy.deepcopy(call.model) if isinstance(call.model, nn.Module) else call.model
    eager = Call(plain, call.inputs, call.named, call.loss, call.trains)
    with torch.set_grad_enabled(call.trains):
        return "eager", eager.run(plain)


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
