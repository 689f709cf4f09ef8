"""A compiled network loaded from a file, as a module: forward only, its weights in the state dict under their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, strided
from torch.nn.modules.module import _global_forward_hooks as _FORWARD_HOOKS
from torch.nn.modules.module import _global_forward_pre_hooks as _FORWARD_PRE_HOOKS

from dcir.errors import ArtefactInvalid, InvalidInput
from dcir.ops.reach import device, on_device, out_of_reach
from dcir.ops.torch_types import FROM_NAME
from dcir.runtime.blocks import Arenas
from dcir.runtime.buffers import SizedBuffers
from dcir.runtime.described import described
from dcir.runtime.manifest import Constant, Input, Manifest, torch_call
from dcir.runtime.program import Program
from dcir.runtime.torch_calls import call_into_torch


class Loaded:
    """What ``model.dcir`` offers: the manifest, and the report written when the model was compiled."""

    def __init__(self, manifest: Manifest, library: Path, report: Callable[[], Mapping[str, Any]]) -> None:
        self.manifest, self.library, self._report = manifest, library, report

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The arguments of a call, in order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        return tuple(o.name for o in self.manifest.outputs)

    @property
    def report(self) -> Mapping[str, Any]:
        """What was done when the model was compiled, as ``Report.to_json`` gives it."""
        return self._report()


class _Weights(dict[str, Any]):
    """The buffers of a module, none of which gives its place to another: compiled code reads them where they lie."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self and self[name] is not value:
            raise InvalidInput(
                f"{name} of a compiled file cannot be another tensor", where=name,
                hint="copy into it: load_state_dict without assign=True, or x.copy_(); or dcir.optimize(model)",
            )  # fmt: skip
        super().__setitem__(name, value)


