"""Repeated calls of an optimised module in inference go straight to its program, as long as nothing has changed.

A call through Dynamo checks the module's tree, gathers hundreds of parameters, and passes AOTAutograd's wrappers; with its data
out of the cache that takes a fifth of a small network's time. After a few such calls what they depended on is noted
(``frontends/torch/guarded_state.py``, ``runtime/watch.py``). A later call compares it and runs the program in one native call
(``runtime/entry.py``); whatever differs sends it through Dynamo again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from dcir.frontends.torch.capture import Taped, taping
from dcir.frontends.torch.guarded_state import GuardedState, guarded_state
from dcir.runtime.entry import OTHER_MODES, available
from dcir.runtime.program import Fixed, Program
from dcir.runtime.watch import Watch

MISS = object()
"""What a quick call gives when the call has to go the long way."""
_FIRST_WAIT, _LONGEST_WAIT = 2, 1 << 12
_SETTLED = 64
_MOST = 8

_HOOKS = vars(torch.nn.modules.module)


@dataclass
class _Learnt:
    """One kind of call: what it depended on, and what it ran."""

    fn: Any
    state: GuardedState
    program: Program
    fixed: Fixed
    moving: tuple[int | str, ...]
    form: Any
    stale: bool = False
    used: int = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results, or MISS."""
        if self.stale or self.state.manager.cache_entry is None:
            self.stale = True
            return MISS
        if not self.state.rest.check({"args": args, "kwargs": kwargs, "fn": self.fn}):
            return MISS
        # Modes of dispatch, functorch and tracing show in the thread's dispatch keys; the others are guards.
        results = self.program.again(self.fixed, [args[i] if isinstance(i, int) else kwargs[i] for i in self.moving])
        if isinstance(results, int):
            self.stale = results != OTHER_MODES
            return MISS
        self.used += 1
        form = self.form
        return results[form] if type(form) is int else _filled(form, results)


class QuickCalls:
    """The short way of one optimised module.

    Args:
        frame: the function with locals ``args``, ``kwargs`` and ``fn`` that Dynamo compiles.
        fn: the module's method that it calls.
    """

    def __init__(self, frame: FunctionType, fn: Callable[..., Any]) -> None:
        self._code, self._fn = frame.__code__, fn
        self._learnt: list[_Learnt] = []
        self._lock = threading.Lock()
        self._long = 0
        self._wait = _FIRST_WAIT if available() else 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that is like one before, or MISS."""
        if eval_frame._stance.stance != "default" or forward_ad._current_level >= 0:
            return MISS
        for known in self._learnt:
            result = known.call(args, kwargs)
            if result is not MISS:
                return result
        return MISS

    def long_way(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A call through Dynamo, which is learnt from now and then."""
        self._long += 1
        if (
            not self._wait
            or self._long < self._wait
            or torch.is_grad_enabled()
            or eval_frame._stance.stance != "default"
        ):
            return call(*args, **kwargs)
        self._long = 0
        with taping() as tape:
            result = call(*args, **kwargs)
        with self._lock:
            self._learn(args, kwargs, result, tape)
        return result

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tape: Sequence[Taped]) -> None:
        # What changes all the time is learnt ever more rarely; what was worth it starts afresh.
        gone = [known for known in self._learnt if known.stale]
        self._wait = _FIRST_WAIT if any(k.used >= _SETTLED for k in gone) else min(self._wait * 2, _LONGEST_WAIT)
        kept = [known for known in self._learnt if not known.stale]
        new = self._from(args, kwargs, result, tape)
        self._learnt = [*([new] if new is not None else []), *kept][:_MOST]

    def _from(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tape: Sequence[Taped]
    ) -> _Learnt | None:
        if len(tape) != 1 or not isinstance(tape[0].program, Program):
            return None
        program, inputs, outputs = tape[0].program, tape[0].inputs, tape[0].results
        form = _form(result, {id(t): i for i, t in enumerate(outputs)})
        if form is None or _used(form) != set(range(len(outputs))):
            return None
        scope = {"args": args, "kwargs": kwargs, "fn": self._fn}
        state = guarded_state(self._code, scope)
        if state is None:
            return None
        watch = Watch(program.library, (*state.dictionaries, *_hooks()), state.tensors)
        # From here on a change shows as one; what was read before is read again.
        again = guarded_state(self._code, scope) if watch.valid else None
        if again is None or again.manager is not state.manager or not _same(again, state):
            return None
        moving = _moving(inputs, args, kwargs, state.tensors)
        fixed = program.fixed(inputs, tuple(moving), watch) if moving is not None else None
        if moving is None or fixed is None or _has_any_global_hook() or watch.changed():
            return None
        read = tuple(where for i, where in moving.items() if program.info.input_slots[i] >= 0)
        return _Learnt(self._fn, state, program, fixed, read, form)


def _hooks() -> list[dict[Any, Any]]:
    """The dictionaries that hold the hooks for all modules, and the one that names them: Dynamo has no guards on those."""
    named = (_HOOKS.get(name) for name in _has_any_global_hook.__code__.co_names)
    return [_HOOKS, *(hooks for hooks in named if isinstance(hooks, dict))]


def _same(a: GuardedState, b: GuardedState) -> bool:
    return all(
        len(x) == len(y) and all(p is q for p, q in zip(x, y, strict=True))
        for x, y in ((a.dictionaries, b.dictionaries), (a.tensors, b.tensors))
    )


def _moving(
    inputs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Sequence[torch.Tensor]
) -> dict[int, int | str] | None:
    """Which inputs of the program are arguments of the call; None unless each input is either one of those or held."""
    given: dict[int, int | str] = {id(v): i for i, v in enumerate(args)}
    given.update((id(v), name) for name, v in kwargs.items())
    known = {id(t) for t in held}
    if len(given) != len(args) + len(kwargs) or not known.isdisjoint(given):
        return None
    moving: dict[int, int | str] = {}
    for i, t in enumerate(inputs):
        if not isinstance(t, torch.Tensor) or (id(t) not in given and id(t) not in known):
            return None
        if id(t) in given:
            moving[i] = given[id(t)]
    return moving


@dataclass(frozen=True)
class _Constant:
    value: Any


_CONSTANTS = (type(None), bool, int, float, str)


def _form(value: Any, numbers: Mapping[int, int]) -> Any:
    """``value`` with the numbers of a program's results in their places; None if there is anything else in it."""
    if isinstance(value, torch.Tensor):
        return numbers.get(id(value))
    if type(value) in _CONSTANTS:
        return _Constant(value)
    if type(value) in (tuple, list):
        parts = [_form(v, numbers) for v in value]
        return None if None in parts else type(value)(parts)
    if type(value) is dict and all(type(k) in _CONSTANTS for k in value):
        items = {k: _form(v, numbers) for k, v in value.items()}
        return None if None in items.values() else items
    return None


def _used(form: Any) -> set[int]:
    if isinstance(form, _Constant):
        return set()
    if isinstance(form, int):
        return {form}
    return set().union(*map(_used, form.values() if isinstance(form, dict) else form))


def _filled(form: Any, results: Sequence[Any]) -> Any:
    if type(form) is int:
        return results[form]
    if isinstance(form, _Constant):
        return form.value
    if isinstance(form, dict):
        return {k: _filled(v, results) for k, v in form.items()}
    return type(form)(_filled(v, results) for v in form)
