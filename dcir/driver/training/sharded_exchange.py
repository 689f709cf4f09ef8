"""Has a model under ``fully_shard`` exchange by sends of ours (``runtime/exchange.py``), once all its processes agree.

Both ends of an exchange have to be of one kind. So each process says that it is ready where its first graph with gathered parameters is
compiled, which is the same place of the program in all of them. If one does not come, since it runs without dcir, all stay with torch,
for everything that these processes exchange: nobody waits a second time.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch import nn
from torch.distributed._composable_state import _get_module_state, _module_state_mapping

_SECONDS = 60.0
_ASKED: Counter[str] = Counter()
_LEFT: weakref.WeakSet[Any] = weakref.WeakSet()
"""Groups of parameters whose processes did not agree."""


def exchange_by_sends(module: nn.Module) -> int:
    """Have what a module is part of exchange by sends; for how many groups of parameters it does so from now on.

    Left as they are: groups that are not on CPUs, not over gloo, or have exchanges that the user has set.
    """
    groups = [g for g in _groups(module) if g not in _LEFT and _is_plain(g)]
    by_processes: dict[str, list[Any]] = {}
    for group in groups:
        by_processes.setdefault(group._all_gather_process_group.group_name, []).append(group)
    return sum(_install(name, found) for name, found in sorted(by_processes.items()))


def _groups(module: nn.Module) -> Iterator[Any]:
    """Groups of parameters of all modules that are sharded with this one: below it, around it, beside it."""
    seen: set[int] = set()
    for state in _states(module):
        for each in getattr(getattr(state, "_state_ctx", None), "all_states", ()):
            if id(each) not in seen:
                seen.add(id(each))
                yield from each._fsdp_param_groups


def _states(module: nn.Module) -> Iterator[Any]:
    """What ``fully_shard`` keeps of a module, its children, and of those around it that gather for them."""
    inside = set(module.modules())
    yield from filter(None, map(_get_module_state, inside))
    for reference in list(_module_state_mapping.values()):
        state: Any = reference()
        groups = getattr(state, "_fsdp_param_groups", ())
        if any(p._module_info.module in inside for group in groups for p in group.fsdp_params):
            yield state


def _is_plain(group: Any) -> bool:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    if type(group._all_gather_comm) is not DefaultAllGather:
        return False
    if type(group._reduce_scatter_comm) is not DefaultReduceScatter:
        return False
    if group.device.type != "cpu" or not isinstance(group.mesh_info, FSDPMeshInfo):
        return False
    used = group._all_gather_process_group, group._reduce_scatter_process_group
    return used[0].size() > 1 and all(_is_gloo(g, group.device) for g in used)


def _is_gloo(processes: Any, device: Any) -> bool:
    try:
        return str(processes._get_backend(device).name()).lower() == "gloo"
    except RuntimeError:  # no backend for such tensors
        return False


def _install(processes: str, groups: Sequence[Any]) -> int:
    from dcir.runtime.exchange import GatherBySends, ReduceBySends

    if not _agreed(processes, dist.get_process_group_ranks(groups[0]._all_gather_process_group), _digest(groups)):
        _LEFT.update(groups)
        return 0
    gather, reduce = GatherBySends(), ReduceBySends()
    for group in groups:
        group._all_gather_comm, group._reduce_scatter_comm = gather, reduce
    return len(groups)


def _digest(groups: Sequence[Any]) -> str:
    """A name for parameters by their names and sizes, the same in all processes."""
    rows = sorted((str(p._param_fqn), tuple(p._orig_size)) for group in groups for p in group.fsdp_params)
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def _agreed(processes: str, ranks: Sequence[int], what: str) -> bool:
    """Whether all ranks ask for the same; the first who knows decides for all."""
    store = dist.distributed_c10d._get_default_store()
    left = f"dcir exchange/{processes}/left"
    if store.check([left]):
        return False
    key = f"dcir exchange/{processes}/{what}/{_ASKED[what]}"
    _ASKED[what] += 1
    store.set(f"{key}/{dist.get_rank()}", "ready")
    try:
        store.wait([f"{key}/{rank}" for rank in ranks], timedelta(seconds=_SECONDS))
        word = "yes"
    except RuntimeError:  # somebody has not come
        word = "no"
    decided: bytes = store.compare_set(f"{key}/decision", "", word)
    if decided != b"yes":
        # Who has not asked counts otherwise from here on, and each further question would be waited for in vain.
        store.set(left, "")
    return decided == b"yes"
