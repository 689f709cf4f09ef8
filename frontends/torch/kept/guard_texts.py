"""What each of Dynamo's guards looks at, described; and which kinds of guards there are a description for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder, match_on_id_for_tensor
from torch._guards import Source

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept

Parameters = tuple[tuple[str, Any], ...]
"""Of a guard besides its source, by name."""
_OF_VALUES = frozenset((
    "ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "EQUALS_MATCH", "CONSTANT_MATCH",
    "BOOL_MATCH", "NONE_MATCH",
))  # fmt: skip
_OF_MODES = frozenset((
    "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "FSDP_TRAINING_STATE", "GLOBAL_STATE", "TORCH_FUNCTION_STATE", "DEFAULT_DEVICE", "SHAPE_ENV",
    "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH", "AUTOGRAD_SAVED_TENSORS_HOOKS",
))  # fmt: skip
"""Guards whose source says nothing: what they ask is in ``KeptGuards.modes``, or in the sizes."""
_OF_OBJECTS = frozenset((
    "TENSOR_MATCH", "TYPE_MATCH", "HASATTR", "NOT_PRESENT_IN_GENERIC_DICT", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS",
    "SET_NOT_CONTAINS", "SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT", "DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK", "NOT_NONE_MATCH",
    "WEAKREF_ALIVE", "DUPLICATE_INPUT",
))  # fmt: skip
_KINDS = _OF_VALUES | _OF_MODES | _OF_OBJECTS


def creator_of(kind: str) -> Any:
    """What builds guards of a kind.

    Raises:
        Unkept: nothing does.
    """
    if kind not in _KINDS:
        raise Unkept(f"a guard of kind {kind}")
    return getattr(GuardBuilder, kind)


def kind_of(guard: Any) -> tuple[str, Parameters]:
    """The name of a guard's kind, and its parameters but values, which are looked up again."""
    create: Any = guard.create_fn
    parameters: dict[str, Any] = {}
    if isinstance(create, functools.partial):
        if create.args:
            raise Unkept("a guard of an unknown form")
        create, parameters = create.func, dict(create.keywords)
    name = getattr(create, "__name__", "")
    if getattr(GuardBuilder, name, None) is not create:
        raise Unkept(f"a guard of a kind that is not Dynamo's: {name}")
    parameters.pop("value", None)
    return name, tuple(sorted(parameters.items(), key=lambda p: p[0]))


def checked_parameters(parameters: Parameters, again: Callable[[Any], Any]) -> Parameters:
    """Parameters with sources made anew, by ``again``."""
    return tuple((name, again(value) if isinstance(value, Source) else value) for name, value in parameters)


def text_of(
    guard: Any, kind: str, parameters: Parameters, get: Callable[[Any], Any], descriptions: Descriptions
) -> str:  # fmt: skip
    """The description of what a guard looks at.

    Raises:
        Unkept: it has none.
    """
    if kind in _OF_MODES:
        return ""
    value = get(guard)
    given = dict(parameters)
    if kind in _OF_VALUES:
        return descriptions.of(value)
    if kind == "TENSOR_MATCH":
        return _text_of_tensor(guard, value, descriptions)
    if kind == "TYPE_MATCH":
        return descriptions.of(type(value))
    if kind == "HASATTR":
        return str(hasattr(value, given["attr"]))
    if kind == "NOT_PRESENT_IN_GENERIC_DICT":
        return str(given["attr"] in value.__dict__)
    if kind in ("DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"):
        return str(given["key"] in value)
    if kind in ("SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT"):
        return f"{type(value).__module__}.{type(value).__qualname__} {len(value)}"
    if kind in ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"):
        keys = list(dict.keys(value)) if isinstance(value, dict) else list(value)
        named = [f"{k.__module__}.{k.__qualname__}" if isinstance(k, type) else descriptions.of(k) for k in keys]
        return f"{type(value).__module__}.{type(value).__qualname__} {named}"
    if kind in ("NOT_NONE_MATCH", "WEAKREF_ALIVE"):
        return str(value is not None)
    if kind == "DUPLICATE_INPUT":
        return str(get(given["source_b"]) is value)
    raise Unkept(f"a guard of kind {kind}")


def _text_of_tensor(guard: Any, value: Any, descriptions: Descriptions) -> str:
    """What Dynamo asks of a tensor but its sizes and strides."""
    if match_on_id_for_tensor(guard):
        raise Unkept("a guard on one tensor")
    if not isinstance(value, torch.Tensor):
        return f"no tensor but a {type(value).__qualname__}"
    keys = torch._C._dispatch_keys(value).raw_repr()
    # Dynamo marks those of modules itself, when it traces.
    own = "._parameters[" in guard.name or "._buffers[" in guard.name
    static = None if own else getattr(value, "_dynamo_static_input_type", None)
    form = (
        value.dtype,
        value.device,
        value.layout,
        value.requires_grad,
        value.ndim,
        value.is_inference(),
        keys,
        static,
    )
    return f"{descriptions.of(type(value))} {form}"


def text_or_kind(
    guard: Any, kind: str, parameters: Parameters, get: Callable[[Any], Any], descriptions: Descriptions
) -> str:  # fmt: skip
    """As ``text_of``; of what cannot be described, which Dynamo believes to stay as it is, the type."""
    try:
        return text_of(guard, kind, parameters, get, descriptions)
    except Unkept:
        return type(get(guard)).__qualname__
