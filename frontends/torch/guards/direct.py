"""What is left of Dynamo's guards beside the module's tree, as things that native code compares.

    guards on globals, functions, classes --> (dictionaries, items of dictionaries, attributes of objects)

Dynamo evaluates these guards one by one, some of them as Python functions; with the interpreter's data out of the near caches that
takes longer than a small network's kernels. Nearly all of them ask whether ``F.relu`` still is what it was: as long as nobody has written
to the dictionaries on the way there, and functions have their code and classes their bases, everything they can ask is as it was. Only
guards of which that is known are taken; with any other, calls go on being checked by Dynamo.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import torch

from dcir.frontends.torch.guards.code_seen import dictionary_of
from dcir.frontends.torch.guards.state import LAST, GuardedState

# The globals of these are written when something is compiled, loaded or patched; those of others may be in every call.
_SELDOM_WRITTEN = ("torch", "dcir", "builtins")
# Guards that hold for a value, whatever was done to it, as long as it is the same object of the same class.
_OF_IDENTITY = frozenset(("ID_MATCH", "TYPE_MATCH", "NOT_NONE", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH"))
_OF_CONSTANTS = _OF_IDENTITY | {"EQUALS_MATCH", "LENGTH_CHECK", "FLOAT_IS_NAN", "COMPLEX_IS_NAN"}
_OF_DICTIONARIES = frozenset(("TYPE_MATCH", "DICT_LENGTH", "DICT_CONTAINS", "LENGTH_CHECK"))
_OF_TENSORS = frozenset(("TYPE_MATCH", "TENSOR_MATCH", "DIMENSION_DYNAMIC_MARKING_GUARD", "NO_TENSOR_ALIASING"))
_CONSTANTS = (
    NoneType, bool, int, float, complex, str, bytes, CodeType, BuiltinFunctionType, torch.dtype, torch.layout, torch.memory_format,
    torch.device,
)  # fmt: skip
# The modes of a call, of which whoever calls knows that they are the same: without gradients nothing is saved, so hooks do nothing.
_MODES = frozenset(("GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE"))
_SAVED = "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks ids == None"
_ALIAS = re.compile(r"(\S+) is (\S+)(\s+#.*)?", re.DOTALL)


@dataclass
class DirectGuards:
    """The guards as what they look at; ``dcir/runtime/direct.py`` says what the parts are."""

    dictionaries: list[dict[Any, Any]] = field(default_factory=list)
    items: list[tuple[dict[Any, Any], str, Any]] = field(default_factory=list)
    fields: list[tuple[Any, str, Any]] = field(default_factory=list)


def direct_guards(state: GuardedState, scope: Mapping[str, Any], names: dict[str, Any]) -> DirectGuards | None:
    """The guards of ``state.rest`` but those on modes; None unless all are of a known kind, and the arguments tensors.

    Args:
        state: whose dictionaries and tensors the caller compares anyway.
        scope: the locals of a call that they hold for.
        names: the globals of the frame.
    """
    reader = _Reader(state)
    return reader.found if not scope["kwargs"] and reader.root(state.rest, scope, names) else None


_UNKNOWN: Any = object()


class _Reader:
    """Walks down from the root with the values at hand."""

    def __init__(self, state: GuardedState) -> None:
        self.found = DirectGuards()
        self._compared = set(map(id, state.dictionaries))
        self._values: dict[str, Any] = {}

    def root(self, root: Any, scope: Mapping[str, Any], names: dict[str, Any]) -> bool:
        """Take in all; False if something is of no known kind."""
        for guard in root.get_leaf_guards():
            parts = guard.verbose_code_parts()
            if type(guard).__name__ not in _MODES and not all(part.startswith(_SAVED) for part in parts):
                return False
        for child in root.get_child_managers():
            source = child.get_source()
            if source == "L['args']":
                known = self._arguments(child, scope["args"])
            elif source == "L['kwargs']":
                known = _leaves(child) <= _OF_DICTIONARIES and not child.get_child_managers()
            elif source in ("L['fn']", "G"):
                known = self._node(child, names if source == "G" else scope["fn"])
            else:
                known = False
            if not known:
                return False
        return all(self._is_alias(part) for g in root.get_epilogue_lambda_guards() for part in g.verbose_code_parts())

    def _arguments(self, node: Any, args: Sequence[Any]) -> bool:
        below = node.get_child_managers()
        return (
            all(type(value) is torch.Tensor for value in args)
            and _leaves(node) <= {"TYPE_MATCH", "LENGTH_CHECK"}
            and _accessors(node) <= {"TupleGetItemGuardAccessor"}
            and all(_leaves(child) <= _OF_TENSORS and not child.get_child_managers() for child in below)
        )

    def _node(self, node: Any, value: Any) -> bool:
        kind, leaves = type(value), _leaves(node)
        if kind in _CONSTANTS or kind is tuple:
            known = _OF_CONSTANTS if kind is not tuple else _OF_IDENTITY | {"LENGTH_CHECK"}
        elif isinstance(value, dict):
            known = _OF_IDENTITY | _OF_DICTIONARIES
            if not leaves <= _OF_IDENTITY:
                self._watch(value)
        else:
            known = _OF_IDENTITY
            if isinstance(value, ModuleType | torch.nn.Module):
                self._field(value, "__class__")
        if not leaves <= known:
            return False
        self._values[node.get_source()] = value
        for accessor, child in _below(node):
            if accessor is None:
                key = child.get_type_of_guarded_value() in _CONSTANTS and id(value) in self._compared
                if not key or not _leaves(child) <= _OF_CONSTANTS or _below(child):
                    return False
                continue
            inner = self._inside(accessor, value, child.get_source())
            if inner is _UNKNOWN or not self._node(child, inner):
                return False
        return True

    def _inside(self, accessor: str, owner: Any, source: str) -> Any:
        """What an accessor leads to; what it passes is noted."""
        match = LAST.fullmatch(source)
        _, attribute, item = match.groups() if match is not None else (None, None, None)
        if accessor == "GetAttrGuardAccessor" and attribute:
            return self._attribute(owner, attribute)
        if accessor == "DictGetItemGuardAccessor" and isinstance(owner, dict):
            return self._item(owner, attribute or (ast.literal_eval(item) if item else None))
        if type(owner) is tuple and accessor in ("TupleGetItemGuardAccessor", "GetItemGuardAccessor"):
            return dict(enumerate(owner)).get(int(item) if item and item.isdigit() else -1, _UNKNOWN)
        if type(owner) is FunctionType:
            if accessor == "CodeGuardAccessor":
                return self._field(owner, "__code__")
            if accessor == "FuncDefaultsGuardAccessor":
                return self._field(owner, "__defaults__")
            if accessor == "FuncKwDefaultsGuardAccessor":
                return self._field(owner, "__kwdefaults__")
        if isinstance(owner, torch.nn.Module):
            if accessor == "TypeGuardAccessor":
                return type(owner)
            if accessor == "GetGenericDictGuardAccessor":
                return vars(owner)
        if isinstance(owner, type):
            if accessor == "TypeMROGuardAccessor":
                return self._field(owner, "__mro__")
            if accessor == "TypeDictGuardAccessor":
                dictionary = dictionary_of(owner)
                return _UNKNOWN if dictionary is None else self._watch(dictionary)
        return _UNKNOWN

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, ModuleType):
            # Modules of a class of their own have what that does not give them.
            classes = type(owner).__mro__[: type(owner).__mro__.index(ModuleType)]
            given = [self._watch(dictionary_of(cls)) for cls in classes]
            if any(d is None or name in d or "__getattribute__" in d for d in given):
                return _UNKNOWN
            return self._item(vars(owner), name)
        if type(owner) is MethodType and name in ("__func__", "__self__"):
            return getattr(owner, name)
        if type(owner) is FunctionType and name in ("__code__", "__defaults__", "__kwdefaults__"):
            return self._field(owner, name)
        # What its metaclass does not know a class has from the first of its bases that has it.
        if type(owner) is type and not hasattr(type, name):
            for cls in self._field(owner, "__mro__"):
                dictionary = self._watch(dictionary_of(cls))
                if dictionary is None or name in dictionary:
                    found: Any = None if dictionary is None else dictionary[name]
                    return found if type(found) is FunctionType else _UNKNOWN
        return _UNKNOWN

    def _field(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        self.found.fields.append((owner, sys.intern(name), value))
        return value

    def _item(self, owner: dict[Any, Any], key: Any) -> Any:
        if type(key) is not str or key not in owner:
            return _UNKNOWN
        if id(owner) not in self._compared:
            if type(owner) is dict and str(owner.get("__name__", "")).split(".")[0] not in _SELDOM_WRITTEN:
                self.found.items.append((owner, sys.intern(key), owner[key]))
            else:
                self._watch(owner)
        return owner[key]

    def _watch(self, dictionary: Any) -> Any:
        if dictionary is not None and id(dictionary) not in self._compared:
            self._compared.add(id(dictionary))
            self.found.dictionaries.append(dictionary)
        return dictionary

    def _is_alias(self, text: str) -> bool:
        """Whether a guard over several sources says that two are the same object, and both are taken in."""
        match = _ALIAS.fullmatch(text)
        if match is None:
            return False
        a, b = (self._at(source) for source in match.groups()[:2])
        return a is b and a is not _UNKNOWN

    def _at(self, source: str) -> Any:
        if source not in self._values:
            match = LAST.fullmatch(source)
            owner = self._values.get(match[1]) if match is not None else None
            if match is None or not match[2] or not isinstance(owner, ModuleType):
                return _UNKNOWN
            self._values[source] = self._attribute(owner, match[2])
        return self._values[source]


def _leaves(node: Any) -> set[str]:
    return {type(guard).__name__ for guard in node.get_leaf_guards()}


def _accessors(node: Any) -> set[str | None]:
    return {name for name, _ in _below(node)}


def _below(node: Any) -> list[tuple[str | None, Any]]:
    """(kind of accessor, node) of everything a node leads to; no kind of keys."""
    if type(node).__name__ == "DictGuardManager":
        pairs = node.get_key_value_managers().values()
        keys = [(None, key) for key, _ in pairs if key is not None]
        return [*keys, *(("DictGetItemGuardAccessor", value) for _, value in pairs if value is not None)]
    names = (type(accessor).__name__ for accessor in node.get_accessors())
    return list(zip(names, node.get_child_managers(), strict=True))
