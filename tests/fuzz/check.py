"""Runs a case through dcir and through eager PyTorch and compares everything that can be seen.

The rule is that of ``dcir/driver/verify/compare.py`` (error against float64, at most three times eager's own) over a floor: what float64
itself changes by when every operator, forward and backward, sees its operands disturbed by as much as float32 rounds.
A random network may be badly conditioned (the norm of equal numbers), and eager may be right by luck (one number, the sum of
terms that cancel): what is over the limit is compared once more with the greatest error that eager has when it rounds
otherwise. No network may be worse than its conditioning.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import dcir
from dcir.driver.verify.compare import FACTOR
from dcir.frontends.torch.tape import programs_run
from tests.fuzz.case import Case

_UNITS = 4.0
_ROUNDING = 2.0**-24
_DISTURBED = 4.0
_ROUNDINGS = 4
_COMPARISONS = {getattr(torch.ops.aten, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


class NotACase(Exception):
    """Eager PyTorch itself refuses the case, computes nothing in it, or its results are not finite."""


class Differs(AssertionError):
    """dcir's results are wrong."""


@dataclass
class Seen:
    """Everything a caller can see: results, gradients, arguments and buffers afterwards; and which of them are one tensor."""

    tensors: dict[str, Tensor]
    same: dict[str, str]


def check(case: Case, **options: Any) -> None:
    """Compare dcir with eager PyTorch.

    Raises:
        NotACase: there is nothing to compare with.
        Differs: results, gradients, written arguments, buffers or aliases are not those of eager, or no compiled code made them.
    """
    module = case.module()
    if not _computes(case, copy.deepcopy(module)):
        raise NotACase("nothing to compile")
    want = _reference(case, copy.deepcopy(module), case.arguments())
    wide = copy.deepcopy(module).double()
    exact = _reference(case, copy.deepcopy(wide), case.arguments(torch.float64))
    disturbed = []
    for seed in range(2):
        with _Disturbed(seed):
            disturbed.append(_reference(case, copy.deepcopy(wide), case.arguments(torch.float64)))
    torch._dynamo.reset()
    fast = dcir.optimize(copy.deepcopy(module), **options)
    # A gradient that is zero by cancellation (a weight before a norm) holds the rounding of summands of this size.
    unit = max(float(t.abs().max()) for t in exact.tensors.values() if t.is_floating_point() and t.numel())
    roundings = _Roundings(case, module)
    for call in range(2):  # once more with the state as it was, in memory that has been used
        fast.load_state_dict(module.state_dict())
        fast.zero_grad()
        before = programs_run()
        got = _run(case, fast, case.arguments())
        if programs_run() == before or not any(g.operators for g in fast.dcir.explain().graphs):
            raise Differs(f"call {call}: no compiled graph with operators ran")
        if got.same != want.same:
            raise Differs(f"call {call}: other aliases: {got.same}, eager {want.same}")
        for name in set(got.tensors) - set(want.tensors):
            # A parameter whose value is used for no result: AOTAutograd gives zeros where eager gives none.
            if name.endswith(".grad") and not got.tensors[name].any():
                del got.tensors[name]
        if list(got.tensors) != list(want.tensors):
            raise Differs(f"call {call}: {sorted(set(got.tensors) ^ set(want.tensors))} are there on one side only")
        for name, g in got.tensors.items():
            others = [d.tensors[name] for d in disturbed]
            label = f"call {call}, {name}"
            try:
                _compare(label, g, [want.tensors[name]], exact.tensors[name], others, unit)
            except Differs:
                own = [want.tensors[name], *(r.tensors[name] for r in roundings.seen())]
                _compare(label, g, own, exact.tensors[name], others, unit)


class Computing(TorchDispatchMode):
    """Notes whether any operator computes: makes a tensor that is no view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= not (func.is_view or func._schema.name in _MOVING)
        return func(*args, **(kwargs or {}))


_MOVING = ("aten::detach", "aten::_unsafe_view", "aten::_reshape_alias")


def _computes(case: Case, module: nn.Module) -> bool:
    """Whether anything that is computed reaches the caller: in a result with memory of its own, or written to what is there."""
    arguments = case.arguments()
    there = [t for t in (*arguments, *module.parameters(), *module.buffers()) if isinstance(t, Tensor)]
    versions, memory = [t._version for t in there], {t.untyped_storage().data_ptr() for t in there}
    with torch.no_grad(), Computing() as computing:
        try:
            results = module(*arguments)
        except (RuntimeError, ValueError, IndexError) as e:
            raise NotACase(str(e)) from e
    own = [
        t for t in pytree.tree_leaves(results) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in memory
    ]
    return computing.any and (bool(own) or versions != [t._version for t in there])


class _Roundings:
    """Eager in the case's own types with every operand a unit in the last place off: made when they are first asked for."""

    def __init__(self, case: Case, module: nn.Module) -> None:
        self._case = case
        self._module = module
        self._seen: list[Seen] = []

    def seen(self) -> list[Seen]:
        for seed in range(len(self._seen), _ROUNDINGS):
            with _Disturbed(seed):
                self._seen.append(_reference(self._case, copy.deepcopy(self._module), self._case.arguments()))
        return self._seen