class CompiledModel(nn.Module):
    """Calls a compiled library.

    Its weights are buffers under their original names; ``load_state_dict`` copies into them and the next call sees it. Another tensor in
    the place of one is refused.
    It computes what the model computed in eval mode, records no gradients, and stays on its device in its own types.
    """

    dcir: Loaded

    def __init__(self, loaded: Loaded, tensors: Sequence[Tensor]) -> None:
        """A model over ``tensors``, one per constant of the manifest, laid out as it says."""
        super().__init__()
        super().train(False)
        manifest = loaded.manifest
        self._register(zip(manifest.constants, tensors, strict=True))
        self.__dict__["dcir"] = loaded
        self.__dict__["_tensors"] = list(tensors)
        self.__dict__["_program"] = _program(manifest, loaded.library, tensors)
        # Of a library for GPUs without code for any the kernels run on the CPU, as tests have them.
        self.__dict__["_kind"] = kind = device_of(manifest)
        self.__dict__["_on_gpu"] = kind != "cpu"
        # (type, shape, strides) per argument: all that a call has time to compare.
        self.__dict__["_layouts"] = [(FROM_NAME[x.dtype], x.shape, x.strides) for x in manifest.inputs]
        self.__dict__["_shape_of_result"] = rebuilder(manifest.result, len(manifest.outputs))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """See ``forward``."""
        state = self.__dict__
        layouts, on_gpu = state["_layouts"], state["_on_gpu"]
        hooks = state["_forward_hooks"] or state["_forward_pre_hooks"] or _FORWARD_HOOKS or _FORWARD_PRE_HOOKS
        if named or len(inputs) != len(layouts) or hooks or "forward" in state:
            return super().__call__(*inputs, **named)
        for x, (dtype, shape, strides) in zip(inputs, layouts, strict=True):
            if (
                type(x) is not Tensor
                or x.dtype is not dtype
                or x.layout is not strided
                or x.is_nested
                or x.shape != shape
                or x.stride() != strides
                or x.requires_grad
                or not (x.is_cuda if on_gpu else x.is_cpu)
                or x.is_neg()
                or x.is_conj()
            ):
                return super().__call__(*inputs)
        rebuild = state["_shape_of_result"]
        out = state["_program"](inputs)
        return out[0] if rebuild is None else rebuild(out)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Run the model.

        Args:
            inputs: one tensor per input of the manifest; other strides than those it was compiled for cost a copy.
            named: or by name.

        Raises:
            InvalidInput: number, kind, type, shape or device of the inputs does not fit, or one wants gradients.
            IndexOutOfRange: an index in the inputs leads outside a tensor.
            FallbackFailed: an operator run through torch failed.
        """
        out = self.results(in_order(self.dcir.inputs, inputs, named))
        rebuild = self.__dict__["_shape_of_result"]
        return out[0] if rebuild is None else rebuild(out)

    def results(self, inputs: Sequence[Any]) -> list[Any]:
        """The results in the order of the manifest, whatever the model nests them in; raises what ``forward`` does."""
        with on_device(self.__dict__["_kind"]):
            ready = [fitted(spec, value) for spec, value in zip(self.dcir.inputs, inputs, strict=True)]
        out: list[Any] = self.__dict__["_program"](ready)
        return out

    def _register(self, constants: Iterable[tuple[Constant, Tensor]]) -> None:
        for constant, tensor in constants:
            for name in constant.names:
                _register(self, constant, name, tensor)

    def train(self, mode: bool = True) -> CompiledModel:
        """Eval mode is all there is.

        Raises:
            InvalidInput: ``mode`` is true.
        """
        if mode:
            raise InvalidInput(
                "a compiled file computes what the model computes in eval mode",
                hint="train dcir.optimize(model), or dcir.load of the ONNX file, and compile again",
            )
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CompiledModel:
        # The code was generated for these types on this device, and reads the weights where they are.
        for tensor in self.__dict__["_tensors"]:
            after = fn(tensor)
            if after is not tensor:
                raise InvalidInput("a compiled file cannot be moved or converted", hint="compile the model again")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        tensors = [like(t) for t in self.__dict__["_tensors"]]
        twin = CompiledModel(self.dcir, tensors)
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a compiled model is not pickled: keep its .dcir file and load that")


def like(tensor: Tensor) -> Tensor:
    """A copy, laid out the same way."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def device_of(manifest: Manifest) -> str:
    """The kind of device whose memory the code reads."""
    return "cuda" if manifest.gpu is not None and manifest.gpu.architectures else "cpu"


def _register(model: nn.Module, constant: Constant, name: str, tensor: Tensor) -> None:
    *path, last = name.split(".")
    module = model
    try:
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            child = module._modules[part]
            assert child is not None
            module = child
        if type(module._buffers) is not _Weights:
            module._buffers = _Weights(module._buffers)
        module.register_buffer(last, tensor)
    except (KeyError, TypeError) as e:
        raise ArtefactInvalid(f"the manifest is broken: {name!r} cannot be the name of a {constant.role}") from e


def _program(m: Manifest, library: Path, tensors: Sequence[Tensor]) -> Callable[[Sequence[Any]], list[Any]]:
    if m.gpu is None:
        return program_of(m, library, tensors)
    from dcir.runtime.gpu_model import gpu_program_of  # a program for the CPU waits for no part of another target

    return gpu_program_of(m, library, tensors)


def program_of(
    m: Manifest,
    library: Path,
    tensors: Sequence[Tensor],
    arenas: Arenas | None = None,
    *,
    like: Program | None = None,
    buffers: SizedBuffers | None = None,
    sizes: tuple[int, tuple[int, ...]] = (-1, ()),
) -> Program:
    """The program that a manifest describes.

    Args:
        m: the manifest, of constant sizes.
        library: its code.
        tensors: one per constant.
        arenas, like, buffers: see ``Program``.
        sizes: slot of the table of the sizes that move, and their values.
    """
    info, weights = described(m, tensors)
    callbacks = {e.number: call_into_torch(torch_call(e), e.ins, e.outs) for e in m.calls_into_torch}
    info = replace(info, callbacks=callbacks, sizes_slot=sizes[0], sizes=sizes[1])
    made = Program(library, info, weights, arenas, like=like, buffers=buffers)
    made.name = "dcir: a compiled file, inference"
    return made


