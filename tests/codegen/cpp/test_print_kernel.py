"""Kernels of one form take one run of DaCe, and their text is what a run of their own would give."""

import re

import pytest

from dcir.codegen.cpp import print_kernel as kernel_sdfg
from dcir.codegen.cpp.print_kernel import HEADER, kernel_text
from dcir.codegen.plan import KernelPlan, Phase


@pytest.fixture
def runs(monkeypatch):
    """The plans that DaCe was asked for."""
    seen = []
    plain = kernel_sdfg.kernel_sdfg
    kernel_sdfg._frame.cache_clear()
    monkeypatch.setattr(kernel_sdfg, "kernel_sdfg", lambda plan, *rest: (seen.append(plan), plain(plan, *rest))[1])
    return seen


def kernel(
    jobs=(48, 1), code=("o0[j] = a0[j];", "if (a1[0] > 2) *status = 1;\nscratch[2] = 1;"), helpers="static int g;"
):
    return KernelPlan("k", helpers, tuple(Phase(n, c) for n, c in zip(jobs, code, strict=True)))


def text_of(plan, name="kabc"):
    return kernel_text(plan, ("f32", "i64"), ("f32",), name)


def alone(plan, name="kabc"):
    """The text through DaCe with nothing blanked; DaCe indents code, so lines are compared without their margins."""
    from dace.codegen import codegen

    text = codegen.generate_code(kernel_sdfg.kernel_sdfg(plan, ("f32", "i64"), ("f32",)), validate=False)[0].clean_code
    body = text[text.index(f"void __program_{kernel_sdfg._NAME}_internal(") : text.index("DACE_EXPORTED")]
    return lines(
        body.replace("parallel for", "for")
        .replace(f"{kernel_sdfg._NAME}_internal", name)
        .replace(kernel_sdfg._NAME, name)
    )


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("jobs", [(48, 1), (0, 1), (7, 97531), (1 << 20, 9753100)])
def test_the_text_is_that_of_a_run_of_its_own(jobs):
    text = text_of(kernel(jobs))
    assert text.startswith(HEADER) and "static int g;" in text and "dcir" not in text.removeprefix(HEADER)
    assert lines(text[text.index("void __program_kabc(") :]) == alone(kernel(jobs))


def test_code_jobs_and_names_need_no_second_run(runs):
    text_of(kernel())
    other = text_of(kernel((5, 6), ("o0[j] = 97531 + a0[2 * j];", "scratch[a1[0]] = *status;"), "int h;"), "k975310")
    assert len(runs) == 1
    assert (
        "job < 5;" in other and "job < 6;" in other and "97531 + a0[2 * j]" in other and "__program_k975310(" in other
    )


def test_another_form_is_another_run(runs):
    text_of(kernel())
    text_of(kernel(code=("o0[j] = 1;", "if (a1[0] > 2) *status = 1;\nscratch[2] = 1;")))  # reads one operand less
    text_of(kernel(helpers=""))
    kernel_text(kernel(), ("f32", "i32"), ("f32",), "kabc")
    kernel_text(kernel((48,), ("o0[j] = a0[j];",)), ("f32", "i64"), ("f32",), "kabc")
    assert len(runs) == 5


def test_code_is_compiled_once():
    """DaCe's entry only calls a second function; both would be compiled."""
    text = text_of(kernel())
    assert re.findall(r"\w*__program_\w+", text) == ["__program_kabc"]


def test_operands_that_share_memory_share_a_parameter():
    """Parameters are said to lie apart, so the compiler may move a read behind a store through another one."""
    plan = kernel((8,), ("o0[j] = a0[j] + a2[j];\no1[j] = a1[j];",), "")
    types = ("f32",) * 3, ("f32",) * 2
    plain = kernel_text(plan, *types, "kabc")
    text = kernel_text(plan, *types, "kabc", (("a2", "a0"), ("o0", "a0")))
    apart, shared = ({n: t.count(n) for n in ("pa0000", "pa0001", "pa0002", "po0000", "po0001")} for t in (plain, text))
    assert set(apart.values()) == {2}
    assert shared == {"pa0000": 4, "pa0001": 2, "pa0002": 1, "po0000": 1, "po0001": 2}
