"""Dynamo's guards of one frame as data, and as guards again in a process where they are about the same things.

    guards over sources, with a description of what each looks at  -->  the same descriptions there?  -->  guards on the objects there

A guard is its source (where to look) and its kind (what to ask of what is there). Dynamo builds guards from the values that it traced
with. So they are built anew from the values of a call, once it is shown that these are what was traced: whatever a guard would ask of
them is part of a description (``descriptions.py``). Sizes are an exception, since they may move: those come from the trace.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch._dynamo import bytecode_transformation, convert_frame
from torch._dynamo.guards import (
    CheckFunctionManager,
    GuardBuilder,
    _get_closure_vars,
    convert_int_to_concrete_values,
    match_on_id_for_tensor,
)
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState, get_builtins_dict
from torch._dynamo.source import get_global_source_name
from torch._guards import Guard, GuardsSet
from torch.autograd import forward_ad
from torch.utils import _device, _pytree
from torch.utils._ordered_set import OrderedSet

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept

_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
)  # fmt: skip
"""What Dynamo asks of a tensor besides its form: which of its sizes somebody has called dynamic."""
_OF_VALUES = frozenset((
    "ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "EQUALS_MATCH", "CONSTANT_MATCH",
    "BOOL_MATCH", "NONE_MATCH",
))  # fmt: skip
_OF_MODES = frozenset((
    "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "FSDP_TRAINING_STATE", "GLOBAL_STATE", "TORCH_FUNCTION_STATE", "DEFAULT_DEVICE", "SHAPE_ENV",
    "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH", "AUTOGRAD_SAVED_TENSORS_HOOKS",
))  # fmt: skip
"""Guards whose source says nothing: what they ask is in ``KeptGuards.modes``, or in the sizes."""
_BUILTINS = "__builtins_dict__"
_NOT_THERE = (AttributeError, LookupError, TypeError, NameError, ValueError, RuntimeError)
"""What looking something up ends in where it is another object."""


@dataclass(frozen=True)
class KeptGuard:
    """One guard: where it looks, the name of its kind with its parameters, and the description of what is there."""

    source: Any
    kind: str
    parameters: tuple[tuple[str, Any], ...]
    text: str


@dataclass(frozen=True)
class KeptGuards:
    """The guards of one frame.

    Attributes:
        rows: one by one, in the order in which Dynamo builds them.
        ordered: sources of dictionaries whose order matters.
        sizes: of the tensors by source their sizes and strides, None where they move.
        marks: of the tensors by the name of their source which of their sizes were called dynamic when they were traced.
        shapes: Dynamo's conditions on the sizes, as code.
        aliases: what AOTAutograd asks for besides.
        modes: the state of the thread.
        builtins: the name of the dictionary of built-in functions among the globals.
        imports: names of modules that sources begin with, and of the modules.
    """

    rows: tuple[KeptGuard, ...]
    ordered: tuple[Any, ...]
    sizes: Mapping[Any, Any]
    marks: Mapping[str, Mapping[str, tuple[int, ...]]]
    shapes: Any
    aliases: tuple[Any, ...]
    modes: str
    builtins: str
    imports: Mapping[str, str]


def kept_guards(manager: Any, builder: Any, guards: list[Any], graph: Any, descriptions: Descriptions) -> KeptGuards:
    """The guards that Dynamo has just built.

    Args:
        manager: Dynamo's ``CheckFunctionManager`` that builds them, with ``save_guards``.
        builder: its ``GuardBuilder``, which has the values.
        guards: the guards in order.
        graph: Dynamo's ``OutputGraph``.
        descriptions: which describe the values.

    Raises:
        Unkept: one of them means nothing in another process.
    """
    rows, marks = [], {}
    for guard in guards:
        kind, parameters = _kind(guard)
        rows.append(
            KeptGuard(
                guard.originating_source, kind, parameters, _text(guard, kind, parameters, builder.get, descriptions)
            )
        )
        if kind == "TENSOR_MATCH":
            marks[guard.name] = _marks_of(builder.get(guard))
    sizes = _pytree.tree_map(convert_int_to_concrete_values, dict(graph.input_source_to_sizes_strides))
    shapes = manager.shape_code_parts
    if shapes is not None and shapes.cpp_code_parts is not None:
        raise Unkept("Dynamo compiles its guards on sizes")
    builtins = graph.name_of_builtins_dict_key_in_fglobals
    imports = dict(graph.import_sources)
    for row in rows:
        name = get_global_source_name(row.source)
        if name is not None and name.startswith("__") and name != builtins and name not in imports:
            raise Unkept(f"a guard looks at {name}, which Dynamo has put among the globals")
    return KeptGuards(
        tuple(rows), tuple(graph.guard_on_key_order), sizes, marks, shapes, tuple(graph.aotautograd_guards),
        _modes(graph.global_state_guard), builtins, imports,
    )  # fmt: skip


def guards_again(
    kept: KeptGuards, code: CodeType, names: dict[str, Any], scope: dict[str, Any], descriptions: Descriptions
) -> Any:
    """The guards for the objects of a call that they hold for, as Dynamo has them.

    Args:
        kept: the guards.
        code: of the frame.
        names: its globals, in which modules are put that sources begin with.
        scope: its locals.
        descriptions: which describe the values.

    Raises:
        Unkept: they do not hold for this call.
    """
    state = convert_frame.initial_global_state
    if state is None or _modes(state) != kept.modes:
        raise Unkept("the modes of the thread are others")
    _install(kept, names)
    found: dict[Any, Any] = {}
    scopes = {"G": names, "L": scope}

    def get(wanted: Any) -> Any:
        source = wanted.originating_source if isinstance(wanted, Guard) else wanted
        return source.get_value(scopes, _get_closure_vars(), found)

    _check_sizes(kept, get)
    guards = []
    for row in kept.rows:
        create = getattr(GuardBuilder, row.kind)
        guard = Guard(row.source, functools.partial(create, **dict(row.parameters)) if row.parameters else create)
        try:
            text = _text(guard, row.kind, row.parameters, get, descriptions)
        except _NOT_THERE as error:
            raise Unkept(f"{guard.name} is not there") from error
        if text != row.text:
            raise Unkept(f"{guard.name} is another one")
        guards.append(guard)
    graph = OutputGraphGuardsState(
        local_scope=scope, global_scope=names, torch_function_mode_stack=[], guard_on_key_order=set(kept.ordered),
        input_source_to_sizes_strides=dict(kept.sizes), dual_level=forward_ad._current_level, functorch_layers=[], current_device=None,
        global_state_guard=state, _guards=GuardsSet(OrderedSet(guards)), _aotautograd_guards=list(kept.aliases),
        skip_guards_check=True, name_of_builtins_dict_key_in_fglobals=kept.builtins,
    )  # fmt: skip
    tensors = {g.name: found[g.originating_source] for g in guards if g.name in kept.marks}
    with _marked(tensors, kept.marks):
        manager = CheckFunctionManager(code, OutputGraphCommon(graph), shape_code_parts=kept.shapes)
    if not manager.guard_manager.check(scope):
        raise Unkept("the sizes of this call are others")
    return manager.guard_manager


def _check_sizes(kept: KeptGuards, get: Callable[[Any], Any]) -> None:
    """Whether a call has the sizes of a trace, before its guards are built: most that do not hold differ there.

    Raises:
        Unkept: it has others.
    """
    for source, known in kept.sizes.items():
        try:
            value = get(source)
        except _NOT_THERE as error:
            raise Unkept(f"{source.name} is not there") from error
        if not isinstance(value, torch.Tensor):
            raise Unkept(f"{source.name} is no tensor")
        size = known["size"]
        if value.ndim != len(size) or any(n is not None and n != m for n, m in zip(size, value.shape, strict=True)):
            raise Unkept(f"{source.name} has another shape")


def _kind(guard: Any) -> tuple[str, tuple[tuple[str, Any], ...]]:
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


def _text(
    guard: Any, kind: str, parameters: tuple[tuple[str, Any], ...], get: Callable[[Any], Any], descriptions: Descriptions
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
    form = (value.dtype, value.device, value.layout, value.requires_grad, value.ndim, value.is_inference(), keys)
    return f"{descriptions.of(type(value))} {form}"


def _marks_of(value: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(sorted(value.__dict__[name])) for name in _MARKS if name in getattr(value, "__dict__", {})}


@contextlib.contextmanager
def _marked(tensors: Mapping[str, Any], marks: Mapping[str, Mapping[str, tuple[int, ...]]]) -> Iterator[None]:
    """With the marks on tensors that were there when they were traced, since guards are built on those that are there."""
    before = [(t, {name: t.__dict__[name] for name in _MARKS if name in t.__dict__}) for t in tensors.values()]
    try:
        for name, tensor in tensors.items():
            _set_marks(tensor, {mark: set(dims) for mark, dims in marks[name].items()})
        yield
    finally:
        for tensor, old in before:
            _set_marks(tensor, old)


def _set_marks(tensor: Any, marks: Mapping[str, Any]) -> None:
    for name in _MARKS:
        if name in marks:
            tensor.__dict__[name] = marks[name]
        else:
            tensor.__dict__.pop(name, None)


def _modes(state: Any) -> str:
    """The state of the thread that a trace belongs to.

    Raises:
        Unkept: there are modes of which nothing can be said.
    """
    hooks = torch._functorch._aot_autograd.utils.top_saved_tensors_hooks()
    if torch._C._len_torch_function_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unkept("there are modes of torch functions, or transforms")
    if forward_ad._current_level >= 0 or _device.CURRENT_DEVICE is not None or (hooks is not None and any(hooks)):
        raise Unkept("there are forward derivatives, a default device, or hooks on saved tensors")
    return str(state.__getstate__())


def _install(kept: KeptGuards, names: dict[str, Any]) -> None:
    """Put among the globals what sources begin with, as Dynamo does."""
    for alias, module in kept.imports.items():
        names.setdefault(alias, importlib.import_module(module))
    builtins = get_builtins_dict(names)
    if names.setdefault(kept.builtins, builtins) is not builtins:
        raise Unkept(f"{kept.builtins} is taken")
    # Dynamo numbers its names, and is not to give this one to anything else.
    number = int(kept.builtins.removeprefix(_BUILTINS).strip("_") or 0)
    current = next(bytecode_transformation._unique_id_counter)
    bytecode_transformation._unique_id_counter = type(bytecode_transformation._unique_id_counter)(
        max(current, number + 1)
    )
