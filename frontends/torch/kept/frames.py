"""A frame that Dynamo has compiled as data, and the frame again in another process; and Dynamo's ear for those who keep them.

Dynamo meets a frame that it has no code for --> somebody has it --> its code and guards, without a trace
                                             --> nobody has     --> Dynamo traces, and its code and guards are handed over
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Protocol

import torch
from torch._dynamo import convert_frame
from torch._dynamo.bytecode_transformation import unique_id
from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper, ShapeCodeParts
from torch._dynamo.source import TensorProperty
from torch._dynamo.types import GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupHook, CleanupManager, orig_code_map
from torch._guards import DuplicateInputs, StorageOverlap
from torch.fx.experimental.symbolic_shapes import _ShapeGuardsHelper

from dcir.frontends.torch.kept.bytecode import KeptCode, code_again, kept_code
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept, code_digest, codes_of_module, module_of_file
from dcir.frontends.torch.kept.guards import KeptGuard, KeptGuards, guards_again, kept_guards
from dcir.frontends.torch.kept.imports import import_names, imports_of, with_names
from dcir.frontends.torch.kept.objects import Reader, name_of
from dcir.frontends.torch.kept.recording import Recording, recording
from dcir.frontends.torch.kept.sources import known_sources
from dcir.frontends.torch.kept.unguarded import listen
from dcir.user_code import is_users

_LOG = logging.getLogger(__name__)
_MARK, _CHOICE = "dcir_keeps_traces", "dcir_chooses_keeper"
_GRAPH = "__compiled_fn_"


@dataclass(frozen=True)
class TracedCode:
    """Bytecode of the user's that a trace went through: its file, its name, its digest."""

    file: str
    name: str
    digest: str


@dataclass(frozen=True)
class KeptFrame:
    """What Dynamo made of a frame, but the graph.

    Attributes:
        code: the bytecode that it runs instead.
        guards: when it may.
        traced: which code of the user's it stands for.
    """

    code: KeptCode
    guards: KeptGuards
    traced: tuple[TracedCode, ...]

    def under(self, condition: str) -> KeptFrame:
        """The same for sizes under a condition (``KeptGuards.under``)."""
        return replace(self, guards=self.guards.under(condition))


_CLASSES = (KeptCode, KeptGuards, KeptGuard, ShapeCodeParts, _ShapeGuardsHelper, DuplicateInputs, StorageOverlap)


def frame_again(data: bytes) -> KeptFrame:
    """What Dynamo made of a frame, from bytes of ``objects.to_bytes``.

    Raises:
        Unkept: it is something else.
    """
    classes = (KeptFrame, TracedCode, *_CLASSES, *known_sources(), TensorProperty)
    found = Reader(data, frozenset(map(name_of, classes))).load()
    if not isinstance(found, KeptFrame):
        raise Unkept("no frame")
    return found


class Keeper(Protocol):
    """Who keeps the traces of a backend's frames."""

    def found(self, frame: Frame) -> GuardedCode | None:
        """The frame's code from an earlier trace; None if there is none for this call."""

    def traced(self, frame: Frame, kept: KeptFrame, notes: Recording) -> None:
        """Dynamo has traced a frame that may be kept."""


@dataclass(frozen=True)
class Frame:
    """A frame that Dynamo is to compile: its code, globals and locals, and what the compilation is known by."""

    code: CodeType
    names: dict[str, Any]
    scope: dict[str, Any]
    number: Any


def keeps_traces(backend: Any, keeper: Keeper) -> Any:
    """``backend``, marked as one whose traces ``keeper`` keeps as long as it lives."""
    _install()
    # The backend is in tables of Dynamo's, and is not to keep anybody alive.
    setattr(backend, _MARK, weakref.ref(keeper))
    return backend


def chooses_keeper(backend: Any, choice: Callable[[Any], Keeper | None]) -> Any:
    """``backend``, marked as one whose traces somebody may keep: ``choice`` says who, from what calls it for ``torch.compile``."""
    _install()
    setattr(backend, _CHOICE, choice)
    return backend


def again(
    kept: KeptFrame, frame: Frame, descriptions: Descriptions, graph: Callable[[], Callable[..., Any]]
) -> GuardedCode:
    """The code and the guards of a frame.

    Args:
        kept: the frame.
        frame: the one at hand.
        descriptions: which describe the values that guards look at.
        graph: gives what runs Dynamo's graph, once the guards hold.

    Raises:
        Unkept: they do not hold for it.
    """
    guards = guards_again(kept.guards, frame.code, frame.names, frame.scope, descriptions)
    _check_codes(kept.traced, descriptions)
    code = code_again(kept.code, frame.code)
    name = next(n for n in code.co_names if n.startswith(_GRAPH))
    new = unique_id(_GRAPH.rstrip("_"), with_uuid=True)
    code = code.replace(co_names=tuple(new if n == name else n for n in code.co_names))
    call = torch._dynamo.disable(graph(), reason="do not trace Dynamo-compiled graph")
    CleanupManager.instance[code] = [CleanupHook.create(frame.names, new, call)]
    convert_frame.output_codes.add(code)
    orig_code_map[code] = frame.code  # Dynamo asks for it when it says why another trace is needed
    return GuardedCode(code, guards, frame.number, f"Torch-Compiled Region: {frame.number}")


