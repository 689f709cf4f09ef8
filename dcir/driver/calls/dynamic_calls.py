"""What ``dynamic`` asks of the calls of one optimised callable: marks for Dynamo, bounds, and a word when something is compiled again."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import fx, nn

from dcir.driver.calls.growing_caches import mark_growing
from dcir.driver.calls.moving_batches import MovingBatches
from dcir.dynamic import DynamicDim, DynamicInputs, check_size
from dcir.errors import InvalidInput, OptionError, RecompileWarning
from dcir.frontends.torch.context import CompiledGraph, CompileGraph, GraphContext
from dcir.options import Options
from dcir.user_code import warn_user

_PLACE = re.compile(r"L\['args'\]\[(\d+)\]|L\['kwargs'\]\['(\w+)'\]")
_MARKS = (
    "_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides", "_specialize_on",
    "_dynamo_weak_dynamic_indices", "_has_dynamo_dim_marking",
)  # fmt: skip
_KNOWN = "_dynamo_propagated_dynamic_indices"
"""What AOTAutograd leaves on tensors, so that the next graph's trace, whosever it is, takes the same sizes for ones that move."""
_NUMBER = re.compile(r"(?<=\[)\d+(?=\])|\b(?:was|is|had|has|were|are)\b.*")
"""What of a cause differs from call to call: the place in a list, and the values."""
_MOST = 64
_MOST_ROWS = 1024
_Rows = dict[str, Any]


