"""Which tensors compiled code can read: numbers in strides in the memory of its device. Of all others it is said what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from dcir.errors import InvalidInput
from dcir.ops.torch_types import TORCH_TYPES

_C: Any = torch._C
_FAKE, _PROXY = _C._TorchDispatchModeKey.FAKE, _C._TorchDispatchModeKey.PROXY
_MODES = _C.DispatchKey.Python
_TRACE = "trace the model itself, not what dcir.optimize, dcir.load or torch.compile made of it"
QUANTISED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


_DEVICE: ContextVar[str] = ContextVar("device", default="cpu")
_NEVER_RUN: ContextVar[bool] = ContextVar("never run", default=False)


def device() -> str:
    """The kind of device that code is compiled for: "cpu" or "cuda"."""
    return _DEVICE.get()


@contextmanager
def on_device(kind: str) -> Iterator[None]:
    """Compile for a kind of device in here, in this thread."""
    before = _DEVICE.set(kind)
    try:
        yield
    finally:
        _DEVICE.reset(before)


@contextmanager
def never_run() -> Iterator[None]:
    """What is captured in here, in this thread, is only looked at: its tensors need no values."""
    before = _NEVER_RUN.set(True)
    try:
        yield
    finally:
        _NEVER_RUN.reset(before)


def is_elsewhere(kind: torch.device | str | None) -> bool:
    """Whether a device that an operator names is another one than code is compiled for."""
    return kind is not None and torch.device(kind).type != _DEVICE.get()


def elsewhere(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor on a device whose memory compiled code cannot read; None for any other one.

    Numbers in tensors without dimensions may be the CPU's for any code, as they may for PyTorch.
    """
    kind = t.device.type
    return None if kind == _DEVICE.get() or (kind == "cpu" and t.dim() == 0) else f"on device {t.device}"


def otherwise_stored(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor that is on the CPU but no numbers in strides; None for any other one."""
    if t.is_nested:
        return f"nested ({t.layout})"
    if t.is_quantized or t.dtype in QUANTISED:
        return f"quantised ({t.dtype})"
    return None if t.layout is torch.strided else f"stored as {t.layout}"


def of_unknown_type(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor whose elements have no code."""
    return None if t.dtype in TORCH_TYPES else f"of type {t.dtype}"


def without_values(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor that a tracer made; None for one with values, or where nobody needs them."""
    return "a fake tensor, which has no values" if isinstance(t, FakeTensor) and not _NEVER_RUN.get() else None


def of_a_class(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor whose class computes with it in its own way."""
    own: Any = type(t).__torch_dispatch__
    return None if own is torch.Tensor.__torch_dispatch__ else f"a {type(t).__name__}"


def out_of_reach(t: torch.Tensor) -> str | None:
    """What there is to say of a tensor that no program can be given as it is; None for plain ones."""
    return without_values(t) or of_a_class(t) or elsewhere(t) or otherwise_stored(t)


def check_call(args: Sequence[Any]) -> None:
    """Guard a call of compiled code.

    Raises:
        InvalidInput: it is called while tensors without values are made of everything, or calls are traced, or with forward derivatives.
    """
    # One question for all modes, which are seldom: a short call is made of little else.
    if _C._dispatch_tls_is_dispatch_key_included(_MODES) or _C._get_tracing_state() is not None:
        _refuse_modes()
    if forward_ad._current_level >= 0 and any(map(_has_tangent, args)):
        raise InvalidInput(
            "compiled code has no forward-mode derivatives",
            where="torch.autograd.forward_ad",
            hint="torch.func.jvp, for which PyTorch computes with the model; or backward()",
        )


def _refuse_modes() -> None:
    if _C._get_dispatch_mode(_FAKE) is not None:
        raise InvalidInput(
            "compiled code cannot run under FakeTensorMode, where tensors have no values",
            where="FakeTensorMode",
            hint=_TRACE,
        )
    if _C._get_dispatch_mode(_PROXY) is not None or _C._get_tracing_state() is not None:
        raise InvalidInput(
            "compiled code cannot be traced: its results would be constants of the trace",
            where="torch.fx.experimental.proxy_tensor.make_fx, or torch.jit.trace",
            hint=_TRACE,
        )


def refuse_batches(args: Sequence[Any]) -> None:
    """Refuse tensors that stand for many; to look for them takes longer than a short call may.

    Raises:
        InvalidInput: there are any.
    """
    if any(isinstance(t, torch.Tensor) and not _C._has_storage(t) for t in args):
        raise InvalidInput(
            "compiled code cannot read tensors that stand for many, which have no memory of their own",
            where="vmap, is_grads_batched or vectorize",
            hint="torch.func.vmap of what dcir.optimize made; gradients one by one; a .dcir file for the batch",
        )


def _has_tangent(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None
