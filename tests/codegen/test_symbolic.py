"""Numbers that are known at run time: their C is what Python computes, their bounds hold, and what depends on the sizes is refused."""

import operator

import pytest

from dcir.codegen.symbolic import (
    Names,
    Symbolic,
    Undecided,
    c_text,
    in_c,
    larger,
    least,
    most,
    moves,
    sizes_from,
    smaller,
    usual,
    usually,
)
from dcir.ir.sizes import Bounds, size

NAMES = Names.of({"s0": Bounds(2, 512), "s1": Bounds(2, 9)}, {"s0": 128, "s1": 4})
M, N = NAMES.given(size("s0") * 4), NAMES.given(size("s1") + 1)

EXPRESSIONS = {
    "down": lambda m, n: m // 16,
    "up": lambda m, n: -(-m // 14),
    "tiles": lambda m, n: -(-m // 14) * 14,
    "rest": lambda m, n: m % 14,
    "even": lambda m, n: (m + 5) // 4,
    "shifted": lambda m, n: (m - 8 + 7) // 3,
    "both": lambda m, n: divmod(m, 64)[0] + divmod(m, 64)[1] * n,
    "square": lambda m, n: m * m // 7 - n,
    "by size": lambda m, n: m * n // n + m % n,
    "mixed": lambda m, n: 3 * m + m % 5 - 2 * n,
    "of number": lambda m, n: 1000 // n + 1000 % n,
}


def evaluated(number, s0, s1):
    """What a C compiler makes of it; its divisions have no negative operands."""
    text = NAMES.by_sizes(str(number)).replace("LL", "").replace("/", "//")
    return eval(text, {"size0": s0, "size1": s1})


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_text_is_what_python_computes(name):
    made = EXPRESSIONS[name](M, N)
    assert isinstance(made, Symbolic)
    for s0 in (2, 3, 5, 7, 77, 128, 511, 512):
        for s1 in (2, 3, 4, 8, 9):
            want = EXPRESSIONS[name](4 * s0, s1 + 1)
            assert evaluated(made, s0, s1) == want
            assert least(made) <= want <= most(made)
    assert usual(made) == EXPRESSIONS[name](512, 5)


def test_suffix_may_follow():
    """Texts put LL behind numbers."""
    assert eval(f"7 * {M}LL".replace("LL", "").replace("size0", "3")) == 84


def test_bounds_decide():
    assert M < 4096
    assert M >= 8
    assert not M > 2048
    assert M > 3
    assert M
    assert (M + 1 > M) is True
    assert M != 0
    assert M - M == 0


@pytest.mark.parametrize("question", [
    lambda: M < 64, lambda: M > 64, lambda: M <= 8 * N, lambda: bool(M % 4 + M % 3), lambda: range(M), lambda: [0] * M,
    lambda: max(M, 512), lambda: M // (N - 3), lambda: (M - 100) // 3,
])  # fmt: skip
def test_what_depends_on_sizes_is_refused(question):
    with pytest.raises(Undecided):
        question()


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul])
def test_constants_stay_constants(op):
    assert op(M - M, 5) == op(0, 5)
    assert type(M * 0) is int
    assert M % 4 == 0 and NAMES.given(size("s0")) == M // 4


def test_equal_is_equal_at_all_sizes():
    assert NAMES.given(size("s0") * 4) == M
    assert hash(NAMES.given(size("s0") * 4)) == hash(M)
    assert M != N
    assert M != 512


def test_names():
    assert c_text(in_c(size("s1") * 3 + 1)) == "3LL * size1 + 1LL"
    assert sizes_from(M, NAMES.sizes, "p") == "(4LL * p[0]) * 1"


def test_bounds_of_differences():
    """What is taken off is part of what is there."""
    names = Names.of({"s0": Bounds(2, 32), "s1": Bounds(4, 512)}, {"s0": 8, "s1": 128})
    a, b = (names.given(size(n)) for n in ("s0", "s1"))
    rows = a * b - a
    assert (rows.low, rows.high) == (6, 32 * 511) and rows > 5
    assert (b * b - b).low == 12 and (b - a * 2).low == 4 - 64
    assert (2 - a * b + a).high == -4


def test_smaller():
    names = Names.of({"s0": Bounds(2, 32)}, {"s0": 8})
    a = names.given(size("s0"))
    assert smaller(3, 5) == 3 and smaller(a, 1) == 1 and smaller(a, 32) == a
    some = smaller(a, 10)
    assert (least(some), most(some), usual(some)) == (2, 10, 8) and "?" in names.by_sizes(f"{some}")
    some = larger(a, 10)
    assert (least(some), most(some), usual(some)) == (10, 32, 10) and larger(a, 1) == a and larger(40, a) == 40
    assert most(smaller(40 - a, a + a)) == 38
    with pytest.raises(Undecided, match="smaller"):
        smaller(a - 20, 3)


def test_even_quotients():
    """What divides all terms leaves a polynomial, not a quotient that is computed."""
    names = Names.of({"s0": Bounds(2, 32), "s1": Bounds(2, 9)}, {"s0": 8, "s1": 3})
    a, b = (names.given(size(n)) for n in ("s0", "s1"))
    assert 24 * a // a == 24 and (6 * a * b + 4 * a) // (2 * a) == 3 * b + 2
    assert all("/" in names.by_sizes(str(n)) for n in ((3 * a * b) // (2 * a), (a + b) // a))


def test_usually():
    names = Names.of({"s0": Bounds(2, 32)}, {"s0": 8})
    a = names.given(size("s0"))
    assert usually((a, (3, a * a), Bounds(1, 2))) == (8, (3, 64), Bounds(1, 2)) and moves(3, a) and not moves(3)
