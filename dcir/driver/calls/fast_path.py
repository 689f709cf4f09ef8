"""Repeated calls of an optimised module in inference go straight to its program, as long as nothing has changed.

A call through Dynamo checks the module's tree, gathers hundreds of parameters, and passes AOTAutograd's wrappers; with its data
out of the cache that takes a fifth of a small network's time. After a few such calls what they depended on is noted
(``frontends/torch/guards/state.py``, ``runtime/watch.py``). A later call compares it and runs the program in one native call
(``runtime/entry.py``); whatever differs sends it through Dynamo again.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch.autograd import forward_ad, profiler
from torch.compiler import is_compiling
from torch.nn.modules.module import _has_any_global_hook

from dcir.driver.calls.sized_calls import Check, SizedCalls, SizedRun
from dcir.frontends.torch.guards.code_seen import CodeSeen
from dcir.frontends.torch.guards.direct import direct_guards
from dcir.frontends.torch.guards.state import GuardedState, guarded_state
from dcir.frontends.torch.tape import Taped, taping
from dcir.runtime import direct
from dcir.runtime.direct import Conditions, Direct
from dcir.runtime.entry import OTHER_MODES, available
from dcir.runtime.program import Fixed, Program
from dcir.runtime.watch import Watch

MISS = direct.MISS
"""What a quick call gives when the call has to go the long way."""
_FIRST_WAIT, _LONGEST_WAIT = 2, 1 << 12
_SETTLED = 64
_MOST = 8

_HOOKS = vars(torch.nn.modules.module)


class _Classes:
    """The dictionaries of classes that say which methods there are; others may write other things to them.

    Attributes:
        dictionaries: they.
    """

    def __init__(self, seen: CodeSeen, library: ctypes.CDLL, dictionaries: Sequence[dict[str, Any]]) -> None:
        self._seen, self._library, self.dictionaries = seen, library, dictionaries
        self._watch = Watch(library, dictionaries, ())

    @classmethod
    def of(cls, seen: CodeSeen, library: ctypes.CDLL) -> _Classes | None:
        """Those of what was seen; None where they are not found."""
        dictionaries = seen.dictionaries()
        made = None if dictionaries is None else cls(seen, library, dictionaries)
        return made if made is not None and made._watch.valid else None

    def changed(self) -> bool:
        """Whether there are other methods."""
        if not self._watch.changed():
            return False
        watch = Watch(self._library, self.dictionaries, ())
        if not watch.valid or self._seen.changed():
            return True
        self._watch = watch
        return False


@dataclass
class _Learnt:
    """One kind of call: what it depended on, and what it ran; with ``sizes`` those of a call say what it runs."""

    fn: Any
    names: dict[str, Any]
    state: GuardedState
    classes: _Classes
    program: Program
    fixed: Fixed
    inputs: dict[int, int | str]
    moving: tuple[int | str, ...]
    form: Any
    sizes: SizedCalls | None = None
    stale: bool = False
    used: int = 0
    direct: Direct | None = None
    wait: int = _FIRST_WAIT
    next_wait: int = _FIRST_WAIT

    @property
    def settled(self) -> bool:
        """Whether it was worth being learnt."""
        return self.used + (0 if self.direct is None else self.direct.used) >= _SETTLED

    def renew(self, args: tuple[Any, ...]) -> None:
        """Have a direct call for calls like the present one, if there can be one."""
        made = self.direct
        if self.sizes is not None:  # a direct call has the shapes of one
            self.wait = _LONGEST_WAIT
            return
        if made is not None and not made.broken:  # other tensors, or another thread's call under way
            self.wait = self.next_wait
            return
        # What breaks all the time is made ever more rarely.
        settled = made is not None and made.used >= _SETTLED
        self.next_wait = _FIRST_WAIT if settled else min(self.next_wait * 4, _LONGEST_WAIT)
        self.wait = self.next_wait
        self.used += 0 if made is None else made.used
        self.direct = self._made(args)

    def _made(self, args: tuple[Any, ...]) -> Direct | None:
        scope = {"args": args, "kwargs": {}, "fn": self.fn}
        conditions = self._conditions(scope)
        numbers = {where: number for number, where in self.inputs.items()}
        if conditions is None or type(self.form) is not int or len(numbers) != len(self.inputs):
            return None
        made = self.program.direct(self.fixed, conditions, [(t, numbers.get(i, -1)) for i, t in enumerate(args)])
        # From here on a change shows as one; what was read before is read again.
        again = self._conditions(scope)
        if again is None or not conditions.same(again) or _elsewhere() or self.state.manager.cache_entry is None:
            return None
        return made if self.state.rest.check(scope) and not self.classes.changed() else None

    def _conditions(self, scope: dict[str, Any]) -> Conditions | None:
        guards = direct_guards(self.state, scope, self.names)
        if guards is None:
            return None
        # What is asked of these before a call: whether the frame's code was dropped, the stance, levels of forward derivatives, whether
        # an export is under way; and the default device, on which Dynamo has a guard.
        own = (self.state.manager, eval_frame, eval_frame._stance, forward_ad, torch.compiler, torch.utils._device)
        dictionaries = (*guards.dictionaries, *self.classes.dictionaries, *(o.__dict__ for o in own))
        return Conditions(dictionaries, tuple(guards.items), tuple(guards.fields))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results, or MISS."""
        if self.stale or self.state.manager.cache_entry is None or self.classes.changed():
            self.stale = True
            return MISS
        if not self.state.rest.check({"args": args, "kwargs": kwargs, "fn": self.fn}):
            return MISS
        ran = (self.program, self.fixed) if self.sizes is None else self.sizes.at(args, kwargs)
        if ran is None:
            return MISS
        # Modes of dispatch, functorch and tracing show in the thread's dispatch keys; the others are guards.
        results = ran[0].again(ran[1], [args[i] if isinstance(i, int) else kwargs[i] for i in self.moving])
        if isinstance(results, int):
            self.stale = results != OTHER_MODES
            return MISS
        self.used += 1
        self.wait -= 1
        form = self.form
        return results[form] if type(form) is int else _filled(form, results)