def forget(guards: Any) -> None:
    """Have Dynamo forget the code that belongs to guards of its own."""
    entry, state = guards.cache_entry, guards.extra_state
    if entry is not None and state is not None:
        state.invalidate(entry, DeletedGuardManagerWrapper("there is no program for a call"))


class _Ear(threading.local):
    """What is taken of the guards while Dynamo builds them."""

    descriptions: Descriptions | None = None
    guards: KeptGuards | None = None
    traced: tuple[TracedCode, ...] = ()


_EAR = _Ear()


@functools.cache
def _install() -> None:
    """Ask for a keeper wherever Dynamo compiles a frame; without one it does what it does."""
    module: Any = convert_frame
    compiled = module._compile

    @functools.wraps(compiled)
    def compile_frame(
        code: CodeType, names: Any, scope: Any, builtins: Any, closure: Any, backend: Any, *rest: Any, **named: Any
    ) -> Any:
        keeper = _keeper_of(backend)
        if keeper is None:
            return compiled(code, names, scope, builtins, closure, backend, *rest, **named)
        _listen()
        frame = Frame(code, names, scope, named.get("compile_id"))
        found = keeper.found(frame)
        if found is not None:
            return wrap_guarded_code(found)
        notes = Recording(keeper)
        _EAR.descriptions, _EAR.guards, _EAR.traced = Descriptions(), None, ()
        try:
            with notes.under_way():
                result = compiled(code, names, scope, builtins, closure, backend, *rest, **named)
            kept = _kept(result.guarded_code, names)
            if kept is not None:
                keeper.traced(frame, kept, notes)
            return result
        finally:
            _EAR.descriptions, _EAR.guards = None, None

    module._compile = compile_frame


@functools.cache
def _listen() -> None:
    """Hear what Dynamo makes of frames; from the first keeper on, for a process without one is to have Dynamo as it is."""
    listen()
    manager: Any = CheckFunctionManager
    output: Any = convert_frame.DynamoOutput
    serialized, built = manager.serialize_guards, output.build_guards

    @functools.wraps(built)
    def build_guards(self: Any, code: CodeType, hooks: Any = None, save: bool = False, **named: Any) -> Any:
        return built(self, code, hooks=hooks, save=save or _EAR.descriptions is not None, **named)

    @functools.wraps(serialized)
    def serialize_guards(self: Any, builder: Any, guards: Any, graph: Any) -> Any:
        if _EAR.descriptions is None:
            return serialized(self, builder, guards, graph)
        descriptions, _EAR.descriptions = _EAR.descriptions, None
        try:
            _EAR.guards = kept_guards(self, builder, guards, list(recording().unguarded), graph, descriptions)
            _EAR.traced = _traced(graph.tracing_context.traced_code, descriptions)
        except Exception as e:  # a trace that cannot be kept is as good as any
            _EAR.guards = None
            _LOG.debug("a trace is not kept: %s: %s", type(e).__name__, e)
        return b""

    output.build_guards, manager.serialize_guards = build_guards, serialize_guards


def _kept(guarded: Any, names: Mapping[str, Any]) -> KeptFrame | None:
    """What Dynamo has just made of a frame; None where it cannot be kept."""
    guards = _EAR.guards
    if guarded is None or guards is None:
        return None
    try:
        known = import_names(names)
        guards = replace(guards.named(known), imports={**guards.imports, **imports_of(guarded.code.co_names, known)})
        return KeptFrame(kept_code(with_names(guarded.code, known)), guards, _EAR.traced)
    except Unkept as e:
        _LOG.debug("a trace is not kept: %s", e)
        return None


def _keeper_of(backend: Any) -> Keeper | None:
    outer: Any = None
    while backend is not None:
        marked: Callable[[], Keeper | None] | None = getattr(backend, _MARK, None)
        if marked is not None:
            return marked()
        choice: Callable[[Any], Keeper | None] | None = getattr(backend, _CHOICE, None)
        if choice is not None:
            return choice(outer)
        inner = (getattr(backend, name, None) for name in ("_torchdynamo_orig_backend", "compiler_fn", "__wrapped__"))
        outer, backend = backend, next((b for b in inner if b is not None), None)
    return None


def _traced(codes: Any, descriptions: Descriptions) -> tuple[TracedCode, ...]:
    """The user's code that a trace went through.

    Raises:
        Unkept: some could not be found again.
    """
    # Of torch and dcir versions, and files, are part of every address.
    users = [code for code in codes if is_users(code.co_filename)]
    found = {TracedCode(code.co_filename, code.co_qualname, code_digest(code)) for code in users}
    rows = tuple(sorted(found, key=lambda t: (t.file, t.name, t.digest)))
    _check_codes(rows, descriptions)
    return rows


def _check_codes(traced: tuple[TracedCode, ...], descriptions: Descriptions) -> None:
    """Whether all of that code is in use.

    Raises:
        Unkept: some is not.
    """
    by_file: dict[str, list[TracedCode]] = {}
    for row in traced:
        if (row.name, row.digest) not in descriptions.codes:
            by_file.setdefault(row.file, []).append(row)
    for file, rows in by_file.items():
        module = module_of_file(file)
        there = set() if module is None else codes_of_module(module)
        for row in rows:
            if (row.name, row.digest) not in there:
                raise Unkept(f"the code of {row.name} is another one, or was not found")
