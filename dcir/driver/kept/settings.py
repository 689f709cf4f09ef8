"""The settings that decide what a trace becomes and that no guard asks for: of torch, of Dynamo, of the environment, of dcir."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch.autograd import graph
from torch.fx.experimental import _config as shapes

from dcir.cache import ENVIRONMENT_NAME
from dcir.cache_room import SIZE_NAME
from dcir.options import KEEP_GRAPHS_NAME, KEEP_NAME

_OURS = frozenset((
    "use_recursive_dict_tags_for_guards", "max_saved_pointers_for_recursive_dict_tags_check", "skip_nnmodule_hook_guards",
    "run_gc_after_compile", "recompile_limit", "assume_dunder_attributes_remain_unchanged",
))  # fmt: skip
"""Settings of Dynamo that dcir changes while it compiles, and that decide no trace."""
_VARIABLES = ("DCIR_", "TORCH", "PYTORCH", "ATEN_", "OMP_", "MKL_", "ONEDNN_", "DNNL_")
"""How environment variables begin that libraries which traces run may read."""
_WITHOUT_EFFECT = frozenset((
    ENVIRONMENT_NAME, SIZE_NAME, KEEP_NAME, KEEP_GRAPHS_NAME,
    "TORCH_LOGS", "TORCH_LOGS_FORMAT", "TORCH_LOGS_OUT", "TORCH_TRACE", "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCH_EXTENSIONS_DIR",
))  # fmt: skip

_SWITCHES = (
    "_get_mkldnn_enabled", "_get_mkldnn_deterministic", "_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic",
    "_get_flash_sdp_enabled", "_get_math_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction", "_get_nnpack_enabled", "_get_deterministic_algorithms",
    "_get_deterministic_fill_uninitialized_memory", "_get_float32_matmul_precision", "_get_default_device",
)  # fmt: skip
"""Functions of torch's that give a setting; a version need not have all of them."""


def settings() -> list[str]:
    """All of them, as rows of text that are equal in two processes where they are."""
    return [*_of_compilers(), repr(_of_torch()), *_of_environment()]


def _of_compilers() -> Iterator[str]:
    """The settings of what traces."""
    for which in (dynamo, functorch, shapes):
        for name, value in sorted(which.get_config_copy().items()):
            if name not in _OURS:
                shown = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
                yield f"{which.__name__}.{name}={_text(shown)}"


def _text(value: Any) -> str:
    """A setting; functions by their names, which have addresses in their texts."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)


def _of_torch() -> list[Any]:
    """What torch asks while it traces, and does not guard on; the number of threads, default types and modes have guards."""
    native = [getattr(torch._C, name)() for name in _SWITCHES if hasattr(torch._C, name)]
    return [
        *native, torch.backends.mha.get_fastpath_enabled(), torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy,
        *(asked(kind) for kind in ("cpu", "cuda") for asked in (torch.is_autocast_enabled, torch.get_autocast_dtype)),
        torch.is_autocast_cache_enabled(),
        torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), torch.is_inference_mode_enabled(),
        graph._allow_mutation_on_saved_tensors_enabled, torch.__future__.get_overwrite_module_params_on_conversion(),
        torch.__future__.get_swap_module_params_on_conversion(), torch.distributions.Distribution._validate_args,
        torch.cuda.is_available(), torch.version.git_version,
    ]  # fmt: skip


def _of_environment() -> Iterator[str]:
    """Settings in the environment, which decide what code is made."""
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES) and name not in _WITHOUT_EFFECT:
            yield f"{name}={value}"
