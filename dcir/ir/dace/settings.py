"""How DaCe is loaded: the user's own file of settings counts, one that lies in the working directory does not.

DaCe reads `.dace.conf` from wherever a process was started, in every thread anew, and a file of its oldest form makes it rewrite
the user's own; the file may name a compiler. A folder with models must not decide that. A program that imports DaCe before dcir
has chosen DaCe's settings itself, and they are left alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_LOCAL = ".dace.conf"


def ignore_local_settings() -> None:
    """Have the first import of DaCe, whoever makes it, leave a file in the working directory unread."""
    if "dace" not in sys.modules and not any(isinstance(finder, _ConfigFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ConfigFinder())


class _ConfigFinder(importlib.abc.MetaPathFinder):
    """Finds DaCe as any other finder would, once, and loads it in its own way."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "dace":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.plain.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Load DaCe; its settings are read on the way, so the file has to be out of sight.

        What its own code is warned of is nothing that a user of dcir could change.
        """
        there = os.path.isfile
        os.path.isfile = lambda path: path != _LOCAL and there(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.plain.exec_module(module)
        finally:
            os.path.isfile = there
        _other_threads()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def _other_threads() -> None:
    """Every thread reads the settings when it first asks for one: from the user's file, by its whole path."""
    from dace import config

    settings: Any = config._ConfigData
    plain = settings._initialize

    def initialise(self: Any) -> None:
        home = os.path.join(os.path.expanduser("~"), _LOCAL)
        self.default_filename = os.path.abspath(os.environ.get("DACE_CONFIG") or home)
        plain(self)

    settings._initialize = initialise
