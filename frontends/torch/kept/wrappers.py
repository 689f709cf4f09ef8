"""What AOTAutograd puts around a compiled graph, as data, and around the graph again in another process.

Views of inputs, writes to them, tensors that are detached, what is saved for the backward: AOTAutograd finds that out while it traces and
carries it out around the graph at every call. It keeps these findings in a cache of its own, for inductor's graphs; what it makes of
them there is made of them here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._functorch._aot_autograd import graph_compile
from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental._backward_state import BackwardState
from torch.fx.experimental.symbolic_shapes import ShapeEnv

Call = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class KeptWrappers:
    """AOTAutograd's findings on one graph of Dynamo's.

    Attributes:
        metadata, wrappers, classes, saved, detached, config: as in its own cache (``GenericAOTAutogradResult``).
        behind: of a graph with a backward the places of its state, and how many sizes are saved for it; else None.
    """

    metadata: Any
    wrappers: list[Any]
    classes: Any
    saved: int | None
    detached: list[int]
    config: Any
    behind: tuple[list[int], int] | None

    def around(self, forward: Call, backward: Call | None) -> Callable[..., Any]:
        """What runs Dynamo's graph through the compiled ones, which take lists of arguments and empty them."""
        made: Any = GenericAOTAutogradResult  # its types are of what it loads itself
        result = made(
            compiled_fw=_There(forward), compiled_bw=None if self.behind is None else _Behind(backward, *self.behind),
            aot_joint_graph_str=None, aot_forward_graph_str=None, aot_backward_graph_str=None, min_cut_info_str=None,
            runtime_metadata=self.metadata, dispatch_wrappers=self.wrappers, maybe_subclass_meta=self.classes,
            num_fw_outs_saved_for_bw=self.saved, indices_of_inps_to_detach=self.detached, forward_time_taken_ns=0,
            backward_time_taken_ns=0, sanitized_aot_config=self.config, guards_expr=None, serialized_bw_module=None,
        )  # fmt: skip
        context = TracingContext.try_get() or TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
        with tracing(context):
            whole = result.wrap_post_compile([], self.config, {})

        def run(*args: Any) -> Any:
            return whole(list(args))

        return run


class _There:
    """A compiled graph that AOTAutograd need not load."""

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def load(self, examples: Any) -> Any:
        return self._call

    def post_compile(self, result: Any, config: Any) -> Any:
        return result


class _Behind(_There):
    def __init__(self, call: Call | None, states: list[int], sizes: int) -> None:
        super().__init__(call)
        self.backward_state_indices, self.num_symints_saved_for_bw_ = states, sizes


class _Here(threading.local):
    heard: list[KeptWrappers] | None = None


_HERE = _Here()


class listening:
    """While AOTAutograd traces: its findings, in the order in which it compiles graphs."""

    def __enter__(self) -> list[KeptWrappers]:
        _install()
        self._before, _HERE.heard = _HERE.heard, []
        return _HERE.heard

    def __exit__(self, *_: object) -> None:
        _HERE.heard = self._before


@functools.cache
def _install() -> None:
    """Hear what AOTAutograd would put in its cache, which it does where it has one."""
    module: Any = graph_compile
    inference, autograd = module._cache_inference_info, module._cache_autograd_info

    @functools.wraps(inference)
    def of_inference(config: Any, metadata: Any, classes: Any, compiled: Any, text: Any, wrappers: Any) -> Any:
        result = inference(config, metadata, classes, compiled, text, wrappers)
        if _HERE.heard is not None:
            _HERE.heard.append(KeptWrappers(metadata, wrappers, classes, None, [], config.to_cacheable(), None))
        return result

    @functools.wraps(autograd)
    def of_training(config: Any, flat_args: Any, *rest: Any) -> Any:
        result = autograd(config, flat_args, *rest)
        if _HERE.heard is not None:
            _, _, _, _, _, wrappers, classes, metadata, saved, detached, sizes, *_ = rest
            states = [i for i, x in enumerate(flat_args) if isinstance(x, BackwardState)]
            _HERE.heard.append(
                KeptWrappers(metadata, wrappers, classes, saved, detached, config.to_cacheable(), (states, sizes))
            )
        return result

    module._cache_inference_info, module._cache_autograd_info = of_inference, of_training
