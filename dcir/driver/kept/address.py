"""Where the traces of a frame are kept: by all that decides what a trace becomes and that no guard asks for."""

from __future__ import annotations

import os
import platform
from dataclasses import fields
from types import MethodType
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch.fx.experimental import _config as shapes

from dcir.cache import ENVIRONMENT_NAME, Cache, key_of
from dcir.cache_room import SIZE_NAME
from dcir.codegen.cpp.backend import CppBackend
from dcir.codegen.tuned import KIND as TUNED
from dcir.driver.session import Session
from dcir.driver.targets.host import host_machine
from dcir.extensions import GROUPS, entry_points_of
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.frames import Frame
from dcir.identity import foreign_identity, source_identity
from dcir.ops.registry import PAGES

_OURS = frozenset((
    "use_recursive_dict_tags_for_guards", "max_saved_pointers_for_recursive_dict_tags_check", "skip_nnmodule_hook_guards",
    "run_gc_after_compile", "recompile_limit",
))  # fmt: skip
"""Settings of Dynamo that dcir changes while it compiles, and that decide no trace."""
_FUNCTION = "fn"


def address_of(frame: Frame, session: Session) -> str:
    """The key of a frame's traces.

    Raises:
        Unkept: there is none.
    """
    options = session.options
    rows = [f"{f.name}={getattr(options, f.name)!r}" for f in fields(options)]
    parts = (
        source_identity(), platform.python_version(), *rows, repr(host_machine(session.team)), *_environment(), *_settings(), *_switches(),
        *_tuned(), *_what(frame),
    )  # fmt: skip
    return key_of(*parts)


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


def _settings() -> list[str]:
    """The settings of what traces."""
    found = []
    for which in (dynamo, functorch, shapes):
        for name, value in sorted(which.get_config_copy().items()):
            if name not in _OURS:
                shown = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
                found.append(f"{which.__name__}.{name}={_text(shown)}")
    return found


def _text(value: Any) -> str:
    """A setting; functions by their names, which have addresses in their texts."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


def _switches() -> list[str]:
    """What torch asks while it traces, and does not guard on."""
    cuda = torch.backends.cuda
    switches = (
        torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        torch.is_anomaly_enabled(), torch.is_inference_mode_enabled(),
    )  # fmt: skip
    return [repr(switches)]


def _environment() -> list[str]:
    """Settings in the environment, which decide what code is made."""
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("DCIR_") and name not in (ENVIRONMENT_NAME, SIZE_NAME)
    ]


def _tuned() -> list[str]:
    """The measured choices of kernels, which may be others by now."""
    return [f"{entry.key} {entry.path.stat().st_mtime_ns}" for entry in Cache.default().ls(TUNED)]


def foreign() -> bool:
    """Whether code of other packages, or of the user's, has a part in what dcir makes: it may change without a sign."""
    if any(entry_points_of(group) for group in GROUPS):
        return True
    makers = (*(page.lower for page in PAGES.values()), *CppBackend().emitters.table.values())
    return bool(foreign_identity(makers))