class QuickCalls:
    """The short way of one optimised module.

    Args:
        frame: the function with locals ``args``, ``kwargs`` and ``fn`` that Dynamo compiles.
        fn: the module's method that it calls.
        seen: what the frame was compiled for.
        check: hears of the arguments of calls whose sizes are new.

    Attributes:
        direct: functions of positional arguments that give the results of the commonest calls, or MISS. They are to be tried first.
    """

    def __init__(
        self, frame: FunctionType, fn: Callable[..., Any], seen: CodeSeen, check: Check = lambda args, kwargs: None
    ) -> None:  # fmt: skip
        self._code, self._names, self._fn, self._check = frame.__code__, frame.__globals__, fn, check
        self._seen = seen
        self._learnt: list[_Learnt] = []
        self.direct: list[Callable[..., Any]] = []
        self._lock = threading.Lock()
        self._long = 0
        self._wait = _FIRST_WAIT if available() else 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that is like one before, or MISS."""
        if _elsewhere():
            return MISS
        for known in self._learnt:
            result = known.call(args, kwargs)
            if result is not MISS:
                if known.wait <= 0 and not kwargs:
                    self._renew(known, args)
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
            or profiler._is_profiler_enabled  # which is to see calls
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
        self._wait = _FIRST_WAIT if any(k.settled for k in gone) else min(self._wait * 2, _LONGEST_WAIT)
        kept = [known for known in self._learnt if not known.stale]
        new = self._from(args, kwargs, result, tape)
        self._learnt = [*([new] if new is not None else []), *kept][:_MOST]
        self._gather()

    def _renew(self, known: _Learnt, args: tuple[Any, ...]) -> None:
        # What a garbage collection calls must not wait for the call that it is in.
        if self._lock.acquire(blocking=False):
            try:
                known.renew(args)
                self._gather()
            finally:
                self._lock.release()

    def _gather(self) -> None:
        # Whoever has the list sees the new ones.
        self.direct[:] = [k.direct.call for k in self._learnt if k.direct is not None and not k.stale]

    def _from(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tape: Sequence[Taped]
    ) -> _Learnt | None:
        run = SizedRun.of(tape)
        program = run.program if run is not None else _program(tape[0].program) if len(tape) == 1 else None
        if program is None:
            return None
        inputs, outputs = tape[-1].inputs, tape[-1].results
        form = _form(result, {id(t): i for i, t in enumerate(outputs)})
        if form is None or _used(form) != set(range(len(outputs))) or (run is not None and _has_numbers(form)):
            return None
        scope = {"args": args, "kwargs": kwargs, "fn": self._fn}
        state = guarded_state(self._code, scope)
        if state is None:
            return None
        classes = _Classes.of(self._seen, program.library)
        if classes is None:
            return None
        watch = Watch(program.library, (*state.dictionaries, *_hooks()), state.tensors, self._seen.fields())
        # From here on a change shows as one; what was read before is read again.
        again = guarded_state(self._code, scope) if watch.valid else None
        if again is None or again.manager is not state.manager or not _same(again, state) or classes.changed():
            return None
        moving = _moving(inputs, args, kwargs, state.tensors, set() if run is None else run.numbers())
        fixed = program.fixed(inputs, tuple(moving), watch) if moving is not None else None
        if moving is None or fixed is None or _has_any_global_hook() or watch.changed():
            return None
        sizes = None if run is None else run.calls(moving, fixed, self._check)
        if run is not None and sizes is None:
            return None
        moving = {i: where for i, where in moving.items() if program.info.input_slots[i] >= 0}
        return _Learnt(
            self._fn, self._names, state, classes, program, fixed, moving, tuple(moving.values()), form, sizes
        )


def _program(ran: Any) -> Program | None:
    """The program that a graph on the tape is, or that something around it, which measures it, runs."""
    found = ran if isinstance(ran, Program) else getattr(ran, "watched", None)
    return found if isinstance(found, Program) else None


def _elsewhere() -> bool:
    """Whether calls go another way now, or mean something else."""
    return is_compiling() or eval_frame._stance.stance != "default" or forward_ad._current_level >= 0


def _hooks() -> list[dict[Any, Any]]:
    """The dictionaries that hold the hooks for all modules, and the one that names them: Dynamo has no guards on those.

    And the one that says whether torch's profiler is on: while it is, calls go where it sees them.
    """
    named = (_HOOKS.get(name) for name in _has_any_global_hook.__code__.co_names)
    return [_HOOKS, vars(profiler), *(hooks for hooks in named if isinstance(hooks, dict))]


def _same(a: GuardedState, b: GuardedState) -> bool:
    return all(
        len(x) == len(y) and all(p is q for p, q in zip(x, y, strict=True))
        for x, y in ((a.dictionaries, b.dictionaries), (a.tensors, b.tensors))
    )


def _moving(
    inputs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], held: Sequence[torch.Tensor], sizes: Collection[int]
) -> dict[int, int | str] | None:  # fmt: skip
    """Which inputs of the program are arguments of the call; None unless each input is either one of those, held, or among ``sizes``."""
    given: dict[int, int | str] = {id(v): i for i, v in enumerate(args)}
    given.update((id(v), name) for name, v in kwargs.items())
    known = {id(t) for t in held}
    if len(given) != len(args) + len(kwargs) or not known.isdisjoint(given):
        return None
    moving: dict[int, int | str] = {}
    for i, t in enumerate(inputs):
        if i in sizes:
            continue
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


def _has_numbers(form: Any) -> bool:
    """Whether a form holds numbers, which may be sizes."""
    if isinstance(form, _Constant):
        return type(form.value) not in (type(None), str)
    if isinstance(form, int):
        return False
    return any(map(_has_numbers, form.values() if isinstance(form, dict) else form))


def _filled(form: Any, results: Sequence[Any]) -> Any:
    if type(form) is int:
        return results[form]
    if isinstance(form, _Constant):
        return form.value
    if isinstance(form, dict):
        return {k: _filled(v, results) for k, v in form.items()}
    return type(form)(_filled(v, results) for v in form)
