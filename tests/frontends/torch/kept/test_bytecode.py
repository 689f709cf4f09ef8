"""Bytecode from a file that does anything but call a graph is refused."""

import collections
import inspect
import textwrap
from dataclasses import replace
from types import CodeType
from typing import Any

import pytest
from torch._dynamo import side_effects

from dcir.frontends.torch.kept.bytecode import code_again, kept_code
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.imports import import_names, imports_of, with_names


def frame(args: Any, kwargs: Any) -> Any:
    return args


def _compiled() -> CodeType:
    names: dict[str, Any] = {}
    exec("def frame(args, kwargs):\n    (a,) = __compiled_fn_1(args)\n    return [a]", names)
    code: CodeType = names["frame"].__code__
    return code


def test_what_hands_on_comes_back() -> None:
    code = _compiled()
    again = code_again(kept_code(code), frame.__code__)
    assert (again.co_code, again.co_names, again.co_consts) == (code.co_code, code.co_names, code.co_consts)
    assert again.co_stacksize <= code.co_stacksize + 2


@pytest.mark.parametrize("text", ["open(args)", "args()", "args.x(1)", "[x for x in args]", "import os"])
def test_what_does_more_is_not_kept_and_not_read(text: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def frame(args, kwargs):\n    a = __compiled_fn_1(args)\n    {text}\n    return a", names)
    code = names["frame"].__code__
    with pytest.raises(Unkept):
        kept_code(code)
    with pytest.raises(Unkept):
        code_again(replace(kept_code(_compiled()), code=code.co_code, names=code.co_names), frame.__code__)


def test_broken_bytecode_is_refused() -> None:
    kept = kept_code(_compiled())
    for data in (kept.code[:-2], kept.code[4:], kept.code[::-1], b"", kept.code[:6]):
        with pytest.raises(Unkept):
            code_again(replace(kept, code=data), frame.__code__)
    with pytest.raises(Unkept):
        code_again(replace(kept, variables=kept.variables[:2]), frame.__code__)
    with pytest.raises(Unkept):
        code_again(replace(kept, constants=(object(),)), frame.__code__)


def test_it_is_of_one_frame() -> None:
    with pytest.raises(Unkept):
        code_again(kept_code(_compiled()), (lambda other: other).__code__)


def _of(text: str) -> CodeType:
    names: dict[str, Any] = {}
    exec(
        f"def frame(args, kwargs):\n    (a,) = __compiled_fn_1(args)\n{textwrap.indent(text, '    ')}\n    return args",
        names,
    )
    code: CodeType = names["frame"].__code__
    return code


FILLED = "\n".join(inspect.getsource(side_effects._manual_dict_setitem).split("\n")[-5:])
WRITES = (
    "args.x = a", "args.x[0] = a", "args.x[:] = [a]", "del args.x", "kwargs.update({'k': a})", "kwargs.clear()",
    "b = __import_builtins.object.__new__(__import_module.Output); b.x = a", "b = __import_collections.OrderedDict({'k': a})",
    "__import_torch_dot__dynamo_dot_utils.object_setattr_ignore_descriptor(args, 'x', a)",
    "mro_index = 1; dict_to = args; dict_from = {'k': a}\n" + textwrap.dedent(FILLED),
)  # fmt: skip
CALLS = (
    "__import_builtins.eval('1')", "__import_os.system('true')", "args.run()", "__import_builtins.type('A', (), {})", "kwargs.pop('k')",
    "__import_torch_dot__dynamo_dot_utils.run_node(args)", "[x for x in args]", "for k in kwargs: args.x = k", "object.__class__(a)",
    "mro_index = 1; dict_to = args; dict_from = {'k': a}\n" + textwrap.dedent(FILLED).replace("clear(dict_to)", "popitem(dict_to)"),
    "mro_index = 1; dict_to = args; dict_from = {'k': a}\n" + textwrap.dedent(FILLED).replace("type(dict_to)", "len(dict_to)"),
)  # fmt: skip


@pytest.mark.parametrize("text", WRITES)
def test_what_a_frame_returns_is_made_and_what_it_wrote_is_written(text: str) -> None:
    code = _of(text)
    again = code_again(kept_code(code), frame.__code__)
    assert again.co_code == code.co_code
    assert again.co_stacksize >= code.co_stacksize


@pytest.mark.parametrize("text", CALLS)
def test_nothing_else_is_called(text: str) -> None:
    with pytest.raises(Unkept):
        kept_code(_of(text))


@pytest.mark.parametrize("text", WRITES)
def test_nothing_is_written_before_the_graph_has_run(text: str) -> None:
    names: dict[str, Any] = {}
    body = textwrap.indent(text, "    ")
    exec(f"def frame(args, kwargs):\n    a = 1\n{body}\n    (a,) = __compiled_fn_1(args)\n    return a", names)
    with pytest.raises(Unkept):
        kept_code(names["frame"].__code__)


def test_modules_that_dynamo_knows_by_address_get_names_that_hold_none() -> None:
    name = f"___module_collections_{id(collections)}_c0"
    code = _of(f"b = {name}.OrderedDict({{'k': a}})")
    with pytest.raises(Unkept, match="address"):
        kept_code(code)
    known = import_names({name: collections, f"_{id(pytest)}_c1": pytest, f"_{id(name)}_c1": name, "torch": pytest})
    assert known == {
        name: ("__import_collections", "collections"), f"_{id(pytest)}_c1": ("__import_pytest", "pytest"),
    }  # fmt: skip
    assert "__import_collections" in kept_code(with_names(code, known)).names
    assert imports_of(code.co_names, known) == {"__import_collections": "collections"}
