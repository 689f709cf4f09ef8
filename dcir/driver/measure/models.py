"""A model to measure, with inputs: from an ONNX file, or from a function in a Python file of the user's."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.ahead.compile import example_inputs, is_artefact
from dcir.errors import InvalidInput, OptionError
from dcir.frontends import onnx as onnx_front_end


@dataclass(frozen=True)
class BenchModel:
    """A model and one call of it.

    Attributes:
        name: what the user wrote.
        module: a module or function.
        inputs: arguments of the call.
        path: the ONNX file it is from, if any; ``names`` are its inputs' names there.
    """

    name: str
    module: Any
    inputs: tuple[Any, ...]
    path: Path | None = None
    names: tuple[str, ...] = ()


def open_model(
    source: str | os.PathLike[str], shapes: Mapping[str, Sequence[int | str]] | None = None, batch: int | None = None
) -> BenchModel:
    """The model that ``source`` names.

    Args:
        source: an ONNX file, or ``file.py:function``. The function returns the module (in the mode to measure) or function, and
            a tuple of inputs. The Python file is run.
        shapes: sizes of an ONNX file's inputs.
        batch: given to a Python function that takes an argument of this name.

    Raises:
        InvalidInput: there is no such file or function, or it returns something else.
        OptionError: shapes for a Python function, or a batch for something that takes none.
    """
    text = os.fspath(source)
    file, colon, function = text.rpartition(":")
    if colon and not os.path.exists(text) and file.endswith(".py"):
        if shapes:
            raise OptionError("--shape is for ONNX files; a Python function makes its own inputs", where=text)
        return BenchModel(text, *_from_python(Path(file), function, {} if batch is None else {"batch": batch}))
    if not os.path.isfile(text):
        raise InvalidInput(f"there is no file {text!r}", hint="MODEL.onnx, MODEL.dcir, or file.py:function")
    if batch is not None:
        raise OptionError(
            "--batch is for Python functions", where=text, hint="--shape NAME=[SIZES] sets an ONNX input's"
        )
    if text.endswith(".py"):
        raise InvalidInput("a Python file needs the name of a function", where=text, hint=f"{text}:function")
    module = onnx_front_end.load(text, shapes=shapes).eval()
    names = tuple(spec.original for spec in module.input_specs)
    return BenchModel(text, module, tuple(example_inputs(module, seed=0)), Path(text), names)


def open_with_batch(
    source: str | os.PathLike[str], shapes: Mapping[str, Sequence[int | str]] | None = None, batch: int | None = None
) -> BenchModel:
    """``open_model`` for a batch of an ONNX file, too: it stands for what the file leaves open of its inputs' first dimensions.

    Raises:
        OptionError: the file leaves none open.
    """
    text = os.fspath(source)
    if batch is None or not os.path.isfile(text) or text.endswith(".py"):
        return open_model(source, shapes, batch)
    module = onnx_front_end.load(text, shapes=shapes)
    found: dict[str, Sequence[int | str]] = dict(shapes or {})
    changed = False
    for spec in module.input_specs:
        sizes = [module.dim_names.get(d, d) if isinstance(d, str) else d for d in spec.shape or ()]
        if not sizes or isinstance(sizes[0], int):
            continue
        rest = [d for d in sizes[1:] if d is not None]
        if len(rest) + 1 == len(sizes):  # else opening the model says what is missing
            found.pop(spec.name, None)
            found[spec.original], changed = [batch, *rest], True
    if not changed:
        raise OptionError(
            "the file leaves no first size of its inputs open, so there is no batch to choose", where=text,
            hint="leave out --batch, or export the model with a dynamic batch",
        )  # fmt: skip
    return open_model(source, found)


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def maker_of(
    source: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    precision: str | None = None,
) -> Callable[[int | None], tuple[Any, tuple[Any, ...]]]:
    """What makes the model that ``source`` names and inputs, for a batch (None: as it has it).

    Args:
        source, shapes: as for ``open_model``.
        precision: one of ``PRECISIONS``, which parameters, buffers and inputs of a floating type are to have; None leaves them.

    Raises:
        InvalidInput: a .dcir file, whose code has no clock.
        OptionError: no such precision; or one for a file or a function, whose constants have the type that they have.
    """
    if precision is not None and precision not in PRECISIONS:
        raise OptionError(f"a precision is one of {', '.join(PRECISIONS)}", where=f"precision={precision!r}")
    if os.path.isfile(source) and is_artefact(source):
        raise InvalidInput("the code in a .dcir file has no clock", where=str(source), hint="dcir roofline MODEL.onnx")

    def make(batch: int | None) -> tuple[Any, tuple[Any, ...]]:
        opened = open_with_batch(source, shapes, batch)
        if precision is None:
            return opened.module, opened.inputs
        if opened.path is not None or not isinstance(opened.module, nn.Module):
            raise OptionError(
                "only a module can be cast", where=f"precision={precision!r}", hint="file.py:function that returns (module, inputs)"
            )  # fmt: skip
        cast = partial(_cast, dtype=PRECISIONS[precision])
        return opened.module.to(PRECISIONS[precision]), pytree.tree_map_only(torch.Tensor, cast, opened.inputs)

    return make


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def function_of(model: BenchModel, name: str) -> Callable[..., Any]:
    """Another function in the Python file of an opened model.

    Raises:
        OptionError: the model is from no Python file.
        InvalidInput: there is no such function.
    """
    file = Path(model.name.rpartition(":")[0])
    module = None if model.path is not None else sys.modules.get(_module_name(file))
    if module is None:
        raise OptionError(
            "functions are for models of a Python file", where=f"{model.name}, {name!r}", hint="file.py:function"
        )
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidInput(f"{file.name} has no function {name!r}", where=model.name)
    function: Callable[..., Any] = found
    return function


def open_stream(
    source: str | os.PathLike[str], first: Mapping[str, int], shapes: Mapping[str, Sequence[int | str]] | None = None
) -> tuple[Any, Callable[[Mapping[str, int]], Sequence[Any]], str | None]:
    """The model that ``source`` names, what makes its inputs for sizes by name, and the ONNX file it is from, if any.

    Args:
        source: as in ``open_model``; a Python function takes the sizes as arguments of their names, and is called for each.
        first: sizes of the call that the model is made for.
        shapes: names for sizes of an ONNX file's inputs.

    Raises:
        InvalidInput: there is no such file or function, or it returns something else.
        OptionError: shapes for a Python function, or sizes for something that takes none of the name.
    """
    text = os.fspath(source)
    file, colon, function = text.rpartition(":")
    if colon and not os.path.exists(text) and file.endswith(".py"):
        if shapes:
            raise OptionError("--shape is for ONNX files; a Python function makes its own inputs", where=text)
        module, _ = _from_python(Path(file), function, dict(first))
        return module, lambda sizes: _from_python(Path(file), function, dict(sizes))[1], None
    if not os.path.isfile(text):
        raise InvalidInput(f"there is no file {text!r}", hint="MODEL.onnx, MODEL.dcir, or file.py:function")
    model = onnx_front_end.load(text, shapes=shapes).eval()
    return model, lambda sizes: example_inputs(model, seed=0, sizes=sizes), text


def _from_python(path: Path, name: str, given: Mapping[str, int]) -> tuple[Any, tuple[Any, ...]]:
    where = f"{path}:{name}"
    if not path.is_file():
        raise InvalidInput(f"there is no file {str(path)!r}", where=where)
    make = getattr(_run(path), name, None)
    if not callable(make):
        raise InvalidInput(f"{path.name} has no function {name!r}", where=where)
    _check_arguments(make, name, given, where)
    torch.manual_seed(0)
    with _searched(path):  # what a function imports as it is called, too
        made = make(**given)
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple | list)):
        raise InvalidInput(
            f"{name} must return the model and a tuple of inputs, it returned a {type(made).__name__}",
            where=where,
            hint="return model.eval(), (torch.randn(1, 3, 224, 224),)",
        )
    module, inputs = made
    return module, tuple(inputs)


def _check_arguments(make: Callable[..., Any], name: str, given: Mapping[str, int], where: str) -> None:
    """Refuse a call by these names that the function cannot have."""
    try:
        taken = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C nobody knows
        return
    kinds = inspect.Parameter
    named = {p.name: p for p in taken if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    for argument, size in given.items():
        if argument not in named and not any(p.kind is kinds.VAR_KEYWORD for p in taken):
            raise OptionError(f"{name} takes no argument {argument!r}", where=f"{argument}={size}")
    alone = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    missing = [p.name for p in taken if p.default is kinds.empty and p.kind not in alone and p.name not in given]
    if missing:
        known = missing == ["batch"] and "batch" in named and not given
        raise InvalidInput(
            f"{name} wants {', '.join(missing)}", where=where,
            hint="--batch N" if known else f"a function that calls {name} with values of your choice",
        )  # fmt: skip


@contextlib.contextmanager
def _searched(path: Path) -> Iterator[None]:
    """The file's folder is searched for imports, as it is for a script, while this lasts."""
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _run(path: Path) -> Any:
    """The module object of a Python file."""
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look modules up by name.
    sys.modules[name] = module
    with _searched(path):
        spec.loader.exec_module(module)
    return module


def _module_name(path: Path) -> str:
    return f"dcir_model_{path.stem}"


def as_onnx(model: BenchModel, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The model's ONNX file and the names of its inputs there; PyTorch writes one for a module of the user's."""
    if model.path is not None:
        return model.path, model.names
    import onnx

    path = folder / "model.onnx"
    if not path.exists():
        module = model.module if isinstance(model.module, nn.Module) else _Function(model.module)
        program = _exported(module, model.inputs)
        program.save(str(path), external_data=True)
    return path, tuple(value.name for value in onnx.load(str(path), load_external_data=False).graph.input)


def _exported(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        # The exporter tells about packages it could use, not about this model.
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            return torch.onnx.export(module, inputs, dynamo=True, verbose=False)
        finally:
            log.setLevel(level)


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)
