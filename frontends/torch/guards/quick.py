"""Dynamo's guards over a module's tree, checked by the versions of its dictionaries instead of one by one.

Before every call Dynamo checks hundreds of attributes of a network, which in a cold cache takes as long as a small network itself.
Dynamo can compare the version tags of the dictionaries that hold them, and look further only where a tag changed; the setting
is global and read where guards are built, so it holds from the backend's call to the end of the call that compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, ClassVar

from torch import fx, nn
from torch._dynamo import config

from dcir.frontends.torch.guards.code_seen import CodeSeen

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

_SETTINGS = {
    "use_recursive_dict_tags_for_guards": True,
    "max_saved_pointers_for_recursive_dict_tags_check": 1 << 16,
    # Functions' defaults are in no dictionary.
    "assume_dunder_attributes_remain_unchanged": False,
    "skip_nnmodule_hook_guards": False,  # else a hook added after the first call is never called
}
_KNOWN = {name: value for name, value in _SETTINGS.items() if hasattr(config, name)}
_LOCK = threading.Lock()


class QuickGuards:
    """The settings of one compiled callable: ``backend`` turns them on, ``end`` off again.

    Args:
        backend: compiles.
        seen: notes what such guards do not ask for.
    """

    _users = 0
    _before: ClassVar[dict[str, Any]] = {}

    def __init__(self, backend: Backend, seen: CodeSeen) -> None:
        self._backend, self._seen = backend, seen
        self.pending = False

    def backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend; guards are built after it."""
        self._seen.note_trace()
        self.begin()
        return self._backend(gm, example_inputs)

    def begin(self) -> None:
        """Turn the settings on: guards are about to be built."""
        with _LOCK:
            if not self.pending:
                self.pending = True
                if QuickGuards._users == 0:
                    QuickGuards._before = {name: getattr(config, name) for name in _KNOWN}
                QuickGuards._users += 1
                _set(_KNOWN)

    def begin_again(self, code: CodeType, scope: Mapping[str, Any]) -> None:
        """The same where they are built of an earlier trace, if it is known what modules they are about."""
        owner = getattr(scope.get("fn"), "__self__", None)
        if isinstance(owner, nn.Module):
            self._seen.note(code, owner.modules())
            self.begin()

    def end(self) -> None:
        """The settings as they were, once nobody compiles."""
        with _LOCK:
            if self.pending:
                self.pending = False
                QuickGuards._users -= 1
                if QuickGuards._users == 0:
                    _set(QuickGuards._before)


def _set(values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(config, name, value)
