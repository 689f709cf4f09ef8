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
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import CodeType
from typing import Any

import torch
from torch._dynamo import bytecode_transformation, convert_frame
from torch._dynamo.guards import (
    CheckFunctionManager,
    _get_closure_vars,
    convert_int_to_concrete_values,
)
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState, get_builtins_dict
from torch._dynamo.source import GlobalSource, ImportSource, get_global_source_name
from torch._guards import Guard, GuardsSet, Source
from torch.autograd import forward_ad
from torch.utils import _device, _pytree
from torch.utils._ordered_set import OrderedSet

from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.guard_texts import (
    Parameters,
    checked_parameters,
    creator_of,
    kind_of,
    text_of,
    text_or_kind,
)
from dcir.frontends.torch.kept.imports import imports_of, is_by_address, name_of_import, renamed
from dcir.frontends.torch.kept.sources import Checker, check_conditions
from dcir.frontends.torch.kept.unguarded import observers

_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
)  # fmt: skip
"""What Dynamo asks of a tensor besides its form: which of its sizes somebody has called dynamic."""
_IMPORT = "__import_"
_BUILTINS = "__builtins_dict__"
_NOT_THERE = (AttributeError, LookupError, TypeError, NameError, ValueError, RuntimeError)
"""What looking something up ends in where it is another object."""


@dataclass(frozen=True)
class KeptGuard:
    """One guard: where it looks, the name of its kind with its parameters, and the description of what is there."""

    source: Any
    kind: str
    parameters: Parameters
    text: str


