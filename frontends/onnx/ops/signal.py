"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import axis_of, check_size, scalar


@onnx_op("DFT", since=17, host=(1,))
def dft_17(node: Node, x: Tensor, length: Operand | None = None) -> Any:
    return _dft(node, x, length, node["axis"])


@onnx_op("DFT", since=20, host=(1, 2))
def dft(node: Node, x: Tensor, length: Operand | None = None, axis: Operand | None = None) -> Any:
    return _dft(node, x, length, -2 if axis is None else scalar(axis))


def _dft(node: Node, x: Tensor, length: Operand | None, axis: int) -> Any:
    dim = axis_of(axis, x.ndim)
    if dim == x.ndim - 1:
        raise InvalidModel(f"attribute or operand 'axis' is {axis}: the real/imaginary one", hint="another axis")
    if x.shape[-1] not in (1, 2):
        raise TypeMismatch(
            f"the last dimension of {list(x.shape)} must be 1 or 2", hint="real, or real and imaginary part"
        )
    if node["onesided"] and (x.shape[-1] == 2) != bool(node["inverse"]):
        kind = "complex" if x.shape[-1] == 2 else "real"
        message = f"attributes 'onesided' and 'inverse' are 1 and {node['inverse']}, the signal is {kind}"
        raise InvalidModel(message, hint="onesided = 0")
    count: Any = None if length is None else int(scalar(length))
    if count is not None:
        check_size([*x.shape, count])
    signal = x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    if node["inverse"] and node["onesided"]:
        return torch.fft.irfft(signal, count, dim).unsqueeze(-1).to(x.dtype)
    if node["inverse"]:
        result = torch.fft.ifft(signal, count, dim)
    elif node["onesided"] and not signal.is_complex():
        result = torch.fft.rfft(signal, count, dim)
    else:
        result = torch.fft.fft(signal, count, dim)
        if node["onesided"]:
            result = result.narrow(dim, 0, result.shape[dim] // 2 + 1)
    return torch.view_as_real(result).to(x.dtype)


@onnx_op("STFT", since=17, host=(1, 3))
def stft(node: Node, x: Tensor, step: Operand, window: Tensor | None = None, length: Operand | None = None) -> Any:
    if length is not None:
        size = int(scalar(length))
    else:
        size = window.shape[0] if window is not None else x.shape[1]
    signal = x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x
    if signal.ndim == 3:
        signal = torch.view_as_complex(signal.contiguous())
    hop = int(scalar(step))
    if hop < 1 or not 1 <= size <= signal.shape[1]:
        message = f"frames of {size} every {hop} elements do not fit a signal of {signal.shape[1]}"
        raise InvalidModel(
            message, hint="operands 'frame_step' and 'frame_length' from 1, no frame longer than the signal"
        )
    if window is not None and window.shape[0] != size:
        raise TypeMismatch(f"a window of {window.shape[0]} elements is given for frames of {size}", hint="as many")
    frames = signal.unfold(1, size, hop)
    if window is not None:
        frames = frames * window
    if node["onesided"] and not frames.is_complex():
        result = torch.fft.rfft(frames)
    else:
        result = torch.fft.fft(frames)
        if node["onesided"]:
            result = result[..., : size // 2 + 1]
    return torch.view_as_real(result).to(x.dtype)
