"""Operators that a program on a GPU runs through torch: tensors over its memory, on the same device and stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from dcir.ops.library.torch_call import TorchCall, calls_graphs
from dcir.ops.registry import overload
from dcir.ops.torch_types import FROM_NAME


class Bases(Protocol):
    """One call's tensors.

    Attributes:
        bases: by table slot the tensor whose memory begins there.
    """

    bases: list[torch.Tensor | None]

    def put(self, slot: int, t: torch.Tensor) -> None:
        """Have a tensor at a slot."""


CallBack = Callable[[Bases], None]
Place = tuple[int, int]
"""Slot of the table, and byte offset."""
_Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class DeviceCall:
    """A call back.

    Attributes:
        run: does it.
        makes: slot and form of the tensor that it makes and puts where nothing was; None: it writes into memory that is there.
        lets_go: slots of tensors that nobody reads from here on. Kernels that read them may still be waiting on the stream; so does
            whoever PyTorch gives the memory to.
        unrecorded: why a graph of CUDA's cannot hold it; "" if it can.
    """

    run: CallBack
    makes: tuple[int, _Form] | None = None
    lets_go: tuple[int, ...] = ()
    unrecorded: str = ""

    def __call__(self, frame: Bases) -> None:
        self.release(frame)
        self.run(frame)

    def release(self, frame: Bases) -> None:
        """Let go of what nobody reads any more."""
        for slot in self.lets_go:
            frame.bases[slot] = None


def call_on_device(spec: Any, ins: Sequence[Place], outs: Sequence[Place]) -> DeviceCall:
    """The call back of one operator that runs through torch (it says its windows as ``ins`` and ``outs``, and how to ``call``)."""
    reads, writes = _windows(spec.ins, ins), _windows(spec.outs, outs)

    def call(frame: Bases) -> None:
        bases = frame.bases
        with torch.no_grad():
            spec.call(*([tensor_in(bases[slot], *rest) for slot, *rest in side] for side in (reads, writes)))

    return DeviceCall(call, unrecorded=waits_for_device(spec))


def made_on_device(spec: Any, ins: Sequence[Place], slot: int) -> DeviceCall:
    """The call back of one operator whose result is a tensor that the library makes: it is put at a slot, where nothing was."""
    reads, form = _windows(spec.ins, ins), _form(spec.outs[0])

    def call(frame: Bases) -> None:
        bases = frame.bases
        with torch.no_grad():
            t = spec.made([tensor_in(bases[s], *rest) for s, *rest in reads])
            frame.put(slot, t if (t.shape, t.stride(), t.dtype) == form else _as(t, *form))

    return DeviceCall(call, (slot, form))


def letting_go(call: DeviceCall, slots: Sequence[int]) -> DeviceCall:
    """A call back before which tensors are let go of that nobody reads any more."""
    return replace(call, lets_go=(*call.lets_go, *slots))


_WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# These read the device's memory although no tag says so, or may do.
_ALSO_WAITING = ("aten.bincount", "aten.histc", "aten.linalg_", "aten._linalg_", "aten.multinomial", "aten.index")


def waits_for_device(spec: Any) -> str:
    """Why an operator that runs through torch cannot be in a graph of CUDA's; "" if it can, as far as torch's tags say."""
    if not isinstance(spec, TorchCall):
        return ""
    op = overload(spec.name)
    if op is None or calls_graphs(spec):
        return f"{spec.name} may do anything"
    if any(t in op.tags for t in _WAITING) or spec.name.startswith(_ALSO_WAITING):
        return f"{spec.name} may wait for the device"
    return ""


def _as(t: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=t.device).copy_(t)


def _windows(windows: Sequence[Any], places: Sequence[Place]) -> list[Any]:
    return [(slot, offset, *_form(w)) for (slot, offset), w in zip(places, windows, strict=True)]


def _form(window: tuple[Sequence[int], Sequence[int], str]) -> _Form:
    shape, strides, dtype = window
    return tuple(shape), tuple(strides), FROM_NAME[dtype]


def tensor_in(
    base: torch.Tensor | None, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over the memory of ``base``, ``offset`` bytes from its first element; it must not outlive the call."""
    assert base is not None
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype, device=base.device)
    if base.dtype == dtype:
        return torch.as_strided(base, shape, strides, base.storage_offset() + offset // dtype.itemsize)
    start = base.storage_offset() * base.itemsize + offset
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), start // dtype.itemsize, shape, strides)