class DynamicCalls:
    """The wishes of ``Options.dynamic`` for one callable.

    Attributes:
        input_names: of its positional arguments.

    Args:
        fn: what the user calls, for the names of its arguments; or those.
        options: of the compilation.
        modes: the state besides the arguments that a compiled form belongs to, such as which modules train.

    Raises:
        OptionError: ``dynamic`` names an argument that ``fn`` does not have.
    """

    def __init__(self, fn: Callable[..., Any] | Sequence[str], options: Options, modes: Callable[[], Any]) -> None:
        self._options, self._modes = options, modes
        self.input_names, self._open = parameters_of(fn)
        self._rows: list[tuple[str | int, str, tuple[tuple[int, DynamicDim], ...]]] = []
        if isinstance(options.dynamic, DynamicInputs):
            self._rows = [(key, self._label(key), dims) for key, dims in options.dynamic.rows]
        self._before: list[_Rows] = []
        self._told: set[frozenset[str]] = set()
        self._here = threading.local()
        self._batches = MovingBatches()

    @property
    def for_dynamo(self) -> bool | None:
        """Dynamo's own option: named dimensions are marked, the others become symbolic when they change."""
        dynamic = self._options.dynamic
        return dynamic if isinstance(dynamic, bool) else None

    def watched(self, compile_graph: CompileGraph) -> CompileGraph:
        """``compile_graph`` for a backend of this callable: what it compiles within a call is noticed."""

        def compiling(gm: fx.GraphModule, context: GraphContext) -> CompiledGraph:
            if context.kind != "backward":  # part of the same call as its forward, or of none
                self._here.compiled = True
            return compile_graph(gm, context)

        return compiling

    @contextlib.contextmanager
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Around a call that may compile.

        Raises:
            InvalidInput: a size lies outside its bounds, or sizes of one name differ.
            OptionError: the model works for one size of a dimension that is to be dynamic.
        """
        marked = self._marked(args, kwargs) if self._rows else []
        if self._options.dynamic is None:
            marked = [(t, _newly_marked(t, [(0, DynamicDim(firm=False))])) for t in self._batches.moving(args, kwargs)]
        hidden: list[tuple[torch.Tensor, Any]] = []
        for value in itertools.chain(args, kwargs.values()):
            if self._options.dynamic is not False:
                mark_growing(value)
            elif isinstance(value, torch.Tensor) and _KNOWN in value.__dict__:
                hidden.append((value, value.__dict__.pop(_KNOWN)))
        self._here.compiled = False
        try:
            yield
        except RuntimeError as error:
            if type(error).__name__ != "ConstraintViolationError":  # its module takes long to import
                raise
            raise self._one_size(error) from None
        finally:
            for value, names in marked:
                for name in names:
                    value.__dict__.pop(name, None)
            for value, dims in hidden:
                value.__dict__.setdefault(_KNOWN, dims)
        if self._here.compiled:
            self._tell(args, kwargs)

    def forget(self) -> None:
        """Forget the calls so far: what comes is compiled anew for another reason than what is in it."""
        self._before.clear()

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the sizes of a call that is not to be traced.

        Raises:
            InvalidInput: a size lies outside its bounds, or sizes of one name differ.
        """
        for _ in self._checked(args, kwargs):
            pass

    def _marked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[torch.Tensor, list[str]]]:
        """Check the sizes, and mark the tensors; gives which marks were put on which."""
        return [(value, _newly_marked(value, wanted)) for value, wanted in self._checked(args, kwargs)]

    def _checked(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[torch.Tensor, list[tuple[int, DynamicDim]]]]:
        """Check the sizes; gives the tensors whose sizes are to move, and which of them."""
        sizes: dict[str, tuple[str, int]] = {}
        for key, label, dims in self._rows:
            value = self._argument(key, args, kwargs)
            if value is None:
                continue
            if not isinstance(value, torch.Tensor):
                raise InvalidInput(f"input {label} is to have dynamic sizes, it is a {type(value).__name__}")
            wanted = []
            for dim, known in dims:
                if not -value.ndim <= dim < value.ndim:
                    raise InvalidInput(
                        f"input {label} is to have a dynamic dimension {dim}, its shape is {list(value.shape)}"
                    )
                at = dim % value.ndim
                check_size(label, at, known, value.shape[at], sizes, "other bounds in dynamic={...}")
                if value.shape[at] > 1:  # Dynamo has programs of their own for sizes 0 and 1
                    wanted.append((at, known))
            yield value, wanted

    def _argument(self, key: str | int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(key, str) and key in kwargs:
            return kwargs[key]
        if isinstance(key, str):
            at = self.input_names.index(key) if key in self.input_names else len(args)
        else:
            at = key
        if at < len(args):
            return args[at]
        return kwargs.get(self.input_names[at]) if at < len(self.input_names) else None

    def _label(self, key: str | int) -> str:
        if isinstance(key, int):
            if key >= len(self.input_names) and not self._open:
                raise OptionError(
                    f"there is no input {key}", where="dynamic", hint=f"0 to {len(self.input_names) - 1}, or a name"
                )
            return self.input_names[key] if key < len(self.input_names) else f"args[{key}]"
        if key not in self.input_names and not self._open:
            raise OptionError(
                f"there is no input {key!r}", where="dynamic", hint="one of " + ", ".join(self.input_names)
            )
        return key

    def _one_size(self, error: RuntimeError) -> OptionError:
        lines = [line.strip(" -") for line in str(error).splitlines()]
        reason = next((line for line in lines if "specialized" in line or "constraint" in line.lower()), lines[0])
        reason = _PLACE.sub(lambda m: self._name_at(int(m[1])) if m[1] else m[2], reason).split(". If ")[0]
        return OptionError(
            "a dimension that is to be dynamic has one size in this model",
            where="dynamic", details=[("torch", reason)],
            hint="leave the dimension out of dynamic={...}; sizes that change are compiled as they come",
        )  # fmt: skip

    def _name_at(self, position: int) -> str:
        return self.input_names[position] if position < len(self.input_names) else f"args[{position}]"

    def _tell(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warn of what differs from the most similar call that was compiled before."""
        now = self._describe(args, kwargs)
        before = self._before[-_MOST:]
        self._before.append(now)
        if not before:
            return
        cause = min((_differences(then, now) for then in reversed(before)), key=len)
        if any(place.startswith("mode ") for place, _ in cause):  # asked for: other modes are other programs
            return
        kind = frozenset(_NUMBER.sub("", f"{place} {text}") for place, text in cause)
        if any(kind <= told for told in self._told):  # all of it was the cause of a compilation before
            return
        self._told.add(kind)
        shown = "; ".join(text for _, text in cause[:3]) or "nothing in the inputs; TORCH_LOGS=recompiles shows it"
        more = f" and {len(cause) - 3} more" if len(cause) > 3 else ""
        warn_user(f"compiled again: {shown}{more}{self._hint(cause)}", RecompileWarning)

    def _hint(self, cause: Sequence[tuple[str, str]]) -> str:
        if self._options.dynamic is False and any("size of dimension" in text for _, text in cause):
            return " (dynamic=False; without it changing sizes share a trace)"
        return ""

    def _describe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Rows:
        rows: _Rows = {
            "mode gradients": torch.is_grad_enabled(),
            "mode inference": torch.is_inference_mode_enabled(),
            "mode module": self._modes(),
        }
        for i, value in enumerate(args):
            _describe_value(self._name_at(i), value, rows)
        for name, value in kwargs.items():
            _describe_value(name, value, rows)
        return rows


def _describe_value(name: str, value: Any, rows: _Rows) -> None:
    """Add what compiled code may depend on in an argument: of tensors their form, of containers and objects what they hold.

    An object is looked into by its attributes, as Dynamo does; a cache of keys and values is one.
    """
    pending, seen = [(name, value)], set[int]()
    while pending and len(rows) < _MOST_ROWS:
        name, value = pending.pop()
        if isinstance(value, torch.Tensor):
            rows[name] = (
                "tensor", tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad, value.device,
            )  # fmt: skip
            continue
        if value is None or isinstance(value, bool | int | float | str):
            rows[name] = ("value", repr(value)[:80])
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        rows[name] = ("value", type(value).__name__)
        if isinstance(value, list | tuple):
            held = [(f"{name}[{i}]", v) for i, v in enumerate(value)]
        elif isinstance(value, Mapping):
            held = [(f"{name}[{k!r}]", v) for k, v in value.items()]
        else:
            # A class, function or module is the program's, not data.
            code = isinstance(value, type | ModuleType | nn.Module) or callable(value)
            held = [] if code else [(f"{name}.{k}", v) for k, v in getattr(value, "__dict__", {}).items()]
        pending += reversed(held)


def _newly_marked(value: torch.Tensor, dims: Sequence[tuple[int, DynamicDim]]) -> list[str]:
    """Mark dimensions of a tensor; gives what it did not have of marks before."""
    before = set(value.__dict__)
    for dim, known in dims:
        _mark(value, dim, known)
    return [name for name in _MARKS if name in value.__dict__ and name not in before]


def _mark(value: torch.Tensor, dim: int, known: DynamicDim) -> None:
    marked = getattr(value, "_dynamo_dynamic_indices", ())
    if dim in marked:
        return  # by the user
    if known.firm and not known.related:  # Dynamo sees for itself what follows from what
        # Both or none, and Dynamo's symbolic sizes begin at 2.
        least, most = (None, None) if known.bounds == ".." else (max(known.least or 2, 2), known.most or sys.maxsize)
        torch._dynamo.mark_dynamic(value, dim, min=least, max=most)
    else:
        torch._dynamo.maybe_mark_dynamic(value, dim)


def parameters_of(fn: Callable[..., Any] | Sequence[str]) -> tuple[list[str], bool]:
    """Names of the arguments in order, and whether there may be others."""
    if not callable(fn):
        return list(fn), False
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return [], True
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in several], any(p.kind in several for p in parameters)


def _differences(then: _Rows, now: _Rows) -> list[tuple[str, str]]:
    """(place, what changed there) of two calls."""
    found = []
    for place in dict.fromkeys([*then, *now]):
        a, b = then.get(place), now.get(place)
        if a != b:
            found.append((place, f"{place}: {_difference(a, b)}"))
    return found


def _difference(a: Any, b: Any) -> str:
    if a is None or b is None:
        return "is new" if a is None else "is not given"
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return f"was {a}, is {b}"
    if a[0] != b[0] or a[0] != "tensor":
        return "is of another kind" if a[0] != b[0] else f"was {a[1]}, is {b[1]}"
    (_, shape, strides, *rest), (_, new_shape, new_strides, *new_rest) = a, b
    if len(shape) != len(new_shape):
        return f"had {len(shape)} dimensions, has {len(new_shape)}"
    changed = [d for d in range(len(shape)) if shape[d] != new_shape[d]]
    if changed:
        return ", ".join(f"size of dimension {d} was {shape[d]}, is {new_shape[d]}" for d in changed)
    for name, old, new in zip(("type", "requires_grad", "device"), rest, new_rest, strict=True):
        if old != new:
            return f"{name} was {old}, is {new}"
    return f"strides were {strides}, are {new_strides}"
