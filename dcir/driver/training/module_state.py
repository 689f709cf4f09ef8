"""What a traced step depends on besides tensors: classes, attributes and hooks of modules, read anew for every step."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as _torch_module

# What every module has; parameters, buffers and children are looked at elsewhere.
_EVERY = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = tuple(sorted(n for n in _EVERY if n.endswith("_hooks") and "state_dict" not in n))


def module_state(module: nn.Module) -> Any:
    """Something hashable that is another thing once the module's class, its attributes or its hooks are.

    Numbers and texts count by value and type, in lists, tuples, dicts and sets, too; other objects by who they are.
    """
    held = vars(module)
    hooks = tuple((n, tuple(held[n])) for n in _HOOKS if held.get(n))
    return type(module), hooks, tuple((n, _frozen(v)) for n, v in held.items() if n not in _EVERY)


def global_hooks() -> Any:
    """The same of the hooks of all modules."""
    found = vars(_torch_module)
    return tuple((n, tuple(v)) for n, v in found.items() if n.startswith("_global_") and n.endswith("_hooks") and v)


def _frozen(value: Any) -> Any:
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind, tuple(map(_frozen, value))
    if kind is dict:
        return kind, tuple((k, _frozen(v)) for k, v in value.items())
    return kind, value if kind.__hash__ is not None else id(value)
