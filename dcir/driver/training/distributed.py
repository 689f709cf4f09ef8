"""Modules that torch.distributed wraps: what ``DistributedDataParallel`` has inside, and the state that ``fully_shard`` keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed._composable_state import _get_module_state, _insert_module_state
from torch.nn.parallel import DistributedDataParallel


def inside(module: nn.Module) -> nn.Module | None:
    """The module in a ``DistributedDataParallel``, whose own forward Dynamo does not trace; None for anything else."""
    return module.module if isinstance(module, DistributedDataParallel) else None


def put_inside(twin: nn.Module, inner: nn.Module) -> None:
    """Have ``twin``, which is over the dictionary of a ``DistributedDataParallel``, hold ``inner`` in one of its own."""
    own: dict[str, Any] = twin.__dict__
    object.__setattr__(twin, "__dict__", {**own, "_modules": {**own["_modules"], "module": inner}})


def members_over(cls: type, slot: str) -> dict[str, Any]:
    """Members for a subclass of a wrapper's class whose objects call what is in ``slot``; none for the class of anything else.

    Such an object can be over the dictionary of another one, so that ``no_sync`` and ``join`` are for both, whichever they are called on.
    A module that is put in the place of the one inside is called as it is.
    """
    if not issubclass(cls, DistributedDataParallel):
        return {}

    def module(self: Any) -> nn.Module:
        held: nn.Module = self.__dict__["_modules"]["module"]
        called: nn.Module = getattr(self, slot)
        return called if called.__dict__ is held.__dict__ else held

    return {"module": property(module)}


def calling(replica: DistributedDataParallel, inner: nn.Module) -> Callable[..., Any]:
    """Calls ``inner`` in the way ``replica`` calls its own module: with its reducer, and in whatever state it is then.

    This has no state of its own: ``no_sync`` and ``join`` write to the attributes of the object that they are called on.
    """
    cls: Any = type(replica)
    members = {"module": property(lambda self: inner), "__module__": cls.__module__}
    other: Any = type(cls.__name__, (cls,), members)
    view: Any = other.__new__(other)
    object.__setattr__(view, "__dict__", replica.__dict__)
    call: Callable[..., Any] = view._call_impl  # a compiled call, if it has one, is the replica's own
    return call


def share_state(twin: nn.Module, module: nn.Module) -> None:
    """Let ``twin`` be a handle of what ``fully_shard`` keeps of a module: torch finds it by the module itself."""
    state = _get_module_state(module)
    if state is not None:
        _insert_module_state(twin, state)


def is_sharded(module: nn.Module) -> bool:
    """Whether parameters of a module are gathered from several processes for each of its calls."""
    return any(getattr(m, "_is_fsdp_managed_module", False) for m in module.modules())


def spread_by(module: nn.Module) -> str | None:
    """What gives other processes a part in a module; None if nothing does."""
    replica = next((type(m).__name__ for m in module.modules() if inside(m) is not None), None)
    return "fully_shard" if replica is None and is_sharded(module) else replica
