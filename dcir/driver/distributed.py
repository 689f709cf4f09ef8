"""Modules that torch.distributed wraps: what ``DistributedDataParallel`` has inside."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def inside(module: nn.Module) -> nn.Module | None:
    """The module in a ``DistributedDataParallel``, whose own forward Dynamo does not trace; None for anything else."""
    return module.module if isinstance(module, DistributedDataParallel) else None


def put_inside(twin: nn.Module, inner: nn.Module) -> None:
    """Have ``twin``, which shares everything with a ``DistributedDataParallel``, call ``inner``; the other goes on calling its own."""
    children: dict[str, Any] = twin.__dict__["_modules"]
    twin.__dict__["_modules"] = {**children, "module": inner}
