"""What people write for ``dynamic`` is read once, with its mistakes named."""

import pytest
from torch.export import Dim

from dcir.dynamic import DynamicDim, DynamicInputs, parse_dynamic
from dcir.errors import OptionError
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
     {"x": {0: (5, 2)}}, {"x": {0: 2 * Dim("b")}}, {"x": {True: "b"}}],
)  # fmt: skip
def test_refusals(value):
    with pytest.raises(OptionError, match="dynamic"):
        Options.make(dynamic=value)


def test_a_name_has_one_kind_of_bounds():
    once = {"x": {0: Dim("b", max=8)}, "y": {0: "b"}}
    assert dict(parse_dynamic(once).rows)["y"] == ((0, DynamicDim("b", None, 8)),)
    with pytest.raises(OptionError, match="two kinds of bounds"):
        parse_dynamic({"x": {0: Dim("b", max=8)}, "y": {0: Dim("b", max=9)}})


def test_options_with_it_are_hashable_and_lead_to_the_same_code():
    options = Options.make(dynamic={"x": {0: Dim("b", max=8)}})
    assert hash(options) == hash(Options.make(dynamic={"x": {0: Dim("b", max=8)}}))
    assert options.cache_key() == Options().cache_key()


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.0])
def test_shape_limit_is_a_number(limit):
    with pytest.raises(OptionError, match="shape_limit"):
        Options.make(shape_limit=limit)
