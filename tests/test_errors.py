"""The errors print three parts, survive pickling and can be caught by their standard kinds."""

import inspect
import pickle

import pytest

from dcir import errors
from dcir.errors import DcirError, Unsupported

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DcirError)]


def test_three_parts_are_aligned():
    error = errors.TypeMismatch(
        "conv2d wants 3 input channels, its input has 4",
        where="model.conv1           (resnet.py:153)",
        hint="Conv2d(4, 64, 7), or slice the input to 3 channels",
        details=[("weight", "f32[64, 3, 7, 7]      conv1.weight"), ("input", "f32[8, 4, 224, 224]   x")],
    )
    assert str(error) == (
        "conv2d wants 3 input channels, its input has 4\n"
        "  weight  f32[64, 3, 7, 7]      conv1.weight\n"
        "  input   f32[8, 4, 224, 224]   x\n"
        "  where   model.conv1           (resnet.py:153)\n"
        "  try     Conv2d(4, 64, 7), or slice the input to 3 channels"
    )


def test_message_alone_is_the_whole_text():
    assert str(DcirError("nothing to add")) == "nothing to add"


def test_a_value_of_several_lines_continues_under_its_first():
    error = DcirError("broken", details=[("graph", "%1 = add\n%2 = mul\n")])
    assert str(error) == "broken\n  graph  %1 = add\n         %2 = mul"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_documented_and_picklable(kind):
    assert kind.__doc__
    error = kind("message", where="here", hint="this", details=[("a", "b")])
    error.path = "kept.cpp"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.where, again.hint, again.details) == ("here", "this", (("a", "b"),))
    assert again.path == "kept.cpp"


def test_standard_kinds_catch_them():
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.IndexOutOfRange, IndexError)
    # IndexError and KeyError print their argument oddly; the text must stay the three parts.
    assert str(errors.IndexOutOfRange("index 9 of 4", where="x[i]")) == "index 9 of 4\n  where  x[i]"


def test_unsupported_reports_all_operators_together():
    error = Unsupported.collect([("aten.foo", "model.a"), ("aten.bar", "model.b"), ("aten.foo", "model.a")], hint="h")
    assert str(error) == ("2 operators are not supported\n  aten.foo  model.a\n  aten.bar  model.b\n  try       h")


def test_unsupported_of_one_operator_names_it_in_the_message():
    assert str(Unsupported.collect([("aten.foo", "model.a")])) == "aten.foo is not supported\n  where  model.a"


def test_unsupported_of_nothing_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError):
        Unsupported.collect([])
