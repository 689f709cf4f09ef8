"""Writes that no version counter sees: which memory may have been written that way, and since when.

PyTorch counts writes to a tensor and to its views, and what was computed from a parameter is kept until that count changes. There are
ways around it: ``Tensor.data``, NumPy arrays and DLPack (which see the same memory under a count of their own, or under none), writes
to a storage or a slice of it, ``set_``, ``apply_`` and ``map_``, collectives, and contexts that put a count back. They leave no trace
that can be found later, and to compare all weights in every call takes as long as a small network's call. So the functions that give
such access note it, on the Python object of the storage, which lives as long as the storage does. Of memory that others than PyTorch
hold (shared, mapped from a file, NumPy's) nobody can know; ``loose`` says so. Not seen are writes through a bare address (``data_ptr``).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_STATE = "_dcir_uncounted"
"""Attribute of a storage: its ``_State``."""
_WATCHED = "_dcir_watched"
"""Attribute of a storage whose contents something was computed from."""
_COLLECTIVES = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "scatter", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall", "alltoall_base", "recv", "recv_anysource",
)  # fmt: skip
_READERS = ("torch.onnx.", "onnx_ir.")
"""Modules that get arrays which cannot be written."""

_lock = threading.Lock()
_count = 0
_installed = False
_grouped = False
_plain_set_version: Any = None


@dataclass
class _State:
    """What is known of the memory of one storage.

    Attributes:
        torchs: whether it was PyTorch's own when it was first noted; what NumPy sees of it later looks like NumPy's.
        before: whether it is older than the notes, so that arrays may see it that nobody noted.
        always: why it may be written at any time, from now on.
        aliases: (weakly) tensors and arrays that see it and count no writes, or count them apart; each tells whether it is gone.
        given: whether it was given away at all since nobody else owned it.
    """

    torchs: bool
    before: bool = False
    always: str = ""
    aliases: list[Callable[[], bool]] = field(default_factory=list)
    given: bool = False


@dataclass
class Moves:
    """How often tensors with watched memory were given other memory, or another look at it, by ``x.data = y``, which counts nothing.

    A direct call (``direct.py``) ends where a name of this module is written; it has conditions of its own for this.
    """

    number: int = 0


moves = Moves()


def count() -> int:
    """How often watched memory was given away; whoever keeps something compares it with what it was."""
    return _count


def watch(storages: Iterable[Any]) -> None:
    """From now on ``count`` counts accesses to these storages."""
    _collectives()
    for storage in storages:
        storage.__dict__[_WATCHED] = True


def loose(tensors: Sequence[Any]) -> dict[int, str]:
    """Which tensors' memory may be written at any time without a count, and why.

    Args:
        tensors: of the CPU.
    """
    found: dict[int, str] = {}
    sharing: dict[int, list[int]] = {}
    for i, t in enumerate(tensors):
        sharing.setdefault(t.untyped_storage()._cdata, []).append(i)
    doubtful = {}
    for key, numbers in sharing.items():
        storage = tensors[numbers[0]].untyped_storage()
        reason = _reason(storage)
        # The Python object of the storage is an owner, too.
        if reason is None and owners(storage) > 1 + len({tensors[i]._cdata for i in numbers}):
            doubtful[key] = tensors[numbers[0]]
        elif reason is None:
            _forget(storage)
        elif reason:
            found.update(dict.fromkeys(numbers, reason))
    for key, others in _explained(doubtful).items():
        storage, numbers = doubtful[key].untyped_storage(), sharing[key]
        if owners(storage) > 1 + others or storage.__dict__[_STATE].before:
            found.update(dict.fromkeys(numbers, "seen by another tensor or array that counts no writes"))
        else:
            _forget(storage)
    return found


def _reason(storage: Any) -> str | None:
    """Why a storage may be written at any time; empty if it cannot, None where its owners have to be counted."""
    state: _State | None = storage.__dict__.get(_STATE)
    if storage.is_shared():
        return "shared with other processes or mapped from a file"
    if not storage.resizable() and not (state is not None and state.torchs):
        return "held by others than PyTorch (NumPy, a mapped file)"
    if state is None:
        return ""
    if state.always:
        return state.always
    state.aliases = [gone for gone in state.aliases if not gone()]
    if state.aliases:
        return "seen by another tensor or array that counts no writes"
    return None if state.given or state.before else ""


def _forget(storage: Any) -> None:
    """Nobody else owns it: it is as it was before it was given away."""
    state = storage.__dict__[_STATE]
    state.given = state.before = False


def _explained(doubtful: dict[int, Any]) -> dict[int, int]:
    """How many tensors of each storage count their writes together with the given one: its own, ``state_dict``'s, detached ones.

    A tensor made over ``.data`` has a count of its own, whether or not that alias still exists.
    """
    import torch

    if not doubtful:
        return {}
    sharing: dict[int, dict[int, Any]] = {key: {t._cdata: t} for key, t in doubtful.items()}
    for value in gc.get_objects():
        storage = _storage_of(value) if type(value) in (torch.Tensor, torch.nn.Parameter) else None
        if storage is not None and storage._cdata in sharing:
            sharing[storage._cdata][value._cdata] = value
    return {key: _counted_together(doubtful[key], list(others.values())) for key, others in sharing.items()}


def _counted_together(tensor: Any, others: Sequence[Any]) -> int:
    import torch

    move = _plain_set_version or torch._C._autograd._unsafe_set_version_counter
    version = tensor._version
    before = [t._version for t in others]
    move((tensor,), (version + (1 << 20),))
    after = [t._version for t in others]
    move((tensor,), (version,))
    return sum(a != b for a, b in zip(before, after, strict=True))


def owners(storage: Any) -> int:
    """Tensors and Python objects that share a storage."""
    import torch

    return int(torch._C._storage_Use_Count(storage._cdata))


def install() -> None:
    """Have the functions of torch that give access to memory without a count note it."""
    global _installed, _plain_set_version
    import torch

    with _lock:
        if _installed:
            return
        _installed = True
        _mark_older()
        tensor: Any = torch.Tensor
        tensor.data = _Data(tensor.data)
        tensor.numpy = _arrays(tensor.numpy)
        tensor.set_ = _giving(tensor.set_, _expired)
        by_name: Any = torch.ops.aten.set_
        for function in (by_name, *(getattr(by_name, name) for name in by_name.overloads())):
            function._op = _giving(function._op, _expired)
            torch.jit._builtins._register_builtin(function._op, "aten::set_")  # by which TorchScript knows it
        for name in ("apply_", "map_", "map2_"):
            setattr(tensor, name, _noting(getattr(tensor, name)))
        dlpack: Any = torch.utils.dlpack
        always = "given away through DLPack"
        tensor.__dlpack__ = _noting(tensor.__dlpack__, always)
        for module in (torch, dlpack):
            setattr(module, "to_dlpack", _noting(dlpack.to_dlpack, always))  # noqa: B010  # neither exports it by name
        for name in ("fill_", "copy_", "__setitem__", "byteswap"):
            setattr(torch.UntypedStorage, name, _noting(getattr(torch.UntypedStorage, name)))
        storage: Any = torch.UntypedStorage
        storage.__getitem__ = _slices(storage.__getitem__)
        autograd: Any = torch._C._autograd
        _plain_set_version = autograd._unsafe_set_version_counter
        autograd._unsafe_set_version_counter = _noting(_plain_set_version, "written by what puts version counters back")


def install_with_torch() -> None:
    """``install`` as soon as torch is there: what is made before may be seen by arrays that nobody noted."""
    if "torch" in sys.modules:
        install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch like everybody else does, once, and installs the notes behind it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's spec, with a loader that does one thing more."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                # Nobody's import of torch shall fail for this; optimize() tries again and says why.
                with contextlib.suppress(Exception):
                    install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Data:
    """``Tensor.data``, which gives a tensor over the same memory whose writes do not count for this one."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.__doc__, self.__name__, self.__objclass__ = plain.__doc__, plain.__name__, plain.__objclass__
        # What a subclass's ``__torch_function__`` is given, which torch looks up by name: its own method, as it knows it.
        vars(self).update({name: getattr(plain, name) for name in ("__get__", "__set__", "__delete__")})

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        if tensor is None:
            return self
        alias = self._plain.__get__(tensor, kind)
        _note((tensor,), alias=alias)
        return alias

    def __set__(self, tensor: Any, value: Any) -> None:
        storage = _storage_of(tensor)
        self._plain.__set__(tensor, value)
        if storage is not None and _WATCHED in storage.__dict__:
            with _lock:
                moves.number += 1

    def __delete__(self, tensor: Any) -> None:
        self._plain.__delete__(tensor)