def rebuilder(node: Any, count: int) -> Callable[[list[Any]], Any] | None:
    """From the flat results to what the model returns; None for a single one."""
    if node == 0:
        return None
    if node == {"tuple": list(range(count))}:
        return tuple
    return lambda out: _rebuild(node, out)


def _rebuild(node: Any, out: list[Any]) -> Any:
    if isinstance(node, int):
        return out[node]
    kind, content = next(iter(node.items()))
    if kind == "dict":
        return {key: _rebuild(item, out) for key, item in content.items()}
    items = [_rebuild(item, out) for item in content]
    return tuple(items) if kind == "tuple" else items


def in_order(specs: Sequence[Input], inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The arguments of a call, in the order of the inputs.

    Raises:
        InvalidInput: there are too few or too many, or names that no input has.
    """
    if named:
        inputs = _by_name(specs, inputs, named)
    if len(inputs) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        raise InvalidInput(f"{len(inputs)} inputs are given, the model takes {len(specs)}: {names}")
    return inputs


def _by_name(specs: Sequence[Input], inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    rest = [spec.name for spec in specs[len(inputs) :]]
    unknown = [name for name in named if name not in rest]
    missing = [name for name in rest if name not in named]
    if unknown or missing:
        rows = [("unknown", ", ".join(unknown) or "none"), ("missing", ", ".join(missing) or "none")]
        raise InvalidInput("the named inputs do not fit the model", details=rows)
    return (*inputs, *(named[name] for name in rest))


def check_readable(spec: Input, x: Tensor) -> None:
    """Look at what a tensor is before anything is asked of it.

    Raises:
        InvalidInput: it is none that a library can be given.
    """
    what = out_of_reach(x)
    if what is not None:
        raise InvalidInput(
            f"input {spec.name} is {what}", where=spec.name, hint=f"a plain tensor {_reachable()}, x.to_dense()"
        )


def _reachable() -> str:
    return "on the CPU: x.cpu()" if device() == "cpu" else f"on the GPU: x.to({device()!r})"


def fitted(spec: Input, x: Any) -> Tensor:
    """``x`` as the library reads it.

    Raises:
        InvalidInput: its kind, type, shape or device does not fit, or it wants gradients.
    """
    if isinstance(x, np.ndarray):
        raise InvalidInput(f"input {spec.name} is a NumPy array", hint="torch.from_numpy(array)")
    if not isinstance(x, Tensor):
        raise InvalidInput(f"input {spec.name} must be a tensor, it is a {type(x).__name__}")
    check_readable(spec, x)
    dtype = FROM_NAME[spec.dtype]
    if x.dtype is not dtype:
        hint = f"x.to({dtype})" if x.is_floating_point() == dtype.is_floating_point else None
        raise InvalidInput(f"input {spec.name} must have type {dtype}, it has {x.dtype}", hint=hint)
    if tuple(x.shape) != spec.shape:
        raise InvalidInput(
            f"input {spec.name} must have shape {list(spec.shape)}, it has {list(x.shape)}",
            hint="a .dcir file is for the shapes it was compiled for; --shape and --bound say which (dynamic= in dcir.driver.api.save)",
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise InvalidInput(
            f"input {spec.name} wants gradients, a compiled file has none",
            hint="torch.no_grad() around the call; or dcir.optimize(model), which computes them",
        )
    plain: Tensor = x.detach().resolve_conj().resolve_neg()
    if all(d == 1 or have == want for d, have, want in zip(spec.shape, plain.stride(), spec.strides, strict=True)):
        return plain
    placed = torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=x.device)
    placed.copy_(plain)
    return placed
