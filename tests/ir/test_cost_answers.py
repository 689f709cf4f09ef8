"""Decisions of cost: taken once, repeated at other sizes, and let go where other things are asked."""

from dcir.ir.cost_answers import CostAnswers, pays, repeating, taking


def test_by_itself_the_sizes_decide() -> None:
    assert pays("large", True) and not pays("large", False)


def test_answers_are_repeated() -> None:
    answers = CostAnswers()
    with taking(answers):
        assert [pays("large", True), pays("few", False), pays("large", False)] == [True, False, False]
    for _ in range(2):
        with repeating(answers):
            assert [pays("large", False), pays("few", True), pays("large", True)] == [True, False, False]
    assert pays("large", False) is False


def test_other_questions_are_answered_by_the_sizes() -> None:
    """From the first one on that was not asked there, or beyond the last."""
    answers = CostAnswers()
    with taking(answers):
        pays("large", True)
        pays("few", False)
    with repeating(answers):
        assert pays("large", False)
        assert pays("far", True)
        assert pays("few", True)
    with repeating(answers):
        assert [pays("large", False), pays("few", True), pays("large", True)] == [True, False, True]
    assert answers.given == [("large", True), ("few", False)]
