"""dcir compiles neural networks by minimising data movement: PyTorch and ONNX networks on DaCe's SDFG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcir.runtime import uncounted as _uncounted
from dcir.version import __version__ as __version__

if TYPE_CHECKING:
    from dcir import errors as errors
    from dcir.driver.api import load as load
    from dcir.driver.handle import sessions as sessions
    from dcir.driver.opened import open_model as open
    from dcir.driver.optimize import optimize as optimize
    from dcir.driver.training.train_step import train_step as train_step
    from dcir.frontends.dace.operator import dace_operator as dace_operator
    from dcir.options import Options as Options

__all__ = ["Options", "dace_operator", "errors", "load", "open", "optimize", "sessions", "train_step"]

_HOMES = {
    "optimize": ("dcir.driver.optimize", "optimize"),
    "sessions": ("dcir.driver.handle", "sessions"),
    "train_step": ("dcir.driver.training.train_step", "train_step"),
    "dace_operator": ("dcir.frontends.dace.operator", "dace_operator"),
    "open": ("dcir.driver.opened", "open_model"),
    "load": ("dcir.driver.api", "load"),
    "Options": ("dcir.options", "Options"),
}


def __getattr__(name: str) -> Any:
    # Torch and DaCe take seconds to import: nothing is loaded before it is used.
    import importlib

    if name == "errors":
        return importlib.import_module("dcir.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'dcir' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


_uncounted.install_with_torch()
