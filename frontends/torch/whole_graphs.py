"""Has Dynamo leave graphs whole in a ``DistributedDataParallel``, if dcir compiles them: gradients pass gates (``gates.py``) instead.

For other backends Dynamo cuts a graph where a bucket of gradients is full, since a compiled backward hands over all its gradients at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

_MARK = "dcir_keeps_graphs_whole"


def keeps_graphs_whole(backend: Any) -> Any:
    """``backend``, marked as one whose backward passes hand over gradients as they come."""
    _install()
    setattr(backend, _MARK, True)
    return backend


@functools.cache
def _install() -> None:
    from torch._dynamo.backends.distributed import DDPOptimizer

    begin, cut = DDPOptimizer.__init__, DDPOptimizer.compile_fn

    @functools.wraps(begin)
    def init(self: Any, bucket_bytes_cap: int, backend_compile_fn: Any, first_bucket_cap: int | None = None) -> None:
        if first_bucket_cap is None and _is_marked(backend_compile_fn):
            first_bucket_cap = (
                bucket_bytes_cap  # nothing is cut, and buckets below the default first one would be refused
            )
        begin(self, bucket_bytes_cap, backend_compile_fn, first_bucket_cap)

    @functools.wraps(cut)
    def compile_fn(self: Any, gm: fx.GraphModule, example_inputs: Sequence[Any], **configs: Any) -> Any:
        if _is_marked(self.backend_compile_fn):
            return self.backend_compile_fn(gm, example_inputs, **configs)
        return cut(self, gm, example_inputs, **configs)  # type: ignore[arg-type]

    DDPOptimizer.__init__ = init  # type: ignore[method-assign]
    DDPOptimizer.compile_fn = compile_fn  # type: ignore[method-assign]


def _is_marked(backend: Callable[..., Any] | None) -> bool:
    """Whether a backend, or what Dynamo has wrapped, is marked."""
    while backend is not None:
        if getattr(backend, _MARK, False):
            return True
        inner = (getattr(backend, name, None) for name in ("_torchdynamo_orig_backend", "compiler_fn", "__wrapped__"))
        backend = next((b for b in inner if b is not None), None)
    return False