@dataclass(frozen=True)
class KeptGuards:
    """The guards of one frame.

    Attributes:
        rows: one by one, in the order in which Dynamo builds them.
        unguarded: those that Dynamo leaves out, which are asked for once, when the trace is used.
        same: of the tensors that are guarded, in order, the first one that each is the same as.
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
    unguarded: tuple[KeptGuard, ...]
    same: tuple[int, ...]
    ordered: tuple[Any, ...]
    sizes: Mapping[Any, Any]
    marks: Mapping[str, Mapping[str, tuple[int, ...]]]
    shapes: Any
    aliases: tuple[Any, ...]
    modes: str
    builtins: str
    imports: Mapping[str, str]

    def named(self, known: Mapping[str, tuple[str, str]]) -> KeptGuards:
        """With other names of modules, as ``imports.import_names`` gives them.

        Raises:
            Unkept: something else has a name that holds an address.
        """
        used: list[str] = []
        modules: dict[str, str] = {}

        def other(source: Source) -> Source | None:
            if isinstance(source, ImportSource):
                name = name_of_import(source.module_name)
                modules[name] = source.module_name
                return GlobalSource(name)
            name = source.global_name if isinstance(source, GlobalSource) else ""
            if is_by_address(name) and name not in known:
                raise Unkept("a guard looks at what Dynamo knows by its address")
            used.append(name)
            return renamed(known, source)

        made = _with_sources(self, Checker(other))
        return replace(made, imports={**made.imports, **imports_of(used, known), **modules})

    def under(self, condition: str) -> KeptGuards:
        """With another condition on the sizes, as code; none where it is empty.

        A kept trace is not for sizes that it has no program for, however many Dynamo would let it serve: those are left to other traces.
        """
        if not condition or self.shapes is None:
            return self
        parts = self.shapes.python_code_parts
        return replace(
            self, shapes=replace(self.shapes, python_code_parts=replace(parts, exprs=[*parts.exprs, f"({condition})"]))
        )


def kept_guards(
    manager: Any, builder: Any, guards: list[Any], left_out: list[Any], graph: Any, descriptions: Descriptions
) -> KeptGuards:
    """The guards that Dynamo has just built.

    Args:
        manager: Dynamo's ``CheckFunctionManager`` that builds them, with ``save_guards``.
        builder: its ``GuardBuilder``, which has the values.
        guards: the guards in order.
        left_out: those that Dynamo does not build.
        graph: Dynamo's ``OutputGraph``.
        descriptions: which describe the values.

    Raises:
        Unkept: one of them means nothing in another process.
    """
    rows, marks, tensors = [], {}, []
    for guard in guards:
        kind, parameters = kind_of(guard)
        text = text_of(guard, kind, parameters, builder.get, descriptions)
        rows.append(KeptGuard(guard.originating_source, kind, parameters, text))
        if kind == "TENSOR_MATCH":
            marks[guard.name] = _marks_of(builder.get(guard))
            tensors.append(builder.get(guard))
    unguarded = []
    for guard in left_out:
        kind, parameters = kind_of(guard)
        with contextlib.suppress(*_NOT_THERE):  # of an attempt that Dynamo has given up
            text = text_or_kind(guard, kind, parameters, builder.get, descriptions)
            unguarded.append(KeptGuard(guard.originating_source, kind, parameters, text))
    sizes = _pytree.tree_map(convert_int_to_concrete_values, dict(graph.input_source_to_sizes_strides))
    shapes = manager.shape_code_parts
    _check_shapes(shapes)
    builtins = graph.name_of_builtins_dict_key_in_fglobals
    imports = dict(graph.import_sources)
    for row in rows:
        name = get_global_source_name(row.source)
        if name is not None and name.startswith("__") and name != builtins and name not in imports:
            raise Unkept(f"a guard looks at {name}, which Dynamo has put among the globals")
    return KeptGuards(
        tuple(rows), tuple(unguarded), _same(tensors), tuple(graph.guard_on_key_order), sizes, marks, shapes,
        tuple(graph.aotautograd_guards), _modes(graph.global_state_guard), builtins, imports,
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
    _check_shapes(kept.shapes)
    kept = _with_sources(kept, Checker())
    _install(kept, names)
    found: dict[Any, Any] = {}
    scopes = {"G": names, "L": scope}

    def get(wanted: Any) -> Any:
        source = wanted.originating_source if isinstance(wanted, Guard) else wanted
        return source.get_value(scopes, _get_closure_vars(), found)

    _check_sizes(kept, get)
    guards, matched = [], []
    for row in kept.rows:
        create = creator_of(row.kind)
        guard = Guard(row.source, functools.partial(create, **dict(row.parameters)) if row.parameters else create)
        _check_text(guard, row, functools.partial(text_of, guard, row.kind, row.parameters, get, descriptions))
        guards.append(guard)
        if row.kind == "TENSOR_MATCH":
            matched.append(get(row.source))
    _check_unguarded(kept, get, descriptions)
    if _same(matched) != kept.same:
        raise Unkept("tensors are the same that were not, or are not that were")
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
        failed = manager.guard_manager.check_verbose(scope).verbose_code_parts
        raise Unkept(f"a guard does not hold for this call: {'; '.join(map(str, failed))}")
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


def _check_unguarded(kept: KeptGuards, get: Callable[[Any], Any], descriptions: Descriptions) -> None:
    """Whether what Dynamo asks for when it traces is as it was.

    Raises:
        Unkept: it is not.
    """
    for row in kept.unguarded:
        guard = Guard(row.source, creator_of(row.kind))
        _check_text(guard, row, functools.partial(text_or_kind, guard, row.kind, row.parameters, get, descriptions))


def _check_text(guard: Guard, row: KeptGuard, described: Callable[[], str]) -> None:
    try:
        text = described()
    except _NOT_THERE as error:
        raise Unkept(f"{guard.name} is not there") from error
    if text != row.text:
        raise Unkept(f"{guard.name} is another one")


def _same(tensors: list[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(t), i) for i, t in enumerate(tensors))


def _check_shapes(shapes: Any) -> None:
    """See that Dynamo's conditions on sizes are conditions on sizes.

    Raises:
        Unkept: they are not, or not in Python.
    """
    if shapes is None:
        return
    if shapes.cpp_code_parts is not None:
        raise Unkept("Dynamo compiles its guards on sizes")
    check_conditions(shapes.python_code_parts.exprs)


def _with_sources(kept: KeptGuards, again: Callable[[Any], Any]) -> KeptGuards:
    """The guards with sources made anew (``sources.py``); what else they hold is compared, not evaluated."""
    shapes = kept.shapes
    if shapes is not None:  # the texts for logs are made of the others
        shapes = replace(
            shapes, verbose_code_parts=shapes.python_code_parts, shape_env_sources=[again(s) for s in shapes.shape_env_sources]
        )  # fmt: skip
    return replace(
        kept, rows=tuple(_row(row, again) for row in kept.rows),
        unguarded=tuple(_row(row, again) for row in kept.unguarded), ordered=tuple(map(again, kept.ordered)),
        sizes={again(source): size for source, size in kept.sizes.items()}, aliases=tuple(_alias(guard, again) for guard in kept.aliases),
        shapes=shapes,
    )  # fmt: skip


def _row(row: KeptGuard, again: Callable[[Any], Any]) -> KeptGuard:
    return replace(row, source=again(row.source), parameters=checked_parameters(row.parameters, again))


def _alias(guard: Any, again: Callable[[Any], Any]) -> Any:
    """What AOTAutograd asks for besides, with sources made anew."""
    values = {f.name: getattr(guard, f.name) for f in fields(guard)}
    return type(guard)(**{
        name: again(v) if isinstance(v, Source) else [again(s) for s in v] if isinstance(v, list) else v
        for name, v in values.items()
    })  # fmt: skip


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
    for reason in observers():
        raise Unkept(reason)
    return str(state.__getstate__())


def _install(kept: KeptGuards, names: dict[str, Any]) -> None:
    """Put among the globals what sources begin with, as Dynamo does."""
    if not kept.builtins.startswith(_BUILTINS) or not all(alias.startswith(_IMPORT) for alias in kept.imports):
        raise Unkept("names that Dynamo does not put among the globals")
    for alias, module in kept.imports.items():
        if module not in sys.modules and module.partition(".")[0] != "torch":
            raise Unkept(f"{module} is not imported")
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
