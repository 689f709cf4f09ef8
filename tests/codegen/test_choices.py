"""Decisions of emitters: the model's first, another where a choice names it, and never anything that was not offered."""

import json

import pytest

from dcir.codegen.choices import MODELS, Choice, decide, deciding


def ask(choice):
    with deciding(choice) as made:
        return decide("tile", [(14, 2), (6, 4)]), decide("copy", [1, 0]), decide("way", ["a", "b"]), made


def test_the_first_is_taken_without_a_choice():
    assert decide("copy", [1, 0]) == 1
    assert ask(MODELS)[:3] == ((14, 2), 1, "a")


def test_a_choice_selects():
    choice = Choice((("way", "b"), ("tile", (6, 4))))
    *taken, made = ask(choice)
    assert taken == [(6, 4), 1, "b"]
    assert made.effective() == Choice((("tile", (6, 4)), ("way", "b")))
    assert str(choice.having("copy", 0)) == "way b, tile 6x4, copy 0"


@pytest.mark.parametrize("value", [(7, 4), 6, "6x4", (6, 4, 1), (True, False)])
def test_what_is_not_offered_changes_nothing(value):
    *taken, made = ask(Choice((("tile", value), ("unknown", 1), ("copy", 1))))
    assert taken == [(14, 2), 1, "a"]
    assert made.effective() == MODELS and not made.effective()


def test_a_question_asked_again_has_a_number():
    with deciding(Choice((("copy.2", 0),))) as made:
        assert [decide("copy", [1, 0]) for _ in range(3)] == [1, 0, 1]
    assert list(made.offered) == ["copy", "copy.2", "copy.3"]


def test_a_kernel_inside_another_leaves_its_decisions_alone():
    with deciding(Choice((("copy", 0),))):
        with deciding(MODELS):
            assert decide("copy", [1, 0]) == 1
        assert decide("copy", [1, 0]) == 0


def test_it_is_plain_data():
    choice = Choice((("tile", (6, 4)), ("copy", 0), ("way", "b")))
    assert Choice.from_json(json.loads(json.dumps(choice.to_json()))) == choice


@pytest.mark.parametrize("data", [None, {}, "tile", [1], [["tile"]], [["tile", None]], [["tile", [1, "a"]]], [["copy", True]],
                                  [["copy", 1.5]], [[1, 2]], [["a", 1]] * 65])  # fmt: skip
def test_other_data_is_refused(data):
    with pytest.raises(ValueError):
        Choice.from_json(data)
