"""What Dynamo's guards of one compiled frame look at: the dictionaries and tensors of the module's tree, and the rest as guards.

    guards over locals --> (dictionaries and tensors below ``fn.__self__``, guards without that subtree)

Dynamo marks subtrees in which nothing but dictionaries can change ("tag safe"): as long as their versions, and what tensors say of
themselves, are as they were, every guard in the subtree holds. Those can be compared in one native call, by whoever
wants to; what is left (modes, arguments, globals) are a few guards that Dynamo's own copy of the tree evaluates.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from dcir.frontends.torch.guards.hands_on import hands_on

_FRAME_FUNCTION = "fn"
_SUBTREE = f"L['{_FRAME_FUNCTION}'].__self__"
_CLASSES = ("type(", "dict(type(")
LAST = re.compile(r"(.*)(?:\.([A-Za-z_]\w*)|\[('(?:[^'\\]|\\.)*'|\d+)\])", re.DOTALL)


@dataclass(frozen=True)
class GuardedState:
    """The guards of one compiled frame, in two parts.

    Attributes:
        manager: Dynamo's record of them; its ``cache_entry`` is None once the frame's code was dropped.
        rest: the guards outside the module's tree; ``rest.check(scope)`` evaluates them.
        dictionaries, tensors: what the guards inside depend on.
    """

    manager: Any
    rest: Any
    dictionaries: tuple[dict[Any, Any], ...]
    tensors: tuple[torch.Tensor, ...]


def guarded_state(code: CodeType, scope: Mapping[str, Any]) -> GuardedState | None:
    """The guards that hold for a call of ``code`` with the locals ``scope``; None if they are not of this kind.

    ``scope["fn"]`` is a method of the module.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    entries = [e for e in _debug_get_cache_entry_list(code) if e.guard_manager.root.check(scope)]
    # With two that hold nobody can say which of them was run.
    if len(entries) != 1 or not hands_on(entries[0].code):
        return None
    manager = entries[0].guard_manager
    node = _subtree(manager.root)
    if node is None:
        return None
    contents = _Contents(scope)
    if not contents.read(node):
        return None
    kept = contents.kept
    rest = manager.root.clone_manager(lambda n: _SUBTREE not in n.get_source() or n.get_source() in kept)
    if rest is None or not rest.check(scope):
        return None
    return GuardedState(manager, rest, tuple(contents.dictionaries.values()), tuple(contents.tensors.values()))


def _subtree(root: Any) -> Any:
    for child in root.get_child_managers():
        if child.get_source() == f"L['{_FRAME_FUNCTION}']":
            return next((n for n in child.get_child_managers() if n.get_source() == _SUBTREE), None)
    return None


def _below(node: Any) -> list[Any]:
    """The nodes that a node leads to."""
    if type(node).__name__ == "DictGuardManager":
        return [m for pair in node.get_key_value_managers().values() for m in pair if m is not None]
    return list(node.get_child_managers())


def _parts(node: Any) -> tuple[bool, list[tuple[Any, bool]]]:
    """Whether what a node is can be noted, and of each node that it leads to whether the way there changes through dictionaries alone.

    Those are modules, dictionaries, and what Dynamo has marked. Functions, lists and the like are not: who asks them has to ask again.
    Dynamo's own mark asks for classes that cannot change too, which those that call ``super()`` are not; what looks at classes stays a
    guard anyhow.
    """
    from torch._C._dynamo import guards

    below = _below(node)
    if isinstance(node, guards.DictGuardManager) or node.is_tag_safe():
        return True, [(m, True) for m in below]
    kind = node.get_type_of_guarded_value()
    if issubclass(kind, torch.nn.Module):
        known: Any = guards.GetGenericDictGuardAccessor | guards.TypeGuardAccessor
    elif issubclass(kind, dict):
        known = guards.DictGetItemGuardAccessor
    else:
        return False, []
    return True, [(m, isinstance(a, known)) for a, m in zip(node.get_accessors(), below, strict=True)]


class _Contents:
    """Every dictionary and tensor that a subtree of guards looks at.

    Attributes:
        dictionaries, tensors: by identity.
        kept: sources of guards that look at something else, classes, and of those above them.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.dictionaries: dict[int, dict[Any, Any]] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.kept: set[str] = set()
        # Values by their sources: every attribute and item is looked up once.
        self._known: dict[str, Any] = {"L": scope}

    def read(self, node: Any) -> bool:
        """Take in a subtree; False if something in it is nothing that can be noted."""
        source, kind = node.get_source(), node.get_type_of_guarded_value()
        noted, below = _parts(node)
        if not noted:
            self._keep(node)
            return True
        if source.startswith(_CLASSES):
            self.kept.add(source)
        elif issubclass(kind, dict | torch.Tensor):
            value = self.at(source)
            if isinstance(value, dict):
                self.dictionaries[id(value)] = value
            elif isinstance(value, torch.Tensor) and not value.is_inference():
                self.tensors[id(value)] = value
            else:
                return False
        for m, through in below:
            if not through:
                self._keep(m)
            elif not self.read(m):
                return False
        if any(m.get_source() in self.kept for m, _ in below):
            self.kept.add(source)
        return True

    def _keep(self, node: Any) -> None:
        """Leave a node, and all below it, to Dynamo's guards."""
        self.kept.add(node.get_source())
        for m in _below(node):
            self._keep(m)

    def at(self, source: str) -> Any:
        """The value at a source, or None where the source is something else than attributes and items."""
        if source in self._known:
            return self._known[source]
        match = LAST.fullmatch(source)
        if match is None:
            return None
        before, attribute, item = match.groups()
        owner = self.at(before)
        try:
            value = getattr(owner, attribute) if attribute else owner[ast.literal_eval(item)]
        except (AttributeError, KeyError, IndexError, TypeError):
            return None
        self._known[source] = value
        return value
