"""The text of loops and branches: pointers that change places and move, the bool that decides, and barriers where a team needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dcir.cache import Cache
from dcir.codegen.cpp.print_driver import driver_text
from dcir.codegen.cpp.print_steps import step_lines, table_name
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags
from dcir.codegen.steps import AnyStep, Branch, Call, Carried, Loop, Numbers, Place, Window, calls_in
from dcir.ir.sizes import size
from dcir.isa import host_isa

S = size("s0")


def call(name: str, *operands: Place | Numbers, parallel: bool = False, checked: bool = False) -> Call:
    return Call(name, 7, operands, parallel, checked)


def at(pointer: str, offset: int = 0) -> Place:
    return Place(-1, offset, pointer=pointer)


VALUE = Carried("i0", "o0", Place(2, 16), Place(4, 8), Place(0, 64), 24)
LOOP = Loop(
    7, "r0", (VALUE,), (Window("a0", Place(3, 0), 12), Window("a1", Place(3, 4)), Window("y0", Place(5, 36), -12)),
    (call("f", at("i0"), at("a0", 8), at("o0")), call("g", at("o0"), at("y0"))), 3,
)  # fmt: skip
WHILE = Loop(
    7, "r1", (VALUE,), (Window("c", Place(0, 128)),), (call("next", at("i0"), at("o0")),), None,
    (call("test", at("i0"), at("c")),), Place(0, 128),
)  # fmt: skip
BRANCH = Branch(7, "r2", (Window("a2", Place(3, 0)), Window("y2", Place(5, 0))), Place(2, 1),
                (call("then", at("a2"), at("y2")),), (call("other", at("y2")),))  # fmt: skip


def text(step: AnyStep, *, team: bool = False) -> str:
    return "\n".join(line.strip() for line in step_lines(step, team))


def in_order(found: str, parts: Sequence[str]) -> None:
    """Each part stands behind the one before it."""
    place = 0
    for part in parts:
        assert part in found[place:], f"{part!r} is not in what follows:\n{found[place:]}"
        place = found.index(part, place) + len(part)


def test_a_loop() -> None:
    """The pointers lie outside of it and move at its end; what does not move is left alone."""
    found = text(LOOP)
    in_order(found, [
        "{", "char* a0 = (char*)t[3] + 0ll;", "char* a1 = (char*)t[3] + 4ll;", "char* y0 = (char*)t[5] + 36ll;",
        "char *i0 = (char*)t[2] + 16ll;",
        "char *o0 = 3ll % 2 ? (char*)t[4] + 8ll : (char*)t[0] + 64ll;",
        "char *o0_ = 3ll % 2 ? (char*)t[0] + 64ll : (char*)t[4] + 8ll;",
        "for (long long r0t = 0; r0t < 3ll; r0t++) {",
        "__program_f(0, i0 + 0ll, a0 + 8ll, o0 + 0ll, &status);", "__program_g(0, o0 + 0ll, y0 + 0ll, &status);",
        "i0 = o0; o0 = o0_; o0_ = i0;", "a0 += 12ll;", "y0 += -12ll;", "}", "}",
    ])  # fmt: skip
    assert "a1 +=" not in found and found.count("{") == found.count("}")
    assert text(LOOP, team=True) == found  # the kernels have barriers of their own


def test_trips_and_steps_that_move() -> None:
    moving = replace(LOOP, trips=2 * S + 1, windows=(Window("a0", Place(3, 8 * S - 8), 4 * S),))  # type: ignore[arg-type]
    found = text(moving)
    in_order(found, [
        "char* a0 = (char*)t[3] + (8LL * size0 - 8LL);", "char *o0 = (2LL * size0 + 1LL) % 2 ?",
        "for (long long r0t = 0; r0t < (2LL * size0 + 1LL); r0t++) {", "a0 += (4LL * size0);",
    ])  # fmt: skip


@pytest.mark.parametrize("team", [False, True])
def test_a_while_loop(team: bool) -> None:
    """Its condition comes first, and a failure ends it; where the value lies at its end decides whether it is copied."""
    found = text(WHILE, team=team)
    in_order(found, [
        "char* c = (char*)t[0] + 128ll;", "char *i0 = (char*)t[2] + 16ll;", "char *o0 = 1 % 2 ? (char*)t[4] + 8ll :",
        "for (;;) {", "__program_test(0, i0 + 0ll, c + 0ll, &status);",
        "if (bad || !*(const volatile char*)((char*)t[0] + 128ll)) break;",
        "__program_next(0, i0 + 0ll, o0 + 0ll, &status);", "i0 = o0; o0 = o0_; o0_ = i0;", "}",
        *['_Pragma("omp single")'] * team, "{",
        "if (i0 != (char*)t[4] + 8ll) __builtin_memmove((char*)t[4] + 8ll, i0, 24ll);", "}",
    ])  # fmt: skip
    assert found.count("omp") == team


@pytest.mark.parametrize("team", [False, True])
def test_a_branch(team: bool) -> None:
    """A side may have nothing to do, so the team meets behind both."""
    found = text(BRANCH, team=team)
    in_order(found, [
        "char* a2 = (char*)t[3] + 0ll;", "char* y2 = (char*)t[5] + 0ll;",
        "if (*(const volatile char*)((char*)t[2] + 1ll)) {", "__program_then(0, a2 + 0ll, y2 + 0ll, &status);",
        "} else {", "__program_other(0, y2 + 0ll, &status);", "}", *['_Pragma("omp barrier")'] * team, "}",
    ])  # fmt: skip
    assert found.count("omp") == team
    assert found.count("{") == found.count("}")
    in_order(text(replace(BRANCH, then=(), otherwise=())), ["{\n} else {\n}"])


@pytest.mark.parametrize("team", [False, True])
def test_a_failure_is_noted_once(team: bool) -> None:
    checked = call("f", Place(2, 0), checked=True)
    found = text(replace(BRANCH, then=(replace(LOOP, steps=(checked,)),)), team=team)
    note = "if (status && !bad) bad = 8;"
    note = f'_Pragma("omp single") {{ {note} }}' if team else note
    in_order(found, ["__program_f(0, (char*)t[2] + 0ll, &status);", note])


def test_steps_within_others() -> None:
    """The driver declares what they call, once, and opens a team for the sake of any of them."""
    numbers = Numbers((4, -1))
    deep = call("deep", at("o0"), numbers, parallel=True)
    nest = replace(WHILE, steps=(replace(LOOP, name="r3", steps=(replace(BRANCH, then=(deep, deep)),)),))
    assert [c.kernel for c in calls_in([nest])] == ["test", "deep", "deep", "other"]
    found = driver_text([call("f", Place(2, 0)), nest])
    for name in ("f", "test", "deep", "other"):
        assert found.count(f'extern "C" void __program_{name}(') == 1
    in_order(
        found, [f"static const long long {table_name(numbers)}[] = {{4, -1}};", "#pragma omp parallel", "for (;;)"]
    )
    assert "#pragma omp parallel" not in driver_text([replace(nest, steps=(LOOP,))])


def test_it_compiles(toolchain: Toolchain, cache: Cache) -> None:
    steps: list[AnyStep] = [LOOP, WHILE, BRANCH, replace(BRANCH, then=(LOOP, WHILE), otherwise=())]
    for parallel in (False, True):
        last = replace(LOOP, steps=(*LOOP.steps, call("h", at("o0"), parallel=parallel, checked=True)))
        unit = Unit("", driver_text([*steps, last], profile=parallel))
        assert compile_objects([unit], toolchain, default_flags(host_isa()), cache)