def _expired(tensor: Any) -> Callable[[], bool]:
    """Whether a tensor is gone. A reference of Python's would keep it from being exchanged (``swap_tensors``)."""
    import torch

    core: Any = torch._C
    expired: Callable[[], bool] = core._WeakTensorRef(tensor).expired
    return expired


def _gone(reference: weakref.ref[Any]) -> Callable[[], bool]:
    return lambda: reference() is None


def _giving(plain: Callable[..., Any], alias_of: Callable[[Any], Callable[[], bool]]) -> Callable[..., Any]:
    """A method of tensors that gives something over the same memory, which is noted as long as it lives."""

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _note((self,))  # while its memory is still torch's own
        result = plain(self, *args, **kwargs)
        _note((self,), gone=alias_of(result))
        return result

    return call


def _arrays(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``Tensor.numpy``, whose arrays are noted, but for those of PyTorch's exporter to ONNX, which cannot be written instead.

    What it makes of transposed weights is still there when its program is gone (torch 2.13), and would have them digested in every
    call from then on: a fifth of BERT's time.
    """
    giving = _giving(plain, lambda array: _gone(weakref.ref(array)))

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith(_READERS):
            return giving(self, *args, **kwargs)
        storage = _storage_of(self)
        if storage is not None:
            _state_of(storage)  # while its memory is still torch's own
        result = plain(self, *args, **kwargs)
        result.flags.writeable = False
        return result

    return call


def _slices(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``UntypedStorage.__getitem__``: a slice is a storage over the same memory, and counts among its owners; an element is a number."""

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        if not isinstance(result, int):
            _note((self,))
        return result

    return call


def _noting(plain: Callable[..., Any], always: str = "") -> Callable[..., Any]:
    """A function that notes the memory of its arguments before and after what it does: a call in between may keep something."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note(args, always)
        result = plain(*args, **kwargs)
        _note(args, always)
        return result

    return call


def _collective(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A collective, which writes until it is waited for: who does so at once writes nothing later."""
    at_once, later = _noting(plain), _noting(plain, "written by collectives in the background")

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        options = [a for a in (*args, *kwargs.values()) if hasattr(a, "asyncOp")]
        waits = bool(options) and not any(a.asyncOp for a in options)
        return (at_once if waits else later)(*args, **kwargs)

    return call


def _note(
    values: Sequence[Any], always: str = "", *, alias: Any = None, gone: Callable[[], bool] | None = None
) -> None:
    """Note the memory of all tensors and storages in nested sequences; ``alias`` sees it now, or ``gone`` tells of what does."""
    global _count
    import torch

    for value in values:
        if isinstance(value, tuple | list):
            _note(value, always)
            continue
        storage = value if isinstance(value, torch.UntypedStorage) else _storage_of(value)
        if storage is None:
            continue
        state = _state_of(storage)
        state.given, state.always = True, state.always or always
        if alias is not None:
            gone = _expired(alias)
        if gone is not None:
            state.aliases = [*(g for g in state.aliases if not g()), gone]
        if _WATCHED in storage.__dict__:
            with _lock:
                _count += 1


def _state_of(storage: Any) -> _State:
    state: _State | None = storage.__dict__.get(_STATE)
    if state is None:
        state = storage.__dict__[_STATE] = _State(storage.resizable() and not storage.is_shared())
    return state


def _storage_of(tensor: Any) -> Any:
    """The storage of a tensor in this process's memory; None of anything else."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage() if tensor.device.type == "cpu" else None
    except (NotImplementedError, RuntimeError):  # sparse, nested, wrapped by a transform
        return None


def _mark_older() -> None:
    """Mark every storage that exists: arrays that see it may have been made unnoted."""
    import torch

    kinds = (torch.Tensor, torch.nn.Parameter)
    # Objects refer to their class: this takes half the time of a walk over all objects.
    for value in gc.get_referrers(*kinds):
        if type(value) in kinds and (storage := _storage_of(value)) is not None:
            _state_of(storage).before = True


def _collectives() -> None:
    """Have collectives note what they write, once torch.distributed was loaded."""
    global _grouped
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    with _lock:
        first, _grouped = not _grouped, True
    group: Any = getattr(sys.modules["torch.distributed.distributed_c10d"], "ProcessGroup", None)
    for name in _COLLECTIVES if first and group is not None else ():
        if hasattr(group, name):
            setattr(group, name, _collective(getattr(group, name)))