class _Disturbed(TorchDispatchMode):
    """Every operator sees operands that differ by half a unit in the last place of float32, by one in narrower types' own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fresh = not (func.is_view or any(a.alias_info is not None for a in func._schema.arguments))
        if fresh and func.overloadpacket not in _COMPARISONS:  # derivatives ask which element was the maximum
            # Batch norms write to their running statistics, though their schemas do not say so.
            last = 1 if "batch_norm" in func._schema.name else len(args)
            args = (*pytree.tree_map(self._near, args[:last]), *args[last:])
        return func(*args, **(kwargs or {}))

    def _near(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        with _disable_current_modes():  # one outside this that computes in another type would draw into a copy
            noise = torch.empty(value.shape, dtype=torch.float64).uniform_(-1, 1, generator=self._generator)
        if value.dtype == torch.float64:
            return value * (1 + _ROUNDING * noise)
        return (value.double() * (1 + torch.finfo(value.dtype).eps * noise)).to(value.dtype)


def _reference(case: Case, module: nn.Module, arguments: list[Tensor]) -> Seen:
    try:
        seen = _run(case, module, arguments)
    except (RuntimeError, ValueError, IndexError) as e:
        raise NotACase(str(e)) from e
    if not all(t.isfinite().all() for t in seen.tensors.values() if t.is_floating_point()):
        raise NotACase("not finite")
    return seen


def _run(case: Case, module: nn.Module, arguments: list[Tensor]) -> Seen:
    tensors: dict[str, Tensor] = {}
    with torch.set_grad_enabled(bool(case.loss)):
        outs = module(*arguments)
    same = {f"out{i}": f"x{j}" for i, out in enumerate(outs) for j, argument in enumerate(arguments) if out is argument}
    if case.loss and any(o.requires_grad for o in outs):
        total: Any = 0
        generator = torch.Generator().manual_seed(case.seed + 1)
        for o in outs:
            weight = torch.randn(o.shape, generator=generator).to(o.dtype)
            if o.requires_grad:
                total = total + (o.sum() if case.loss == "sum" else (o * weight).sum())
        total.backward()
    for i, o in enumerate(outs):
        tensors[f"out{i}"] = o.detach()
    for i, argument in enumerate(arguments):
        tensors[f"x{i}"] = argument.detach()
        if argument.grad is not None:
            tensors[f"x{i}.grad"] = argument.grad
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            tensors[f"{name}.grad"] = parameter.grad
    for name, buffer in module.named_buffers():
        tensors[name] = buffer.clone()
    return Seen(tensors, same)


_NOISE = 30


def _compare(name: str, got: Tensor, eager: list[Tensor], exact: Tensor, disturbed: list[Tensor], unit: float) -> None:
    want = eager[0]
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Differs(f"{name}: {got.dtype}{tuple(got.shape)}, eager {want.dtype}{tuple(want.shape)}")
    if not want.is_floating_point():
        if not torch.equal(got, want):
            raise Differs(f"{name}: {got} instead of {want}")
        return
    if want.numel() == 0:
        return
    error = float((got.double() - exact).abs().max())
    own = max(float((t.double() - exact).abs().max()) for t in eager)
    floor = max(float((d - exact).abs().max()) for d in disturbed)
    scale = float(exact.abs().max())
    eps = torch.finfo(want.dtype).eps
    limit = FACTOR * own + _DISTURBED * floor + _UNITS * eps * scale + (eps * unit if scale < eps * unit else 0)
    if scale < own:  # zero by cancellation, and eager has not a digit of it: only its size can be compared
        limit = max(limit, _NOISE * own)
    if not error <= limit:
        raise Differs(f"{name}: error {error:.3g}, eager's {own:.3g}, conditioning {floor:.3g}, scale {scale:.3g}")
