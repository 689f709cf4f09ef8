"""Measures a GPU's ceilings through PyTorch: a copy of large arrays, and products of large matrices by element type."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from dcir.cache import Cache
from dcir.cost.cuda import is_twin
from dcir.cost.device_rates import DeviceRates, remember_device, remembered_device
from dcir.targets import target_class

TWIN_NAME = "the twin of a GPU's kernels on this processor"
_BYTES, _ROWS = 1 << 28, 8192
_TWIN_BYTES, _TWIN_ROWS = 1 << 22, 256
_REPEATS = 15
_TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
# Of an H200 (docs/measurements/gpu.md); float64 and float16 as its data sheet has them beside the others.
_ASSUMED_MEMORY = 4.17e12
_ASSUMED = {"f32": 51e12, "f64": 51e12, "bf16": 780e12, "f16": 780e12}


def device_name() -> str:
    """The GPU at hand, or what stands for one; "a GPU" without either."""
    if is_twin():
        return TWIN_NAME
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a GPU"


def device_rates(cache: Cache | None = None) -> DeviceRates:
    """What was measured of the GPU at hand if the cache has it, else what is assumed. Measures nothing."""
    name = device_name()
    return remembered_device(name, cache) or DeviceRates(name, _ASSUMED_MEMORY, _ASSUMED)


def measure_device(*, again: bool = False, cache: Cache | None = None) -> DeviceRates:
    """The rates of the GPU at hand, from the cache or by measuring for a second.

    Args:
        again: measure although the cache has a result.
        cache: where it is kept.

    Raises:
        OptionError: the machine has no GPU.
    """
    target = target_class("cuda")
    target.check_host()
    known = None if again else remembered_device(device_name(), cache)
    if known is not None:
        return known
    twin, device = is_twin(), target.device()
    nbytes, rows = (_TWIN_BYTES, _TWIN_ROWS) if twin else (_BYTES, _ROWS)
    x = torch.ones(nbytes // 4, device=device)
    y = torch.empty_like(x)
    memory = 2 * nbytes / _seconds(lambda: y.copy_(x))
    flops = {}
    for name, dtype in _TYPES.items():
        a, b = (torch.ones(rows, rows, device=device, dtype=dtype) for _ in range(2))
        c = torch.empty_like(a)
        flops[name] = 2 * rows**3 / _seconds(lambda a=a, b=b, c=c: torch.mm(a, b, out=c))  # type: ignore[misc]
    found = DeviceRates(device_name(), memory, flops, measured=True)
    remember_device(found, cache)
    return found


def _seconds(call: Callable[[], Any]) -> float:
    """The median time of a call, on the device's clock where there is one."""
    call()
    times = []
    for _ in range(_REPEATS):
        if is_twin():
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e-3)
    return statistics.median(times)
