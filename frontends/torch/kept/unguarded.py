"""What a trace depends on and no guard of Dynamo's asks for: what of it can be asked for is noted, for the rest no trace is kept.

    a call of a function that nobody has traced, its result taken for constant, code that Dynamo must not look into  -->  not kept
    a guard that Dynamo leaves out (what modules of Python's own library hold)                                     -->  asked for

Dynamo may do so: within one process little of this changes, and it runs the code at least once. Another process runs it not at all.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo import convert_frame, guards
from torch._dynamo.exc import ObservedAttributeError
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables import dicts, functions, misc, nn_module
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._guards import Guard
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from dcir.frontends.torch.kept.recording import is_noting, recording

_PACKAGES = frozenset(("torch", "dcir", "builtins", "operator", "_operator", "math"))
"""Whose functions are theirs alone: versions and files of torch and dcir are part of every address."""
OPERATORS = frozenset(("aten", "prims", "prim", "dcir"))
"""Namespaces of operators of which the same holds."""
_WITH_GRAPHS = frozenset((
    "cond", "while_loop", "scan", "map", "map_impl", "associative_scan", "autograd_function_apply", "wrap", "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "wrap_activation_checkpoint", "tag_activation_checkpoint", "checkpoint", "flex_attention",
    "flex_attention_backward",
))  # fmt: skip
"""Higher-order operators that call graphs which Dynamo has traced, and nothing else."""


def unseen_code(gm: fx.GraphModule) -> str | None:
    """What a graph of Dynamo's calls that runs code nobody has traced, and which may be other code in another process; None if nothing."""
    for part in gm.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.nodes:
            if node.op == "call_module":
                module = type(part.get_submodule(str(node.target)))
                if not issubclass(module, fx.GraphModule) and not _is_known(module.__module__):
                    return f"it calls {module.__qualname__}"
            elif node.op == "call_function" and not _is_traced(node.target):
                return f"it calls {getattr(node.target, '__name__', node.target)}"
    return None


def _is_traced(target: Any) -> bool:
    """Whether a function is torch's, or one of Python's own."""
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).partition(".")[0] in OPERATORS
    if isinstance(target, HigherOrderOperator):
        return target.name() in _WITH_GRAPHS
    if isinstance(target, BuiltinFunctionType) and not target.__module__:
        owner = target.__self__
        return _is_known(owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__)
    return _is_known(getattr(target, "__module__", None))


def _is_known(module: str | None) -> bool:
    return str(module).partition(".")[0] in _PACKAGES


def listen() -> None:
    """From now on the notes on a trace say what its guards do not ask for."""
    _install()


def observers() -> Iterator[str]:
    """Who changes what Dynamo makes, or wants to see it made."""
    if convert_frame._bytecode_hooks:
        yield "a hook changes Dynamo's bytecode"
    if torch._C._len_torch_dispatch_stack():
        yield "a mode sees every operator"


@functools.cache
def _install() -> None:
    where, missing, modules, called = (
        cast(Any, m) for m in (guards, dicts.ConstDictVariable, misc.PythonModuleVariable, functions)
    )
    left_out: Callable[[Any], bool] = where.is_from_skip_guard_source
    installs = guards.install_guard.__code__

    @functools.wraps(left_out)
    def is_left_out(source: Any) -> bool:
        found = left_out(source)
        if found:
            asks = sys._getframe(1)
            guard = asks.f_locals.get("guard") if asks.f_code is installs else None
            if isinstance(guard, Guard):
                recording().left_out(guard)
        return found

    where.is_from_skip_guard_source = is_left_out
    invoked: Callable[..., Any] = functions.invoke_and_store_as_constant

    @functools.wraps(invoked)
    def invoke(tx: Any, fn: Any, *rest: Any) -> Any:
        if not _is_traced(fn):
            recording().refuse(f"the result of {getattr(fn, '__name__', fn)} is taken for constant")
        return invoked(tx, fn, *rest)

    lookup: Callable[..., Any] = missing.getitem_const_raise_exception_if_absent

    @functools.wraps(lookup)
    def look_up(self: Any, tx: Any, key: Any) -> Any:
        # Dynamo asks for the values that are there, and not for what was missed.
        if is_noting() and key not in self:
            self.install_dict_contains_guard(tx, [key])
        return lookup(self, tx, key)

    missing.getitem_const_raise_exception_if_absent = look_up
    for cls in _subclasses(VariableTracker):
        if "call_obj_hasattr" in vars(cls):
            cls.call_obj_hasattr = _noting_attributes(cls.call_obj_hasattr)  # type: ignore[attr-defined]
    for owner in (modules, called.BaseUserFunctionVariable):
        owner.var_getattr = _noting_attributes(owner.var_getattr)
    for module in (functions, nn_module):
        module.invoke_and_store_as_constant = invoke  # type: ignore[attr-defined]


def _subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(_subclasses, cls.__subclasses__()))


def _noting_attributes(ask: Callable[..., Any]) -> Callable[..., Any]:
    """``ask``, which asks whether a value has an attribute: of some values Dynamo has no guard on what they have not."""

    @functools.wraps(ask)
    def asked(self: Any, tx: Any, name: str) -> Any:
        try:
            found = ask(self, tx, name)
        except ObservedAttributeError:
            _note_attribute(self.source, name)
            raise
        # What isinstance asks of a variable that nobody has looked at yet, Dynamo answers by looking: it would trace otherwise.
        if type(found) is ConstantVariable and found.value is False:
            _note_attribute(self.source, name)
        return found

    return asked


def _note_attribute(source: Any, name: str) -> None:
    if source is not None and is_noting():
        with contextlib.suppress(NotImplementedError):  # of a constant
            recording().left_out(source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
