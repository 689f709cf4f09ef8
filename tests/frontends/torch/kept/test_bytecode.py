"""Bytecode from a file that does anything but call a graph is refused."""

from dataclasses import replace
from types import CodeType
from typing import Any

import pytest

from dcir.frontends.torch.kept.bytecode import code_again, kept_code
from dcir.frontends.torch.kept.descriptions import Unkept


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
