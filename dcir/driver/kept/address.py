"""Where the traces of a frame are kept, and what graphs become: by all that decides what a trace becomes and that no guard asks for."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import fields
from types import MethodType
from typing import Any

import torch

from dcir.cache import Cache, key_of
from dcir.codegen.cpp.backend import CppBackend
from dcir.codegen.tuned import KIND as TUNED
from dcir.driver.kept.settings import settings
from dcir.driver.session import Session
from dcir.driver.targets.host import host_machine
from dcir.extensions import GROUPS, entry_points_of
from dcir.frontends.torch.kept.as_installed import changes
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.frames import Frame
from dcir.identity import foreign_identity, source_identity
from dcir.ops.registry import PAGES

_FUNCTION = "fn"
_ours: set[Any] = set()
"""What has been looked at and is dcir's own."""


def address_of(frame: Frame, session: Session) -> str:
    """The key of a frame's traces.

    Raises:
        Unkept: there is none.
    """
    return key_of(*_around(session), *_what(frame))


def address_of_graph(rows: Iterable[str], session: Session) -> str:
    """The key of what a graph of Dynamo's becomes, by rows of text that say all of it.

    Raises:
        Unkept: there is none.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unkept("a transformation of functions is under way")
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise Unkept("there are hooks on saved tensors")
    if torch._C._len_torch_dispatch_stack():
        raise Unkept("a mode sees every operator")
    # What guards ask for of a kept trace.
    state = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    return key_of(*_around(session), *map(repr, state), *rows)


def _around(session: Session) -> list[str]:
    """What decides what becomes of any trace, and no guard asks for."""
    options = session.options
    rows = [f"{f.name}={getattr(options, f.name)!r}" for f in fields(options)]
    return [
        source_identity(), platform.python_version(), *rows, repr(host_machine(session.team)), *settings(),
        *changes(Descriptions()), *_tuned(),
    ]  # fmt: skip


def _what(frame: Frame) -> list[str]:
    """What the frame is about: a module of a class with parameters of certain shapes, or a function."""
    descriptions = Descriptions()
    called = frame.scope.get(_FUNCTION)
    rows = [descriptions.code(frame.code)]
    if not isinstance(called, MethodType) or not isinstance(called.__self__, torch.nn.Module):
        return [*rows, frame.code.co_qualname, str(frame.names.get("__name__"))]
    module = called.__self__
    rows += [descriptions.of(type(module))]
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not type(tensor).__module__.startswith("torch.nn") and type(tensor) is not torch.Tensor:
            raise Unkept(f"{name} is of a class of its own")
        rows.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}")
    rows += [f"{name} {type(m).__module__}.{type(m).__qualname__} {m.training}" for name, m in module.named_modules()]
    return rows


def _tuned() -> list[str]:
    """The measured choices of kernels, which may be others by now."""
    return [f"{entry.key} {entry.path.stat().st_mtime_ns}" for entry in Cache.default().ls(TUNED)]


def foreign() -> bool:
    """Whether code of other packages, or of the user's, has a part in what dcir makes: it may change without a sign."""
    if any(entry_points_of(group) for group in GROUPS):
        return True
    makers = {page.lower for page in PAGES.values()} | set(CppBackend().emitters.table.values())
    new = makers - _ours
    if new and foreign_identity(new):
        return True
    _ours.update(new)
    return False
