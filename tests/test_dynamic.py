"""What people write for ``dynamic`` is read once, with its mistakes named."""

import pytest
from torch.export import Dim

from dcir.dynamic import DynamicDim, DynamicInputs, check_size, parse_dynamic, parse_related, related_text
from dcir.errors import InvalidInput, OptionError
from dcir.options import Options


@pytest.mark.parametrize("value", [None, True, False, DynamicInputs()])
def test_simple_values_stay(value):
    assert parse_dynamic(value) is value


@pytest.mark.parametrize(
    ("said", "dim"),
    [
        (None, DynamicDim()),
        ("batch", DynamicDim("batch")),
        ((2, None), DynamicDim(None, 2, None)),
        (Dim("b", min=2, max=64), DynamicDim("b", 2, 64)),
        (Dim("b"), DynamicDim("b")),
        (2 * Dim("b"), DynamicDim("b", factor=2)),
        (3 * Dim("b", min=2, max=64) - 1, DynamicDim("b", 2, 64, factor=3, summand=-1)),
        (Dim.AUTO, DynamicDim(firm=False)),
        (Dim.DYNAMIC, DynamicDim()),
    ],
)
def test_ways_to_write_a_dimension(said, dim):
    assert parse_dynamic({"x": {0: said}, 1: {-1: None}}) == DynamicInputs(
        (("x", ((0, dim),)), (1, ((-1, DynamicDim()),)))
    )


@pytest.mark.parametrize(
    "value",
    [1, "x", ["x"], {"x": 0}, {"x": {}}, {"x": {"0": "b"}}, {"x": {0: 7}}, {"x": {0: ""}}, {-1: {0: "b"}},
     {"x": {0: (5, 2)}}, {"x": {0: Dim.STATIC}}, {"x": {True: "b"}}],
)  # fmt: skip
def test_refusals(value):
    with pytest.raises(OptionError, match="dynamic"):
        Options.make(dynamic=value)


def test_a_name_has_one_kind_of_bounds():
    once = {"x": {0: Dim("b", max=8)}, "y": {0: "b"}}
    assert dict(parse_dynamic(once).rows)["y"] == ((0, DynamicDim("b", None, 8)),)
    with pytest.raises(OptionError, match="two kinds of bounds"):
        parse_dynamic({"x": {0: Dim("b", max=8)}, "y": {0: Dim("b", max=9)}})


def test_sizes_that_follow_from_others():
    b = Dim("b", max=8)
    rows = dict(parse_dynamic({"x": {0: b, 1: 2 * b + 1}, "y": {0: "b"}}).rows)
    follows = rows["x"][1][1]
    assert follows.label == "2*b + 1" and follows.root(7) == 3 and rows["y"] == ((0, DynamicDim("b", None, 8)),)
    assert [n for n in range(30) if follows.holds(n) and n > 2] == [3, 5, 7, 9, 11, 13, 15, 17]
    seen = {}
    check_size("x", 0, rows["x"][0][1], 3, seen, "")
    check_size("x", 1, follows, 7, seen, "")
    for size, words in ((8, r"outside 2\*b \+ 1 for b=\.\.8"), (9, r"'b' is 3 in x\[0\] and 4 in x\[1\]")):
        with pytest.raises(InvalidInput, match=words):
            check_size("x", 1, follows, size, seen, "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s", ("s", 1, 0)),
        ("2*s+1", ("s", 2, 1)),
        (" 3 * s_1 - 12 ", ("s_1", 3, -12)),
        ("s + 4", ("s", 1, 4)),
        ("0*s", None),
        ("s*2", None),
        ("2*s+t", None),
        ("", None),
        ("__import__('os')", None),
    ],
)
def test_texts_of_sizes_that_follow(text, found):
    assert parse_related(text) == found
    if found is not None:
        assert parse_related(related_text(*found)) == found


def test_options_with_it_are_hashable_and_lead_to_the_same_code():
    options = Options.make(dynamic={"x": {0: Dim("b", max=8)}})
    assert hash(options) == hash(Options.make(dynamic={"x": {0: Dim("b", max=8)}}))
    assert options.cache_key() == Options().cache_key()


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.0])
def test_shape_limit_is_a_number(limit):
    with pytest.raises(OptionError, match="shape_limit"):
        Options.make(shape_limit=limit)
